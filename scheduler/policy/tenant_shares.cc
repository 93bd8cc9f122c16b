#include "scheduler/policy/tenant_shares.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace specfabric::scheduler {

void TenantShares::Arrive(uint64_t id) {
  Tenant& tenant = tenants_[id];
  if (tenant.sequences++ == 0) idle_.erase({tenant.served, id});
  if (tenant.waiting == 0) {
    RaiseLevel();
    tenant.served = std::max(tenant.served, level_);
    ++waiting_tenants_;
  }
  ++tenant.waiting;
}

void TenantShares::StopWaiting(uint64_t id) {
  Tenant& tenant = tenants_.at(id);
  SPECFABRIC_CHECK(tenant.waiting > 0);
  if (--tenant.waiting > 0) return;
  --waiting_tenants_;
  last_waiting_ = id;
}

void TenantShares::Leave(uint64_t id) {
  Tenant& tenant = tenants_.at(id);
  SPECFABRIC_CHECK(tenant.sequences > tenant.waiting);
  if (--tenant.sequences > 0) return;
  RaiseLevel();
  idle_.emplace(tenant.served, id);
  DropIdle();
}

void TenantShares::Charge(uint64_t id, int64_t service) { tenants_.at(id).served += service; }

int64_t TenantShares::served(uint64_t id) const { return tenants_.at(id).served; }

void TenantShares::RaiseLevel() {
  if (waiting_tenants_ == 0) {
    const auto last = tenants_.find(last_waiting_);
    if (last != tenants_.end()) level_ = std::max(level_, last->second.served);
    return;
  }
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const auto& [id, tenant] : tenants_) {
    if (tenant.waiting > 0) least = std::min(least, tenant.served);
  }
  level_ = std::max(level_, least);
}

void TenantShares::DropIdle() {
  while (!idle_.empty() && (idle_.begin()->first <= level_ || idle_.size() > kMaxIdle)) {
    tenants_.erase(idle_.begin()->second);
    idle_.erase(idle_.begin());
  }
}

void TenantShares::Check() const {
  size_t idle = 0;
  int32_t waiting = 0;
  for (const auto& [id, tenant] : tenants_) {
    SPECFABRIC_CHECK(tenant.waiting >= 0 && tenant.sequences >= tenant.waiting);
    waiting += tenant.waiting > 0;
    if (tenant.sequences > 0) continue;
    ++idle;
    SPECFABRIC_CHECK(idle_.contains({tenant.served, id}));
  }
  SPECFABRIC_CHECK(idle == idle_.size() && idle <= kMaxIdle);
  SPECFABRIC_CHECK(waiting == waiting_tenants_);
}

}  // namespace specfabric::scheduler
