// The memory throughput of the kernels of verification, attention and matrix products, beside that
// of a copy on the device in the same run: all but products of many rows are memory-bound, so the
// ratio is what matters. Every repetition times every kernel in turn; the bench prints medians.
//
//   kernel_bench [--vocabulary=128256] [--rows=64] [--sequences=32] [--context=4096]

#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>

#include "bench/cuda/subjects.h"
#include "model/cuda/cold_timer.h"

DEFINE_int32(vocabulary, 128256, "logits of a row");
DEFINE_int32(rows, 64, "rows of the arg-max, and that a draft draws from");
DEFINE_int32(sequences, 32, "sequences that attend and are verified");
DEFINE_int32(nodes, 8, "rows of a sequence: a chain of draft tokens");
DEFINE_int32(context, 4096, "tokens of a sequence");
DEFINE_int32(heads, 32, "query heads");
DEFINE_int32(kv_heads, 8, "KV heads");
DEFINE_int32(head_dim, 128, "elements of a head");
DEFINE_int64(copied, int64_t{1} << 30, "bytes of the copy");
DEFINE_int64(flushed, int64_t{256} << 20, "bytes that are read before each run");
DEFINE_double(trial_seconds, 3, "how long kernels of matrix products may be tried");
DEFINE_int32(repeats, 21, "timed runs of each kernel");

namespace specfabric::bench {
namespace {

using base::cuda::Device;
using model::cuda::ColdTimer;

Subject CopyWithin(const Device& device) {
  const auto bytes = static_cast<size_t>(FLAGS_copied);
  const auto arena = std::make_shared<Arena>();
  auto* const from = arena->New<uint8_t>(bytes);
  auto* const to = arena->New<uint8_t>(bytes);
  Check(cudaMemset(from, 0, bytes));
  return {"copy within the device", 2.0 * static_cast<double>(bytes),
          [=, stream = device.stream()] {
            (void)arena;
            Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
          }};
}

void Report(const Device& device, std::vector<Subject>* subjects) {
  std::printf("%s\n%-32s %10s %10s %10s\n", device.name().c_str(), "", "ms", "GB/s", "of copy");
  double copy_rate = 0;
  for (Subject& subject : *subjects) {
    const auto middle = subject.ms.begin() + static_cast<std::ptrdiff_t>(subject.ms.size() / 2);
    std::nth_element(subject.ms.begin(), middle, subject.ms.end());
    const double rate = subject.bytes / *middle / 1e6;
    if (copy_rate == 0) copy_rate = rate;
    std::printf("%-32s %10.3f %10.0f %10.2f\n", subject.name.c_str(), *middle, rate,
                rate / copy_rate);
  }
}

void Run() {
  const BenchShape shape = {
      .vocabulary = FLAGS_vocabulary,
      .rows = FLAGS_rows,
      .sequences = FLAGS_sequences,
      .nodes = FLAGS_nodes,
      .context = FLAGS_context,
      .heads = FLAGS_heads,
      .kv_heads = FLAGS_kv_heads,
      .head_dim = FLAGS_head_dim,
      .trials = static_cast<base::Nanos>(FLAGS_trial_seconds * base::kSecond)};
  const std::unique_ptr<Device> device = OrDie(Device::Open(0));
  std::vector<Subject> subjects = {CopyWithin(*device)};
  for (auto* make : {&ProductSubjects, &AttentionSubjects, &ChoiceSubjects, &VerificationSubjects,
                     &DraftSubjects}) {
    for (Subject& subject : make(*device, shape)) subjects.push_back(std::move(subject));
  }
  auto timer = OrDie(ColdTimer::Create(device.get(), static_cast<size_t>(FLAGS_flushed)));
  for (int repeat = -1; repeat < FLAGS_repeats; ++repeat) {
    for (Subject& subject : subjects) {
      const float ms = OrDie(timer.Milliseconds([&] {
        subject.enqueue();
        return absl::OkStatus();
      }));
      if (repeat >= 0) subject.ms.push_back(ms);
    }
  }
  Report(*device, &subjects);
}

}  // namespace
}  // namespace specfabric::bench

int main(int argc, char** argv) {
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  specfabric::bench::Run();
  return 0;
}
