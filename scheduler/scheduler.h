#ifndef SPECFABRIC_SCHEDULER_SCHEDULER_H_
#define SPECFABRIC_SCHEDULER_SCHEDULER_H_

// Continuous batching for one target group, as a pure state machine: no threads, no clock, no
// tensors. The same calls with the same times give the same plans, in a live group, in tests and in
// the capacity simulator. Owned and called by one thread (the group's leader).
//
// Life of a sequence: Add -> waiting -> prefill (in chunks) -> running: {wants a draft -> has one
// or goes without -> planned -> committed}* -> finished. First come, first served within a tenant;
// tenants get equal shares (policy/wait_queue.h).
//
// A step takes every running sequence that does not wait for a draft, then as much prefill as fits.
// The expected tokens a second (policy/goodput.h) decide whether a step waits for drafts, how large
// the trees are that it asks for, and how many of their draft tokens it verifies, if any.
//
// Its parts: policy/admission.h (who runs), policy/draft_rounds.h (what is asked of drafters, and
// what comes of it), policy/pacing.h (when a step starts), policy/step_planner.h (what it holds),
// step_in_flight.h (what its result does), kv/sequence_blocks.h (KV blocks and prefix cache).

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/sequence_output.h"
#include "base/types.h"
#include "scheduler/policy/draft_modes.h"
#include "scheduler/policy/draft_wait.h"
#include "scheduler/policy/step_time.h"
#include "scheduler/sequence_request.h"
#include "scheduler/step_plan.h"
#include "speculation/tree.h"

namespace specfabric::scheduler {

// Fault injection, for tests.
struct CacheFaultInjection {
  int32_t hash_bits = 128;      // fewer: keys collide
  bool compare_tokens = true;   // false: equal keys are taken for equal tokens
  bool rewrite_shared = false;  // true: the last cached token is computed and written again
};

enum class SpeculationPolicy : uint8_t {
  kGoodput,  // whatever is expected to yield the most tokens a second
  kAlways,  // every sequence asks for the largest tree; a step waits for all drafts unless there is
            // prefill to do, and verifies all of them
};

// kv_blocks, block_size and vocabulary must be set; a value out of range is a programming error
// (CHECK).
struct SchedulerOptions {
  int32_t kv_blocks = 0;          // blocks in the pool
  int32_t block_size = 16;        // KV slots (tokens) of a block
  int32_t max_context = 2048;     // prompt + output tokens of a sequence
  int32_t max_sequences = 64;     // running at once; at most max_step_tokens
  int32_t max_step_tokens = 512;  // rows of one step, all sequences together
  int32_t max_waiting = 1024;     // bounded queue; Add() past it is ResourceExhausted
  int32_t max_tree_nodes = 64;    // of one tree, root included; at most kMaxVerifyNodes
  int32_t vocabulary = 0;
  SpeculationPolicy speculation = SpeculationPolicy::kGoodput;
  // A reply counts as a miss when it takes longer than replies to such requests usually do. The
  // limit is clamped to [min_draft_wait, max_draft_wait]; with kAlways it is max_draft_wait.
  base::Nanos min_draft_wait = 1 * base::kMillisecond;
  base::Nanos max_draft_wait = 50 * base::kMillisecond;
  MissLimits misses;
  base::Nanos priority_ageing = 10 * base::kSecond;  // a priority of 1 counts as so much waiting
  // Enables the n-gram lookup (speculation/ngram_lookup.h): draft tokens from the sequence's own
  // text, ready when its round begins. They are verified when that is expected to pay, alone or
  // merged with a drafter's tree.
  bool ngram_lookup = false;
  std::vector<StepSample> profile = {};  // steps that were measured before, ascending by rows
  bool prefix_cache = true;
  uint64_t model_salt = 0;                  // part of all keys of the prefix cache
  std::optional<uint64_t> cache_seed = {};  // of the secret of those keys, for tests; else random
  CacheFaultInjection cache_fault_injection = {};
};

// kError: the step failed. kNotFinite: the model's logits for the next token are not all finite.
enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kError, kNotFinite };

// Draft tokens by the source that proposed them, each counted once: what several drafters proposed
// counts for the first of them.
struct DraftTokenCounts {
  std::array<int32_t, speculation::kMaxDrafters> by_drafter = {};
  int32_t by_grammar = 0;         // forced, whoever proposed them besides
  int32_t by_ngram_lookup = 0;    // proposed by no drafter
  int32_t also_ngram_lookup = 0;  // those of by_drafter that the n-gram lookup proposed as well
};

// New tokens of one sequence, for the gateway.
struct TokensEvent : base::SequenceOutput {
  base::SequenceId id = 0;
  std::optional<FinishReason> finish;
  // Of this round: draft tokens verified and accepted (0 without a draft).
  int32_t drafted = 0;
  int32_t accepted = 0;
  DraftTokenCounts drafted_by, accepted_by;
  bool round = false;  // a decode or verification round (prefill is none)
  // In a sequence's first event: tokens of its prompt whose KV the cache had.
  int32_t cached_tokens = 0;
  int32_t not_finite_at = 0;  // with kNotFinite: index in prompt + output of the token meant
};

