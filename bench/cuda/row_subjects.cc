// The kernels that work on logit rows: choices, verification, draft rows.

#include <algorithm>
#include <cmath>
#include <random>

#include "bench/cuda/subjects.h"
#include "sampling/draft_row.h"
#include "verification/cuda/arg_max.h"
#include "verification/cuda/draft_rows.h"
#include "verification/cuda/tree_verify.h"

namespace specfabric::bench {
namespace {

using base::cuda::Device;
using base::cuda::LogitMatrix;
using base::cuda::Stream;
using verification::DrawnRow;
using verification::RowChoice;
using verification::RowDraw;
using verification::cuda::DraftRowLayout;
using verification::cuda::DrawBatch;
using verification::cuda::DrawBytes;
using verification::cuda::EnqueueArgMax;
using verification::cuda::EnqueueDraws;
using verification::cuda::EnqueueTreeVerify;
using verification::cuda::EnqueueValidate;
using verification::cuda::PackedChoice;
using verification::cuda::RoundBatch;
using verification::cuda::RowJoin;
using verification::cuda::RowJoinBytes;
using verification::cuda::TreeRound;
using verification::cuda::TreeVerifyBytes;
using verification::cuda::Walked;

using speculation::SiblingDraw;
using speculation::VerificationMethod;

constexpr base::SamplingParams kSampling = {.temperature = 1.0f, .seed = 7};

// Normally distributed logits, so that some tokens are likely; every row starts at another offset.
std::vector<float> Logits(const BenchShape& shape, int32_t rows, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(size_t(rows) * shape.vocabulary);
  for (int32_t i = 0; i < shape.vocabulary; ++i) logits[i] = normal(random);
  for (int32_t row = 1; row < rows; ++row) {
    const int32_t shift = static_cast<int32_t>(random() % shape.vocabulary);
    std::rotate_copy(logits.begin(), logits.begin() + shift, logits.begin() + shape.vocabulary,
                     logits.begin() + size_t(row) * shape.vocabulary);
  }
  return logits;
}

LogitMatrix MatrixOf(const float* logits, const BenchShape& shape) {
  return {.logits = logits, .stride = shape.vocabulary, .size = shape.vocabulary};
}

// Device memory of zeros.
void* NewJoins(int32_t rows, int32_t vocabulary, Arena* arena) {
  const size_t bytes = RowJoinBytes(rows, vocabulary);
  auto* const joins = arena->New<uint64_t>(bytes / sizeof(uint64_t));
  Check(cudaMemset(joins, 0, bytes));
  Check(cudaDeviceSynchronize());
  return joins;
}

// The trees of a step, all chains, and the rows that their draft tokens were drawn from: the
// target's own with some noise added.
class Chains {
 public:
  Chains(const BenchShape& shape, VerificationMethod verification, Arena* arena) {
    const std::vector<float> logits = Logits(shape, shape.sequences * shape.nodes, 1);
    const int32_t drawn = shape.nodes - 1;
    std::vector<uint16_t> draft_probs(size_t(drawn) * shape.vocabulary);
    std::vector<int32_t> begin = {0}, parents, draft_row;
    std::vector<base::TokenId> tokens;
    std::vector<double> totals;
    std::vector<TreeRound> rounds;
    std::mt19937 random(2);
    std::normal_distribution<float> normal(0.0f, 0.5f);
    for (int32_t s = 0; s < shape.sequences; ++s) {
      totals.clear();
      for (int32_t node = 0; node < shape.nodes; ++node) {
        parents.push_back(node - 1);
        draft_row.push_back(std::max(0, node - 1));
        if (node == 0) tokens.push_back(0);
        if (node == drawn) break;
        const auto row =
            absl::MakeSpan(draft_probs).subspan(size_t(node) * shape.vocabulary, shape.vocabulary);
        std::vector<float> blurred(
            logits.begin() + (size_t(s) * shape.nodes + node) * shape.vocabulary,
            logits.begin() + (size_t(s) * shape.nodes + node + 1) * shape.vocabulary);
        for (float& logit : blurred) logit += normal(random);
        sampling::MakeDraftProbs(blurred, kSampling, 0, row);
        tokens.push_back(sampling::DrawWithReplacement(
            row, 1, kSampling.seed,
            {.purpose = sampling::Purpose::kDraft, .draw = static_cast<uint32_t>(s)})[0]);
        totals.push_back(sampling::TotalProb(row));
      }
      begin.push_back(static_cast<int32_t>(tokens.size()));
      rounds.push_back({.site = {.seed = kSampling.seed, .draw = static_cast<uint32_t>(s)},
                        .verification = verification,
                        .draw = SiblingDraw::kWithReplacement,
                        .sampling = kSampling,
                        .first_logit = s * shape.nodes,
                        .draft_probs = reinterpret_cast<const uint8_t*>(arena->New(draft_probs)),
                        .totals = arena->New(totals),
                        .entries = shape.vocabulary});
    }
    batch_ = {.trees = {.sequences = shape.sequences,
                        .begin = arena->New(begin),
                        .parents = arena->New(parents),
                        .tokens = arena->New(tokens)},
              .rounds = arena->New(rounds),
              .draft_row = arena->New(draft_row),
              .nodes = begin.back(),
              .logits = arena->New(logits),
              .stride = shape.vocabulary,
              .vocabulary = shape.vocabulary,
              .filtered = kSampling.filtered()};
  }
  const RoundBatch& batch() const { return batch_; }

