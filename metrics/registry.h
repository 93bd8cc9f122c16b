#ifndef SPECFABRIC_METRICS_REGISTRY_H_
#define SPECFABRIC_METRICS_REGISTRY_H_

// The process's metrics, and their text exposition for Prometheus.
//
// Every series is created at start, with all its label values, so that hot paths increment through
// a reference (an atomic add; a histogram takes a short lock) and a dashboard sees zeros instead of
// gaps; only those that name a peer come and go with it. The families of each role are the plain
// structs in the files beside this one.
//
// Threads: series may be updated from any thread. The registry must outlive whatever uses them.

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/labels.h"
#include "prometheus/registry.h"

namespace specfabric::metrics {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;

class Registry {
 public:
  // Removes its function when destroyed, and waits for a Render that is running it.
  class [[nodiscard]] Refresh {
   public:
    Refresh() = default;
    Refresh(Refresh&& other) noexcept;
    Refresh& operator=(Refresh&& other) noexcept;
    ~Refresh();

   private:
    friend class Registry;
    using Functions = std::list<std::function<void()>>;
    Refresh(Registry* registry, Functions::iterator position)
        : registry_(registry), position_(position) {}
    void Remove();

    Registry* registry_ = nullptr;
    Functions::iterator position_;
  };

  Registry() = default;
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // One series of the family `name`. The same name and labels give the same series again.
  Counter& AddCounter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge& AddGauge(const std::string& name, const std::string& help, const Labels& labels = {});
  Histogram& AddHistogram(const std::string& name, const std::string& help,
                          const std::vector<double>& upper_bounds, const Labels& labels = {});

  // Ends a series of the family `name`, which must not be used any more.
  void Remove(const std::string& name, Counter* series);
  void Remove(const std::string& name, Gauge* series);

  // `function` runs at the start of each Render, on its thread: for values that are kept elsewhere
  // and only copied when somebody looks.
  Refresh AddRefresh(std::function<void()> function);

  // Sets specfabric_build_info, the series that says which version runs where.
  void SetBuildInfo(const std::string& role, const std::string& version, const std::string& model);

  // Prometheus text exposition format 0.0.4.
  std::string Render();

 private:
  prometheus::Registry registry_;
  std::mutex mutex_;  // guards refreshes_
  Refresh::Functions refreshes_;
};

// Brings a counter to a total that is kept elsewhere, of which it has `seen` so much. A total that
// has become smaller counts from nothing.
void AdvanceTo(uint64_t total, uint64_t* seen, Counter* counter);

// `count` bounds from `first` on, each `factor` times the one before.
std::vector<double> ExponentialBounds(double first, double factor, int count);

}  // namespace specfabric::metrics

#endif  // SPECFABRIC_METRICS_REGISTRY_H_
