// Packed linear layers: bytes of weights read a second (what bounds few rows) and multiply-adds a
// second (what bounds many). Arguments: rows, inputs, outputs.

#include <benchmark/benchmark.h>

#include <memory>
#include <random>
#include <vector>

#include "model/cpu/packed_linear.h"

namespace specfabric::model::cpu {
namespace {

void BM_PackedLinear(benchmark::State& state, DataType dtype) {
  const int rows = static_cast<int>(state.range(0));
  const LinearShape shape{.outputs = static_cast<int32_t>(state.range(2)),
                          .inputs = static_cast<int32_t>(state.range(1))};
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  ThreadPool pool(1);
  absl::StatusOr<std::unique_ptr<Linear>> linear = PackedLinear::Create(
      shape, dtype,
      [&](int32_t, float* weights) {
        for (int i = 0; i < shape.inputs; ++i) weights[i] = normal(random);
      },
      BestKernels(), &pool);
  if (!linear.ok()) return state.SkipWithError(std::string(linear.status().message()).c_str());
  std::vector<float> x(static_cast<size_t>(rows) * shape.inputs), y(rows * shape.outputs);
  for (float& value : x) value = normal(random);
  for (auto _ : state) {
    if (!(*linear)->Forward(x.data(), rows, y.data()).ok()) state.SkipWithError("Forward failed");
    benchmark::DoNotOptimize(y.data());
  }
  const double weights = double(shape.outputs) * shape.inputs;
  const double bytes = weights * base::Bytes(dtype);
  state.counters["weight_B/s"] =
      benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["FMA/s"] =
      benchmark::Counter(weights * rows, benchmark::Counter::kIsIterationInvariantRate);
}

void Shapes(benchmark::internal::Benchmark* bench) {
  for (int rows : {1, 2, 4, 6, 8, 16, 128}) bench->Args({rows, 384, 4096});
  for (int rows : {1, 6, 8, 128}) bench->Args({rows, 4096, 8192});
}
BENCHMARK_CAPTURE(BM_PackedLinear, float32, DataType::kFloat32)->Apply(Shapes);
BENCHMARK_CAPTURE(BM_PackedLinear, bfloat16, DataType::kBFloat16)->Apply(Shapes);

}  // namespace
}  // namespace specfabric::model::cpu
