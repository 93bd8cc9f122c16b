#ifndef SPECFABRIC_TRANSPORT_UCX_CONTEXT_H_
#define SPECFABRIC_TRANSPORT_UCX_CONTEXT_H_

// Owners of UCX's C handles, and its status codes as absl::Status. Private to transport/.

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/fabric.h"

namespace specfabric::transport {

// "what: UCX's text", with the nearest absl code.
absl::Status StatusFromUcs(ucs_status_t status, const std::string& what);

template <typename Handle, void (*Destroy)(Handle)>
struct HandleDeleter {
  void operator()(Handle handle) const { Destroy(handle); }
};
template <typename Handle, void (*Destroy)(Handle)>
using UniqueHandle = std::unique_ptr<std::remove_pointer_t<Handle>, HandleDeleter<Handle, Destroy>>;

// Each must outlive the next: context, worker, listener.
using UcxContext = UniqueHandle<ucp_context_h, ucp_cleanup>;
using UcxWorker = UniqueHandle<ucp_worker_h, ucp_worker_destroy>;
using UcxListener = UniqueHandle<ucp_listener_h, ucp_listener_destroy>;

// Sets the UCX_* variables that `options` need and the user has not set, until the next call: UCX
// reads some of them again for every worker. There is no way but the environment, because
// ucp_config_modify does not reach the settings of single wires (seen with UCX 1.13).
void ApplyUcxSettings(const FabricOptions& options);

// Whether UCX may use shared memory between two processes of one machine.
bool MayShareMemory(const FabricOptions& options);

absl::StatusOr<UcxContext> CreateContext();
absl::StatusOr<UcxWorker> CreateWorker(ucp_context_h context);

// Whether a wire, as TransportOf names it, is RDMA, or shared memory.
bool IsRdma(absl::string_view wire);
bool IsSharedMemory(absl::string_view wire);

// FailedPrecondition, in one line, where `context` does not meet require_rdma or require_gpudirect.
absl::Status CheckRequirements(ucp_context_h context, const FabricOptions& options);

// Whether the newer protocols (UCX_PROTO_ENABLE) are this UCX's default: 1.16 and later.
bool HasMatureProtocols();

// Whether a send may ask for rendezvous with the present settings. Not with the newer protocols of
// a UCX before 1.16: where nothing else works they send the data in active messages, and closing or
// losing an endpoint with such a send under way aborts the process.
bool MayAskForRendezvous();

// The wire that carries this endpoint's active messages, e.g. "posix/memory" or "tcp/lo"; empty
// while UCX is still choosing.
std::string TransportOf(ucp_ep_h endpoint);

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_UCX_CONTEXT_H_
