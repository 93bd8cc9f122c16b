#ifndef SPECFABRIC_METRICS_DRAFT_METRICS_H_
#define SPECFABRIC_METRICS_DRAFT_METRICS_H_

#include <array>

#include "metrics/registry.h"
#include "metrics/target_metrics.h"

namespace specfabric::metrics {

// Why a draft session was thrown out: its place was needed, it was idle for too long, or its
// target ended or restarted.
enum class Eviction { kLru, kTtl, kPurge };
constexpr int kEvictions = 3;

// What became of a tree when the text went on: draft::Outcome.
constexpr std::array<const char*, 4> kAheadOutcomeNames = {"hit", "not_grown", "not_candidate",
                                                           "not_reached"};

struct DraftMetrics {
  explicit DraftMetrics(Registry& registry);

  void CountEviction(Eviction reason) { evictions[static_cast<int>(reason)]->Increment(); }
  void CountRequest(int status);  // the schemas::DraftStatus it was answered with

  // Labelled by the outcome and the tokens accepted; made when first needed.
  Counter* Outcomes(int outcome, int accepted);

  Gauge& sessions;
  Gauge& capacity;  // sessions at once
  std::array<Counter*, kEvictions> evictions;
  std::array<Counter*, kDraftStatusNames.size()> requests;
  Histogram& draft_seconds;  // from a request's receipt to its reply
  Counter& tree_nodes;       // sent
  Counter& passes;           // of the model, while a target waited
  Counter& passes_ahead;     // ahead of the outcomes
  Counter& nodes_ahead;      // run by those
  Counter& replies_without_pass;
  Counter& foreign_messages;   // of a target in another's name
  Counter& dropped_messages;   // for which the inbox had no room
  Counter& draft_probs_bytes;  // of the distributions that nodes were drawn from, sent beside them

 private:
  Registry& registry_;
};

}  // namespace specfabric::metrics

#endif  // SPECFABRIC_METRICS_DRAFT_METRICS_H_
