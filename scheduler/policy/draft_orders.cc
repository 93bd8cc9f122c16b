#include "scheduler/policy/draft_orders.h"

#include <algorithm>
#include <cstdint>

namespace specfabric::scheduler {
namespace {

// What a step that waits for its drafts waits at most, in times of a step: few drafters gain more.
constexpr base::Nanos kMostSteps = 2;

}  // namespace

DraftOrder DraftOrders::Compute(speculation::VerificationMethod verification,
                                absl::Span<Sequence* const> running, const PrefillLoad& prefill) {
  int32_t askers = 0;
  bool reading = false;
  StepBase decode = {.max_rows = options_.max_step_tokens};
  for (const Sequence* sequence : running) {
    if (sequence->phase != Phase::kRunning) continue;
    decode.tokens += 1;
    decode.rows += 1;
    decode.context += sequence->kv_written;
    // Those of other methods, too: they ask the same drafters, and steps wait for all of them. What
    // they gain is taken to be as much.
    askers += sequence->request.speculate;
    reading |= sequence->drafter_reads_prompt();
  }
  StepBase step = decode;
  prefill.AddTo(prefill.RowsBeside(static_cast<int32_t>(decode.rows)), &step);
  DraftOrder order =
      options_.speculation == SpeculationPolicy::kAlways
          ? control_->Deepest(verification, {.askers = askers}, options_.max_tree_nodes)
          : control_->Order(verification, askers, decode, step, options_.max_tree_nodes, reading);
  SetReplyTimeout(verification, step, &order);
  return order;
}

const DraftOrder& DraftOrders::TakeOwn(speculation::VerificationMethod verification,
                                       DraftOrder* order) {
  if (order->explorer < 0 || order->explorer-- != 0) return *order;
  const base::Nanos timeout = order->reply_timeout;
  other_order_ = control_->Deeper(verification, *order, options_.max_tree_nodes);
  SetReplyTimeout(verification, {}, &other_order_);
  if (order->must_wait) other_order_.reply_timeout = timeout;
  return other_order_;
}

void DraftOrders::SetReplyTimeout(speculation::VerificationMethod verification,
                                  const StepBase& step, DraftOrder* order) const {
  if (options_.speculation == SpeculationPolicy::kAlways) {
    order->reply_timeout = options_.max_draft_wait;
    return;
  }
  const base::Nanos timeout = order->must_wait
                                  ? kMostSteps * control_->step_time().Predict(
                                                     static_cast<int32_t>(step.rows), step.context)
                                  : control_->ReplyTimeout(verification, *order);
  order->reply_timeout = std::clamp(timeout, options_.min_draft_wait, options_.max_draft_wait);
}

}  // namespace specfabric::scheduler
