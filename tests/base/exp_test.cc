#include "base/exp.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace specfabric::base {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(ScaledExpTest, IsTheExponentialInFloat32) {
  for (float temperature : {0.1f, 0.7f, 1.0f, 3.0f}) {
    const ExpScale scale = ScaleFor(temperature);
    EXPECT_EQ(ScaledExp(2.5f, 2.5f, scale), 1.0f);
    for (float difference = -80 * temperature; difference < 0; difference += 0.0137f) {
      const double exact = std::exp(static_cast<double>(difference) / temperature);
      ASSERT_NEAR(ScaledExp(difference, 0.0f, scale) / exact, 1, 0x1p-23) << difference;
    }
  }
}

TEST(Exp2Test, IsThePowerOfTwo) {
  EXPECT_EQ(Exp2(0), 1);
  EXPECT_EQ(Exp2(-7), 0x1p-7);
  EXPECT_EQ(Exp2(-1022), 0x1p-1022);
  for (double x = 0; x > -1022; x -= 0.0137) {
    ASSERT_NEAR(Exp2(x) / std::exp2(x), 1, 0x1p-50) << x;
  }
  EXPECT_EQ(Exp2(-1e300), 0);
  EXPECT_EQ(Exp2(-kInf), 0);
  EXPECT_EQ(Exp2(kNan), 0);
}

TEST(ScaledExpTest, IsNothingForWhatHasNoChance) {
  const ExpScale scale = ScaleFor(1.0f);
  for (float logit : {-kInf, kNan, -std::numeric_limits<float>::max(), -88.0f}) {
    EXPECT_EQ(ScaledExp(logit, 0.0f, scale), 0.0f);
  }
  EXPECT_EQ(ScaledExp(-kInf, -kInf, scale), 0.0f);
  EXPECT_EQ(ScaledExp(kNan, -kInf, scale), 0.0f);
}

TEST(ScaledExpTest, ExtremeTemperaturesStaySound) {
  for (float temperature : {std::numeric_limits<float>::denorm_min(), 1e-20f, 1e30f}) {
    const ExpScale scale = ScaleFor(temperature);
    EXPECT_EQ(ScaledExp(1.0f, 1.0f, scale), 1.0f);
    EXPECT_EQ(ScaledExp(-1.0f, 1.0f, scale), temperature > 1 ? 1.0f : 0.0f);
    EXPECT_EQ(ScaledExp(-kInf, 1.0f, scale), 0.0f);
  }
}

}  // namespace
}  // namespace specfabric::base
