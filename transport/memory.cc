#include "transport/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/gpu.h"
#include "transport/ucx_context.h"

namespace specfabric::transport {
namespace {

constexpr size_t kMaxSlabBytes = size_t{1} << 40;

// Host memory is allocated here, so that leases may outlive UCX; device memory by UCX, so that the
// transport does not link a CUDA library.
ucs_status_t Register(ucp_context_h context, const Slab& slab, ucp_mem_h& handle) {
  ucp_mem_map_params_t params = {};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_FLAGS | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.address = slab.data;
  params.length = slab.bytes;
  params.memory_type = slab.kind == MemoryKind::kHost ? UCS_MEMORY_TYPE_HOST : UCS_MEMORY_TYPE_CUDA;
  params.flags = slab.kind == MemoryKind::kHost ? 0 : UCP_MEM_MAP_ALLOCATE;
  return ucp_mem_map(context, &params, &handle);
}

// For a kind of memory that it does not support UCX reports that none is left.
bool KnowsCuda(ucp_context_h context) {
  ucp_context_attr_t attributes = {};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  return ucp_context_query(context, &attributes) == UCS_OK &&
         (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
}

absl::Status CheckSizes(const SlotPoolOptions& options) {
  if (options.slots < 1 || options.slot_bytes < 1 ||
      options.slot_bytes > kMaxSlabBytes / options.slots) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pool of ", options.slots, " slots of ", options.slot_bytes,
                     " bytes, must have at least one of each and at most 1 TiB in all"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Slab> MapSlab(ucp_context_h context, const SlotPoolOptions& options, int gpu) {
  const absl::Status sizes = CheckSizes(options);
  if (!sizes.ok()) return sizes;
  Slab slab;
  slab.kind = options.kind;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));  // 64 KiB on some Arm kernels
  slab.bytes = (options.slots * SlotPool::Stride(options) + page - 1) / page * page;
  if (options.kind == MemoryKind::kHost) {
    void* memory =
        mmap(nullptr, slab.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for ", slab.bytes, " bytes"));
    }
    slab.data = static_cast<uint8_t*>(memory);
  }
  const auto failed = [&](absl::StatusCode code, const std::string& why) {
    UnmapSlab(context, slab);
    FreeSlab(slab);
    return absl::Status(code, absl::StrCat("cannot register ", slab.bytes, " bytes of ",
                                           Name(options.kind), " memory: ", why));
  };
  if (options.kind == MemoryKind::kCuda) {
    if (!KnowsCuda(context)) {
      return failed(absl::StatusCode::kFailedPrecondition,
                    "this UCX has no support for it, or finds no GPU");
    }
    // UCX allocates on the GPU whose context is current on the calling thread, which also sends and
    // receives.
    if (absl::Status used = UseGpu(gpu); !used.ok()) {
      return failed(used.code(), std::string(used.message()));
    }
  }
  ucp_mem_h handle = nullptr;
  const ucs_status_t status = Register(context, slab, handle);
  if (status != UCS_OK) {
    return failed(options.kind == MemoryKind::kHost ? absl::StatusCode::kResourceExhausted
                                                    : absl::StatusCode::kFailedPrecondition,
                  ucs_status_string(status));
  }
  slab.handle = handle;
  ucp_mem_attr_t attributes = {};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_MEM_TYPE;
  if (ucp_mem_query(handle, &attributes) != UCS_OK) {
    return failed(absl::StatusCode::kInternal, "UCX does not describe it");
  }
  const bool is_cuda = attributes.mem_type == UCS_MEMORY_TYPE_CUDA;
  if (is_cuda != (options.kind == MemoryKind::kCuda)) {
    return failed(absl::StatusCode::kFailedPrecondition, "UCX takes it for memory of another kind");
  }
  slab.data = static_cast<uint8_t*>(attributes.address);
  return slab;
}

void UnmapSlab(ucp_context_h context, Slab& slab) {
  if (slab.handle != nullptr) ucp_mem_unmap(context, static_cast<ucp_mem_h>(slab.handle));
  slab.handle = nullptr;
}

void FreeSlab(const Slab& slab) {
  if (slab.kind == MemoryKind::kHost && slab.data != nullptr) munmap(slab.data, slab.bytes);
}

}  // namespace specfabric::transport
