#ifndef SPECFABRIC_SCHEDULER_POLICY_TENANT_SHARES_H_
#define SPECFABRIC_SCHEDULER_POLICY_TENANT_SHARES_H_

// How much service each tenant has had, so that those who want more than there is get equal shares
// of it: the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models"
// (arXiv 2401.00588). Served next is the tenant with the lowest count. Whoever comes (back) to an
// empty queue of its own is lifted to what the least served of those waiting has had: time in which
// it wanted nothing is no credit.
//
// A tenant lives while it has sequences. After that its count is kept as long as it says anything,
// of kMaxIdle tenants at most; dropped first is the lowest, which is nearest to what a newcomer
// gets.

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

  // One of the tenant's sequences comes, and waits.
  void Arrive(uint64_t tenant);
  // One that has waited is admitted, or ends.
  void StopWaiting(uint64_t tenant);
  // One is over. It does not wait any more.
  void Leave(uint64_t tenant);
  // The tenant, which has sequences, was given this: tokens times their weight.
  void Charge(uint64_t tenant, int64_t service);

  int64_t served(uint64_t tenant) const;  // of a tenant that has sequences
  size_t known() const { return tenants_.size(); }
  // Ends the process if the books do not balance.
  void Check() const;

 private:
  struct Tenant {
    int64_t served = 0;
    int32_t sequences = 0;  // 0: idle
    int32_t waiting = 0;    // among them
  };
  // At least what anybody who waits has had; never falls.
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
