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
  grain_.store(std::max(1, items / (4 * threads())), std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  left_.store(items, std::memory_order_release);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  TakeItems(0);
  const uint32_t all = static_cast<uint32_t>(items);
  for (uint32_t done; (done = done_.load(std::memory_order_acquire)) != all;) {
    WaitWhileEqual(done_, done);
  }
}

void ThreadPool::Work(int worker) {
  for (uint32_t seen = 0;;) {
    WaitWhileEqual(round_, seen);
    seen = round_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    TakeItems(worker);
  }
}

void ThreadPool::TakeItems(int worker) {
  for (int left = left_.load(std::memory_order_acquire); left != 0;) {
    // Of an earlier round, perhaps, as `left` may be: what is taken is of the one under way.
    const int taken = std::min(left, grain_.load(std::memory_order_relaxed));
    if (!left_.compare_exchange_weak(left, left - taken, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
      continue;
    }
    // From here until these items are done the round cannot end: its fields stand still.
    const int items = items_;
    const int begin = items - left;
    (*body_)(worker, begin, begin + taken);
    const uint32_t done = done_.fetch_add(taken, std::memory_order_acq_rel) + taken;
    if (done == static_cast<uint32_t>(items)) done_.notify_all();
    left = left_.load(std::memory_order_acquire);
  }
}

}  // namespace specfabric::model
