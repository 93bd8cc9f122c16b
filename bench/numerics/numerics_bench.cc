// Whether a token's logits depend on what else is in its batch, how often that changes the token,
// and what it costs that they do not: both settings of RankOptions::batch_invariant in one run.
//
// The model writes a text for every sequence. Then each text is gone through again, one token a
// pass or as the accepted path of trees, alone and in batches with the others; every row's logits
// and tokens are held against those of the text alone, one token a pass, of the same setting.
//
//   numerics_bench --model=DIR [--dtype=bfloat16] [--ranks=2] --device=cuda
//   numerics_bench --model=DIR --reference       # libtorch's plain operations, on CPUs
//
// Each line is printed once it is known, progress goes to standard error, and --budget ends the run
// early.

#include <gflags/gflags.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/hash.h"
#include "bench/model/bench_model.h"
#include "bench/model/random_model.h"
#include "model/rank_model.h"
#include "sampling/gumbel.h"
#include "sampling/sampling.h"

DEFINE_string(model, "models/bench", "checkpoint folder, or random:NAME as for step_bench");
DEFINE_string(device, "cpu", "cpu or cuda");
DEFINE_string(dtype, "bfloat16", "float32 or bfloat16");
DEFINE_string(batches, "1,8,64", "sequences of a batch, separated by commas");
DEFINE_int32(context, 64, "tokens of a text before those that are compared");
DEFINE_int32(tokens, 40, "tokens of a text that are compared, in fives");
DEFINE_int32(ranks, 1, "tensor-parallel ranks");
DEFINE_int32(threads, 1, "threads of a rank");
DEFINE_double(budget, 0, "seconds after which no further texts are gone through; 0: no limit");
DEFINE_bool(reference, false, "libtorch's plain operations instead of the packed kernels");

namespace specfabric::model {
namespace {

constexpr int kDepth = 4;     // of the accepted path of a tree
constexpr int kSiblings = 1;  // of every node of the path
constexpr float kTemperature = 1.0f;

struct Form {
  int batch = 1;
  bool tree = false;
};

// What one row of logits says.
struct Outcome {
  uint64_t hash = 0;  // of this rank's part
  base::TokenId greedy = base::kNoToken;
  base::TokenId sampled = base::kNoToken;
};
using Outcomes = std::vector<std::vector<Outcome>>;  // [sequence][1 + FLAGS_tokens]

struct Comparison {
  int rows = 0;                                      // of a pass
  double ms = 0.0;                                   // a pass, the median
  double logits = 0.0, greedy = 0.0, sampled = 0.0;  // shares that differ
};

// A row whose logits are looked at: of which sequence, and of the token at which position.
struct Watched {
  int sequence = 0;
  int position = 0;
  int row = 0;
};

uint64_t HashRow(absl::Span<const float> row) {
  uint64_t hash = row.size();
  for (const float value : row) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    hash = base::Mix64(hash ^ bits);
  }
  return hash;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// All texts on one rank: what it feeds to a model, and what comes out.
class Texts {
 public:
  Texts(int sequences, int block_size)
      : tokens_(sequences), block_size_(block_size), blocks_each_(BlocksEach(block_size)) {}

  static int BlocksEach(int block_size) {
    return (FLAGS_context + FLAGS_tokens + kDepth * kSiblings) / block_size + 1;
  }

  // Every text in full, sampled, a token of each in a pass.
  absl::Status Write(RankModel& model, Communicator& ranks) {
    for (int s = 0; s < size(); ++s) {
      tokens_[s] = {static_cast<base::TokenId>(s * 37 + 11) % model.config().vocabulary};
    }
    for (int last = 0; last + 1 < FLAGS_context + FLAGS_tokens; ++last) {
      Batch batch;
      std::vector<Watched> watched;
      for (int s = 0; s < size(); ++s) watched.push_back(AddChain(s, last, 1, &batch));
      const absl::StatusOr<std::vector<Outcome>> outcomes =
          Pass(model, ranks, batch, watched, nullptr);
      if (!outcomes.ok()) return outcomes.status();
      for (int s = 0; s < size(); ++s) tokens_[s].push_back((*outcomes)[s].sampled);
    }
    return absl::OkStatus();
  }

