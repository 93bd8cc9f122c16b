// Captured passes and their inputs, on a GPU or on the emulated one.

#include "model/cuda/graph_cache.h"

#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "model/cuda/layers.h"
#include "model/cuda/pass_inputs.h"
#include "tests/cuda/device.h"
#include "tests/cuda/open_device.h"
#include "tests/cuda/random_batch.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::Check;
using base::cuda::DeviceArray;
using base::cuda::OpenDeviceTest;

TEST(PaddedSizeTest, HoldsTheSizeAndIsOneOfFew) {
  std::set<int32_t> sizes;
  for (int32_t count = 1; count <= kMaxPaddedRows; ++count) {
    const PassSize padded = PaddedSize({count, kMaxPaddedRows + 1 - count});
    EXPECT_GE(padded.rows, count);
    EXPECT_LE(padded.rows, kMaxPaddedRows);
    EXPECT_LT(padded.rows, 2 * count + (count > 64 ? 64 : 0));
    EXPECT_EQ(PaddedSize(padded), padded);
    EXPECT_EQ(padded.logit_rows, PaddedSize({kMaxPaddedRows + 1 - count, 1}).rows);
    sizes.insert(padded.rows);
  }
  EXPECT_EQ(sizes, (std::set<int32_t>{1, 2, 4, 8, 16, 32, 64, 128, 192, 256}));
}

class GraphCacheTest : public OpenDeviceTest {
 protected:
  // As a rank that is alone, or whose others failed too.
  absl::Status Run(GraphCache& graphs, const PassSize& size, uint64_t places,
                   absl::FunctionRef<absl::Status()> enqueue) {
    return graphs.Run(*device_, size, places, enqueue,
                      [](absl::Status captured) { return captured; });
  }
  // data[i] = the sum of `parts` rows of it, at places that a graph keeps.
  absl::Status EnqueueSum(DeviceArray<float>& parts, int32_t ranks, DeviceArray<float>& out) {
    ++enqueued_;
    return EnqueueSumParts(parts.data(), ranks, 4, out.data(), device_->stream());
  }
  void Write(DeviceArray<float>& array, const std::vector<float>& values) {
    Check(cudaMemcpy(array.data(), values.data(), values.size() * sizeof(float),
                     cudaMemcpyHostToDevice),
          "copy");
  }

  int enqueued_ = 0;
};

TEST_F(GraphCacheTest, ReplaysWhatItHasCapturedOnWhatIsThereThen) {
  GraphCache graphs;
  DeviceArray<float> parts(8), out(4);
  for (int pass = 0; pass < 5; ++pass) {
    const float x = static_cast<float>(pass);
    Write(parts, {x, 1, 2, 3, 10, 20, 30, 40});
    ASSERT_TRUE(Run(graphs, {1, 1}, 0, [&] { return EnqueueSum(parts, 2, out); }).ok());
    ASSERT_TRUE(device_->Finish().ok());
    EXPECT_EQ(out.Read(), (std::vector<float>{x + 10, 21, 32, 43})) << "pass " << pass;
  }
  EXPECT_EQ(enqueued_, 2) << "as it is, and for the capture";
  EXPECT_EQ(graphs.captured(), 1);
  EXPECT_EQ(graphs.replayed(), 3);
  EXPECT_TRUE(graphs.failure().ok());
}

TEST_F(GraphCacheTest, ACaptureThatFailedOnAnotherRankEndsSharedPasses) {
  GraphCache graphs(/*shared=*/true);
  DeviceArray<float> parts(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}), out(4);
  int asked = 0;
  for (int pass = 0; pass < 4; ++pass) {
    const absl::Status ran = graphs.Run(
        *device_, {1, 1}, 0, [&] { return EnqueueSum(parts, 2, out); },
        [&](const absl::Status& captured) {
          ++asked;
          EXPECT_TRUE(captured.ok()) << captured;
          return absl::AbortedError("another rank failed");
        });
    EXPECT_EQ(ran.code(), pass == 0 ? absl::StatusCode::kOk : absl::StatusCode::kAborted) << pass;
    ASSERT_TRUE(device_->Finish().ok());
  }
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(enqueued_, 2) << "as it is, and for the capture";
  EXPECT_EQ(graphs.captured() + graphs.replayed(), 0);
}

