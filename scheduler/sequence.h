#ifndef SPECFABRIC_SCHEDULER_SEQUENCE_H_
#define SPECFABRIC_SCHEDULER_SEQUENCE_H_

// The state of one sequence inside the scheduler: a plain record, owned by Admission from Add to
// End. The parts of the scheduler pass it on to each other, and each writes the fields of its own
// concern (KV slots and blocks, the round's draft, committed tokens). No queue, no pool, no policy.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "base/types.h"
#include "sampling/logit_changer.h"
#include "scheduler/kv/prefix_hash.h"
#include "scheduler/policy/draft_wait.h"
#include "scheduler/policy/method_choice.h"
#include "scheduler/scheduler.h"
#include "scheduler/step_plan.h"
#include "speculation/ngram_lookup.h"
#include "speculation/tree.h"

namespace specfabric::scheduler {

enum class Phase : uint8_t { kWaiting, kPrefill, kRunning };

// The place of a sequence in the queue and among those that run, for life: the least comes first.
// Within one priority it is first come, first served. A higher priority counts as an earlier
// arrival, so that a sequence that has waited long enough is overtaken by none.
struct QueueOrder {
  base::Nanos time = 0;  // of arrival, less priority * SchedulerOptions::priority_ageing
  uint64_t arrival = 0;  // breaks ties
  auto operator<=>(const QueueOrder&) const = default;
};

// How many sequences ahead a loop over many prefetches: first the sequence itself (Prefetch), then
// what its pointers lead to (PrefetchForPlan, PrefetchForCommit).
constexpr size_t kPrefetchSequence = 8, kPrefetchContents = 3;

// The fields that every step reads of every sequence come first, in as few cache lines as possible.
struct Sequence {
  Phase phase = Phase::kWaiting;
  bool in_flight = false;
  bool cancelled = false;              // while in flight: ends at the commit
  std::optional<FinishReason> finish;  // by the result that is being applied
  bool has_draft = false;              // `draft` is one
  bool answered = false;               // a drafter has replied in this round
  bool publishes = true;               // false: the key of its next block is taken by other tokens
  bool had_reply = false;              // a drafter has replied in some round
  bool prefilled_once = false;         // its first prefill has ended and was reported
  bool limited = false;                // SequenceRequest::limits_drafts
  DraftSources sources;                // SequenceRequest::allowed_sources
  int32_t limit = 0;                   // size of `committed` at which it ends

  // KV slots [0, kv_written) hold the tokens of the same index. Running: committed.size() - 1.
  int32_t kv_written = 0;
  int32_t settled = 0;          // the same, up to the first slot that a pending move writes
  std::vector<int32_t> blocks;  // owned, perhaps with other sequences; see sequence_blocks.h
  std::vector<SlotMove> moves;  // to be done before its next rows. They are not idempotent, and are
                                // in one plan only: if that is aborted the sequence ends.
  int32_t moves_end = 0;        // one past the last slot that `moves` read

  int32_t published = 0;        // blocks, from the first on, that the prefix cache knows
  int32_t planned_rows = 0;     // in flight
  base::Nanos first_token = 0;  // when it was committed; 0: not yet

  std::vector<base::TokenId> committed;  // prompt + output; only Append adds to it
  DraftWait wait;
  std::vector<float> expected_gain;  // of the draft's nodes, see GoodputControl::Evaluate
  // Of this round: the grammar's or the n-gram lookup's until a drafter replies.
  speculation::Draft draft;
  std::vector<base::TokenId> forced;  // by the grammar, after `committed`
  speculation::Draft planned;         // in flight, without draft_row; no tree for a prefill
  std::vector<BlockKey> keys;  // of the first full blocks of `committed`, as far as needed so far

  sampling::TokenCounts counts;  // of `committed`, where the request's rules need them
  SequenceRequest request;
  QueueOrder queue_order;
  int32_t cached_tokens = 0;  // found in the prefix cache at the first prefill
  int32_t preemptions = 0;
  MethodRounds method_rounds;
  // Over the first tokens of `committed`, see DraftSelection::CatchUp.
  std::optional<speculation::NgramLookup> ngram_lookup;
  std::vector<base::TokenLogprobs> prompt_logprobs;  // until the end of the prefill

  Sequence(SequenceRequest given, int32_t max_context);

  int32_t prompt_size() const { return static_cast<int32_t>(request.prompt.size()); }
  int32_t committed_size() const { return static_cast<int32_t>(committed.size()); }
  int32_t output_size() const { return committed_size() - prompt_size(); }
  bool samples() const { return request.max_tokens > 0; }
  // Every row of its prompt needs logits, and none may come from the prefix cache.
  bool scores() const { return request.score_prompt && !prefilled_once; }
  // Reserves memory for all that it may commit, so that no step allocates any.
  void Reserve(int32_t block_size);
  // Appends a token of the output.
  void Append(base::TokenId token);
  // The weight of one of its tokens in the expected tokens a second; 1 by default. Higher with
  // priority, and while its time per output token is near or above tpot_slo.
  float Value(base::Nanos now) const;
  RoundKind round_kind() const { return {request.verification, limited}; }
  // Whether a drafter reads its prompt, or is about to.
  bool drafter_reads_prompt() const {
    return sources.drafters != 0 && !had_reply && wait.asks_of_late();
  }
  // Draft tokens that the request allows in a round and that could still be emitted: the last token
  // of a round is never a draft token.
  int32_t useful_draft_nodes(int32_t max_tree_nodes) const;
  void Prefetch() const;
  void PrefetchForPlan() const;
  void PrefetchForCommit() const;
  int32_t PhysicalSlot(int32_t slot, int32_t block_size) const {
    return blocks[slot / block_size] * block_size + slot % block_size;
  }
};

// KV slots that the sequence may write in its life. The KV of its last token is never written, and
// a tree is no larger than the output that is left.
int32_t SlotsNeeded(const Sequence& sequence);

// Of several sequences: whether one waits for its draft, and the first of the deadlines of those
// that do (base::kForever if none does).
bool AnyWaitsForDraft(absl::Span<Sequence* const> sequences);
base::Nanos EarliestDeadline(absl::Span<Sequence* const> sequences);

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_SEQUENCE_H_
