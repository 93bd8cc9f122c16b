#ifndef SPECFABRIC_MODEL_CPU_THREAD_POOL_H_
#define SPECFABRIC_MODEL_CPU_THREAD_POOL_H_

// The threads inside one rank. The owner takes part in the work, so a pool of one has no thread of
// its own. Which thread does which item is not fixed: work must not depend on it.

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
  const absl::FunctionRef<void(int, int, int)>* body_ = nullptr;
  int items_ = 0;
  int grain_ = 1;
  std::atomic<int> next_{0};
  std::atomic<uint32_t> round_{0};   // changes with every Run, and to stop
  std::atomic<uint32_t> active_{0};  // workers that have not finished this round
  std::atomic<bool> stop_{false};
};

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CPU_THREAD_POOL_H_
