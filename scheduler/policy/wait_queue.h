#ifndef SPECFABRIC_SCHEDULER_POLICY_WAIT_QUEUE_H_
#define SPECFABRIC_SCHEDULER_POLICY_WAIT_QUEUE_H_

// The sequences that wait for admission, and which of them is next. The priority class goes first
// that has the sequence of the least queue order (sequence.h), so that waiting makes up for
// priority. Within it: first the sequences that were preempted, whose clients have tokens already;
// then the oldest sequence of the tenant that has been served least. Within one tenant it is first
// come, first served. No tenant starves: serving the others raises their counts. Owned by
// Admission.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>

#include "scheduler/policy/tenant_shares.h"
#include "scheduler/sequence.h"

namespace specfabric::scheduler {

class WaitQueue {
 public:
  // `shares` must outlive the queue, which reports to it who arrives and who stops waiting.
  explicit WaitQueue(TenantShares* shares) : shares_(shares) {}

  // New sequences are added in the order of their arrival, preempted ones at any time.
  void Add(Sequence* sequence);
  void Remove(Sequence* sequence);
  // Null if none waits. Time in proportion to the tenants that wait.
  Sequence* Next() const;
  int32_t size() const { return size_; }

 private:
  struct Class {
    std::deque<Sequence*> preempted;                    // by queue order
    std::map<uint64_t, std::deque<Sequence*>> tenants;  // by queue order; none empty
    const QueueOrder& Oldest() const;
  };
  Sequence* LeastServed(const Class& of) const;

  TenantShares* const shares_;
  std::map<int32_t, Class, std::greater<>> classes_;  // by priority; none empty
  int32_t size_ = 0;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_WAIT_QUEUE_H_
