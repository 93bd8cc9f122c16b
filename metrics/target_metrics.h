#ifndef SPECFABRIC_METRICS_TARGET_METRICS_H_
#define SPECFABRIC_METRICS_TARGET_METRICS_H_

#include <array>
#include <string>
#include <vector>

#include "base/clock.h"
#include "metrics/registry.h"

namespace specfabric::metrics {

// What a draft worker answered, in the protocol's order of status values.
constexpr std::array<const char*, 6> kDraftStatusNames = {"ok",          "need_resync", "busy",
                                                          "unsupported", "too_long",    "draining"};

// Where the time of one round goes (design.md, One round).
enum class Span { kDraftWait, kDraftCompute, kTransfer, kPlan, kForward, kVerify, kCommit };
constexpr int kSpans = 7;

struct TargetMetrics {
  // `positions`: the deepest tree a target verifies; deeper acceptances count in the last one.
  TargetMetrics(Registry& registry, const std::string& model_name, int positions);

  void ObserveSpan(Span span, base::Nanos duration) {
    spans[static_cast<int>(span)]->Observe(base::ToSeconds(duration));
  }
  // One verification of one sequence: `drafted` nodes below the root, of which the accepted path
  // took `accepted`. Feeds the vllm: aliases too. A plain decode is CountRound(0, 0).
  void CountRound(int drafted, int accepted);
  // `token`: the text does not depend on batching, drafts or failover; otherwise only its law.
  void SetExactness(bool token);
  void CountDraftReply(int status);  // a schemas::DraftStatus

  Gauge& running;
  Gauge& waiting;
  Gauge& kv_blocks_used;
  Gauge& kv_blocks_free;
  Gauge& draft_workers;  // connected and taking requests
  Counter& prompt_tokens;
  Counter& output_tokens;
  Counter& draft_misses;  // rounds that went without the draft they asked for
  Counter& late_drafts;   // replies that came after their round had gone
  Counter& cancelled;
  std::array<Histogram*, kSpans> spans;
  std::array<Counter*, kDraftStatusNames.size()> draft_replies;
  Gauge& exact_token;
  Gauge& exact_law;

  // Fed by CountRound.
  Counter& rounds;
  Counter& drafted_tokens;
  Counter& accepted_tokens;
  std::vector<Counter*> accepted_at;  // [positions]
  Counter& vllm_drafts;
  Counter& vllm_draft_tokens;
  Counter& vllm_accepted_tokens;
  std::vector<Counter*> vllm_accepted_at;  // [positions]
};

}  // namespace specfabric::metrics

#endif  // SPECFABRIC_METRICS_TARGET_METRICS_H_
