#ifndef SPECFABRIC_SCHEDULER_POLICY_TENANT_SHARES_H_
#define SPECFABRIC_SCHEDULER_POLICY_TENANT_SHARES_H_

// How much service each tenant has had, so that tenants with more demand than there is capacity get
// equal shares: the virtual token counter of Sheng et al., "Fairness in Serving Large Language
// Models" (arXiv 2401.00588). The tenant with the lowest count is served next. A tenant that had no
// sequence waiting, and now has one, is raised to the lowest count of the tenants that wait: time
// without demand is no credit.
//
// A tenant with sequences is known. After that its count is kept while it is above what a new
// tenant would get, for kMaxIdle tenants at most; the lowest is dropped first. Owned by Admission;
// changed by it and by WaitQueue.

#include <cstddef>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>

namespace specfabric::scheduler {

class TenantShares {
 public:
  static constexpr int64_t kPromptWeight = 1;  // of a token of a prompt
  static constexpr int64_t kOutputWeight = 2;  // of a token of an output
  static constexpr size_t kMaxIdle = 1024;

  // A sequence of the tenant arrives, and waits.
  void Arrive(uint64_t id);
  // A sequence that waited is admitted, or ends.
  void StopWaiting(uint64_t id);
  // A sequence, which does not wait, ends.
  void Leave(uint64_t id);
  // The tenant, which has sequences, got this service: tokens times their weight.
  void Charge(uint64_t id, int64_t service);

  int64_t served(uint64_t id) const;  // of a tenant that has sequences
  size_t known() const { return tenants_.size(); }
  // Ends the process if the counts are inconsistent.
  void Check() const;

 private:
  struct Tenant {
    int64_t served = 0;
    int32_t sequences = 0;  // 0: idle
    int32_t waiting = 0;    // of those
  };
  // Raises `level_` to the lowest count of the tenants that wait; it never falls.
  void RaiseLevel();
  void DropIdle();

  std::unordered_map<uint64_t, Tenant> tenants_;
  std::set<std::pair<int64_t, uint64_t>> idle_;  // (served, tenant)
  int64_t level_ = 0;
  int32_t waiting_tenants_ = 0;
  uint64_t last_waiting_ = 0;  // the tenant that left the queue last
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_TENANT_SHARES_H_
