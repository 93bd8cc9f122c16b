// Time of a forward pass of a checkpoint by its number of rows, a chain after --context tokens: how
// much more a tree costs than a single token. Every repetition times every number of rows in turn,
// so that a machine that becomes slower slows all of them.
//
//   step_bench --model=DIR [--dtype=bfloat16] [--ranks=2 | --threads=2] [--reference]
//   step_bench --model=DIR --device=cuda [--cuda_graphs | --flash_attention]

#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "bench/model/bench_model.h"
#include "model/rank_model.h"

DEFINE_string(model, "models/bench", "checkpoint folder");
DEFINE_string(device, "cpu", "cpu or cuda");
DEFINE_string(dtype, "bfloat16", "float32 or bfloat16");
DEFINE_string(rows, "1,2,3,4,5,6,7,8,12,16,24,32,48,64", "rows of a pass, separated by commas");
DEFINE_int32(context, 200, "tokens in the cache before the rows");
DEFINE_int32(ranks, 1, "tensor-parallel ranks");
DEFINE_int32(threads, 1, "threads of a rank");
DEFINE_int32(repeats, 11, "timed passes of each number of rows");
DEFINE_bool(flash_attention, false, "attention by FlashInfer's kernels");
DEFINE_bool(cuda_graphs, false, "passes are captured and replayed");
DEFINE_bool(reference, false, "libtorch's plain operations instead of the packed kernels");

namespace specfabric::model {
namespace {

// Milliseconds of every repetition, [batch][repeat]; the first two passes of each batch, in
// which a graph is captured, are not counted.
absl::StatusOr<std::vector<std::vector<double>>> TimePasses(RankModel& model,
                                                            const std::vector<Batch>& batches) {
  std::vector<std::vector<double>> times(batches.size());
  for (int repeat = 0; repeat < FLAGS_repeats + 2; ++repeat) {
    for (size_t i = 0; i < batches.size(); ++i) {
      const base::Nanos begin = base::Now();
      if (const auto logits = model.Forward(batches[i]); !logits.ok()) return logits.status();
      if (repeat > 1) times[i].push_back(static_cast<double>(base::Now() - begin) / 1e6);
    }
  }
  return times;
}

absl::StatusOr<std::vector<Batch>> Batches(int32_t blocks) {
  std::vector<Batch> batches;
  for (absl::string_view text : absl::StrSplit(FLAGS_rows, ',')) {
    int rows = 0;
    if (!absl::SimpleAtoi(text, &rows) || rows < 1 || rows > 512) {
      return absl::InvalidArgumentError(
          absl::StrCat("--rows=", FLAGS_rows, "; allowed: numbers from 1 to 512"));
    }
    batches.push_back(ChainOf(rows, FLAGS_context, blocks));
  }
  return batches;
}

void Report(const std::vector<Batch>& batches, std::vector<std::vector<double>> times) {
  std::printf("%5s %9s %9s %8s\n", "rows", "median ms", "least ms", "to first");
  double first = 0.0;
  for (size_t i = 0; i < batches.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    const double median = times[i][times[i].size() / 2];
    if (i == 0) first = median;
    std::printf("%5d %9.3f %9.3f %8.2f\n", batches[i].rows(), median, times[i].front(),
                median / first);
  }
}

absl::Status Run() {
  absl::StatusOr<DataType> dtype = ParseDataType(FLAGS_dtype);
  if (!dtype.ok()) return dtype.status();
  if (FLAGS_repeats < 1 || FLAGS_context < 0 || FLAGS_ranks < 1) {
    return absl::InvalidArgumentError("--repeats and --ranks: at least 1; --context: at least 0");
  }
  absl::StatusOr<DeviceKind> device = ParseDeviceKind(FLAGS_device);
  if (!device.ok()) return device.status();
  RankOptions options;
  options.device = *device;
  options.dtype = *dtype;
  options.threads = FLAGS_threads;
  options.reference = FLAGS_reference;
  options.cuda_graphs = FLAGS_cuda_graphs;
  options.flash_attention = FLAGS_flash_attention;
  options.kv_blocks = (FLAGS_context + 512) / options.block_size + 1;
  absl::StatusOr<std::vector<Batch>> batches = Batches(options.kv_blocks);
  if (!batches.ok()) return batches.status();
  const auto communicators = MakeThreadCommunicators(FLAGS_ranks);
  std::vector<std::unique_ptr<RankModel>> models;
  for (const auto& communicator : communicators) {
    auto model = RankModel::Load(FLAGS_model, options, communicator.get());
    if (!model.ok()) return model.status();
    models.push_back(*std::move(model));
  }

  std::vector<absl::StatusOr<std::vector<std::vector<double>>>> times(
      models.size(), absl::UnknownError("not run"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < models.size(); ++i) {
    threads.emplace_back([&, i] { times[i] = TimePasses(*models[i], *batches); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& of_rank : times) {
    if (!of_rank.ok()) return of_rank.status();
  }
  Report(*batches, *std::move(times[0]));
  return absl::OkStatus();
}

}  // namespace
}  // namespace specfabric::model

int main(int argc, char** argv) {
  gflags::SetUsageMessage("time of a forward pass by its number of rows");
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  const absl::Status status = specfabric::model::Run();
  if (!status.ok()) {
    std::fprintf(stderr, "step_bench: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
