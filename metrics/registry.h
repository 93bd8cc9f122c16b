#ifndef SPECFABRIC_METRICS_REGISTRY_H_
#define SPECFABRIC_METRICS_REGISTRY_H_

// The metrics of the process, and their text exposition for Prometheus.
//
// Series are created at start, with all label values, so that hot paths increment through a
// reference (an atomic add; a histogram takes a short lock) and dashboards show zeros instead of
// gaps. Only series that name a peer are created and removed with it. The families of each role are
// plain structs in the other files of this folder.
//
// Threads: series may be updated from any thread. The registry must outlive all users of its
// series.

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
  // Removes its function when destroyed, after waiting for a Render that is running it.
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

  // A series of the family `name`. The same name and labels return the same series.
  Counter& AddCounter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge& AddGauge(const std::string& name, const std::string& help, const Labels& labels = {});
  Histogram& AddHistogram(const std::string& name, const std::string& help,
                          const std::vector<double>& upper_bounds, const Labels& labels = {});

  // Removes a series of the family `name`, which must not be used any more.
  void Remove(const std::string& name, Counter* series);
  void Remove(const std::string& name, Gauge* series);

  // `function` runs at the start of each Render, on its thread: for values that are kept elsewhere
  // and are copied only when the metrics are read.
  Refresh AddRefresh(std::function<void()> function);

  // Sets specfabric_build_info, which has the version of the program as a label.
  void SetBuildInfo(const std::string& role, const std::string& version, const std::string& model);

  // Prometheus text exposition format 0.0.4.
  std::string Render();

 private:
  prometheus::Registry registry_;
  std::mutex mutex_;  // guards refreshes_
  Refresh::Functions refreshes_;
};

// Increments a counter up to a total that is kept elsewhere; `seen` is the total at the last call.
// A total that has become smaller was restarted from 0.
void AdvanceTo(uint64_t total, uint64_t* seen, Counter* counter);

// `count` bounds that start with `first`, each `factor` times the previous one.
std::vector<double> ExponentialBounds(double first, double factor, int count);

}  // namespace specfabric::metrics

#endif  // SPECFABRIC_METRICS_REGISTRY_H_
