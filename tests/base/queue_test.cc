#include "base/queue.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::base {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(BoundedQueueTest, HandsOutInOrderAndRefusesWhenFull) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.Push(1));
  EXPECT_TRUE(queue.Push(2));
  EXPECT_FALSE(queue.Push(3));
  EXPECT_THAT(queue.PopAll(0), ElementsAre(1, 2));
  EXPECT_TRUE(queue.Push(4));
  EXPECT_THAT(queue.PopAll(0), ElementsAre(4));
}

TEST(BoundedQueueTest, AFullQueueTakesWhatMustNotBeLostInItsPlace) {
  BoundedQueue<int> queue(2);
  queue.PushAlways(1);
  EXPECT_TRUE(queue.Push(2));
  EXPECT_FALSE(queue.Push(3));
  queue.PushAlways(4);
  EXPECT_FALSE(queue.Push(5)) << "it is fuller than it may be";
  queue.PushAlways(6);
  EXPECT_THAT(queue.PopAll(kForever), ElementsAre(1, 2, 4, 6));
  EXPECT_TRUE(queue.Push(7));
  queue.Close();
  queue.PushAlways(8);
  EXPECT_THAT(queue.PopAll(0), ElementsAre(7));
}

TEST(BoundedQueueTest, ADeadlineInThePastPolls) {
  BoundedQueue<int> queue(2);
  EXPECT_THAT(queue.PopAll(0), IsEmpty());
}

TEST(BoundedQueueTest, WaitsNoLongerThanTheDeadline) {
  BoundedQueue<int> queue(2);
  const Nanos deadline = Now() + 2 * kMillisecond;
  EXPECT_THAT(queue.PopAll(deadline), IsEmpty());
  EXPECT_GE(Now(), deadline);
}

TEST(BoundedQueueTest, CloseRefusesPushesButKeepsWhatIsQueued) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.Push(1));
  queue.Close();
  EXPECT_TRUE(queue.closed());
  EXPECT_FALSE(queue.Push(2));
  EXPECT_THAT(queue.PopAll(kForever), ElementsAre(1));
  EXPECT_THAT(queue.PopAll(kForever), IsEmpty());
}

TEST(BoundedQueueTest, WakeReturnsOnce) {
  BoundedQueue<int> queue(2);
  queue.Wake();
  EXPECT_THAT(queue.PopAll(kForever), IsEmpty());
  EXPECT_TRUE(queue.Push(1));
  EXPECT_THAT(queue.PopAll(kForever), ElementsAre(1));
}

TEST(BoundedQueueTest, AWaitingConsumerIsWokenByPushWakeAndClose) {
  BoundedQueue<int> queue(2);
  std::thread producer([&] { EXPECT_TRUE(queue.Push(1)); });
  EXPECT_THAT(queue.PopAll(kForever), ElementsAre(1));
  producer.join();
  std::thread waker([&] { queue.Wake(); });
  EXPECT_THAT(queue.PopAll(kForever), IsEmpty());
  waker.join();
  std::thread closer([&] { queue.Close(); });
  EXPECT_THAT(queue.PopAll(kForever), IsEmpty());
  closer.join();
}

TEST(BoundedQueueTest, HoldsTypesThatOnlyMove) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.Push(std::make_unique<int>(3)));
  EXPECT_EQ(*queue.PopAll(0).at(0), 3);
}

TEST(BoundedQueueTest, LosesNothingAcceptedFromManyProducersAndKeepsEachOnesOrder) {
  constexpr int kProducers = 4, kItems = 5'000;
  BoundedQueue<std::pair<int, int>> queue(64);
  std::atomic<int> running = kProducers;
  std::vector<std::thread> producers;
  for (int producer = 0; producer < kProducers; ++producer) {
    producers.emplace_back([&, producer] {
      for (int i = 0; i < kItems; ++i) {
        while (!queue.Push({producer, i})) std::this_thread::yield();
      }
      if (--running == 0) queue.Close();
    });
  }
  std::vector<int> next(kProducers, 0);
  while (true) {
    const bool closed = queue.closed();
    for (auto [producer, i] : queue.PopAll(kForever)) {
      ASSERT_EQ(next[producer], i);
      ++next[producer];
    }
    if (closed) break;
  }
  for (auto& thread : producers) thread.join();
  EXPECT_THAT(next, testing::Each(kItems));
}

}  // namespace
}  // namespace specfabric::base
