// What the stream of hidden states costs the step of a target: steps of a model on CPUs with it,
// whose states are kept, packed and handed to an outbox that drops them, and without, in turns.
// What sends them is another thread (the link's), which this leaves out. Prints for each step
//
//   ms         medians without and with the stream
//   of medians the second over the first
//   of pairs   the median of the ratios of neighbours in time, with its 95 % interval
//   KiB        that were packed
//
//   state_stream_bench --model=models/target --state_layers=1,3,5 [--threads=2]
//   state_stream_bench --model=random:llama-1b --state_layers=2,8,13 --repeats=31

#include <gflags/gflags.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "bench/model/random_model.h"
#include "model/rank_model.h"
#include "target/state_stream.h"

DEFINE_string(model, "models/target", "checkpoint folder, or random weights as in step_bench");
DEFINE_string(state_layers, "1,3,5", "boundaries that are kept, separated by commas");
DEFINE_int32(threads, 1, "threads of the model");
DEFINE_int32(context, 200, "tokens in the cache before the rows of each sequence");
DEFINE_int32(repeats, 301, "pairs of steps of each kind");
DEFINE_bool(cpu_time, false,
            "of this process, instead of time on the clock: for a machine that does other work, "
            "and one thread");
DEFINE_double(budget, 120, "seconds after which no further pair begins");

namespace specfabric::target {
namespace {

// Sequences of so many rows: the chunk of a prompt, or a chain of draft tokens of which `accepted`
// are right.
struct Shape {
  const char* name;
  int sequences, rows;
  bool prompt;
  int accepted;
};
constexpr Shape kShapes[] = {{"decode, 1 sequence", 1, 1, false, 0},
                             {"tree of 8, 1 sequence", 1, 9, false, 4},
                             {"tree of 4, 8 sequences", 8, 5, false, 3},
                             {"prompt, 128 tokens", 1, 128, true, 0},
                             {"prompt, 512 tokens", 1, 512, true, 0}};

struct Step {
  model::Batch batch;
  scheduler::StepPlan plan;
  scheduler::StepResult result;
};

Step MakeStep(const Shape& shape, int block_size) {
  Step step;
  const int context = shape.prompt ? 0 : FLAGS_context;
  const int blocks = (context + shape.rows + block_size - 1) / block_size;
  model::Batch& batch = step.batch;
  step.result.sequences.Resize(shape.sequences);
  for (int s = 0; s < shape.sequences; ++s) {
    const int first_row = batch.rows(), first_block = static_cast<int>(batch.blocks.size());
    for (int i = 0; i < blocks; ++i) batch.blocks.push_back(first_block + i);
    for (int i = 0; i < shape.rows; ++i) {
      batch.tokens.push_back(7 + i);
      batch.positions.push_back(context + i);
      if (!shape.prompt || i + 1 == shape.rows) batch.logit_rows.push_back(first_row + i);
    }
    batch.sequences.push_back({.kv_len = context,
                               .first_row = first_row,
                               .row_count = shape.rows,
                               .first_block = first_block,
                               .block_count = blocks});
    scheduler::PlanSequence& part = step.plan.sequences.emplace_back();
    part.id = s + 1;
    part.kind = shape.prompt ? scheduler::RowsKind::kPrefill : scheduler::RowsKind::kTree;
    part.first_row = first_row;
    part.row_count = shape.rows;
    std::vector<int32_t>& path = step.result.sequences[s].accepted.path;
    path.resize(shape.accepted);
    std::iota(path.begin(), path.end(), 1);
  }
  step.plan.tokens = batch.tokens;
  step.plan.positions = batch.positions;
  return step;
}

// Its slots are free again once they were taken.
StateOutbox Nowhere() {
  const transport::SlotPoolOptions options = {transport::MemoryKind::kHost,
                                              schemas::kStateSlotBytes, schemas::kStateSlots};
  const size_t bytes = transport::SlotPool::Stride(options) * schemas::kStateSlots;
  auto* const data = static_cast<uint8_t*>(std::malloc(bytes));
  std::memset(data, 1, bytes);  // registered memory is there before it is used
  auto pool = std::make_shared<transport::SlotPool>(
      options, transport::Slab{transport::MemoryKind::kHost, data, bytes},
      [](const transport::Slab& slab) { std::free(slab.data); });
  return {.slot = [pool](const transport::Fence& fence) { return pool->Acquire(fence); },
          .send = [](PeerId, const schemas::HiddenStates&, uint8_t, const transport::Lease&,
                     uint32_t) { return absl::OkStatus(); }};
}

base::Nanos Now() {
  if (!FLAGS_cpu_time) return base::Now();
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return time.tv_sec * base::kSecond + time.tv_nsec;
}

class Stepper {
 public:
  Stepper(model::RankModel* model, const std::vector<int32_t>& layers)
      : model_(*model), stream_(1, model->config().hidden, Nowhere()) {
    schemas::Hello hello;
    hello.state_layers = layers;
    hello.state_rows = 1 << 16;
    stream_.PeerUp(kPeer, hello);
  }

