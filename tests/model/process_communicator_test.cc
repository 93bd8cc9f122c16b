// Groups over processes, played by threads that exchange through memory, against groups of threads:
// every bit must be the same.

#include "model/parallel/process_communicator.h"

#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "tests/model/played_processes.h"

namespace specfabric::model {
namespace {

using sampling::ScoredToken;
void RunAll(const std::vector<std::unique_ptr<Communicator>>& communicators,
            const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  for (const auto& communicator : communicators) {
    threads.emplace_back([&] { body(*communicator); });
  }
  for (std::thread& thread : threads) thread.join();
}

// What every rank has after a fixed course of random collectives.
std::vector<std::vector<uint32_t>> Course(
    const std::vector<std::unique_ptr<Communicator>>& communicators) {
  const int size = static_cast<int>(communicators.size());
  std::vector<std::vector<uint32_t>> seen(size);
  RunAll(communicators, [&](Communicator& c) {
    std::mt19937 random(c.rank());
    std::normal_distribution<float> normal;
    std::vector<float> rows;
    const auto keep = [&](float value) {
      seen[c.rank()].push_back(std::bit_cast<uint32_t>(value));
    };
    for (int round = 0; round < 60; ++round) {
      std::vector<float> data(round * 7 % 50);
      for (float& value : data) value = normal(random);
      c.AllReduceSum(absl::MakeSpan(data));
      for (float value : data) keep(value);

      std::vector<ScoredToken> pairs(round % 5);
      for (ScoredToken& pair : pairs) {
        pair = {static_cast<int32_t>(random() % 9) - 1, static_cast<float>(random() % 3)};
      }
      c.AllReduceBest(absl::MakeSpan(pairs));
      for (const ScoredToken& pair : pairs) {
        keep(static_cast<float>(pair.token));
        keep(pair.score);
      }

      const std::vector<int> owners = {round % size, 0, size - 1, round % size};
      const int width = 3 + c.rank() % 2;
      std::vector<float> shard(owners.size() * width);
      for (float& value : shard) value = normal(random);
      c.GatherRows(shard, width, owners, &rows);
      for (float value : rows) keep(value);

      const int distance = 1 + round % size;
      std::vector<float> out(c.rank() + distance < size ? c.rank() + 2 : 0, normal(random));
      std::vector<float> in(c.rank() >= distance ? c.rank() - distance + 2 : 0);
      c.Shift(distance, out, absl::MakeSpan(in));
      for (float value : in) keep(value);
      c.Broadcast(round % size, absl::MakeSpan(data));
      for (float value : data) keep(value);
      c.Barrier();
    }
  });
  return seen;
}

class ProcessCommunicatorTest : public ::testing::TestWithParam<std::vector<int>> {};

TEST_P(ProcessCommunicatorTest, RanksAreInOrder) {
  const PlayedProcesses group(GetParam());
  for (size_t rank = 0; rank < group.communicators.size(); ++rank) {
    EXPECT_EQ(group.communicators[rank]->rank(), static_cast<int>(rank));
    EXPECT_EQ(group.communicators[rank]->size(), static_cast<int>(group.communicators.size()));
  }
}

TEST_P(ProcessCommunicatorTest, EveryBitIsThatOfThreads) {
  const PlayedProcesses group(GetParam());
  const auto threads = MakeThreadCommunicators(static_cast<int>(group.communicators.size()));
  EXPECT_EQ(Course(group.communicators), Course(threads));
}

TEST_P(ProcessCommunicatorTest, PartsAreOfOneProcess) {
  const PlayedProcesses group(GetParam());
  const int size = static_cast<int>(group.communicators.size());
  RunAll(group.communicators, [&](Communicator& c) {
    for (int parts = 1; parts <= size; ++parts) {
      if (size % parts != 0) continue;
      const int width = size / parts;
      bool whole = true;  // in every process
      for (int count : GetParam()) whole &= count % width == 0;
      const auto part = c.Split(parts);
      if (!whole) continue;  // Each process tells for itself; a part that is whole there is made.
      ASSERT_NE(part, nullptr) << parts;
      ASSERT_EQ(part->size(), width);
      float sum = static_cast<float>(c.rank());
      part->AllReduceSum(absl::MakeSpan(&sum, 1));
      const int first = c.rank() / width * width;
      ASSERT_EQ(sum, static_cast<float>(first * width + width * (width - 1) / 2));
    }
  });
}

TEST(SplitTest, APartOfSeveralProcessesIsRefused) {
  const PlayedProcesses group({1, 1, 2});
  RunAll(group.communicators, [&](Communicator& c) {
    EXPECT_EQ(c.Split(2) == nullptr, c.rank() < 2) << c.rank();
    EXPECT_EQ(c.Split(1), nullptr);
    EXPECT_NE(c.Split(4), nullptr);
  });
}

TEST_P(ProcessCommunicatorTest, AnEndedGroupLetsEverybodyGo) {
  PlayedProcesses group(GetParam());
  const int size = static_cast<int>(group.communicators.size());
  RunAll(group.communicators, [&](Communicator& c) {
    // The last process never comes to the sum.
    if (c.rank() == size - 1) return group.point.End();
    if (c.rank() >= size - GetParam().back()) return;
    float value = 1.0f;
    c.AllReduceSum(absl::MakeSpan(&value, 1));
    c.Barrier();
    std::vector<float> rows;
    c.GatherRows({&value, 1}, 1, {c.rank()}, &rows);
    EXPECT_GE(rows.size(), static_cast<size_t>(size)) << "fewer than a caller reads";
  });
}

INSTANTIATE_TEST_SUITE_P(Processes, ProcessCommunicatorTest,
                         ::testing::Values(std::vector{1, 1}, std::vector{2, 2}, std::vector{1, 3},
                                           std::vector{1, 1, 1}, std::vector{2, 1, 1}));

TEST(DivergenceTest, DifferentCollectivesEndTheGroup) {
  PlayedProcesses group({1, 1});
  RunAll(group.communicators, [&](Communicator& c) {
    std::vector<float> data(3 + c.rank(), 1.0f);
    c.AllReduceSum(absl::MakeSpan(data));
    EXPECT_EQ(data[0], 1.0f);
  });
  EXPECT_TRUE(group.point.ended());
}

TEST(DivergenceTest, AShiftOfOtherSizesEndsTheGroup) {
  PlayedProcesses group({1, 1});
  RunAll(group.communicators, [&](Communicator& c) {
    const std::vector<float> out(c.rank() == 0 ? 3 : 0);
    std::vector<float> in(c.rank() == 0 ? 0 : 2, 5.0f);
    c.Shift(1, out, absl::MakeSpan(in));
    for (float value : in) EXPECT_EQ(value, 5.0f);
  });
  EXPECT_TRUE(group.point.ended());
}

}  // namespace
}  // namespace specfabric::model
