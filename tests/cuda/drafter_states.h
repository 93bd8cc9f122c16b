#ifndef SPECFABRIC_TESTS_CUDA_DRAFTER_STATES_H_
#define SPECFABRIC_TESTS_CUDA_DRAFTER_STATES_H_

// Models on a GPU, and the states that drafters among them read and hand on.

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/bfloat16.h"
#include "model/cuda/cuda_transformer.h"
#include "tests/cuda/device.h"
#include "tests/model/group.h"
#include "tests/model/passes.h"

namespace specfabric::model::cuda {

inline RankOptions CudaOptions(DataType dtype) {
  RankOptions options = Options(dtype);
  options.trial_budget = 0;
  return options;
}

inline TestGroup OnDevice(const std::string& dir, const RankOptions& options, int ranks = 1) {
  absl::StatusOr<TestGroup> group = TestGroup::Load(dir, options, ranks, CudaTransformer::Load);
  EXPECT_TRUE(group.ok()) << group.status();
  return *std::move(group);
}

inline double Tolerance(DataType dtype) { return dtype == DataType::kFloat32 ? 2e-4 : 0.25; }

// Of one position, as the drafter reads them.
inline int StateWidth(const ModelConfig& config) {
  return static_cast<int>(config.states->layers.size()) * config.states->target_hidden;
}

inline std::vector<float> RandomStates(int rows, int width, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> states(static_cast<size_t>(rows) * width);
  // As they are sent.
  for (float& value : states) value = base::WidenBFloat16(base::RoundToBFloat16(normal(random)));
  return states;
}

inline LogitRows Fused(RankModel& model, const std::vector<float>& states, int rows) {
  const size_t hidden = model.config().hidden;
  std::vector<float> fused(rows * hidden);
  const absl::Status status = model.FuseStates(states, rows, fused.data());
  EXPECT_TRUE(status.ok()) << status;
  return {fused};
}

inline LogitRows NextStates(TestGroup& group) {
  const absl::Span<const float> states = group.rank(0).next_states();
  return {{states.begin(), states.end()}};
}

// That a drafter fuses states in the device's memory as those of the host, and sees bad ones.
inline void ExpectFusesDeviceStates(RankModel& model) {
  const int width = StateWidth(model.config());
  const std::vector<float> states = RandomStates(5, width, 6);
  std::vector<uint16_t> bits;
  for (float value : states) bits.push_back(base::RoundToBFloat16(value));
  const auto fuse = [&](std::vector<float>* fused) {
    base::cuda::DeviceArray<uint16_t> there(bits);
    fused->resize(size_t{5} * model.config().hidden);
    return model.FuseDeviceStates(
        {reinterpret_cast<const uint8_t*>(there.data()), bits.size() * sizeof(uint16_t)}, 5,
        fused->data());
  };
  std::vector<float> fused;
  absl::StatusOr<bool> finite = fuse(&fused);
  ASSERT_TRUE(finite.ok()) << finite.status();
  EXPECT_TRUE(*finite);
  EXPECT_EQ(LogitRows{fused}, Fused(model, states, 5));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    const uint16_t before = std::exchange(bits[width + 3], base::RoundToBFloat16(bad));
    finite = fuse(&fused);
    ASSERT_TRUE(finite.ok()) << finite.status();
    EXPECT_FALSE(*finite);
    bits[width + 3] = before;
  }
  bits.pop_back();
  EXPECT_EQ(fuse(&fused).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_TESTS_CUDA_DRAFTER_STATES_H_
