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

// What a draft worker answered, in the protocol's order of status values.
constexpr std::array<const char*, 6> kDraftStatusNames = {"ok",          "need_resync", "busy",
                                                          "unsupported", "too_long",    "draining"};

// How trees are verified, in the protocol's order of verification methods.
constexpr std::array<const char*, 4> kVerificationMethodNames = {"coupled", "rejection",
                                                                 "traversal", "typical"};

// Why a draft's reply was not verified: made for other sampling than was asked for; a tree or
// weights that are not sound; weights that no slot took.
enum class Refusal { kSampling, kInvalid, kNoSlot };
constexpr std::array<const char*, 3> kRefusalNames = {"sampling", "invalid", "no_slot"};

// What is promised of the text (docs/exactness.md).
constexpr std::array<const char*, 3> kExactnessNames = {"token", "distribution", "none"};

// Where the time of one round goes (design.md, One round).
enum class Span { kDraftWait, kDraftCompute, kTransfer, kPlan, kForward, kVerify, kCommit };
constexpr int kSpans = 7;

// Of one drafter: a draft model, or the n-gram lookup in a sequence's own text.
struct DrafterMetrics {
  Counter& drafted_tokens;   // that were verified
  Counter& accepted_tokens;  // of them
  Gauge* share;  // of the last rounds, those it was chosen for; null for the n-gram lookup
};

struct TargetMetrics {
  // `positions`: the deepest tree a target verifies; deeper acceptances count in the last one.
  TargetMetrics(Registry& registry, const std::string& model_name, int positions);

  void ObserveSpan(Span span, base::Nanos duration) {
    spans[static_cast<int>(span)]->Observe(base::ToSeconds(duration));
  }
  // One verification of one sequence: `drafted` nodes below the root, of which the accepted path
  // took `accepted`. Feeds the vllm: aliases too. A plain decode drafts none.
  void CountRound(int verification, int drafted, int accepted);
  // What is promised of requests that ask for nothing else: an index of kExactnessNames.
  void SetExactness(int exactness);
  Counter& refused_drafts(Refusal reason) { return *refused[static_cast<int>(reason)]; }
  void CountDraftReply(int status);  // a schemas::DraftStatus
  // Sequences preempted, and tokens looked for and found in the prefix cache. Feeds the vllm:
  // aliases too.
  void CountScheduling(uint64_t preempted, uint64_t queried, uint64_t found);

  // The series of a draft model that has joined.
  DrafterMetrics AddDrafter(const std::string& model);

  Gauge& running;
  Gauge& max_sequences;
  Gauge& waiting;
  Gauge& kv_blocks_used;
  Gauge& kv_blocks_free;    // cached ones included
  Gauge& kv_blocks_cached;  // free, kept for their content
  Gauge& draft_workers;     // connected and taking requests
  Counter& prompt_tokens;
  Counter& output_tokens;
  Counter& draft_misses;  // rounds that went without the draft they asked for
  Counter& draft_skips;   // rounds that did not wait for theirs, since that did not pay
  Counter& late_drafts;   // replies that came after their round had gone
  Counter& cancelled;
  Counter& not_finite;  // sequences ended by logits that are not finite
  std::array<Histogram*, kSpans> spans;
  std::array<Counter*, kDraftStatusNames.size()> draft_replies;
  Counter& draft_probs;        // tensors that were verified by
  Counter& draft_probs_bytes;  // of them
  std::array<Gauge*, kExactnessNames.size()> exactness;
  std::array<Counter*, kRefusalNames.size()> refused;

  Counter& scored_rounds;  // in which all drafters were asked
  DrafterMetrics ngram_lookup;

  // Fed by CountScheduling.
  Counter& preemptions;
  Counter& cache_queries;
  Counter& cache_hits;
  Counter& vllm_preemptions;
  Counter& vllm_cache_queries;
  Counter& vllm_cache_hits;

  // Fed by CountRound.
  Counter& rounds;
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
