#include "scheduler/policy/draft_orders.h"

#include <algorithm>
#include <cstdint>

namespace specfabric::scheduler {

DraftOrder DraftOrders::Compute(speculation::VerificationMethod verification,
                                absl::Span<Sequence* const> running, const PrefillLoad& prefill) {
  int32_t askers = 0;
  StepBase step;
  for (const Sequence* sequence : running) {
    if (sequence->phase != Phase::kRunning) continue;
    step.tokens += 1;
    step.rows += 1;
    step.context += sequence->kv_written;
    askers += sequence->request.verification == verification && sequence->request.speculate;
  }
  prefill.AddTo(prefill.RowsBeside(static_cast<int32_t>(step.rows)), &step);
  DraftOrder order =
      options_.speculation == SpeculationPolicy::kAlways
          ? control_->Deepest(verification, {.askers = askers}, options_.max_tree_nodes)
          : control_->Order(verification, askers, step, options_.max_tree_nodes);
  SetReplyTimeout(verification, &order);
  return order;
}

const DraftOrder& DraftOrders::TakeOwn(speculation::VerificationMethod verification,
                                       DraftOrder* order) {
  const bool probes = order->probers > 0 && order->probers-- > 0;
  const bool explores = !probes && order->explorer >= 0 && order->explorer-- == 0;
  if (!probes && !explores) return *order;
  other_order_ =
      probes ? control_->Probe(verification, *order, options_.max_tree_nodes, order->probers)
             : control_->Deepest(verification, *order, options_.max_tree_nodes);
  SetReplyTimeout(verification, &other_order_);
  return other_order_;
}

void DraftOrders::SetReplyTimeout(speculation::VerificationMethod verification,
                                  DraftOrder* order) const {
  order->reply_timeout = options_.speculation == SpeculationPolicy::kAlways
                             ? options_.max_draft_wait
                             : std::clamp(control_->ReplyTimeout(verification, *order),
                                          options_.min_draft_wait, options_.max_draft_wait);
}

}  // namespace specfabric::scheduler
