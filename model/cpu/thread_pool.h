#ifndef SPECFABRIC_MODEL_CPU_THREAD_POOL_H_
#define SPECFABRIC_MODEL_CPU_THREAD_POOL_H_

// The threads inside one rank. The owner takes part in the work, so a pool of one has no thread of
// its own. Which thread does which item is not fixed: work must not depend on it. Nobody waits for
// a thread that has taken no item: one that sleeps, or whose core another process has, costs its
// share of the work and no more.

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace specfabric::model {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(worker, begin, end) on ranges that cover [0, items) once; worker is in
  // [0, threads()) and no two calls share one at a time. Returns when all are done. body must not
  // throw or call Run.
  void Run(int items, absl::FunctionRef<void(int worker, int begin, int end)> body);

 private:
  void Work(int worker);
  void TakeItems(int worker);

  std::vector<std::thread> workers_;
  // Of the round under way: written by the owner while none is left, read by who took items.
  const absl::FunctionRef<void(int, int, int)>* body_ = nullptr;
  int items_ = 0;
  std::atomic<int> grain_{1};
  std::atomic<int> left_{0};        // items that nobody has taken
  std::atomic<uint32_t> done_{0};   // items done in this round
  std::atomic<uint32_t> round_{0};  // changes with every Run, and to stop
  std::atomic<bool> stop_{false};
};

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CPU_THREAD_POOL_H_
