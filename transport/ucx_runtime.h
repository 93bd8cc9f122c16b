#ifndef SPECFABRIC_TRANSPORT_UCX_RUNTIME_H_
#define SPECFABRIC_TRANSPORT_UCX_RUNTIME_H_

// The engine's UCX context and its one worker: starting, progress, replacing the worker, ending.
// Also whose GPU's context the engine's thread uses. Private to transport/; on the engine's thread,
// the destructor on any thread once no other uses the engine.

#include <ucp/api/ucp.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/fabric.h"
#include "transport/slot_pool.h"
#include "transport/ucx_context.h"

namespace specfabric::transport {

class UcxRuntime {
 public:
  explicit UcxRuntime(const FabricOptions& options) : options_(options), gpu_(options.gpu) {}
  // The worker must have been stopped before what its requests point to is destroyed.
  ~UcxRuntime();
  UcxRuntime(const UcxRuntime&) = delete;
  UcxRuntime& operator=(const UcxRuntime&) = delete;

  // Creates the context; checks require_rdma and require_gpudirect, and that memory can be
  // registered.
  absl::Status Start();
  absl::Status StartWorker();
  void StopWorker() { worker_.reset(); }
  // The context is never destroyed: UCX still holds registrations of it. UCX before 1.16 never
  // gives back the registration of a send that the end of its endpoint has cut short, and
  // destroying the context would then abort the process; the same while closed connections hold
  // memory.
  void KeepContext() { keep_context_ = true; }
  // Makes the GPU's context the calling thread's, where there is one.
  absl::Status UseThread() const;

  ucp_worker_h worker() const { return worker_.get(); }
  // False: nothing happened.
  bool Progress() { return ucp_worker_progress(worker_.get()) != 0; }
  // False: events came in since the last Progress, so that the thread must not sleep.
  bool Arm() { return ucp_worker_arm(worker_.get()) == UCS_OK; }
  // Readable when an armed worker has events. Closed, and so removed from any epoll, with the
  // worker.
  absl::StatusOr<int> EventDescriptor() const;
  // Begins a flush of the worker if none is under way. True: it has completed.
  bool Flushed();
  void ForgetFlush();

  absl::StatusOr<Slab> Map(const SlotPoolOptions& options);
  void Unmap(Slab& slab);

  bool may_share_memory() const { return may_share_memory_; }
  bool may_ask_for_rendezvous() const { return may_ask_for_rendezvous_; }

 private:
  absl::Status TryRegistering();

  const FabricOptions& options_;
  int gpu_;  // UCX is used in this GPU's context; -1: in none
  bool may_share_memory_ = false;
  bool may_ask_for_rendezvous_ = false;
  bool keep_context_ = false;
  UcxContext context_;
  UcxWorker worker_;
  void* flush_ = nullptr;  // the request of Flushed that is under way
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_UCX_RUNTIME_H_