  // Goes through all texts, form.batch at once.
  absl::StatusOr<Outcomes> Read(RankModel& model, Communicator& ranks, const Form& form,
                                Comparison* comparison) {
    Outcomes all(size());
    std::vector<double> times;
    for (int first = 0; first + form.batch <= size(); first += form.batch) {
      Batch prompts;
      std::vector<Watched> watched;
      for (int s = first; s < first + form.batch; ++s) {
        watched.push_back(AddChain(s, 0, FLAGS_context, &prompts));
      }
      absl::Status status = Keep(Pass(model, ranks, prompts, watched, nullptr), watched, &all);
      const int stride = form.tree ? kDepth + 1 : 1;
      for (int at = FLAGS_context; at < FLAGS_context + FLAGS_tokens && status.ok(); at += stride) {
        Batch batch;
        std::vector<KvMove> moves;
        watched.clear();
        for (int s = first; s < first + form.batch; ++s) {
          if (form.tree) {
            AddTree(s, at, &batch, &watched, &moves);
          } else {
            watched.push_back(AddChain(s, at, 1, &batch));
          }
        }
        comparison->rows = batch.rows();
        status = Keep(Pass(model, ranks, batch, watched, &times), watched, &all);
        model.MoveKv(moves);
      }
      if (!status.ok()) return status;
    }
    comparison->ms = Median(std::move(times));
    return all;
  }

  int size() const { return static_cast<int>(tokens_.size()); }

 private:
  // The sequence with `kept` tokens in the cache.
  BatchSequence Begin(int sequence, int kept, Batch* batch) const {
    BatchSequence s{.kv_len = kept,
                    .first_row = batch->rows(),
                    .first_block = static_cast<int32_t>(batch->blocks.size()),
                    .block_count = blocks_each_};
    for (int b = 0; b < blocks_each_; ++b) {
      batch->blocks.push_back(sequence * blocks_each_ + b);
    }
    return s;
  }

  static void AddRow(base::TokenId token, int position, uint64_t ancestors, Batch* batch) {
    batch->tokens.push_back(token);
    batch->positions.push_back(position);
    batch->ancestors.push_back(ancestors);
  }

  // tokens [first, first + count); the last one's logits are wanted.
  Watched AddChain(int sequence, int first, int count, Batch* batch) const {
    BatchSequence s = Begin(sequence, first, batch);
    s.row_count = count;
    for (int i = 0; i < count; ++i) AddRow(tokens_[sequence][first + i], first + i, 0, batch);
    batch->sequences.push_back(s);
    batch->logit_rows.push_back(batch->rows() - 1);
    return {sequence, first + count - 1, static_cast<int>(batch->logit_rows.size()) - 1};
  }

  // The token at `first` with a tree below it, in which the text's own next tokens come after
  // siblings that lead nowhere; moves: what makes a chain of the path's slots.
  void AddTree(int sequence, int first, Batch* batch, std::vector<Watched>* watched,
               std::vector<KvMove>* moves) const {
    const std::vector<base::TokenId>& text = tokens_[sequence];
    BatchSequence s = Begin(sequence, first, batch);
    s.causal = false;
    uint64_t path = 0;
    for (int depth = 0; depth <= kDepth; ++depth) {
      const int siblings = depth == 0 ? 0 : kSiblings;
      for (int i = 0; i <= siblings; ++i) {
        const uint64_t own = uint64_t{1} << s.row_count;
        const bool on_path = i == siblings;
        AddRow(on_path ? text[first + depth] : text[(first + depth + i + 1) % text.size()],
               first + depth, path | own, batch);
        batch->logit_rows.push_back(batch->rows() - 1);
        if (on_path) {
          path |= own;
          watched->push_back(
              {sequence, first + depth, static_cast<int>(batch->logit_rows.size()) - 1});
          const KvMove move = {Slot(sequence, first + s.row_count), Slot(sequence, first + depth)};
          if (move.from != move.to) moves->push_back(move);
        }
        ++s.row_count;
      }
    }
    batch->sequences.push_back(s);
  }

  int32_t Slot(int sequence, int index) const {
    return sequence * blocks_each_ * block_size_ + index;
  }

