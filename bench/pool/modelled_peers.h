#ifndef SPECFABRIC_BENCH_POOL_MODELLED_PEERS_H_
#define SPECFABRIC_BENCH_POOL_MODELLED_PEERS_H_

// A target and a draft worker with modelled models, which only take time, connected by the real
// fabric: the target has the real engine, scheduler and router, the draft is the worker of
// `specfabric simulate`. Each has its own threads, as in a process.

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "link/link.h"
#include "metrics/registry.h"
#include "metrics/target_metrics.h"
#include "scheduler/simulation/simulator.h"
#include "target/target_engine.h"

namespace specfabric::bench {

// Ends the process with the error, if there is one.
template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  std::exit(1);
}

void SleepUntil(base::Nanos time);

// Creates the link in `link`, and only then starts it: its callbacks may use `link`.
void StartLink(link::LinkOptions options, link::LinkHandler handler,
               std::unique_ptr<link::Link>* link);

// The options that all peers of the bench start with.
link::LinkOptions LinkAs(schemas::Role role);

class DraftPeer {
 public:
  // `options` must outlive it.
  explicit DraftPeer(const scheduler::SimulationOptions& options);
  ~DraftPeer();
  const std::string& address() const { return link_->listen_address(); }

 private:
  struct Asked {
    link::PeerId peer = 0;
    schemas::DraftRequest request;
  };
  void Serve();
  // Handles what has come since the last call. False: the peer is to end.
  bool TakeInput(bool wait);
  void Send(scheduler::ModelledDraft::Reply grown);

  const scheduler::SimulationOptions& options_;
  const scheduler::ModelledText text_;
  scheduler::ModelledDraft draft_;   // the thread's
  std::map<uint64_t, Asked> asked_;  // the thread's; by TextOf the sequence
  std::mutex mutex_;
  std::condition_variable come_;
  std::vector<std::pair<link::PeerId, link::Message>> inbox_;  // guarded by mutex_
  bool ends_ = false;                                          // guarded by mutex_
  std::unique_ptr<link::Link> link_;
  std::thread thread_;
};

class TargetPeer {
 public:
  // `simulation` must outlive it; `incarnation`: its own among all targets.
  TargetPeer(const scheduler::SimulationOptions& simulation, uint64_t incarnation,
             const std::vector<std::string>& drafts);
  ~TargetPeer();
  const std::string& address() const { return link_->listen_address(); }
  int drafts_up() const { return drafts_up_; }
  void Stop();

 private:
  absl::Status Run(const scheduler::StepPlan& plan, scheduler::StepResult* result) const;

  const scheduler::SimulationOptions& options_;
  const uint64_t incarnation_;
  const scheduler::ModelledText text_;
  metrics::Registry registry_;
  metrics::TargetMetrics metrics_;
  std::atomic<int> drafts_up_{0};
  std::unique_ptr<target::TargetEngine> engine_;
  std::unique_ptr<link::Link> link_;
  std::thread thread_;
};

}  // namespace specfabric::bench

#endif  // SPECFABRIC_BENCH_POOL_MODELLED_PEERS_H_
