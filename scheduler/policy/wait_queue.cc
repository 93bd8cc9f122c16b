#include "scheduler/policy/wait_queue.h"

#include <algorithm>

#include "base/check.h"

namespace specfabric::scheduler {
namespace {

void InsertInQueueOrder(Sequence* sequence, std::deque<Sequence*>* queue) {
  const auto before = [](const Sequence* a, const Sequence* b) {
    return a->queue_order < b->queue_order;
  };
  queue->insert(std::upper_bound(queue->begin(), queue->end(), sequence, before), sequence);
}

}  // namespace

const QueueOrder& WaitQueue::Class::Oldest() const {
  const QueueOrder* oldest = preempted.empty() ? nullptr : &preempted.front()->queue_order;
  for (const auto& [tenant, queue] : tenants) {
    if (oldest == nullptr || queue.front()->queue_order < *oldest)
      oldest = &queue.front()->queue_order;
  }
  return *oldest;
}

void WaitQueue::Add(Sequence* sequence) {
  Class& its = classes_[sequence->request.priority];
  ++size_;
  if (sequence->preemptions > 0) return InsertInQueueOrder(sequence, &its.preempted);
  InsertInQueueOrder(sequence, &its.tenants[sequence->request.tenant]);
  shares_->Arrive(sequence->request.tenant);
}

void WaitQueue::Remove(Sequence* sequence) {
  const auto its = classes_.find(sequence->request.priority);
  SPECFABRIC_CHECK(its != classes_.end());
  auto& [preempted, tenants] = its->second;
  --size_;
  if (sequence->preemptions > 0) {
    SPECFABRIC_CHECK(std::erase(preempted, sequence) == 1);
  } else {
    const auto tenant = tenants.find(sequence->request.tenant);
    SPECFABRIC_CHECK(tenant != tenants.end() && std::erase(tenant->second, sequence) == 1);
    if (tenant->second.empty()) tenants.erase(tenant);
    shares_->StopWaiting(sequence->request.tenant);
  }
  if (preempted.empty() && tenants.empty()) classes_.erase(its);
}

Sequence* WaitQueue::Next() const {
  const Class* next = nullptr;
  for (const auto& [priority, its] : classes_) {
    if (next == nullptr || its.Oldest() < next->Oldest()) next = &its;
  }
  if (next == nullptr) return nullptr;
  return next->preempted.empty() ? LeastServed(*next) : next->preempted.front();
}

Sequence* WaitQueue::LeastServed(const Class& of) const {
  Sequence* least = nullptr;
  int64_t least_served = 0;
  for (const auto& [tenant, queue] : of.tenants) {
    const int64_t served = shares_->served(tenant);
    const bool before = least == nullptr || served < least_served ||
                        (served == least_served && queue.front()->queue_order < least->queue_order);
    if (!before) continue;
    least = queue.front();
    least_served = served;
  }
  return least;
}

}  // namespace specfabric::scheduler
