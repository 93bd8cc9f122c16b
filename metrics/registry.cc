#include "metrics/registry.h"

#include <utility>

#include "prometheus/text_serializer.h"

namespace specfabric::metrics {

Registry::Refresh::Refresh(Refresh&& other) noexcept
    : registry_(std::exchange(other.registry_, nullptr)), position_(other.position_) {}

Registry::Refresh& Registry::Refresh::operator=(Refresh&& other) noexcept {
  if (this != &other) {
    Remove();
    registry_ = std::exchange(other.registry_, nullptr);
    position_ = other.position_;
  }
  return *this;
}

Registry::Refresh::~Refresh() { Remove(); }

void Registry::Refresh::Remove() {
  if (registry_ == nullptr) return;
  std::lock_guard lock(registry_->mutex_);
  registry_->refreshes_.erase(position_);
  registry_ = nullptr;
}

Counter& Registry::AddCounter(const std::string& name, const std::string& help,
                              const Labels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(labels);
}

Gauge& Registry::AddGauge(const std::string& name, const std::string& help, const Labels& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(labels);
}

Histogram& Registry::AddHistogram(const std::string& name, const std::string& help,
                                  const std::vector<double>& upper_bounds, const Labels& labels) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add(labels,
                                                                                    upper_bounds);
}

void Registry::Remove(const std::string& name, Counter* series) {
  prometheus::BuildCounter().Name(name).Register(registry_).Remove(series);
}

void Registry::Remove(const std::string& name, Gauge* series) {
  prometheus::BuildGauge().Name(name).Register(registry_).Remove(series);
}

Registry::Refresh Registry::AddRefresh(std::function<void()> function) {
  std::lock_guard lock(mutex_);
  refreshes_.push_back(std::move(function));
  return Refresh(this, std::prev(refreshes_.end()));
}

void Registry::SetBuildInfo(const std::string& role, const std::string& version,
                            const std::string& model) {
  AddGauge("specfabric_build_info", "1; which version of what runs here",
           {{"role", role}, {"version", version}, {"model", model}})
      .Set(1);
}

std::string Registry::Render() {
  {
    std::lock_guard lock(mutex_);
    for (const auto& refresh : refreshes_) refresh();
  }
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

void AdvanceTo(uint64_t total, uint64_t* seen, Counter* counter) {
  counter->Increment(static_cast<double>(total >= *seen ? total - *seen : total));
  *seen = total;
}

std::vector<double> ExponentialBounds(double first, double factor, int count) {
  std::vector<double> bounds;
  bounds.reserve(count);
  for (double bound = first; count > 0; --count, bound *= factor) bounds.push_back(bound);
  return bounds;
}

}  // namespace specfabric::metrics
