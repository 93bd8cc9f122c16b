#ifndef SPECFABRIC_BASE_QUEUE_H_
#define SPECFABRIC_BASE_QUEUE_H_

// How frames get from many threads (progress, admin) to the one thread that owns an engine.

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace specfabric::base {

// A bounded queue with many producers and one consumer. Producers never block: a full queue
// refuses, and the producer decides what to drop. Items of one producer keep their order, however
// they were pushed.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // False, and the item is dropped, if the queue is full or closed.
  [[nodiscard]] bool Push(T item) { return Add(std::move(item), capacity_); }

  // For what must not be lost and is rare: a full queue takes it too. Dropped if it is closed.
  void PushAlways(T item) { Add(std::move(item), std::numeric_limits<size_t>::max()); }

  // Everything queued, oldest first. Waits until there is something, the queue is closed, Wake()
  // was called, or Now() >= deadline (a deadline in the past polls). Items pushed before Close()
  // are still handed out.
  std::vector<T> PopAll(Nanos deadline) {
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return !items_.empty() || closed_ || woken_; };
    if (deadline == kForever) {
      changed_.wait(lock, ready);
    } else {
      const auto time = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
      changed_.wait_until(lock, time, ready);
    }
    woken_ = false;
    return std::exchange(items_, {});
  }

  // Makes the current or the next PopAll return at once.
  void Wake() {
    {
      std::lock_guard lock(mutex_);
      woken_ = true;
    }
    changed_.notify_one();
  }

  // Refuses all further items; PopAll no longer waits.
  void Close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }

  bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }
  size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  bool Add(T item, size_t capacity) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity) return false;
      items_.push_back(std::move(item));
    }
    changed_.notify_one();
    return true;
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<T> items_;
  bool closed_ = false;
  bool woken_ = false;
};

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_QUEUE_H_
