#include "transport/ucx_runtime.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "transport/gpu.h"
#include "transport/memory.h"

namespace specfabric::transport {

UcxRuntime::~UcxRuntime() {
  if (keep_context_) (void)context_.release();
}

absl::Status UcxRuntime::UseThread() const { return gpu_ < 0 ? absl::OkStatus() : UseGpu(gpu_); }

absl::Status UcxRuntime::Start() {
  if (absl::Status used = UseThread(); !used.ok()) return used;
  ApplyUcxSettings(options_);
  may_ask_for_rendezvous_ = MayAskForRendezvous();
  may_share_memory_ = MayShareMemory(options_);
  auto context = CreateContext();
  if (!context.ok()) return context.status();
  context_ = *std::move(context);
  const absl::Status able = CheckRequirements(context_.get(), options_);
  if (!able.ok()) return able;
  const absl::Status registers = TryRegistering();
  if (!registers.ok()) return registers;
  if (options_.require_gpudirect || gpu_ >= 0) {
    spdlog::info("transport: GPU memory by RDMA: {}", FindGpuDirect().description);
  }
  return absl::OkStatus();
}

// Where memory may not be registered (RLIMIT_MEMLOCK), the process must fail at its start, not at
// the first tensor.
absl::Status UcxRuntime::TryRegistering() {
  SlotPoolOptions trial;
  trial.kind = options_.require_gpudirect ? MemoryKind::kCuda : MemoryKind::kHost;
  trial.slot_bytes = 1 << 20;
  trial.slots = 1;
  auto slab = MapSlab(context_.get(), trial, std::max(options_.gpu, 0));
  if (!slab.ok()) return slab.status();
  UnmapSlab(context_.get(), *slab);
  FreeSlab(*slab);
  return absl::OkStatus();
}

absl::Status UcxRuntime::StartWorker() {
  auto worker = CreateWorker(context_.get());
  if (!worker.ok()) return worker.status();
  worker_ = *std::move(worker);
  return absl::OkStatus();
}

absl::StatusOr<int> UcxRuntime::EventDescriptor() const {
  int descriptor = -1;
  const ucs_status_t status = ucp_worker_get_efd(worker_.get(), &descriptor);
  if (status == UCS_OK) return descriptor;
  return absl::UnavailableError(
      absl::StrCat("UCX has no event descriptor: ", ucs_status_string(status)));
}

bool UcxRuntime::Flushed() {
  if (flush_ == nullptr) {
    const ucp_request_param_t params = {};
    const ucs_status_ptr_t result = ucp_worker_flush_nbx(worker_.get(), &params);
    // Either complete, or an endpoint has failed, which its error handler reports.
    if (!UCS_PTR_IS_PTR(result)) return true;
    flush_ = result;
  }
  if (ucp_request_check_status(flush_) == UCS_INPROGRESS) return false;
  ForgetFlush();
  return true;
}

// UCX frees a request that is still under way when it completes.
void UcxRuntime::ForgetFlush() {
  if (flush_ != nullptr) ucp_request_free(std::exchange(flush_, nullptr));
}

absl::StatusOr<Slab> UcxRuntime::Map(const SlotPoolOptions& options) {
  if (options.kind == MemoryKind::kCuda) gpu_ = std::max(gpu_, 0);
  return MapSlab(context_.get(), options, gpu_);
}

// A context that is kept keeps its registrations too.
void UcxRuntime::Unmap(Slab& slab) {
  if (!keep_context_) UnmapSlab(context_.get(), slab);
}

}  // namespace specfabric::transport
