// The kernels of product.h: against the sum written down in its order, and that a row has the same
// bits whatever kernel makes it and whatever rows are beside it.

#include "model/cuda/product.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/bfloat16.h"
#include "tests/cuda/device.h"
#include "tests/cuda/open_device.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::DeviceArray;
using base::cuda::Emulated;
using base::cuda::TensorType;

constexpr int32_t kRowCounts[] = {1, 2, 7, 8, 9, 16, 17, 31, 64, 65, 200, 513};
constexpr int32_t kMostRows = 513;

struct Shape {
  int32_t outputs, inputs;
};

std::vector<uint16_t> RandomValues(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values(static_cast<size_t>(count));
  for (uint16_t& value : values) value = base::RoundToBFloat16(normal(random));
  return values;
}

// Weights of [outputs][inputs] as PackedIndex places them, with zeros in between.
std::vector<uint16_t> Packed(const Shape& shape, const std::vector<uint16_t>& plain) {
  std::vector<uint16_t> packed(static_cast<size_t>(PackedElements(shape.outputs, shape.inputs)));
  for (int32_t o = 0; o < shape.outputs; ++o) {
    for (int32_t k = 0; k < shape.inputs; ++k) {
      packed[PackedIndex(shape.inputs, o, k)] = plain[size_t(o) * shape.inputs + k];
    }
  }
  return packed;
}

// A product's sum in the order that product.h promises, with the terms of 16 added one after the
// other, as the emulator does.
float ReferenceSum(const Shape& shape, const uint16_t* weights, const uint16_t* x) {
  const ProductSlices slices = SlicesOf(shape.outputs, shape.inputs);
  float total = 0;
  for (int32_t s = 0; s < slices.count; ++s) {
    float sum = 0;
    const int32_t end = std::min((s + 1) * slices.each, slices.blocks);
    for (int32_t block = s * slices.each; block < end; ++block) {
      for (const int32_t half : {0, 4}) {
        // The places of a tensor core's 16 terms: columns 2 q, 2 q + 1, then 2 q + 8, 2 q + 9.
        for (const int32_t pair : {0, 2}) {
          for (int32_t q = 0; q < 4; ++q) {
            for (const int32_t i : {0, 1}) {
              const int32_t k = block * kProductBlock + 8 * q + half + pair + i;
              const float w = k < shape.inputs ? base::WidenBFloat16(weights[k]) : 0.0f;
              const float v = k < shape.inputs ? base::WidenBFloat16(x[k]) : 0.0f;
              sum = std::fma(w, v, sum);
            }
          }
        }
      }
    }
    total = s == 0 ? sum : total + sum;
  }
  return total;
}

class ProductTest : public base::cuda::OpenDeviceTest, public ::testing::WithParamInterface<Shape> {
 protected:
  void SetUp() override {
    OpenDeviceTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_TRUE(PrepareProducts().ok());
    shape_ = GetParam();
    host_weights_ = RandomValues(int64_t{shape_.outputs} * shape_.inputs, 1);
    host_x_ = RandomValues(int64_t{kMostRows} * shape_.inputs, 2);
    weights_.emplace(Packed(shape_, host_weights_));
    x_.emplace(host_x_);
    counters_.emplace(std::vector<uint32_t>(kProductCounters, 0));
    sums_.emplace(size_t{1} << 20);
  }

  ProductArgs Args(int32_t rows, int32_t first_row = 0) {
    return {.type = TensorType::kBFloat16,
            .weights = weights_->data(),
            .outputs = shape_.outputs,
            .inputs = shape_.inputs,
            .x = x_->data() + int64_t{first_row} * shape_.inputs,
            .rows = rows};
  }
  void Enqueue(ProductKernel kernel, const ProductArgs& args) {
    const ProductWorkspace workspace = {sums_->data(), size_t{1} << 20, counters_->data()};
    const absl::Status status = EnqueueProduct(kernel, args, workspace, device_->stream());
    ASSERT_TRUE(status.ok()) << status;
  }
  std::vector<float> Multiply(ProductKernel kernel, int32_t rows, int32_t first_row = 0) {
    DeviceArray<float> out(size_t(rows) * shape_.outputs);
    ProductArgs args = Args(rows, first_row);
    args.out = out.data();
    Enqueue(kernel, args);
    return out.Read();
  }
  bool CountersAreZero() {
    const std::vector<uint32_t> counters = counters_->Read();
    return std::all_of(counters.begin(), counters.end(), [](uint32_t c) { return c == 0; });
  }

  Shape shape_ = {};
  std::vector<uint16_t> host_weights_, host_x_;
  std::optional<DeviceArray<uint16_t>> weights_, x_;
  std::optional<DeviceArray<uint32_t>> counters_;
  std::optional<DeviceArray<float>> sums_;
};

