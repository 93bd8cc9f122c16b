#include "scheduler/policy/draft_orders.h"

#include <algorithm>
#include <cstdint>

namespace specfabric::scheduler {
namespace {

// What a step that waits for its drafts waits at most, in times of a step: few drafters gain more.
constexpr base::Nanos kMostSteps = 2;

}  // namespace

DraftOrder DraftOrders::Compute(RoundKind kind, absl::Span<Sequence* const> running,
                                const PrefillLoad& prefill) {
  int32_t askers = 0;
  bool reading = false;
  StepBase decode = {.max_rows = options_.max_step_tokens};
  for (const Sequence* sequence : running) {
    if (sequence->phase != Phase::kRunning) continue;
    decode.tokens += 1;
    decode.rows += 1;
    decode.context += sequence->kv_written;
    // Those of other kinds, too: they ask the same drafters, and steps wait for all of them. What
    // they gain is taken to be as much.
    askers += (sequence->sources.drafters & drafters_) != 0;
    reading |= sequence->drafter_reads_prompt();
  }
  StepBase step = decode;
  prefill.AddTo(prefill.RowsBeside(static_cast<int32_t>(decode.rows)), &step);
  const bool first =
      std::none_of(orders_.begin(), orders_.end(), [](const auto& of) { return of.has_value(); });
  DraftOrder order =
      options_.speculation == SpeculationPolicy::kAlways
          ? control_->Deepest(kind, {.askers = askers}, options_.max_tree_nodes)
          : control_->Order(kind, askers, decode, step, options_.max_tree_nodes, reading, first);
  SetReplyTimeout(kind, step, &order);
  return order;
}

const DraftOrder& DraftOrders::TakeOwn(RoundKind kind, DraftOrder* order) {
  if (order->explorer < 0 || order->explorer-- != 0) return *order;
  const base::Nanos timeout = order->reply_timeout;
  other_order_ = control_->Deeper(kind, *order, options_.max_tree_nodes);
  SetReplyTimeout(kind, {}, &other_order_);
  if (order->must_wait) other_order_.reply_timeout = timeout;
  return other_order_;
}

void DraftOrders::SetReplyTimeout(RoundKind kind, const StepBase& step, DraftOrder* order) const {
  if (options_.speculation == SpeculationPolicy::kAlways) {
    order->reply_timeout = options_.max_draft_wait;
    return;
  }
  const base::Nanos timeout = order->must_wait
                                  ? kMostSteps * control_->step_time().Predict(
                                                     static_cast<int32_t>(step.rows), step.context)
                                  : control_->ReplyTimeout(kind, *order);
  order->reply_timeout = std::clamp(timeout, options_.min_draft_wait, options_.max_draft_wait);
}

}  // namespace specfabric::scheduler
