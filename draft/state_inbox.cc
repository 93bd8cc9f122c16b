#include "draft/state_inbox.h"

#include <algorithm>
#include <utility>

namespace specfabric::draft {

StateInbox::Parts* StateInbox::Find(uint32_t number) {
  if (number < next_) {
    ++stale_;
    return nullptr;
  }
  return &waiting_[number];
}

void StateInbox::Add(schemas::HiddenStates described) {
  Parts* const parts = Find(described.number);
  if (parts == nullptr) return;
  if (parts->runs.has_value()) {
    ++stale_;
  } else {
    parts->runs = std::move(described.runs);
  }
}

void StateInbox::Add(uint32_t number, transport::KeptTensor tensor) {
  Parts* const parts = Find(number);
  if (parts == nullptr) return;
  if (parts->tensor.has_value()) {
    ++stale_;
  } else {
    parts->tensor = std::move(tensor);
  }
}

void StateInbox::Lost(uint32_t number) {
  if (number >= next_) waiting_[number].lost = true;
}

// Moves next_ to the first number that is not given up.
void StateInbox::PassOver() {
  for (;;) {
    if (waiting_.empty()) return;
    const auto first = waiting_.begin();
    const auto complete = std::count_if(waiting_.begin(), waiting_.end(),
                                        [](const auto& one) { return one.second.complete(); });
    const bool given_up =
        static_cast<size_t>(complete) > kMostAhead || waiting_.size() > kMostWaiting;
    if (first->first != next_) {
      if (!given_up) return;
      lost_ += first->first - next_;
      next_ = first->first;
    } else if (first->second.lost || (given_up && !first->second.complete())) {
      ++lost_;
      ++next_;
      waiting_.erase(first);
    } else {
      return;
    }
  }
}

std::optional<ArrivedStates> StateInbox::Next() {
  PassOver();
  const auto first = waiting_.begin();
  if (first == waiting_.end() || first->first != next_ || !first->second.complete()) {
    return std::nullopt;
  }
  ArrivedStates arrived = {*std::move(first->second.runs), *std::move(first->second.tensor)};
  waiting_.erase(first);
  ++next_;
  return arrived;
}

absl::Status StateInboxes::DeliverNext(uint64_t target_incarnation) {
  StateInbox& inbox = inboxes_[target_incarnation];
  while (const std::optional<ArrivedStates> arrived = inbox.Next()) {
    absl::Status delivered = deliver_(target_incarnation, *arrived);
    if (!delivered.ok()) return delivered;
  }
  return absl::OkStatus();
}

absl::Status StateInboxes::Add(schemas::HiddenStates described) {
  const uint64_t incarnation = described.target_incarnation;
  inboxes_[incarnation].Add(std::move(described));
  return DeliverNext(incarnation);
}

absl::Status StateInboxes::Add(const transport::Fence& fence,
                               std::optional<transport::KeptTensor> tensor) {
  StateInbox& inbox = inboxes_[fence.incarnation];
  if (tensor) {
    inbox.Add(fence.round, *std::move(tensor));
  } else {
    inbox.Lost(fence.round);
  }
  return DeliverNext(fence.incarnation);
}

void StateInboxes::TargetGone(uint64_t target_incarnation) {
  const auto gone = inboxes_.find(target_incarnation);
  if (gone == inboxes_.end()) return;
  lost_ += gone->second.lost();
  inboxes_.erase(gone);
}

uint64_t StateInboxes::lost() const {
  uint64_t lost = lost_;
  for (const auto& [incarnation, inbox] : inboxes_) lost += inbox.lost();
  return lost;
}

}  // namespace specfabric::draft
