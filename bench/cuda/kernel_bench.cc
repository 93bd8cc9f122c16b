// What the kernels of verification and attention read a second, beside a copy within the device of
// the same run: both are bound by memory, so that the ratio is what counts. Every repetition times
// every kernel in turn; printed are medians.
//
//   kernel_bench [--vocabulary=128256] [--rows=64] [--sequences=32] [--context=4096]

#include <cuda_runtime_api.h>
#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "model/cuda/arg_max.h"
#include "model/cuda/device.h"
#include "model/cuda/memory.h"
#include "model/cuda/paged_attention.h"

DEFINE_int32(vocabulary, 128256, "logits of a row");
DEFINE_int32(rows, 64, "rows of the arg-max");
DEFINE_int32(sequences, 32, "sequences of the attention");
DEFINE_int32(nodes, 8, "rows of a sequence: a chain of guesses");
DEFINE_int32(context, 4096, "tokens of a sequence");
DEFINE_int32(heads, 32, "query heads");
DEFINE_int32(kv_heads, 8, "KV heads");
DEFINE_int32(head_dim, 128, "elements of a head");
DEFINE_int32(repeats, 21, "timed runs of each kernel");

namespace specfabric::model::cuda {
namespace {

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "kernel_bench: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}
void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "kernel_bench: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

template <typename T>
DeviceBuffer Upload(const std::vector<T>& values) {
  DeviceBuffer buffer = OrDie(DeviceBuffer::Create(values.size() * sizeof(T)));
  Check(cudaMemcpy(buffer.As<void>(), values.data(), buffer.bytes(), cudaMemcpyHostToDevice));
  return buffer;
}

struct Subject {
  std::string name;
  double bytes = 0;  // that it has to move
  std::function<void()> enqueue;
  std::vector<float> ms = {};
};

float TimeOnce(const Device& device, const std::function<void()>& enqueue) {
  cudaEvent_t begin = nullptr, end = nullptr;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  Check(cudaEventRecord(begin, device.stream()));
  enqueue();
  Check(cudaEventRecord(end, device.stream()));
  Check(device.Finish());
  float ms = 0;
  Check(cudaEventElapsedTime(&ms, begin, end));
  Check(cudaEventDestroy(begin));
  Check(cudaEventDestroy(end));
  return ms;
}

// Every sequence has slots of its own, one behind the other.
AttentionPlan PlanOfChains() {
  AttentionPlan plan;
  plan.slots.resize(size_t(FLAGS_sequences) * FLAGS_context);
  std::iota(plan.slots.begin(), plan.slots.end(), 0);
  for (int32_t s = 0; s < FLAGS_sequences; ++s) {
    for (int32_t node = 0; node < FLAGS_nodes; ++node) {
      const int32_t visible = FLAGS_context - FLAGS_nodes + node + 1;
      plan.rows.push_back({.write_slot = s * FLAGS_context + visible - 1,
                           .run_first = s * FLAGS_context,
                           .run_count = visible});
    }
  }
  return plan;
}

void Run() {
  const std::unique_ptr<Device> device = OrDie(Device::Open(0, /*batch_invariant=*/true));
  const Stream stream = device->stream();
  std::vector<Subject> subjects;

  const size_t copied = size_t{1} << 30;
  const DeviceBuffer from = OrDie(DeviceBuffer::Create(copied));
  const DeviceBuffer to = OrDie(DeviceBuffer::Create(copied));
  Check(cudaMemset(from.As<void>(), 0, copied));
  subjects.push_back({"copy within the device", 2.0 * copied, [&] {
                        Check(cudaMemcpyAsync(to.As<void>(), from.As<void>(), copied,
                                              cudaMemcpyDeviceToDevice, stream));
                      }});

  const size_t logits = size_t(FLAGS_rows) * FLAGS_vocabulary;
  std::vector<RowChoice> greedy(FLAGS_rows), sampled(FLAGS_rows);
  for (int32_t row = 0; row < FLAGS_rows; ++row) {
    greedy[row] = {.row = row};
    sampled[row] = {
        .row = row, .seed = 7, .position = static_cast<uint32_t>(row), .temperature = 1};
  }
  const DeviceBuffer rows = Upload(std::vector<float>(logits, 0.5f));
  const DeviceBuffer how_greedy = Upload(greedy), how_sampled = Upload(sampled);
  const DeviceBuffer best = OrDie(DeviceBuffer::Create(FLAGS_rows * sizeof(PackedChoice)));
  const LogitMatrix matrix = {
      .logits = rows.As<void>(), .stride = FLAGS_vocabulary, .size = FLAGS_vocabulary};
  for (const auto& [name, how] : {std::pair{"arg-max", &how_greedy},
                                  std::pair{"arg-max of perturbed logits", &how_sampled}}) {
    const RowChoice* const choices = how->As<RowChoice>();
    subjects.push_back({name, 4.0 * static_cast<double>(logits), [&, choices] {
                          Check(EnqueueArgMax(matrix, choices, nullptr, FLAGS_rows,
                                              best.As<PackedChoice>(), stream));
                        }});
  }

  const AttentionPlan plan = PlanOfChains();
  const auto attended = static_cast<int32_t>(plan.rows.size());
  const size_t plane = plan.slots.size() * FLAGS_kv_heads * FLAGS_head_dim;
  const size_t query = size_t(attended) * FLAGS_heads * FLAGS_head_dim;
  const DeviceBuffer keys = Upload(std::vector<uint16_t>(plane, 0));
  const DeviceBuffer values = Upload(std::vector<uint16_t>(plane, 0));
  const DeviceBuffer queries = Upload(std::vector<float>(query, 0.1f));
  const DeviceBuffer views = Upload(plan.rows), slots = Upload(plan.slots);
  const DeviceBuffer out = OrDie(DeviceBuffer::Create(query * sizeof(uint16_t)));
  const AttendArgs attend = {.cache = {.type = DataType::kBFloat16,
                                       .heads = FLAGS_heads,
                                       .kv_heads = FLAGS_kv_heads,
                                       .head_dim = FLAGS_head_dim,
                                       .keys = keys.As<void>(),
                                       .values = values.As<void>()},
                             .rows = attended,
                             .views = views.As<RowView>(),
                             .slots = slots.As<int32_t>(),
                             .queries = queries.As<float>(),
                             .out = out.As<void>()};
  // A pass has to read every sequence's keys and values once.
  subjects.push_back({"plain attention", 4.0 * static_cast<double>(plane),
                      [&] { Check(EnqueueAttend(attend, stream)); }});

  for (int repeat = -1; repeat < FLAGS_repeats; ++repeat) {
    for (Subject& subject : subjects) {
      const float ms = TimeOnce(*device, subject.enqueue);
      if (repeat >= 0) subject.ms.push_back(ms);
    }
  }
  std::printf("%s\n%-30s %10s %10s %10s\n", device->name().c_str(), "", "ms", "GB/s", "of copy");
  double copy_rate = 0;
  for (Subject& subject : subjects) {
    const auto middle = subject.ms.begin() + static_cast<std::ptrdiff_t>(subject.ms.size() / 2);
    std::nth_element(subject.ms.begin(), middle, subject.ms.end());
    const double rate = subject.bytes / *middle / 1e6;
    if (copy_rate == 0) copy_rate = rate;
    std::printf("%-30s %10.3f %10.0f %10.2f\n", subject.name.c_str(), *middle, rate,
                rate / copy_rate);
  }
}

}  // namespace
}  // namespace specfabric::model::cuda

int main(int argc, char** argv) {
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  specfabric::model::cuda::Run();
  return 0;
}
