#include "scheduler/apply_result.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"

namespace specfabric::scheduler {
namespace {

using base::TokenId;
using speculation::TokenTree;

// The accepted path must be one of the planned tree's, and its tokens the tree's.
void CheckAccepted(const speculation::Accepted& accepted, const TokenTree& tree) {
  SPECFABRIC_CHECK(accepted.tokens.size() == accepted.path.size() + (accepted.finite ? 1 : 0));
  int32_t parent = 0;
  for (size_t i = 0; i < accepted.path.size(); ++i) {
    const int32_t node = accepted.path[i];
    SPECFABRIC_CHECK(node > 0 && node < tree.size() && tree.parents[node] == parent);
    SPECFABRIC_CHECK(tree.tokens[node] == accepted.tokens[i]);
    parent = node;
  }
}

// Appends tokens until one ends the sequence; returns how many were appended.
int32_t AppendUntilFinished(const std::vector<TokenId>& tokens, Sequence* sequence,
                            std::optional<FinishReason>* finish) {
  const std::vector<TokenId>& stop_ids = sequence->request.stop_ids;
  int32_t appended = 0;
  for (TokenId token : tokens) {
    sequence->Append(token);
    ++appended;
    if (std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end()) {
      *finish = FinishReason::kStop;
      break;
    }
    if (sequence->committed_size() >= sequence->limit) {
      *finish = FinishReason::kLength;
      break;
    }
  }
  return appended;
}

// Moves the KV of the accepted path to the slots after its root's: node path[j] was written at slot
// kv_written + path[j] and belongs at kv_written + 1 + j. Paths ascend, so that no move overwrites
// the source of a later one. The first nodes may be in place already.
void CompactPath(const std::vector<int32_t>& path, int32_t block_size, Sequence* sequence) {
  sequence->settled = sequence->kv_written + 1;
  for (size_t j = 0; j < path.size(); ++j) {
    const int32_t to = sequence->kv_written + 1 + static_cast<int32_t>(j);
    const int32_t from = sequence->kv_written + path[j];
    if (from == to) {
      ++sequence->settled;
      continue;
    }
    sequence->moves.push_back(
        {sequence->PhysicalSlot(from, block_size), sequence->PhysicalSlot(to, block_size)});
    sequence->moves_end = from + 1;
  }
}

void ApplyPrefill(Sequence* sequence, SequenceResult* result, TokensEvent* event) {
  sequence->kv_written += sequence->planned_rows;
  sequence->settled = sequence->kv_written;
  if (sequence->scores()) {
    sequence->prompt_logprobs.insert(sequence->prompt_logprobs.end(),
                                     result->prompt_logprobs.begin(),
                                     result->prompt_logprobs.end());
  }
  if (!result->accepted.finite) {
    const auto scored = static_cast<int32_t>(sequence->prompt_logprobs.size());
    const bool in_prompt = sequence->scores() && scored + 1 < sequence->prompt_size();
    event->not_finite_at = in_prompt ? scored + 1 : sequence->committed_size();
    event->finish = FinishReason::kNotFinite;
    return;
  }
  if (sequence->kv_written < sequence->committed_size()) {
    SPECFABRIC_CHECK(result->accepted.tokens.empty());
    return;
  }
  event->prompt_logprobs = std::exchange(sequence->prompt_logprobs, {});
  if (!std::exchange(sequence->prefilled_once, true)) {
    event->cached_tokens = std::min(sequence->cached_tokens, sequence->prompt_size());
  }
  if (!sequence->samples()) {
    event->finish = FinishReason::kLength;
    return;
  }
  SPECFABRIC_CHECK(result->accepted.path.empty() && result->accepted.tokens.size() == 1);
  AppendUntilFinished(result->accepted.tokens, sequence, &event->finish);
  event->tokens.swap(result->accepted.tokens);
  sequence->phase = Phase::kRunning;
}

void CountSource(speculation::Source source, DraftTokenCounts* counts) {
  if (source.proposed_by == speculation::ProposalSource::kGrammar) {
    ++counts->by_grammar;
    return;
  }
  if (source.proposed_by != speculation::ProposalSource::kNgramLookup)
    ++counts->by_drafter[source.drafter];
  if (source.proposed_by == speculation::ProposalSource::kNgramLookup) ++counts->by_ngram_lookup;
  if (source.proposed_by == speculation::ProposalSource::kSeveral && source.from_ngram_lookup) {
    ++counts->also_ngram_lookup;
  }
}

void ApplyTree(int32_t block_size, Sequence* sequence, SequenceResult* result, TokensEvent* event) {
  speculation::Accepted& accepted = result->accepted;
  const speculation::Draft& planned = sequence->planned;
  CheckAccepted(accepted, planned.tree);
  event->round = true;
  event->drafted = planned.tree.size() - 1;
  for (int node = 1; node < planned.tree.size(); ++node) {
    CountSource(planned.source(node), &event->drafted_by);
  }
  const int32_t appended = AppendUntilFinished(accepted.tokens, sequence, &event->finish);
  event->tokens.swap(accepted.tokens);
  event->tokens.resize(appended);
  event->accepted = std::min(appended, static_cast<int32_t>(accepted.path.size()));
  for (int i = 0; i < event->accepted; ++i) {
    CountSource(planned.source(accepted.path[i]), &event->accepted_by);
  }
  if (!accepted.finite && !event->finish) {
    event->not_finite_at = sequence->committed_size();
    event->finish = FinishReason::kNotFinite;
    return;
  }
  CompactPath(accepted.path, block_size, sequence);
  // Where a stop id or the limit cut the path, the slots after it belong to no committed token.
  sequence->settled = std::min(sequence->settled, sequence->committed_size());
  if (!event->finish) sequence->kv_written = sequence->committed_size() - 1;
}

}  // namespace

void ApplyResult(int32_t block_size, Sequence* sequence, SequenceResult* result,
                 TokensEvent* event) {
  SPECFABRIC_CHECK(result->id == sequence->request.id);
  event->id = sequence->request.id;
  event->first_index = sequence->output_size();
  if (sequence->phase == Phase::kPrefill) {
    ApplyPrefill(sequence, result, event);
  } else {
    ApplyTree(block_size, sequence, result, event);
  }
  if (sequence->request.logprobs >= 0) {
    const size_t count = std::min(result->logprobs.size(), event->tokens.size());
    event->logprobs.assign(result->logprobs.begin(), result->logprobs.begin() + count);
  }
}

}  // namespace specfabric::scheduler
