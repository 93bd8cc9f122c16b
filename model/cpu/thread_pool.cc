#include "model/cpu/thread_pool.h"

#include <algorithm>

#include "model/parallel/spin_wait.h"

namespace specfabric::model {

ThreadPool::ThreadPool(int threads) {
  for (int worker = 1; worker < threads; ++worker) {
    workers_.emplace_back([this, worker] { Work(worker); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int items, absl::FunctionRef<void(int, int, int)> body) {
  if (items <= 0) return;
  if (workers_.empty() || items == 1) {
    body(0, 0, items);
    return;
  }
  body_ = &body;
  items_ = items;
  // Several ranges for each thread, so that one that is held up does not hold up all.
  grain_ = std::max(1, items / (4 * threads()));
  next_.store(0, std::memory_order_relaxed);
  active_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  TakeItems(0);
  for (uint32_t left; (left = active_.load(std::memory_order_acquire)) != 0;) {
    WaitWhileEqual(active_, left);
  }
}

void ThreadPool::Work(int worker) {
  for (uint32_t seen = 0;;) {
    WaitWhileEqual(round_, seen);
    seen = round_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    TakeItems(worker);
    active_.fetch_sub(1, std::memory_order_release);
    active_.notify_all();
  }
}

void ThreadPool::TakeItems(int worker) {
  for (;;) {
    const int begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= items_) return;
    (*body_)(worker, begin, std::min(begin + grain_, items_));
  }
}

}  // namespace specfabric::model
