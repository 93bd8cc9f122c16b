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

// Puts what `options` ask of UCX into the UCX_* variables that the user has not set, where it stays
// until the next call: UCX reads some of it again for every worker. The environment is the only way
// in, because ucp_config_modify does not reach the settings of single wires (seen with UCX 1.13).
void ApplyUcxSettings(const FabricOptions& options);

// Whether two processes of one machine may meet in shared memory.
bool MayShareMemory(const FabricOptions& options);

absl::StatusOr<UcxContext> CreateContext();
absl::StatusOr<UcxWorker> CreateWorker(ucp_context_h context);

// Whether a wire, as TransportOf names it, is RDMA, or the memory of one machine.
bool IsRdma(absl::string_view wire);
bool IsSharedMemory(absl::string_view wire);

// FailedPrecondition, in one line, where `context` cannot do what require_rdma and
// require_gpudirect ask for.
absl::Status CheckRequirements(ucp_context_h context, const FabricOptions& options);

// Whether this UCX's newer protocols are its default (1.16 and later).
bool HasMatureProtocols();

// Whether a send may ask for rendezvous, as the settings now are. Not with the newer protocols of a
// UCX before 1.16: where they have no better way they send the data in active messages, and closing
// an endpoint with such a send under way, or losing it, aborts the process.
bool MayAskForRendezvous();

// The wire that carries this endpoint's active messages, e.g. "posix/memory" or "tcp/lo"; empty
// while UCX is still choosing.
std::string TransportOf(ucp_ep_h endpoint);

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_UCX_CONTEXT_H_