TEST_F(GraphCacheTest, SizesHaveGraphsOfTheirOwnUntilTheirMemoryMoves) {
  GraphCache graphs;
  DeviceArray<float> parts(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  DeviceArray<float> first(4), second(4);
  const auto run = [&](int32_t rows, uint64_t places, DeviceArray<float>& out) {
    const auto enqueue = [&] { return EnqueueSum(parts, rows, out); };
    ASSERT_TRUE(Run(graphs, {rows, 1}, places, enqueue).ok());
    ASSERT_TRUE(device_->Finish().ok());
    EXPECT_EQ(out.Read()[0], rows == 2 ? 6 : 15);
    Write(out, {0, 0, 0, 0});
  };
  for (int pass = 0; pass < 3; ++pass) {
    run(2, 0, first);
    run(3, 0, first);
  }
  EXPECT_EQ(graphs.captured(), 2);
  EXPECT_EQ(graphs.replayed(), 2);
  for (int pass = 0; pass < 3; ++pass) run(2, 1, second);
  EXPECT_EQ(graphs.captured(), 3);
  EXPECT_EQ(graphs.replayed(), 3);
}

TEST_F(GraphCacheTest, TheLeastUsedGoesFirst) {
  GraphCache graphs(/*shared=*/false, /*most=*/2);
  DeviceArray<float> parts(std::vector<float>(8, 1)), out(4);
  const auto run = [&](int32_t rows) {
    const auto enqueue = [&] { return EnqueueSum(parts, 2, out); };
    ASSERT_TRUE(Run(graphs, {rows, 1}, 0, enqueue).ok());
  };
  for (int32_t rows : {1, 1, 2, 2, 1, 4, 1}) run(rows);  // 4 takes the place of 2
  EXPECT_EQ(graphs.captured(), 2);
  EXPECT_EQ(graphs.replayed(), 2);
  run(2);
  EXPECT_EQ(graphs.captured(), 2) << "it has to run as it is first";
  ASSERT_TRUE(device_->Finish().ok());
}

TEST_F(GraphCacheTest, APassThatCannotBeCapturedRunsAsItIs) {
  GraphCache graphs;
  DeviceArray<float> parts(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}), out(4);
  // What allocates or waits cannot be captured.
  const auto waits = [&] {
    absl::Status status = EnqueueSum(parts, 2, out);
    status.Update(device_->Finish());
    return status;
  };
  for (int pass = 0; pass < 4; ++pass) {
    Write(out, {0, 0, 0, 0});
    ASSERT_TRUE(Run(graphs, {1, 1}, 0, waits).ok()) << "pass " << pass;
    EXPECT_EQ(out.Read(), (std::vector<float>{6, 8, 10, 12}));
  }
  EXPECT_FALSE(graphs.failure().ok());
  EXPECT_EQ(graphs.captured(), 0);
  EXPECT_EQ(enqueued_, 5) << "once in vain";
}

// `view` reads from `slots`, a copy of the plan's lists, what `expected` reads from the plan's.
void ExpectSameSlots(const AttentionPlan& plan, const RowView& expected,
                     const std::vector<int32_t>& slots, const RowView& view) {
  ASSERT_EQ(view.run_count, expected.run_count);
  ASSERT_EQ(view.extra_count, expected.extra_count);
  for (int32_t i = 0; i < view.run_count; ++i) {
    ASSERT_EQ(slots[view.run_first + i], plan.slots[expected.run_first + i]);
  }
  for (int32_t i = 0; i < view.extra_count; ++i) {
    ASSERT_EQ(slots[view.extra_first + i], plan.extra[expected.extra_first + i]);
  }
}

// What a kernel would read, of padded inputs and of the batch's own.
TEST_F(GraphCacheTest, PaddedInputsHoldTheBatch) {
  constexpr int32_t kHalf = 3;
  std::mt19937 random(1);
  PaddedInputs inputs;
  std::map<PassSize, PassInputs> places;
  uint64_t moves = 0;
  for (int round = 0; round < 30; ++round) {
    Batch batch = RandomBatch(random, {.sequences = 1 + round % 7,
                                       .blocks = 512,
                                       .max_kv = 90,
                                       .max_prefill = 20,
                                       .max_tree = 12});
    for (int32_t row = 0; row < batch.rows(); ++row) {
      batch.tokens[row] = static_cast<int32_t>(random() % 100);
      if (row == 0 || random() % 2 == 0) batch.logit_rows.push_back(row);
    }
    std::vector<AttentionPlan> plans(2);  // of layers without limits, and of those with a window
    const AttentionPlan& plan = plans[0];
    ASSERT_TRUE(MakeAttentionPlan(batch, {100, 512, 16}, plans.data()).ok());
    LimitPlan(batch, {.window = 5}, plan, &plans[1]);
    std::vector<float> cosines(batch.rows() * kHalf), sines(batch.rows() * kHalf);
    for (float& x : cosines) x = static_cast<float>(random() % 1000);
    for (float& x : sines) x = static_cast<float>(random() % 1000);
    const PassSize size = PaddedSize({batch.rows(), static_cast<int32_t>(batch.logit_rows.size())});
    const absl::StatusOr<PassInputs> copied =
        inputs.Copy(*device_, {&batch, &plans, &cosines, &sines, kHalf}, size);
    ASSERT_TRUE(copied.ok()) << copied.status();
    ASSERT_TRUE(device_->Finish().ok());
    if (inputs.moves() != moves) places.clear();
    moves = inputs.moves();
    const auto [known, added] = places.emplace(size, *copied);
    EXPECT_TRUE(known->second.tokens == copied->tokens && known->second.slots == copied->slots &&
                known->second.views == copied->views && known->second.sines == copied->sines);

    const auto read = [&]<typename T>(const T* from, size_t count) {
      std::vector<T> values(count);
      Check(cudaMemcpy(values.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost), "copy");
      return values;
    };
    const auto tokens = read(copied->tokens, size.rows);
    const auto views = read(copied->views, plans.size() * size.rows);
    const auto wanted = read(copied->logit_rows, size.logit_rows);
    const auto there = read(copied->cosines, size.rows * kHalf);
    const auto slots = read(copied->slots, plan.slots.size() + plan.extra.size());
    EXPECT_EQ(copied->slots, copied->extra);
    for (int32_t row = 0; row < size.rows; ++row) {
      const int32_t of = row < batch.rows() ? row : 0;
      EXPECT_EQ(tokens[row], batch.tokens[of]);
      EXPECT_EQ(there[row * kHalf + 1], cosines[of * kHalf + 1]);
      for (size_t i = 0; i < plans.size(); ++i) {
        const RowView &view = views[i * size.rows + row], &expected = plans[i].rows[of];
        EXPECT_EQ(view.write_slot, row == of ? expected.write_slot : -1);
        ExpectSameSlots(plan, expected, slots, view);
      }
    }
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(wanted[i], batch.logit_rows[i < batch.logit_rows.size() ? i : 0]);
    }
  }
  EXPECT_LT(moves, 6u);
}

}  // namespace
}  // namespace specfabric::model::cuda
