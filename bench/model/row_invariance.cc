// Does a row of y = W x come out with the same bits when it shares the product with other rows?
// Compares each row of an M-row product with the same row alone, for libtorch's linear and for the
// packed one, and prints the share of outputs whose bits differ. "--batch_invariant" rests on it.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "model/cpu/packed_linear.h"
#include "model/reference/linear.h"

namespace specfabric::model {
namespace {

constexpr int kInputs = 1536, kOutputs = 1024, kMaxRows = 32;

std::vector<float> Apply(Linear& linear, const float* x, int rows) {
  std::vector<float> y(static_cast<size_t>(rows) * kOutputs);
  if (const absl::Status status = linear.Forward(x, rows, y.data()); !status.ok()) {
    std::fprintf(stderr, "row_invariance: %s\n", std::string(status.message()).c_str());
    std::exit(1);
  }
  return y;
}

// The share of outputs of `rows` rows whose bits differ from those of the row alone.
double Differing(Linear& linear, const std::vector<float>& x, const std::vector<float>& alone,
                 int rows) {
  const std::vector<float> y = Apply(linear, x.data(), rows);
  size_t differing = 0;
  for (size_t i = 0; i < y.size(); ++i) differing += y[i] != alone[i];
  return static_cast<double>(differing) / static_cast<double>(y.size());
}

void Measure(const char* name, absl::StatusOr<std::unique_ptr<Linear>> linear,
             const std::vector<float>& x) {
  if (!linear.ok()) {
    std::fprintf(stderr, "row_invariance: %s\n", std::string(linear.status().message()).c_str());
    std::exit(1);
  }
  std::vector<float> alone;
  for (int row = 0; row < kMaxRows; ++row) {
    const std::vector<float> y = Apply(**linear, &x[static_cast<size_t>(row) * kInputs], 1);
    alone.insert(alone.end(), y.begin(), y.end());
  }
  std::printf("%-32s", name);
  for (int rows : {2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 32}) {
    std::printf(" %5.1f%%", 100.0 * Differing(**linear, x, alone, rows));
  }
  std::printf("\n");
}

void Run() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> weights(static_cast<size_t>(kInputs) * kOutputs);
  std::vector<float> x(static_cast<size_t>(kInputs) * kMaxRows);
  for (float& value : weights) value = normal(random);
  for (float& value : x) value = normal(random);
  const WeightReader read = [&](int32_t output, float* out) {
    std::copy_n(&weights[static_cast<size_t>(output) * kInputs], kInputs, out);
  };
  const LinearShape shape{.outputs = kOutputs, .inputs = kInputs, .parts = 1};
  ThreadPool pool(1);
  reference::SetThreads(1);

  std::printf("Outputs of a %d x %d layer whose bits differ from those of the row alone\n",
              kOutputs, kInputs);
  std::printf("%-32s", "rows");
  for (int rows : {2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 32}) std::printf(" %6d", rows);
  std::printf("\n");
  for (DataType dtype : {DataType::kFloat32, DataType::kBFloat16}) {
    const std::string type = Name(dtype);
    Measure(("libtorch " + type).c_str(),
            reference::MakeLinear(shape, dtype, /*batch_invariant=*/false, read), x);
    Measure(("libtorch " + type + ", 4 rows at once").c_str(),
            reference::MakeLinear(shape, dtype, /*batch_invariant=*/true, read), x);
    Measure(("packed " + type).c_str(),
            cpu::PackedLinear::Create(shape, dtype, read, cpu::BestKernels(), &pool), x);
  }
}

}  // namespace
}  // namespace specfabric::model

int main() {
  specfabric::model::Run();
  return 0;
}
