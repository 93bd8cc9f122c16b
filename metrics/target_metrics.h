#ifndef SPECFABRIC_METRICS_TARGET_METRICS_H_
#define SPECFABRIC_METRICS_TARGET_METRICS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "metrics/draft_route_metrics.h"
#include "metrics/registry.h"

namespace specfabric::metrics {

// Status of a draft worker's reply, in the order of the protocol's values.
constexpr std::array<const char*, 6> kDraftStatusNames = {"ok",          "need_resync", "busy",
                                                          "unsupported", "too_long",    "draining"};

// Verification methods, in the order of the protocol's values.
constexpr std::array<const char*, 4> kVerificationMethodNames = {"coupled", "rejection",
                                                                 "traversal", "typical"};

// How drafters are used, in the order of scheduler::DraftMode.
constexpr std::array<const char*, 3> kDraftModeNames = {"none", "just_in_time", "ahead"};

// Why a draft's reply was not verified: made for other sampling than was asked for; a tree or
// weights that are not sound; weights that no slot took.
enum class Refusal { kSampling, kInvalid, kNoSlot };
constexpr std::array<const char*, 3> kRefusalNames = {"sampling", "invalid", "no_slot"};

// The guarantee for the text (docs/exactness.md).
constexpr std::array<const char*, 3> kExactnessNames = {"token", "distribution", "none"};

// The phases of a round (docs/design.md, One round).
enum class Span { kDraftWait, kDraftCompute, kTransfer, kPlan, kForward, kVerify, kCommit };
constexpr int kSpans = 7;

// Metrics of one drafter: a draft model, or the n-gram lookup in a sequence's own text.
struct DrafterMetrics {
  Counter& drafted_tokens;  // verified
  Counter& accepted_tokens;
  // Null for the n-gram lookup: the part of recent rounds for which it was chosen, and how often
  // the first token of its trees was accepted.
  Gauge* share;
  Gauge* first_accepted;
};

struct TargetMetrics {
  // `positions`: the number of series of accepted tokens by depth; deeper ones count in the last.
  TargetMetrics(Registry& registry, const std::string& model_name, int positions);

  void ObserveSpan(Span span, base::Nanos duration) {
    spans[static_cast<int>(span)]->Observe(base::ToSeconds(duration));
  }
  // Counts one round of one sequence: a tree of `drafted` draft tokens, of which `accepted` were
  // accepted. Plain decoding has none. Also counts in the vllm: aliases.
  void CountRound(int verification, int drafted, int accepted);
  // The guarantee of requests that name no verification method: an index of kExactnessNames.
  void SetExactness(int index);
  Counter& refused_drafts(Refusal reason) { return *refused[static_cast<int>(reason)]; }
  void CountDraftReply(int status);  // a schemas::DraftStatus
  // Preempted sequences, and tokens looked up and found in the prefix cache. Also counts in the
  // vllm: aliases.
  void CountScheduling(uint64_t preempted, uint64_t queried, uint64_t found);

  // Creates the series of a draft model.
  DrafterMetrics AddDrafter(const std::string& model);

  Gauge& running;
  Gauge& max_sequences;
  Gauge& waiting;
  Gauge& kv_blocks_used;
  Gauge& kv_blocks_free;    // including cached blocks
  Gauge& kv_blocks_cached;  // free, but kept for their content
  Gauge& kv_tokens;         // that the blocks have room for
  Gauge& draft_workers;     // connected and taking requests
  Counter& prompt_tokens;
  Counter& output_tokens;
  Counter& draft_misses;  // rounds that ran without the draft they had requested
  Counter& draft_skips;   // rounds that did not wait because that was not expected to pay
  Counter& late_drafts;   // replies that arrived after their round had been planned
  std::array<Counter*, kDraftModeNames.size()> mode_steps;
  std::array<Gauge*, kDraftModeNames.size()> mode_yields;
  Counter& trial_steps;  // in a mode that was tried
  Counter& cancelled;
  Counter& not_finite;  // sequences ended by logits that are not finite
  std::array<Histogram*, kSpans> spans;
  std::array<Counter*, kDraftStatusNames.size()> draft_replies;
  Counter& draft_probs;  // tensors that trees were verified with
  Counter& draft_probs_bytes;
  Counter& states_sent;  // positions whose hidden states went to a draft worker
  Counter& states_sent_bytes;
  Counter& states_dropped;  // positions of which they did not
  std::array<Gauge*, kExactnessNames.size()> exactness;
  std::array<Counter*, kRefusalNames.size()> refused;

  Counter& scored_rounds;  // rounds in which all drafters were asked
  DrafterMetrics ngram_lookup;

  // Updated by CountScheduling.
  Counter& preemptions;
  Counter& cache_queries;
  Counter& cache_hits;
  Counter& vllm_preemptions;
  Counter& vllm_cache_queries;
  Counter& vllm_cache_hits;

  // Updated by CountRound.
  Counter& rounds;
  Counter& drafts;  // rounds that verified draft tokens
  Counter& drafted_tokens;
  Counter& accepted_tokens;
  std::vector<Counter*> accepted_at;  // [positions]
  std::array<Counter*, kVerificationMethodNames.size()>
      verifications;  // of trees with draft tokens
  Counter& vllm_drafts;
  Counter& vllm_draft_tokens;
  Counter& vllm_accepted_tokens;
  std::vector<Counter*> vllm_accepted_at;  // [positions]

  DraftRouteMetrics draft_routes;

 private:
  Registry& registry_;
};

}  // namespace specfabric::metrics

#endif  // SPECFABRIC_METRICS_TARGET_METRICS_H_