  // What the watched rows say, on every rank the same but for the hash.
  absl::StatusOr<std::vector<Outcome>> Pass(RankModel& model, Communicator& ranks,
                                            const Batch& batch, absl::Span<const Watched> watched,
                                            std::vector<double>* times) {
    const base::Nanos begin = base::Now();
    absl::StatusOr<LogitShard> logits = model.Forward(batch);
    if (!logits.ok()) return logits.status();
    if (times != nullptr) times->push_back(static_cast<double>(base::Now() - begin) / 1e6);
    if (absl::Status fetched = FetchRows(&*logits); !fetched.ok()) return fetched;
    std::vector<Outcome> outcomes(watched.size());
    std::vector<sampling::ScoredToken> best;
    noise_.resize(logits->width);
    for (size_t i = 0; i < watched.size(); ++i) {
      const absl::Span<const float> row = logits->row(watched[i].row);
      outcomes[i].hash = HashRow(row);
      sampling::GumbelNoise(watched[i].sequence, watched[i].position, logits->first,
                            absl::MakeSpan(noise_));
      best.push_back(sampling::PerturbedArgMax(row, noise_, 0.0f, logits->first));
      best.push_back(sampling::PerturbedArgMax(row, noise_, kTemperature, logits->first));
    }
    ranks.AllReduceBest(absl::MakeSpan(best));
    for (size_t i = 0; i < watched.size(); ++i) {
      outcomes[i].greedy = best[2 * i].token;
      outcomes[i].sampled = best[2 * i + 1].token;
    }
    return outcomes;
  }

  static absl::Status Keep(const absl::StatusOr<std::vector<Outcome>>& outcomes,
                           absl::Span<const Watched> watched, Outcomes* all) {
    if (!outcomes.ok()) return outcomes.status();
    for (size_t i = 0; i < watched.size(); ++i) {
      (*all)[watched[i].sequence].push_back((*outcomes)[i]);
    }
    return absl::OkStatus();
  }

