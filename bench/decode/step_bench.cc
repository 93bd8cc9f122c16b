// Time of a forward pass of a checkpoint by its number of rows, a chain after --context tokens: how
// much more a tree costs than a single token; and of a prompt. Every repetition times every number
// of rows in turn, so that a machine that becomes slower slows all of them.
//
//   step_bench --model=DIR [--dtype=bfloat16] [--ranks=2 | --threads=2] [--reference]
//   step_bench --model=random:llama-8b --device=cuda [--prefill=2048] [--json]
//
// Progress goes to standard error; --budget ends the repetitions early, with what was timed so far.

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
#include "bench/model/random_model.h"
#include "model/rank_model.h"

DEFINE_string(model, "models/bench",
              "checkpoint folder, or random weights: random:llama-1b, random:llama-8b, "
              "random:qwen3-8b, random:tiny");
DEFINE_string(device, "cpu", "cpu or cuda");
DEFINE_string(dtype, "bfloat16", "float32 or bfloat16");
DEFINE_string(rows, "1,2,3,4,5,6,7,8,12,16,24,32,48,64", "rows of a pass, separated by commas");
DEFINE_int32(context, 200, "tokens in the cache before the rows");
DEFINE_int32(prefill, 0, "tokens of a prompt that is timed as well; 0: none");
DEFINE_int32(prefill_rows, 512, "rows of a pass of the prompt");
DEFINE_int32(ranks, 1, "tensor-parallel ranks");
DEFINE_int32(threads, 1, "threads of a rank");
DEFINE_double(trial_seconds, 3, "on GPUs: how long kernels of matrix products may be tried");
DEFINE_int32(repeats, 11, "timed passes of each number of rows");
DEFINE_double(budget, 0, "seconds after which no further repetition begins; 0: no limit");
DEFINE_bool(flash_attention, true, "on GPUs: attention on tensor cores, in bfloat16");
DEFINE_bool(cuda_graphs, true, "on GPUs: passes of few rows are captured and replayed");
DEFINE_bool(reference, false, "libtorch's plain operations instead of the packed kernels");
DEFINE_bool(json, false, "prints one JSON object a line instead of a table");

