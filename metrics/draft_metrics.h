#ifndef SPECFABRIC_METRICS_DRAFT_METRICS_H_
#define SPECFABRIC_METRICS_DRAFT_METRICS_H_

#include <array>

#include "metrics/registry.h"
#include "metrics/target_metrics.h"

namespace specfabric::metrics {

// Why a draft session was evicted: another one needed its place, it was idle for too long, or its
// target ended or restarted.
enum class Eviction { kLru, kTtl, kPurge };
constexpr int kEvictions = 3;

// The result of drafting ahead for a tree, once its round was verified: draft::Outcome.
constexpr std::array<const char*, 4> kAheadOutcomeNames = {"hit", "not_grown", "not_candidate",
                                                           "not_reached"};

struct DraftMetrics {
  explicit DraftMetrics(Registry& registry);

  void CountEviction(Eviction reason) { evictions[static_cast<int>(reason)]->Increment(); }
  void CountRequest(int status);  // the schemas::DraftStatus of the reply

  // Labelled with the outcome and the number of accepted tokens; created on first use.
  Counter* Outcomes(int outcome, int accepted);

  Gauge& sessions;
  Gauge& capacity;   // limit of open sessions
  Gauge& kv_tokens;  // that the KV cache has room for
  std::array<Counter*, kEvictions> evictions;
  std::array<Counter*, kDraftStatusNames.size()> requests;
  Histogram& draft_seconds;  // from a request's receipt to its reply
  Counter& tree_nodes;       // sent
  Counter& passes;           // of the model, while a target waited
  Counter& passes_ahead;     // of the model, before the outcome of a round is known
  Counter& nodes_ahead;      // computed by those passes
  Counter& replies_without_pass;
  Counter& foreign_messages;   // that name another target or incarnation
  Counter& dropped_messages;   // because the inbox was full
  Counter& draft_probs_bytes;  // sent with trees
  Counter& states;             // positions whose hidden states have come,
  Counter& state_bytes;
  Counter& invalid_states;  // of these: not finite, or of another shape,
  Counter& refused_states;  // and those for which there was no room
  Counter& lost_states;     // tensors of states that never came

 private:
  Registry& registry_;
};

}  // namespace specfabric::metrics

#endif  // SPECFABRIC_METRICS_DRAFT_METRICS_H_