  std::vector<std::vector<base::TokenId>> tokens_;  // [sequence][context + tokens]
  const int block_size_, blocks_each_;
  std::vector<float> noise_;
};

// A row's logits differ if any rank's part does.
void Compare(const Outcomes& alone, const Outcomes& now, Communicator& ranks,
             Comparison* comparison) {
  std::vector<float> logits;
  int greedy = 0, sampled = 0;
  for (size_t s = 0; s < now.size(); ++s) {
    for (size_t i = 0; i < now[s].size(); ++i) {
      logits.push_back(now[s][i].hash != alone[s][i].hash ? 1.0f : 0.0f);
      greedy += now[s][i].greedy != alone[s][i].greedy ? 1 : 0;
      sampled += now[s][i].sampled != alone[s][i].sampled ? 1 : 0;
    }
  }
  ranks.AllReduceSum(absl::MakeSpan(logits));
  const auto rows = static_cast<double>(logits.size());
  comparison->logits = std::count_if(logits.begin(), logits.end(), [](float n) { return n > 0; });
  comparison->logits /= rows;
  comparison->greedy = greedy / rows;
  comparison->sampled = sampled / rows;
}

struct Settings {
  RankOptions options;
  std::string folder;  // the checkpoint's
  std::vector<Form> forms;
  int sequences = 1;
  base::Nanos end = 0;  // no further form is begun after it; 0: never
};

void ReportHeading() {
  std::printf("%5s %5s %5s %-15s %9s %6s %9s %9s %9s\n", "batch", "form", "rows", "batch_invariant",
              "ms a pass", "ratio", "logits %", "greedy %", "sampled %");
}

void Report(const Form& form, const Comparison& invariant, const Comparison& free) {
  for (const Comparison* c : {&invariant, &free}) {
    std::printf("%5d %5s %5d %-15s %9.3f %6.2f %9.2f %9.2f %9.2f\n", form.batch,
                form.tree ? "tree" : "plain", c->rows, c == &invariant ? "yes" : "no", c->ms,
                c->ms / free.ms, 100 * c->logits, 100 * c->greedy, 100 * c->sampled);
  }
  std::fflush(stdout);
}

void Progress(Communicator& ranks, const std::string& text) {
  if (ranks.rank() == 0) std::fprintf(stderr, "numerics_bench: %s\n", text.c_str());
}

struct Models {
  std::unique_ptr<RankModel> of[2];  // batch-invariant, not
};

absl::StatusOr<Models> LoadModels(const Settings& settings, Communicator& ranks) {
  Models models;
  for (int m = 0; m < 2; ++m) {
    RankOptions options = settings.options;
    options.batch_invariant = m == 0;
    auto model = RankModel::Load(settings.folder, options, &ranks);
    if (!model.ok()) return model.status();
    models.of[m] = *std::move(model);
  }
  return models;
}

// On one rank; the first one prints.
absl::Status RunRank(const Settings& settings, Communicator& ranks) {
  const auto models = LoadModels(settings, ranks);
  if (!models.ok()) return models.status();
  Progress(ranks, absl::StrCat("loaded; writing ", settings.sequences, " texts"));
  Texts texts(settings.sequences, settings.options.block_size);
  if (absl::Status status = texts.Write(*models->of[0], ranks); !status.ok()) return status;
  if (ranks.rank() == 0) ReportHeading();
  Outcomes alone[2];
  for (size_t i = 0; i < settings.forms.size(); ++i) {
    if (!GoOn(ranks, settings.end)) {
      Progress(ranks, absl::StrCat("over its budget, ", settings.forms.size() - i, " forms left"));
      break;
    }
    const Form& form = settings.forms[i];
    Comparison comparisons[2];
    for (int m = 0; m < 2; ++m) {
      absl::StatusOr<Outcomes> now = texts.Read(*models->of[m], ranks, form, &comparisons[m]);
      if (!now.ok()) return now.status();
      if (alone[m].empty()) alone[m] = *now;
      Compare(alone[m], *now, ranks, &comparisons[m]);
    }
    if (ranks.rank() == 0) Report(form, comparisons[0], comparisons[1]);
  }
  return absl::OkStatus();
}

// The first form is what the others are held against.
absl::StatusOr<std::vector<Form>> ParseForms() {
  std::vector<Form> forms = {{1, false}, {1, true}};
  for (absl::string_view text : absl::StrSplit(FLAGS_batches, ',')) {
    int batch = 0;
    if (!absl::SimpleAtoi(text, &batch) || batch < 1 || batch > 256) {
      return absl::InvalidArgumentError(
          absl::StrCat("--batches=", FLAGS_batches, "; allowed: numbers from 1 to 256"));
    }
    if (batch == 1) continue;
    forms.push_back({batch, false});
    forms.push_back({batch, true});
  }
  return forms;
}

absl::StatusOr<Settings> ParseSettings() {
  if (FLAGS_context < 1 || FLAGS_tokens < 5 || FLAGS_tokens % 5 != 0 || FLAGS_ranks < 1) {
    return absl::InvalidArgumentError(
        "--context and --ranks: at least 1; --tokens: a multiple of 5");
  }
  Settings settings;
  absl::StatusOr<std::vector<Form>> forms = ParseForms();
  if (!forms.ok()) return forms.status();
  settings.forms = *std::move(forms);
  for (const Form& form : settings.forms) {
    settings.sequences = std::lcm(settings.sequences, form.batch);
  }
  if (settings.sequences > 1024) {
    return absl::InvalidArgumentError(absl::StrCat("--batches=", FLAGS_batches, " needs ",
                                                   settings.sequences, " texts; allowed: 1024"));
  }
  absl::StatusOr<DataType> dtype = ParseDataType(FLAGS_dtype);
  if (!dtype.ok()) return dtype.status();
  absl::StatusOr<DeviceKind> device = ParseDeviceKind(FLAGS_device);
  if (!device.ok()) return device.status();
  settings.options.device = *device;
  settings.options.dtype = *dtype;
  settings.options.threads = FLAGS_threads;
  settings.options.reference = FLAGS_reference;
  settings.options.kv_blocks = settings.sequences * Texts::BlocksEach(settings.options.block_size);
  return settings;
}

absl::Status Run() {
  const base::Nanos begin = base::Now();
  absl::StatusOr<Settings> settings = ParseSettings();
  if (!settings.ok()) return settings.status();
  if (FLAGS_budget > 0) settings->end = begin + static_cast<base::Nanos>(FLAGS_budget * 1e9);
  const auto checkpoint = BenchCheckpoint::Open(FLAGS_model);
  if (!checkpoint.ok()) return checkpoint.status();
  settings->folder = (*checkpoint)->folder();
  const auto communicators = MakeThreadCommunicators(FLAGS_ranks);
  std::vector<absl::Status> statuses(FLAGS_ranks, absl::UnknownError("not run"));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < FLAGS_ranks; ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = RunRank(*settings, *communicators[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace specfabric::model

int main(int argc, char** argv) {
  gflags::SetUsageMessage("whether tokens depend on their batch, and what it costs if not");
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  const absl::Status status = specfabric::model::Run();
  if (!status.ok()) {
    std::fprintf(stderr, "numerics_bench: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