namespace specfabric::model {
namespace {

// Passes that are timed together: one of some rows, or those of a prompt.
struct Subject {
  const char* kind = "pass";
  int32_t rows = 0;  // of the pass, or tokens of the prompt
  std::vector<Batch> batches;
};

using Times = std::vector<std::vector<double>>;  // [subject][repeat] milliseconds

absl::StatusOr<double> TimeOnce(RankModel& model, const Subject& subject) {
  const base::Nanos begin = base::Now();
  for (const Batch& batch : subject.batches) {
    if (const auto logits = model.Forward(batch); !logits.ok()) return logits.status();
  }
  return static_cast<double>(base::Now() - begin) / 1e6;
}

// The first two repetitions, in which a graph is captured, are not counted.
absl::StatusOr<Times> TimeSubjects(RankModel& model, Communicator& ranks,
                                   const std::vector<Subject>& subjects, base::Nanos end) {
  Times times(subjects.size());
  for (int repeat = 0; repeat < FLAGS_repeats + 2; ++repeat) {
    if (repeat > 2 && !GoOn(ranks, end)) break;
    for (size_t i = 0; i < subjects.size(); ++i) {
      const absl::StatusOr<double> ms = TimeOnce(model, subjects[i]);
      if (!ms.ok()) return ms.status();
      if (repeat > 1) times[i].push_back(*ms);
    }
    if (ranks.rank() == 0) {
      std::fprintf(stderr, "step_bench: repetition %d of %d\n", repeat + 1, FLAGS_repeats + 2);
    }
  }
  return times;
}

absl::StatusOr<std::vector<Subject>> RowSubjects(int32_t blocks) {
  std::vector<Subject> subjects;
  for (absl::string_view text : absl::StrSplit(FLAGS_rows, ',', absl::SkipEmpty())) {
    int rows = 0;
    if (!absl::SimpleAtoi(text, &rows) || rows < 1 || rows > 512) {
      return absl::InvalidArgumentError(
          absl::StrCat("--rows=", FLAGS_rows, "; allowed: numbers from 1 to 512"));
    }
    subjects.push_back({.rows = rows, .batches = {ChainOf(rows, FLAGS_context, blocks)}});
  }
  return subjects;
}

// The passes of a prompt; the logits of each one's last row are wanted.
Subject PromptSubject(int32_t blocks) {
  Subject subject = {.kind = "prefill", .rows = FLAGS_prefill, .batches = {}};
  for (int32_t at = 0; at < FLAGS_prefill; at += FLAGS_prefill_rows) {
    const int32_t rows = std::min(FLAGS_prefill_rows, FLAGS_prefill - at);
    subject.batches.push_back(ChainOf(rows, at, blocks));
    subject.batches.back().logit_rows = {rows - 1};
  }
  return subject;
}

void PrintJson(const Subject& subject, const ModelConfig& config, DataType dtype, double median,
               double least, size_t repeats) {
  std::printf(
      "{\"bench\": \"step\", \"model\": \"%s\", \"kind\": \"%s\", \"rows\": %d, \"context\": %d, "
      "\"median_ms\": %.4f, \"least_ms\": %.4f, \"repeats\": %zu, \"weight_bytes\": %lld, "
      "\"head_bytes\": %lld}\n",
      FLAGS_model.c_str(), subject.kind, subject.rows, FLAGS_context, median, least, repeats,
      static_cast<long long>(PassWeightBytes(config, dtype)),
      static_cast<long long>(HeadBytes(config, dtype)));
}

void Report(const std::vector<Subject>& subjects, const ModelConfig& config, DataType dtype,
            Times times) {
  if (!FLAGS_json) {
    std::printf("%5s %9s %9s %8s\n", "rows", "median ms", "least ms", "to first");
  }
  double first = 0.0;
  for (size_t i = 0; i < subjects.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    const double median = times[i][times[i].size() / 2], least = times[i].front();
    if (i == 0) first = median;
    if (FLAGS_json) {
      PrintJson(subjects[i], config, dtype, median, least, times[i].size());
    } else if (FLAGS_prefill > 0 && i + 1 == subjects.size()) {
      std::printf("prompt of %d tokens: %.3f ms, least %.3f: %.0f tokens/s\n", subjects[i].rows,
                  median, least, subjects[i].rows / median * 1e3);
    } else {
      std::printf("%5d %9.3f %9.3f %8.2f\n", subjects[i].rows, median, least, median / first);
    }
  }
}

absl::StatusOr<RankOptions> ReadOptions() {
  absl::StatusOr<DataType> dtype = ParseDataType(FLAGS_dtype);
  if (!dtype.ok()) return dtype.status();
  if (FLAGS_repeats < 1 || FLAGS_context < 0 || FLAGS_ranks < 1 || FLAGS_prefill < 0 ||
      FLAGS_prefill_rows < 1) {
    return absl::InvalidArgumentError(
        "--repeats, --ranks and --prefill_rows: at least 1; --context and --prefill: at least 0");
  }
  absl::StatusOr<DeviceKind> device = ParseDeviceKind(FLAGS_device);
  if (!device.ok()) return device.status();
  RankOptions options;
  options.device = *device;
  options.dtype = *dtype;
  options.threads = FLAGS_threads;
  options.reference = FLAGS_reference;
  const bool on_gpu = *device == DeviceKind::kCuda;
  options.cuda_graphs = on_gpu && FLAGS_cuda_graphs;
  options.flash_attention = on_gpu && FLAGS_flash_attention && *dtype == DataType::kBFloat16;
  options.trial_budget = static_cast<base::Nanos>(FLAGS_trial_seconds * base::kSecond);
  options.kv_blocks = std::max(FLAGS_context + 512, FLAGS_prefill) / options.block_size + 1;
  return options;
}

absl::StatusOr<std::vector<Subject>> ReadSubjects(const RankOptions& options) {
  absl::StatusOr<std::vector<Subject>> subjects = RowSubjects(options.kv_blocks);
  if (!subjects.ok()) return subjects.status();
  if (FLAGS_prefill > 0) subjects->push_back(PromptSubject(options.kv_blocks));
  if (subjects->empty()) return absl::InvalidArgumentError("neither --rows nor --prefill");
  return subjects;
}

using Ranks = std::vector<std::unique_ptr<Communicator>>;

// The seconds from `begin` go to standard error.
absl::StatusOr<std::vector<std::unique_ptr<RankModel>>> LoadModels(const RankOptions& options,
                                                                   const Ranks& ranks,
                                                                   base::Nanos begin) {
  const auto checkpoint = BenchCheckpoint::Open(FLAGS_model);
  if (!checkpoint.ok()) return checkpoint.status();
  const base::Nanos made = base::Now();
  std::vector<std::unique_ptr<RankModel>> models;
  for (const auto& communicator : ranks) {
    auto model = RankModel::Load((*checkpoint)->folder(), options, communicator.get());
    if (!model.ok()) return model.status();
    models.push_back(*std::move(model));
  }
  const double weights = static_cast<double>(made - begin) / 1e9;
  const double load = static_cast<double>(base::Now() - made) / 1e9;
  const double bytes = static_cast<double>(PassWeightBytes(models[0]->config(), options.dtype));
  std::fprintf(stderr, "step_bench: %s: %.1f s to open, %.1f s to load: %.2f GB/s\n",
               FLAGS_model.c_str(), weights, load, bytes / load / 1e9);
  return models;
}

absl::Status Run() {
  const base::Nanos begin = base::Now();
  const auto end = FLAGS_budget > 0 ? begin + static_cast<base::Nanos>(FLAGS_budget * 1e9) : 0;
  const absl::StatusOr<RankOptions> options = ReadOptions();
  if (!options.ok()) return options.status();
  const absl::StatusOr<std::vector<Subject>> subjects = ReadSubjects(*options);
  if (!subjects.ok()) return subjects.status();
  const auto ranks = MakeThreadCommunicators(FLAGS_ranks);
  auto models = LoadModels(*options, ranks, begin);
  if (!models.ok()) return models.status();

  std::vector<absl::StatusOr<Times>> times(models->size(), absl::UnknownError("not run"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < models->size(); ++i) {
    threads.emplace_back(
        [&, i] { times[i] = TimeSubjects(*(*models)[i], *ranks[i], *subjects, end); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& of_rank : times) {
    if (!of_rank.ok()) return of_rank.status();
  }
  Report(*subjects, (*models)[0]->config(), options->dtype, *std::move(times[0]));
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
