// Norm and activation kernels against double precision.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

#include "base/bfloat16.h"
#include "model/cpu/kernels.h"

namespace specfabric::model::cpu {
namespace {

class ElementwiseTest : public ::testing::TestWithParam<int> {};

template <typename Check>
void ForSupportedKernels(Check check) {
  int count = 0;
  for (const Kernels* const* k = AllKernels(); *k != nullptr; ++k) {
    if (!(*k)->supported()) continue;
    SCOPED_TRACE((*k)->name);
    check(**k);
    ++count;
  }
  EXPECT_GT(count, 0);
}

std::vector<float> Normal(int count, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST_P(ElementwiseTest, RmsNorm) {
  const int width = GetParam();
  const std::vector<float> x = Normal(width, 3.0f, 1), weight = Normal(width, 1.0f, 2);
  double squares = 0.0;
  for (float value : x) squares += double{value} * value;
  const double scale = 1.0 / std::sqrt(squares / width + 1e-5);
  std::vector<float> first;
  ForSupportedKernels([&](const Kernels& kernels) {
    std::vector<float> out(width + 1, 42.0f);
    kernels.rms_norm(x.data(), weight.data(), 1e-5f, width, out.data());
    for (int i = 0; i < width; ++i) {
      const double want = x[i] * scale * weight[i];
      ASSERT_NEAR(out[i], want, 1e-6 * std::abs(want) + 1e-9);
    }
    EXPECT_EQ(out[width], 42.0f) << "wrote past the end";
    if (first.empty()) first = out;
    EXPECT_EQ(out, first) << "bits differ between instruction sets";

    std::vector<float> in_place = x;
    kernels.rms_norm(in_place.data(), weight.data(), 1e-5f, width, in_place.data());
    EXPECT_TRUE(std::equal(in_place.begin(), in_place.end(), out.begin()));
  });
}

TEST_P(ElementwiseTest, SiluMultiply) {
  const int width = GetParam();
  std::vector<float> gate = Normal(width, 20.0f, 3);
  const std::vector<float> up = Normal(width, 1.0f, 4);
  const float extremes[] = {0.0f, -86.9f, -88.5f, -200.0f, 87.0f, 89.0f, 1e30f, -1e30f, 1e-20f};
  for (size_t i = 0; i < std::size(extremes) && static_cast<int>(i) < width; ++i) {
    gate[i] = extremes[i];
  }
  std::vector<float> first;
  ForSupportedKernels([&](const Kernels& kernels) {
    std::vector<float> out(width + 1, 42.0f);
    kernels.silu_multiply(gate.data(), up.data(), width, out.data());
    for (int i = 0; i < width; ++i) {
      const double want = gate[i] / (1.0 + std::exp(-double{gate[i]})) * up[i];
      ASSERT_NEAR(out[i], want, 4e-7 * std::abs(want) + 1e-35) << gate[i];
    }
    EXPECT_EQ(out[width], 42.0f) << "wrote past the end";
    if (first.empty()) first = out;
    EXPECT_EQ(out, first) << "bits differ between instruction sets";
  });
}

TEST_P(ElementwiseTest, RoundToBFloat16) {
  const int width = GetParam();
  std::vector<float> x = Normal(width, 1.0f, 5);
  // Ties to even both ways, the largest that rounds up to infinity, denormals, infinities, NaNs.
  const uint32_t extremes[] = {0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x00000001, 0x807FFFFF,
                               0x80000000, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF};
  for (size_t i = 0; i < std::size(extremes) && static_cast<int>(i) < width; ++i) {
    x[width - 1 - i] = std::bit_cast<float>(extremes[i]);
  }
  ForSupportedKernels([&](const Kernels& kernels) {
    std::vector<uint16_t> out(width + 1, 42);
    kernels.round_bfloat16(x.data(), width, out.data());
    for (int i = 0; i < width; ++i) {
      ASSERT_EQ(out[i], base::RoundToBFloat16(x[i])) << std::bit_cast<uint32_t>(x[i]);
    }
    EXPECT_EQ(out[width], 42) << "wrote past the end";
  });
}

INSTANTIATE_TEST_SUITE_P(Widths, ElementwiseTest, ::testing::Values(1, 2, 15, 16, 17, 72, 1000));

}  // namespace
}  // namespace specfabric::model::cpu