 private:
  RoundBatch batch_;
};

// Chains of which not all was accepted.
int64_t RejectedChains(const Walked* verified, const BenchShape& shape) {
  std::vector<Walked> walked(shape.sequences);
  Check(
      cudaMemcpy(walked.data(), verified, walked.size() * sizeof(Walked), cudaMemcpyDeviceToHost));
  int64_t rejected = 0;
  for (const Walked& one : walked) {
    if (one.last < shape.nodes - 1) ++rejected;
  }
  return rejected;
}

}  // namespace

std::vector<Subject> ChoiceSubjects(const Device& device, const BenchShape& shape) {
  const auto arena = std::make_shared<Arena>();
  const Stream stream = device.stream();
  std::vector<RowChoice> greedy(shape.rows), sampled(shape.rows);
  for (int32_t row = 0; row < shape.rows; ++row) {
    greedy[row] = {.row = row};
    sampled[row] = {
        .row = row, .seed = 7, .position = static_cast<uint32_t>(row), .temperature = 1};
  }
  const LogitMatrix matrix = MatrixOf(arena->New(Logits(shape, shape.rows, 3)), shape);
  auto* const best = arena->New<PackedChoice>(shape.rows);
  auto* const joins = NewJoins(shape.rows, shape.vocabulary, arena.get());
  std::vector<Subject> subjects;
  for (const auto& [name, how] :
       {std::pair{"arg-max", greedy}, std::pair{"arg-max of perturbed logits", sampled}}) {
    const RowChoice* const choices = arena->New(how);
    subjects.push_back({name, 4.0 * shape.rows * shape.vocabulary, [=, rows = shape.rows] {
                          (void)arena;
                          Check(EnqueueArgMax(matrix, choices, nullptr, rows,
                                              static_cast<RowJoin*>(joins), best, stream));
                        }});
  }
  return subjects;
}

std::vector<Subject> VerificationSubjects(const Device& device, const BenchShape& shape) {
  const Stream stream = device.stream();
  std::vector<Subject> subjects;
  for (const VerificationMethod verification :
       {VerificationMethod::kRejection, VerificationMethod::kTraversal}) {
    const auto arena = std::make_shared<Arena>();
    const RoundBatch batch = Chains(shape, verification, arena.get()).batch();
    auto* const workspace = arena->New<uint64_t>(TreeVerifyBytes(batch) / sizeof(uint64_t) + 1);
    auto* const joins = NewJoins(batch.nodes, shape.vocabulary, arena.get());
    auto* const verified = arena->New<Walked>(shape.sequences);
    const auto verify = [=] {
      (void)arena;
      Check(EnqueueTreeVerify(batch, workspace, joins, verified, stream));
    };
    // All logits must be read once, and where a chain ends early, the row of the draft token whose
    // rejection leaves the residual that the bonus token is drawn from.
    verify();
    Check(device.Finish());
    const auto rows = static_cast<double>(RejectedChains(verified, shape));
    const double bytes = (4.0 * batch.nodes + 2.0 * rows) * shape.vocabulary;
    subjects.push_back(
        {std::string(speculation::Name(verification)) + " of chains", bytes, verify});
  }
  return subjects;
}

std::vector<Subject> DraftSubjects(const Device& device, const BenchShape& shape) {
  const auto arena = std::make_shared<Arena>();
  const Stream stream = device.stream();
  const DraftRowLayout layout = {shape.vocabulary, shape.vocabulary};
  auto* const slots = arena->New<uint16_t>(size_t(shape.rows) * shape.vocabulary);
  std::vector<int32_t> begin = {0};
  std::vector<TreeRound> rounds;
  std::vector<RowDraw> draws;
  for (int32_t row = 0; row < shape.rows; ++row) {
    begin.push_back(row + 1);
    rounds.push_back({.sampling = kSampling, .first_logit = row});
    draws.push_back(
        {.logit = row,
         .sampling = kSampling,
         .row = reinterpret_cast<uint8_t*>(slots + size_t(row) * shape.vocabulary),
         .entries = shape.vocabulary,
         .siblings = 2,
         .site = {.purpose = sampling::Purpose::kDraft, .position = static_cast<uint32_t>(row)}});
  }
  const DrawBatch batch = {.rows = {.trees = {.sequences = shape.rows, .begin = arena->New(begin)},
                                    .rounds = arena->New(rounds),
                                    .nodes = shape.rows,
                                    .logits = arena->New(Logits(shape, shape.rows, 4)),
                                    .stride = shape.vocabulary,
                                    .vocabulary = shape.vocabulary,
                                    .filtered = kSampling.filtered()},
                           .draws = arena->New(draws),
                           .cut = false};
  auto* const workspace = arena->New<uint64_t>(DrawBytes(batch.rows) / sizeof(uint64_t) + 1);
  auto* const joins = NewJoins(shape.rows, shape.vocabulary, arena.get());
  auto* const drawn = arena->New<DrawnRow>(shape.rows);
  auto* const facts = arena->New<sampling::DraftRowFacts>(shape.rows);
  const double elements = static_cast<double>(shape.rows) * shape.vocabulary;
  // Logits are read and rows written; rows are read.
  return {{"draft rows made and drawn from", 6 * elements,
           [=] {
             (void)arena;
             Check(EnqueueDraws(batch, workspace, joins, drawn, stream));
           }},
          {"sent rows validated", 2 * elements, [=, rows = shape.rows] {
             (void)arena;
             const auto* const bytes = reinterpret_cast<const uint8_t*>(slots);
             Check(EnqueueValidate(bytes, rows, layout, facts, stream));
           }}};
}

}  // namespace specfabric::bench
