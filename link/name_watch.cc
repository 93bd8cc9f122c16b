#include "link/name_watch.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/status.h"
#include "spdlog/spdlog.h"

namespace specfabric::link {

// Shared by the watch and its thread, which may outlive it in a look-up.
struct NameWatch::State {
  std::vector<std::string> names;
  base::Nanos interval = 0;
  Lookup lookup;
  std::atomic<uint64_t> failures{0};
  std::set<std::string> failing;  // the thread's own: those that have been complained about

  std::mutex mutex;  // all below; held during on_records, so that none runs after the destructor
  std::condition_variable wake;
  OnRecords on_records;
  bool stopping = false;

  void Run();
  void LookUp(const std::string& name);
};

void NameWatch::State::Run() {
  while (true) {
    for (const std::string& name : names) LookUp(name);
    std::unique_lock lock(mutex);
    if (wake.wait_for(lock, std::chrono::nanoseconds(interval), [this] { return stopping; }))
      return;
  }
}

void NameWatch::State::LookUp(const std::string& name) {
  const auto found = lookup(name);
  std::lock_guard lock(mutex);
  if (stopping) return;
  if (found.ok()) {
    if (failing.erase(name) != 0) spdlog::info("link name={} is found again", name);
    return on_records(name, *found);
  }
  ++failures;
  if (failing.insert(name).second) {
    spdlog::warn("link name={} not found, trying again: {}", name, base::Message(found.status()));
  }
  if (absl::IsNotFound(found.status())) on_records(name, {});
}

NameWatch::NameWatch(std::vector<std::string> names, base::Nanos interval, Lookup lookup,
                     OnRecords on_records)
    : state_(std::make_shared<State>()) {
  state_->names = std::move(names);
  state_->interval = interval;
  state_->lookup = std::move(lookup);
  state_->on_records = std::move(on_records);
  std::thread([state = state_] { state->Run(); }).detach();
}

NameWatch::~NameWatch() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake.notify_all();
}

uint64_t NameWatch::failures() const { return state_->failures.load(); }

}  // namespace specfabric::link