TEST_P(ProductTest, IsTheSumInItsOrder) {
  const int32_t rows = 9;
  const std::vector<float> found = Multiply(ProductKernel::kTile64, rows);
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t o = 0; o < shape_.outputs; ++o) {
      const float expected = ReferenceSum(shape_, host_weights_.data() + int64_t{o} * shape_.inputs,
                                          host_x_.data() + int64_t{row} * shape_.inputs);
      const float sum = found[size_t(row) * shape_.outputs + o];
      if (Emulated()) {
        ASSERT_EQ(sum, expected) << "row " << row << ", output " << o;
      } else {
        ASSERT_NEAR(sum, expected, 1e-3 * std::sqrt(shape_.inputs));
      }
    }
  }
}

TEST_P(ProductTest, HasTheSameBitsByEveryKernelAndForAnyNumberOfRows) {
  const std::vector<float> all = Multiply(ProductKernel::kTile64, kMostRows);
  for (const ProductKernel kernel : kProductKernels) {
    for (const int32_t rows : kRowCounts) {
      if (!Takes(kernel, rows, shape_.inputs)) continue;
      // The first rows of all, or the last ones, which are then in other places of the tiles.
      for (const int32_t first : {0, kMostRows - rows}) {
        if (first > 0 && rows > 65) continue;
        const std::vector<float> found = Multiply(kernel, rows, first);
        const auto* const expected = all.data() + size_t(first) * shape_.outputs;
        ASSERT_TRUE(std::equal(found.begin(), found.end(), expected))
            << Name(kernel) << ", " << rows << " rows from " << first;
      }
    }
  }
  EXPECT_TRUE(CountersAreZero());
}

std::vector<uint16_t> ToFloat16(const std::vector<uint16_t>& values) {
  std::vector<uint16_t> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(), [](uint16_t bits) {
    return std::bit_cast<uint16_t>(static_cast<_Float16>(base::WidenBFloat16(bits)));
  });
  return halves;
}

TEST_P(ProductTest, TakesFloat16) {
  const int32_t rows = 5;
  const std::vector<uint16_t> host_weights = ToFloat16(host_weights_), host_x = ToFloat16(host_x_);
  DeviceArray<uint16_t> weights(Packed(shape_, host_weights)), x(host_x);
  std::vector<std::vector<float>> results;
  for (const ProductKernel kernel : kProductKernels) {
    if (!Takes(kernel, rows, shape_.inputs)) continue;
    DeviceArray<float> out(size_t(rows) * shape_.outputs);
    ProductArgs args = Args(rows);
    args.type = TensorType::kFloat16;
    args.weights = weights.data();
    args.x = x.data();
    args.out = out.data();
    Enqueue(kernel, args);
    results.push_back(out.Read());
    ASSERT_EQ(results.back(), results.front()) << Name(kernel);
  }
  const auto value = [](uint16_t bits) {
    return static_cast<double>(std::bit_cast<_Float16>(bits));
  };
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t o = 0; o < shape_.outputs; ++o) {
      double sum = 0;
      for (int32_t k = 0; k < shape_.inputs; ++k) {
        sum += value(host_weights[size_t(o) * shape_.inputs + k]) *
               value(host_x[size_t(row) * shape_.inputs + k]);
      }
      ASSERT_NEAR(results.front()[size_t(row) * shape_.outputs + o], sum,
                  1e-4 * std::sqrt(shape_.inputs));
    }
  }
}

TEST_P(ProductTest, GatesAtOnceAsAfterwards) {
  if (shape_.outputs % (2 * kGatedRows) != 0) GTEST_SKIP() << "no rows of gates and ups";
  const int32_t features = shape_.outputs / 2 - 3;  // the last of no feature
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> host_bias(size_t(2) * features);
  for (float& value : host_bias) value = normal(random);
  DeviceArray<float> bias(host_bias);
  for (const ProductKernel kernel : kProductKernels) {
    const int32_t rows = kernel == ProductKernel::kRows8 ? 7 : 13;
    if (!Takes(kernel, rows, shape_.inputs)) continue;
    for (const bool biased : {true, false}) {
      DeviceArray<uint16_t> out(size_t(rows) * features);
      ProductArgs args = Args(rows);
      args.result = ProductResult::kGated;
      args.features = features;
      args.bias = biased ? bias.data() : nullptr;
      args.out = out.data();
      Enqueue(kernel, args);
      const std::vector<uint16_t> found = out.Read();
      const std::vector<float> sums = Multiply(kernel, rows);
      for (int32_t row = 0; row < rows; ++row) {
        for (int32_t i = 0; i < features; ++i) {
          const float* const of_row = sums.data() + size_t(row) * shape_.outputs;
          const float gate = of_row[GatedRow(i)] + (biased ? host_bias[i] : 0.0f);
          const float up =
              of_row[GatedRow(i) + kGatedRows] + (biased ? host_bias[features + i] : 0.0f);
          const float expected = gate / (1.0f + std::exp(-gate)) * up;
          const float value = base::WidenBFloat16(found[size_t(row) * features + i]);
          ASSERT_NEAR(value, expected, std::abs(expected) / 128 + 1e-6f) << Name(kernel);
        }
      }
    }
  }
}

