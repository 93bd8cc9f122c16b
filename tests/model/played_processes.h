#ifndef SPECFABRIC_TESTS_MODEL_PLAYED_PROCESSES_H_
#define SPECFABRIC_TESTS_MODEL_PLAYED_PROCESSES_H_

// Groups over processes, played by threads that exchange through memory.

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "model/parallel/process_communicator.h"

namespace specfabric::model {

// Where the processes of a group meet.
class MeetingPoint {
 public:
  using Parts = std::vector<std::vector<uint8_t>>;

  explicit MeetingPoint(int processes) : parts_(processes) {}

  bool Exchange(int process, Parts mine, Parts* all) {
    std::unique_lock lock(mutex_);
    parts_[process] = std::move(mine);
    const int round = round_;
    if (++arrived_ == static_cast<int>(parts_.size())) {
      all_.clear();
      for (const Parts& parts : parts_) all_.insert(all_.end(), parts.begin(), parts.end());
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round || ended_; });
    *all = all_;
    return !ended_;
  }
  void End() {
    std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  bool ended() {
    std::lock_guard lock(mutex_);
    return ended_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Parts> parts_;
  Parts all_;
  int arrived_ = 0, round_ = 0;
  bool ended_ = false;
};

class PlayedExchange : public ProcessExchange {
 public:
  PlayedExchange(MeetingPoint* point, int process) : point_(point), process_(process) {}
  bool Exchange(const std::vector<absl::Span<const uint8_t>>& mine,
                MeetingPoint::Parts* all) override {
    MeetingPoint::Parts parts;
    for (const auto part : mine) parts.emplace_back(part.begin(), part.end());
    return point_->Exchange(process_, std::move(parts), all);
  }
  void Diverged() override { point_->End(); }

 private:
  MeetingPoint* const point_;
  const int process_;
};

// The communicators of all processes, whose ranks are counts[0], counts[1], ... of them.
struct PlayedProcesses {
  explicit PlayedProcesses(const std::vector<int>& counts)
      : point(static_cast<int>(counts.size())) {
    const int ranks = std::accumulate(counts.begin(), counts.end(), 0);
    for (size_t p = 0; p < counts.size(); ++p) {
      exchanges.push_back(std::make_unique<PlayedExchange>(&point, static_cast<int>(p)));
      const int first = static_cast<int>(communicators.size());
      for (auto& one : MakeProcessCommunicators(exchanges[p].get(), ranks, first, counts[p])) {
        communicators.push_back(std::move(one));
      }
    }
  }
  MeetingPoint point;
  std::vector<std::unique_ptr<PlayedExchange>> exchanges;
  std::vector<std::unique_ptr<Communicator>> communicators;
};

}  // namespace specfabric::model

#endif  // SPECFABRIC_TESTS_MODEL_PLAYED_PROCESSES_H_