// The sequence's committed tokens have grown to `committed`; a tree for (id, round) is wanted
// before `deadline`. The root of the tree is the last committed token.
struct DraftWanted {
  base::SequenceId id = 0;
  uint32_t round = 0;
  int32_t committed = 0;                         // tokens, prompt included
  int32_t max_nodes = 0;                         // below the root
  int32_t max_depth = 0;                         // levels
  double cost_per_second = 0, cost_per_row = 0;  // see DraftOrder
  base::Nanos deadline = 0;
  bool ahead = true;  // see DraftOrder
};

// The sequence has ended: its blocks are free, and its draft session can be ended.
struct SequenceEnded {
  base::SequenceId id = 0;
};

using Event = std::variant<TokensEvent, DraftWanted, SequenceEnded>;

struct WaitUntil {
  base::Nanos time = 0;  // call Plan again then, or after any Add, Cancel, OnDraft or OnNoDraft
};

struct SchedulerStats {
  int32_t waiting = 0, running = 0;
  int32_t free_blocks = 0;    // without an owner, cached ones included
  int32_t used_blocks = 0;    // shared ones count once
  int32_t cached_blocks = 0;  // without an owner, kept for their content
  // Rounds by what became of their draft: it came; it was late, wrong or unavailable; the step did
  // not wait for it. One that comes after its deadline, but before its sequence is planned, is
  // counted as a miss and as a hit.
  uint64_t draft_hits = 0, draft_misses = 0, draft_skips = 0;
  uint64_t late_drafts = 0;  // replies for rounds that were over
  DraftModeCounts modes;
  uint64_t preemptions = 0;
  // Tokens looked for in the prefix cache, once a sequence, and those found.
  uint64_t cache_queries = 0, cache_hits = 0;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  ~Scheduler();

  // The lossless method, of a set of bits 1 << VerificationMethod, that a sequence is to use which
  // samples at this temperature, has drafts from these sources and leaves it to the target; see
  // policy/method_choice.h.
  speculation::VerificationMethod ChooseVerification(uint32_t allowed, float temperature,
                                                     const DraftSources& sources);
  // InvalidArgument: empty prompt, ids or priority out of range, beyond the context, more blocks
  // than the pool has, nothing left to generate. ResourceExhausted: queue full. AlreadyExists: the
  // id is in use. now: the time of arrival, never before an earlier call's.
  absl::Status Add(SequenceRequest request, base::Nanos now);
  // Frees everything of the sequence. If it is part of the step in flight that happens at the
  // step's Commit, which drops its tokens. Returned now, or by that Commit: a TokensEvent without
  // tokens, finish kCancelled, and its SequenceEnded. Unknown ids are ignored.
  std::vector<Event> Cancel(base::SequenceId id);

  // A drafter's reply. Used if `round` is the sequence's current one and the sequence is not in
  // flight; otherwise it counts as late, and only its time and tree are learned from. The tree has
  // passed speculation::CheckStructure and CheckLimits, and is drawn in a way that the sequence's
  // verification method Allows; if its root is not the last committed token it is dropped and
  // counts as a miss. It is merged with the n-gram lookup's tree where the verification method
  // Merges; otherwise the tree is verified of which more tokens are expected to be accepted.
  void OnDraft(base::SequenceId id, uint32_t round, speculation::Draft draft, base::Nanos now);
  // The tree of another drafter for the same round: merged with what is there where the
  // verification method Merges and the round is not planned yet, else dropped. No step waits for
  // it.
  void OnExtraDraft(base::SequenceId id, uint32_t round, speculation::Draft draft);
  // Which drafters have a worker that is connected: a bit set as DraftSources::drafters; at first
  // all. A sequence asks while one of those that may draft for it is.
  void SetDrafters(uint32_t connected);
  // No draft will come for this round (busy, unreachable, unsupported): do not wait for it.
  void OnNoDraft(base::SequenceId id, uint32_t round);

  // The next step, or how long nothing will be ready. At most one step is in flight: Plan after
  // Plan without Commit is a programming error (CHECK).
  std::variant<StepPlan, WaitUntil> Plan(base::Nanos now);
  // Applies the result of the step in flight. A sequence that ends with kNotFinite leaves nothing
  // in the prefix cache that no other one owns. The tokens become the events'; in their place
  // *result gets memory of events that were given back.
  std::vector<Event> Commit(StepResult* result, base::Nanos now);
  // The step in flight failed as a whole: its sequences end with kError.
  std::vector<Event> Abort();

  // Gives back what Plan and Commit returned, once it is no longer needed. The next plan and events
  // reuse its memory, so that the steady state allocates nothing. Optional.
  void Recycle(StepPlan plan);
  void Recycle(std::vector<Event> events);

  // All committed tokens (prompt + output) of a live sequence; null if unknown.
  const std::vector<base::TokenId>* Committed(base::SequenceId id) const;
  SchedulerStats stats() const;

  // For tests. The KV blocks of a live sequence, in order; null if unknown.
  const std::vector<int32_t>* Blocks(base::SequenceId id) const;
  // Ends the process if blocks and their owners do not balance; slow.
  void Check() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_SCHEDULER_H_