  // Milliseconds.
  absl::StatusOr<double> Time(const Step& step, bool streams) {
    absl::Status kept = model_.KeepStates(streams ? stream_.layers() : std::vector<int32_t>());
    if (!kept.ok()) return kept;
    const base::Nanos begin = Now();
    if (const auto logits = model_.Forward(step.batch); !logits.ok()) return logits.status();
    if (streams) {
      stream_.Send(
          step.plan, step.result,
          [&](absl::Span<const model::StateCopy> copies) { return model_.CopyStates(copies); },
          {.of = [](base::SequenceId) { return std::vector<PeerId>{kPeer}; },
           .left_out = [](PeerId, base::SequenceId) {}});
    }
    return static_cast<double>(Now() - begin) / 1e6;
  }

  uint64_t bytes() const { return stream_.stats().bytes; }
  uint64_t dropped() const { return stream_.stats().dropped; }

 private:
  static constexpr PeerId kPeer = 1;
  model::RankModel& model_;
  StateStream stream_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The median of `values`, and the order statistics between which the median of what they are drawn
// from lies with 95 %.
struct MedianRange {
  double low = 0, median = 0, high = 0;
};
MedianRange RangeOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  const auto at = [&](double place) {
    return values[static_cast<size_t>(std::clamp(std::round(place), 0.0, n - 1))];
  };
  return {at(n / 2 - 0.98 * std::sqrt(n) - 1), Median(values), at(n / 2 + 0.98 * std::sqrt(n))};
}

absl::Status Compare(const Shape& shape, int block_size, base::Nanos end, Stepper* stepper) {
  const Step step = MakeStep(shape, block_size);
  std::vector<double> times[2], ratios;
  uint64_t bytes = 0;
  for (int pair = -2; pair < FLAGS_repeats; ++pair) {  // the first two warm up
    if (pair > 2 && base::Now() > end) break;
    double pair_times[2] = {};
    for (int turn = 0; turn < 2; ++turn) {
      const bool streams = (turn + pair) % 2 != 0;  // either goes first as often
      const uint64_t before = stepper->bytes();
      const absl::StatusOr<double> ms = stepper->Time(step, streams);
      if (!ms.ok()) return ms.status();
      if (streams) bytes = stepper->bytes() - before;
      pair_times[streams] = *ms;
    }
    if (pair < 0) continue;
    for (int i = 0; i < 2; ++i) times[i].push_back(pair_times[i]);
    ratios.push_back(pair_times[1] / pair_times[0]);
  }
  const double without = Median(times[0]), with = Median(times[1]);
  const MedianRange range = RangeOf(ratios);
  std::printf("%-24s %6zu %9.3f %9.3f %8.4f %8.4f %7.4f to %.4f %7.1f\n", shape.name, ratios.size(),
              without, with, with / without, range.median, range.low, range.high,
              static_cast<double>(bytes) / 1024);
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Layers() {
  std::vector<int32_t> layers;
  for (const absl::string_view text : absl::StrSplit(FLAGS_state_layers, ',')) {
    int32_t layer = 0;
    if (!absl::SimpleAtoi(text, &layer)) {
      return absl::InvalidArgumentError(absl::StrCat("--state_layers=", FLAGS_state_layers,
                                                     ": allowed are numbers, separated by commas"));
    }
    layers.push_back(layer);
  }
  return layers;
}

absl::Status Run() {
  if (FLAGS_repeats < 3 || FLAGS_context < 0) {
    return absl::InvalidArgumentError("--repeats: at least 3; --context: at least 0");
  }
  const auto layers = Layers();
  if (!layers.ok()) return layers.status();
  model::RankOptions options;
  options.dtype = model::DataType::kBFloat16;
  options.threads = FLAGS_threads;
  for (const Shape& shape : kShapes) {
    const int tokens = shape.rows + (shape.prompt ? 0 : FLAGS_context) + options.block_size;
    options.kv_blocks =
        std::max(options.kv_blocks, shape.sequences * (tokens / options.block_size + 1));
  }
  const auto checkpoint = model::BenchCheckpoint::Open(FLAGS_model);
  if (!checkpoint.ok()) return checkpoint.status();
  const auto ranks = model::MakeThreadCommunicators(1);
  auto model = model::RankModel::Load((*checkpoint)->folder(), options, ranks[0].get());
  if (!model.ok()) return model.status();
  Stepper stepper(model->get(), *layers);
  std::printf("%-24s %6s %9s %9s %8s %8s %17s %7s\n", "step", "pairs", "ms", "stream", "medians",
              "pairs", "95 %", "KiB");
  const base::Nanos begin = base::Now();
  const auto budget = static_cast<base::Nanos>(FLAGS_budget * 1e9);
  int done = 0;
  for (const Shape& shape : kShapes) {
    const base::Nanos end = begin + budget * ++done / static_cast<int>(std::size(kShapes));
    absl::Status compared = Compare(shape, options.block_size, end, &stepper);
    if (!compared.ok()) return compared;
  }
  if (stepper.dropped() > 0)
    return absl::InternalError("states were dropped: the figures are wrong");
  return absl::OkStatus();
}

}  // namespace
}  // namespace specfabric::target

int main(int argc, char** argv) {
  gflags::SetUsageMessage("what the stream of hidden states costs a target's step");
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  const absl::Status status = specfabric::target::Run();
  if (!status.ok()) {
    std::fprintf(stderr, "state_stream_bench: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
