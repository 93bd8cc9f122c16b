#include "model/parallel/communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "model/cpu/thread_pool.h"

namespace specfabric::model {
namespace {

using sampling::ScoredToken;

void RunGroup(int size, const std::function<void(Communicator&)>& body) {
  const auto communicators = MakeThreadCommunicators(size);
  std::vector<std::thread> threads;
  for (const auto& communicator : communicators) {
    threads.emplace_back([&] { body(*communicator); });
  }
  for (std::thread& thread : threads) thread.join();
}

float Value(int round, int rank, size_t i) {
  std::mt19937 random(static_cast<uint32_t>(round * 1000003 + rank * 1009 + i));
  return std::normal_distribution<float>()(random);
}

// Neighbours first, then pairs of pairs, an odd one out waiting for the next level.
float TreeSum(std::vector<float> terms) {
  while (terms.size() > 1) {
    std::vector<float> sums;
    for (size_t i = 0; i + 1 < terms.size(); i += 2) sums.push_back(terms[i] + terms[i + 1]);
    if (terms.size() % 2 == 1) sums.push_back(terms.back());
    terms = sums;
  }
  return terms[0];
}

class CommunicatorTest : public ::testing::TestWithParam<int> {};

TEST_P(CommunicatorTest, RanksAreInOrder) {
  const int size = GetParam();
  const auto communicators = MakeThreadCommunicators(size);
  ASSERT_EQ(communicators.size(), static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_EQ(communicators[rank]->rank(), rank);
    EXPECT_EQ(communicators[rank]->size(), size);
  }
}

TEST_P(CommunicatorTest, SumHasTheBitsOfTheTreeOnEveryRank) {
  const int size = GetParam();
  RunGroup(size, [&](Communicator& communicator) {
    int round = 0;
    for (size_t count : {0, 1, 15, 16, 17, 100, 1000, 3}) {
      std::vector<float> data(count);
      for (size_t i = 0; i < count; ++i) data[i] = Value(round, communicator.rank(), i);
      communicator.AllReduceSum(absl::MakeSpan(data));
      for (size_t i = 0; i < count; ++i) {
        std::vector<float> terms;
        for (int rank = 0; rank < size; ++rank) terms.push_back(Value(round, rank, i));
        ASSERT_EQ(data[i], TreeSum(terms)) << "rank " << communicator.rank() << " of " << size;
      }
      ++round;
    }
  });
}

TEST_P(CommunicatorTest, BestIsByScoreThenLowestId) {
  const int size = GetParam();
  RunGroup(size, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    std::vector<ScoredToken> pairs = {
        {.token = 10 + rank, .score = static_cast<float>(rank)},     // the last rank's wins
        {.token = 50 - rank, .score = 1.0f},                         // a tie: the lowest id wins
        {.token = rank == 0 ? 3 : base::kNoToken, .score = -1e30f},  // ranks without a candidate
        {.token = base::kNoToken},                                   // nobody has one
    };
    communicator.AllReduceBest(absl::MakeSpan(pairs));
    EXPECT_EQ(pairs[0].token, 10 + size - 1);
    EXPECT_EQ(pairs[1].token, 50 - (size - 1));
    EXPECT_EQ(pairs[2].token, 3);
    EXPECT_EQ(pairs[3].token, base::kNoToken);
  });
}

TEST_P(CommunicatorTest, RowsGoWholeToTheirOwners) {
  const int size = GetParam();
  RunGroup(size, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    const std::vector<int> owners = {0, size - 1, 0, size / 2, size - 1};
    const int width = rank + 2;  // ragged shards
    std::vector<float> shard;
    for (size_t row = 0; row < owners.size(); ++row) {
      for (int i = 0; i < width; ++i) shard.push_back(row * 10000.0f + rank * 100.0f + i);
    }
    std::vector<float> want;
    for (size_t row = 0; row < owners.size(); ++row) {
      if (owners[row] != rank) continue;
      for (int r = 0; r < size; ++r) {
        for (int i = 0; i < r + 2; ++i) want.push_back(row * 10000.0f + r * 100.0f + i);
      }
    }
    std::vector<float> got = {-1.0f};
    communicator.GatherRows(shard, width, owners, &got);
    EXPECT_EQ(got, want) << "rank " << rank;
  });
}