// Odd numbers of everything: outputs and inputs that fill no tile, one slice and many, of which the
// last is shorter, and inputs that are no multiple of 16 bytes.
INSTANTIATE_TEST_SUITE_P(Shapes, ProductTest,
                         ::testing::Values(Shape{1, 8}, Shape{16, 32}, Shape{48, 72},
                                           Shape{101, 264}, Shape{144, 1040}, Shape{37, 30},
                                           Shape{32, 257}),
                         [](const auto& info) {
                           return std::to_string(info.param.outputs) + "x" +
                                  std::to_string(info.param.inputs);
                         });

TEST_P(ProductTest, PackingPlacesEveryWeight) {
  DeviceArray<uint16_t> plain(host_weights_);
  DeviceArray<uint16_t> packed(
      std::vector<uint16_t>(static_cast<size_t>(PackedElements(shape_.outputs, shape_.inputs)), 1));
  ASSERT_TRUE(
      EnqueuePack(plain.data(), shape_.outputs, shape_.inputs, packed.data(), device_->stream())
          .ok());
  EXPECT_EQ(packed.Read(), weights_->Read());
}

TEST_P(ProductTest, TakesAsManyRowsAtATimeAsSumsHaveRoom) {
  const int32_t rows = 200;
  const std::vector<float> expected = Multiply(ProductKernel::kTile64, rows);
  const ProductSlices slices = SlicesOf(shape_.outputs, shape_.inputs);
  if (slices.count == 1) GTEST_SKIP() << "one slice needs no room";
  // Two tiles of 64 rows.
  const size_t tile = size_t(64) * 128 * ((shape_.outputs + 127) / 128) * slices.count;
  for (const auto& [floats, works] : {std::pair{2 * tile, true}, std::pair{tile - 1, false}}) {
    DeviceArray<float> out(size_t(rows) * shape_.outputs);
    ProductArgs args = Args(rows);
    args.out = out.data();
    const ProductWorkspace workspace = {sums_->data(), floats, counters_->data()};
    const absl::Status status =
        EnqueueProduct(ProductKernel::kTile64, args, workspace, device_->stream());
    EXPECT_EQ(status.ok(), works) << status;
    if (works) {
      EXPECT_EQ(out.Read(), expected);
    }
  }
}

TEST(ProductSlicesTest, CoverAllBlocksOnce) {
  for (const int32_t outputs : {1, 16, 700, 4096, 28672, 128256}) {
    for (int32_t inputs = 1; inputs < 20'000; inputs += 61) {
      const ProductSlices slices = SlicesOf(outputs, inputs);
      ASSERT_EQ(slices.blocks, (inputs + kProductBlock - 1) / kProductBlock);
      ASSERT_GE(slices.count, 1);
      ASSERT_LE(slices.count, kMostSlices);
      ASSERT_GE(slices.count * slices.each, slices.blocks);
      ASSERT_LT((slices.count - 1) * slices.each, slices.blocks);
    }
  }
}

TEST(GatedRowTest, GatesAndUpsFillTheRows) {
  for (const int32_t features : {1, 7, 8, 9, 148}) {
    std::vector<int> used(GatedOutputs(features), 0);
    for (int32_t i = 0; i < features; ++i) {
      ++used[GatedRow(i)];
      ++used[GatedRow(i) + kGatedRows];
    }
    EXPECT_EQ(std::count(used.begin(), used.end(), 1), 2 * features);
    EXPECT_EQ(std::count(used.begin(), used.end(), 0), GatedOutputs(features) - 2 * features);
  }
}

class ProductErrorTest : public base::cuda::OpenDeviceTest {};

TEST_F(ProductErrorTest, RefusesWhatAKernelDoesNotTake) {
  EXPECT_FALSE(Takes(ProductKernel::kRows8, 9, 64));
  EXPECT_FALSE(Takes(ProductKernel::kRows16, 16, 63));
  const ProductArgs args = {.outputs = 16, .inputs = 64, .rows = 9};
  const absl::Status status = EnqueueProduct(ProductKernel::kRows8, args, {}, device_->stream());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "a product of 9 rows and 64 inputs by rows8");
  const ProductArgs none = {.outputs = 16, .inputs = 64, .rows = 0};
  EXPECT_EQ(EnqueueProduct(ProductKernel::kTile64, none, {}, device_->stream()).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace specfabric::model::cuda
