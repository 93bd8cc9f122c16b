// The progress thread's mailbox: order, wake-ups, and that nothing is lost.

#include "transport/mailbox.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

template <typename Item>
std::vector<Item> Take(Mailbox<Item>& mailbox) {
  std::vector<Item> items;
  mailbox.TakeAll(items);
  return items;
}

TEST(MailboxTest, KeepsTheOrder) {
  Mailbox<int> mailbox([] {});
  EXPECT_THAT(Take(mailbox), IsEmpty());
  for (int i = 1; i <= 4; ++i) mailbox.Push(i);
  EXPECT_THAT(Take(mailbox), ElementsAre(1, 2, 3, 4));
  mailbox.Push(5);
  EXPECT_THAT(Take(mailbox), ElementsAre(5));
  EXPECT_THAT(Take(mailbox), IsEmpty());
}

TEST(MailboxTest, WakesOnlyASleepingConsumerAndOnce) {
  int wakes = 0;
  Mailbox<int> mailbox([&wakes] { ++wakes; });
  mailbox.Push(1);
  EXPECT_EQ(wakes, 0);
  EXPECT_FALSE(mailbox.PrepareSleep()) << "there is work";
  EXPECT_THAT(Take(mailbox), ElementsAre(1));
  EXPECT_TRUE(mailbox.PrepareSleep());
  mailbox.Push(2);
  EXPECT_EQ(wakes, 1);
  mailbox.Push(3);
  EXPECT_EQ(wakes, 1);
  EXPECT_FALSE(mailbox.PrepareSleep());
  EXPECT_THAT(Take(mailbox), ElementsAre(2, 3));
  // The sleep ended for another reason.
  EXPECT_TRUE(mailbox.PrepareSleep());
  EXPECT_THAT(Take(mailbox), IsEmpty());
  mailbox.Push(4);
  EXPECT_EQ(wakes, 1);
  EXPECT_THAT(Take(mailbox), ElementsAre(4));
}

TEST(MailboxTest, DestroysUnreadItems) {
  const auto item = std::make_shared<int>(1);
  {
    Mailbox<std::shared_ptr<int>> mailbox([] {});
    mailbox.Push(item);
    mailbox.Push(item);
    EXPECT_EQ(item.use_count(), 3);
  }
  EXPECT_EQ(item.use_count(), 1);
  {
    Mailbox<std::shared_ptr<int>> asleep([] {});
    EXPECT_TRUE(asleep.PrepareSleep());
  }
}

TEST(MailboxTest, AcceptsMoveOnlyItems) {
  Mailbox<std::unique_ptr<int>> mailbox([] {});
  mailbox.Push(std::make_unique<int>(9));
  EXPECT_EQ(*Take(mailbox)[0], 9);
}

// A consumer that sleeps until it is woken, with no time-out to hide a missed wake-up.
template <typename Item>
class SleepyConsumer {
 public:
  Mailbox<Item>& mailbox() { return mailbox_; }
  int wakes() const { return wakes_; }
  int sleeps() const { return sleeps_; }

  // False: a wake-up did not come.
  bool TakeMany(size_t count, std::vector<Item>& taken) {
    std::vector<Item> items;
    while (taken.size() < count) {
      mailbox_.TakeAll(items);
      taken.insert(taken.end(), items.begin(), items.end());
      const bool idle = items.empty();
      items.clear();
      if (idle && mailbox_.PrepareSleep() && !Sleep()) return false;
    }
    return true;
  }

 private:
  bool Sleep() {
    ++sleeps_;
    std::unique_lock lock(mutex_);
    const bool woken = changed_.wait_for(lock, std::chrono::seconds(30), [&] { return awake_; });
    awake_ = false;
    return woken;
  }
  void Wake() {
    ++wakes_;
    std::lock_guard lock(mutex_);
    awake_ = true;
    changed_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool awake_ = false;
  std::atomic<int> wakes_{0};
  std::atomic<int> sleeps_{0};
  Mailbox<Item> mailbox_{[this] { Wake(); }};
};

TEST(MailboxTest, NothingIsLostAndEachProducersOrderIsKept) {
  constexpr int kProducers = 4, kItems = 30'000;
  SleepyConsumer<std::pair<int, int>> consumer;
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&consumer, p] {
      while (consumer.sleeps() == 0) std::this_thread::yield();
      for (int i = 0; i < kItems; ++i) {
        consumer.mailbox().Push({p, i});
        // So that the consumer sometimes finds no item and sleeps.
        if (i % 1000 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
  }
  std::vector<std::pair<int, int>> taken;
  const bool all = consumer.TakeMany(kProducers * kItems, taken);
  for (std::thread& producer : producers) producer.join();
  ASSERT_TRUE(all) << "asleep with " << taken.size() << " items taken";
  std::vector<int> next(kProducers, 0);
  for (const auto& [producer, item] : taken) ASSERT_EQ(item, next[producer]++);
  EXPECT_THAT(Take(consumer.mailbox()), IsEmpty());
  EXPECT_EQ(consumer.wakes(), consumer.sleeps());
}

// An item pushed after another push has returned comes after that push's item.
TEST(MailboxTest, KeepsCausalOrderAcrossProducers) {
  constexpr int kProducers = 4, kItems = 10'000;
  SleepyConsumer<int> consumer;
  std::mutex mutex;
  int next = 0;
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&] {
      for (int i = 0; i < kItems; ++i) {
        std::lock_guard lock(mutex);
        consumer.mailbox().Push(next++);
      }
    });
  }
  std::vector<int> taken;
  const bool all = consumer.TakeMany(kProducers * kItems, taken);
  for (std::thread& producer : producers) producer.join();
  ASSERT_TRUE(all) << "asleep with " << taken.size() << " items taken";
  std::vector<int> expected(kProducers * kItems);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_TRUE(taken == expected);
}

}  // namespace
}  // namespace specfabric::transport