TEST_P(CommunicatorTest, ShiftHandsOnAndBroadcastHandsOut) {
  const int size = GetParam();
  RunGroup(size, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    for (int distance = 1; distance < size; ++distance) {
      // Of other lengths on other ranks, but for the last ranks' empty.
      const std::vector<float> out(rank + distance < size ? rank + 1 : 0, 100.0f * rank);
      std::vector<float> in(rank >= distance ? rank - distance + 1 : 0);
      communicator.Shift(distance, out, absl::MakeSpan(in));
      for (float value : in) ASSERT_EQ(value, 100.0f * (rank - distance)) << distance;
    }
    for (int root = 0; root < size; ++root) {
      std::vector<float> data(7, static_cast<float>(rank));
      communicator.Broadcast(root, absl::MakeSpan(data));
      ASSERT_EQ(data, std::vector<float>(7, static_cast<float>(root)));
      communicator.Broadcast(root, {});
    }
  });
}

TEST_P(CommunicatorTest, PartsMeetByThemselves) {
  const int size = GetParam();
  RunGroup(size, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    for (int parts = 1; parts <= size; ++parts) {
      if (size % parts != 0) continue;
      const int width = size / parts, first = rank / width * width;
      const auto part = communicator.Split(parts);
      ASSERT_EQ(part->size(), width);
      ASSERT_EQ(part->rank(), rank - first);
      // Parts in other numbers of collectives: nobody waits for another part.
      for (int round = 0; round <= first; ++round) {
        float sum = static_cast<float>(rank);
        part->AllReduceSum(absl::MakeSpan(&sum, 1));
        ASSERT_EQ(sum, static_cast<float>(first * width + width * (width - 1) / 2));
      }
    }
  });
}

// Many short collectives in a row: a rank that runs ahead must not disturb one that lags.
TEST_P(CommunicatorTest, SurvivesManyRounds) {
  const int size = GetParam();
  RunGroup(size, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    std::vector<float> data(33), rows;
    for (int round = 0; round < 500; ++round) {
      for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(round + rank);
      if (round % 7 == rank) std::this_thread::yield();
      communicator.AllReduceSum(absl::MakeSpan(data));
      const float want = static_cast<float>(size * round + size * (size - 1) / 2);
      for (float value : data) ASSERT_EQ(value, want);

      ScoredToken pair{.token = rank, .score = static_cast<float>((rank + round) % size)};
      communicator.AllReduceBest(absl::MakeSpan(&pair, 1));
      ASSERT_EQ(pair.score, static_cast<float>(size - 1));

      const float mine = static_cast<float>(rank);
      communicator.GatherRows(absl::MakeSpan(&mine, 1), 1, {round % size}, &rows);
      ASSERT_EQ(rows.size(), round % size == rank ? static_cast<size_t>(size) : 0u);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, CommunicatorTest, ::testing::Values(1, 2, 3, 4, 8));

TEST(ThreadPoolTest, EveryItemOnceAndWorkersApart) {
  for (int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int items : {0, 1, 2, 3, 17, 1000}) {
      for (int round = 0; round < 50; ++round) {
        std::vector<int> done(items, 0);
        std::vector<std::atomic<int>> busy(threads);
        pool.Run(items, [&](int worker, int begin, int end) {
          ASSERT_EQ(busy[worker].fetch_add(1), 0) << "two calls share a worker";
          for (int i = begin; i < end; ++i) ++done[i];
          busy[worker].fetch_sub(1);
        });
        ASSERT_EQ(done, std::vector<int>(items, 1));
      }
    }
  }
}

}  // namespace
}  // namespace specfabric::model
