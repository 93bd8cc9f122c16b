#include "scheduler/sequence.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "base/prefetch.h"

namespace specfabric::scheduler {

Sequence::Sequence(SequenceRequest given, int32_t max_context)
    : limited(given.limits_drafts()),
      sources(given.allowed_sources()),
      committed(given.prompt),
      request(std::move(given)) {
  if (request.rules.counts_prompt()) {
    for (base::TokenId token : request.prompt) counts.AddPrompt(token);
  }
  for (base::TokenId token : request.generated) Append(token);
  limit = static_cast<int32_t>(
      std::min<int64_t>(int64_t{prompt_size()} + request.max_tokens, max_context));
}

void Sequence::Reserve(int32_t block_size) {
  committed.reserve(limit);
  blocks.reserve(limit / block_size + 1);
  keys.reserve(limit / block_size + 1);
  moves.reserve(speculation::kMaxVerifyNodes);
}

void Sequence::Append(base::TokenId token) {
  committed.push_back(token);
  if (request.rules.penalises()) counts.AddOutput(token);
}

float Sequence::Value(base::Nanos now) const {
  // Bounded, so that the other sequences still get a share.
  constexpr double kMaxValue = 8;
  if (request.priority == 0 && request.tpot_slo == 0) return 1.0f;
  double value = std::ldexp(1.0, std::clamp(request.priority, -3, 3));
  if (request.tpot_slo > 0 && first_token > 0 && output_size() > 0) {
    const double so_far = static_cast<double>(now - first_token) / output_size();
    const double behind = so_far / static_cast<double>(request.tpot_slo);
    // Rises from 80% of the SLO on, not only above it.
    value *= std::clamp(std::pow(behind / 0.8, 3), 1.0, kMaxValue);
  }
  return static_cast<float>(value);
}

void Sequence::Prefetch() const {
  base::Prefetch(this, offsetof(Sequence, keys));
  base::Prefetch(&counts, sizeof(counts) + sizeof(request));
}

void Sequence::PrefetchForPlan() const {
  base::Prefetch(blocks.data(), blocks.size() * sizeof(int32_t));
  __builtin_prefetch(committed.data() + committed.size() - 1);
  if (!has_draft) return;
  __builtin_prefetch(expected_gain.data());
  __builtin_prefetch(draft.tree.parents.data());
  __builtin_prefetch(draft.tree.tokens.data());
  __builtin_prefetch(draft.tree.scores.data());
}

void Sequence::PrefetchForCommit() const {
  __builtin_prefetch(committed.data() + committed.size());
  __builtin_prefetch(planned.tree.parents.data());
  __builtin_prefetch(planned.tree.tokens.data());
  __builtin_prefetch(planned.sources.data());
}

int32_t Sequence::useful_draft_nodes(int32_t max_tree_nodes) const {
  if (!sources.any()) return 0;
  return std::max(
      0, std::min({max_tree_nodes - 1, limit - committed_size() - 1, request.max_draft_tokens}));
}

int32_t SlotsNeeded(const Sequence& sequence) {
  return std::max(sequence.committed_size(), sequence.limit - 1);
}

bool AnyWaitsForDraft(absl::Span<Sequence* const> sequences) {
  return std::any_of(sequences.begin(), sequences.end(),
                     [](const Sequence* sequence) { return sequence->wait.waiting(); });
}

base::Nanos EarliestDeadline(absl::Span<Sequence* const> sequences) {
  base::Nanos earliest = base::kForever;
  for (const Sequence* sequence : sequences) {
    if (sequence->wait.waiting()) earliest = std::min(earliest, sequence->wait.deadline());
  }
  return earliest;
}

}  // namespace specfabric::scheduler
