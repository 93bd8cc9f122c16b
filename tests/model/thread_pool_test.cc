#include "model/cpu/thread_pool.h"

#include <atomic>
#include <vector>

#include "gtest/gtest.h"

namespace specfabric::model {
namespace {

// More threads than most machines have cores: some of them sleep through whole rounds, and wake
// in later ones, whose items, sizes and bodies are others.
TEST(ThreadPoolTest, EveryRoundDoesEachOfItsItemsOnce) {
  ThreadPool pool(7);
  for (int round = 0; round < 3000; ++round) {
    const int items = round % 61;
    std::vector<int> done(items);  // a race where two threads do one item
    pool.Run(items, [&](int worker, int begin, int end) {
      ASSERT_GE(worker, 0);
      ASSERT_LT(worker, pool.threads());
      for (int item = begin; item < end; ++item) done[item] += 1 + round;
    });
    for (const int count : done) ASSERT_EQ(count, 1 + round) << "of round " << round;
  }
}

TEST(ThreadPoolTest, NoTwoCallsShareAWorker) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> calls(pool.threads());
  for (int round = 0; round < 300; ++round) {
    pool.Run(64, [&](int worker, int begin, int end) {
      EXPECT_EQ(calls[worker].fetch_add(1), 0);
      EXPECT_LT(begin, end);
      calls[worker].fetch_sub(1);
    });
  }
}

TEST(ThreadPoolTest, OneThreadDoesAllItself) {
  ThreadPool pool(1);
  int calls = 0;
  pool.Run(100, [&](int worker, int begin, int end) {
    ++calls;
    EXPECT_EQ(worker, 0);
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 100);
  });
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace specfabric::model
