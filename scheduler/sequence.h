#ifndef SPECFABRIC_SCHEDULER_SEQUENCE_H_
#define SPECFABRIC_SCHEDULER_SEQUENCE_H_

// One sequence inside the scheduler, and what one step does to it. No queue, no pool, no policy.

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "base/types.h"
#include "sampling/logit_changer.h"
#include "scheduler/kv/prefix_hash.h"
#include "scheduler/policy/draft_wait.h"
#include "scheduler/scheduler.h"
#include "scheduler/step_plan.h"
#include "speculation/ngram_lookup.h"
#include "speculation/tree.h"

namespace specfabric::scheduler {

enum class Phase : uint8_t { kWaiting, kPrefill, kRunning };

// Who goes first, for life: the least comes first. A class of higher priority counts as if it had
// come earlier, so that within a class it is first come, first served, and a sequence that has
// waited long enough is overtaken by nobody.
struct QueueOrder {
  base::Nanos time = 0;  // of arrival, less priority * SchedulerOptions::priority_ageing
  uint64_t arrival = 0;  // breaks ties
  auto operator<=>(const QueueOrder&) const = default;
};

// What every step looks at of every sequence stands first, in as few cache lines as it takes.
struct Sequence {
  Phase phase = Phase::kWaiting;
  bool in_flight = false;
  bool cancelled = false;              // while in flight: ends at the commit
  std::optional<FinishReason> finish;  // by the result that is being applied
  bool has_draft = false;              // there is a `draft`
  bool answered = false;               // in this round, by a drafter
  bool publishes = true;               // false: another content has the key of the next block
  bool had_reply = false;
  bool prefilled_once = false;  // its first prefill has ended and was reported
  int32_t limit = 0;            // size of `committed` at which it ends

  // KV slots [0, kv_written) hold the tokens of the same index. Running: committed.size() - 1.
  int32_t kv_written = 0;
  int32_t settled = 0;          // the same without what still has to be moved there
  std::vector<int32_t> blocks;  // owned, perhaps with others; see sequence_blocks.h
  std::vector<SlotMove> moves;  // to be done before its next rows. They are not idempotent: they go
                                // into no plan but its own, since an aborted plan ends it.
  int32_t moves_end = 0;        // one past the last slot that `moves` read

  int32_t published = 0;  // blocks, from the first on, that the cache knows
  int32_t planned_rows = 0;
  base::Nanos first_token = 0;  // when it was committed; 0: not yet

  std::vector<base::TokenId> committed;  // prompt + output; grows by Append alone
  DraftWait wait;
  std::vector<float> expected_gain;  // of the draft's nodes, see GoodputControl::Evaluate
  speculation::Draft
      draft;  // of this round: the n-gram lookup's until a drafter's comes; see `has_draft`
  speculation::Draft planned;  // in flight, without draft_row; no tree for a prefill
  std::vector<BlockKey> keys;  // of the first full blocks of `committed`, as far as needed so far

  sampling::TokenCounts counts;  // of `committed`, where the request's rules need them
  SequenceRequest request;
  QueueOrder queue_order;
  int32_t cached_tokens = 0;  // of the prompt, found in the cache at the first prefill
  int32_t preemptions = 0;
  std::optional<speculation::NgramLookup>
      ngram_lookup;                                  // of `committed`, as far as it has caught up
  std::vector<base::TokenLogprobs> prompt_logprobs;  // until the end of the prefill

  Sequence(SequenceRequest given, int32_t max_context);

  int32_t prompt_size() const { return static_cast<int32_t>(request.prompt.size()); }
  int32_t committed_size() const { return static_cast<int32_t>(committed.size()); }
  int32_t output_size() const { return committed_size() - prompt_size(); }
  bool samples() const { return request.max_tokens > 0; }
  // Every row of its prompt needs logits: none may come from the cache.
  bool scores() const { return request.score_prompt && !prefilled_once; }
  // Room for all that it may commit, so that no step has to make it.
  void Reserve(int32_t block_size);
  // One more token of the output.
  void Append(base::TokenId token);
  // Of one of its tokens beside those of other sequences: more with priority, and while it is
  // behind the time a token that it asked for.
  float Value(base::Nanos now) const;
  // Guesses that could still be emitted: one token of a round is never a guess.
  int32_t useful_draft_nodes(int32_t max_tree_nodes) const;
  // Hints, in loops over many, that this one comes soon: first it itself, then what a plan reads
  // through its pointers, or a commit does.
  void Prefetch() const;
  void PrefetchForPlan() const;
  void PrefetchForCommit() const;
  int32_t PhysicalSlot(int32_t slot, int32_t block_size) const {
    return blocks[slot / block_size] * block_size + slot % block_size;
  }
};

// KV slots that the sequence may write in its life: its last token is never written, and a tree is
// no larger than the output that is left.
int32_t SlotsNeeded(const Sequence& sequence);

// Appends the next `rows` tokens of the sequence's prompt (or resumed output) to the plan.
void PlanPrefill(int32_t rows, int32_t block_size, Sequence* sequence, StepPlan* plan);

// Appends the last committed token and `nodes` (as speculation::Keep) of its draft, which it must
// have if there are any, and the slot moves that its last round left.
void PlanTree(absl::Span<const int32_t> nodes, int32_t block_size, Sequence* sequence,
              StepPlan* plan);

// Applies one result: appends the tokens, cut at the first stop id or at the limit, and notes the
// slot moves that make the accepted path a plain prefix. What `result` holds is moved from.
// `event`, a new one, is then complete; its `finish` says whether the sequence goes on. A result
// that does not fit what was planned is a programming error.
void ApplyResult(SequenceResult* result, int32_t block_size, Sequence* sequence,
                 TokensEvent* event);

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_SEQUENCE_H_
