#ifndef SPECFABRIC_TRANSPORT_UCX_CONTEXT_H_
#define SPECFABRIC_TRANSPORT_UCX_CONTEXT_H_

// Owners of UCX's C handles, and its status codes as absl::Status. Private to transport/.

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

// The context must outlive the worker.
using UcxContext = UniqueHandle<ucp_context_h, ucp_cleanup>;
using UcxWorker = UniqueHandle<ucp_worker_h, ucp_worker_destroy>;

// Puts what `options` ask of UCX into those UCX_* variables that are unset, and takes it out again:
// it must live until the worker is there. The environment is the only way in, because
// ucp_config_modify does not reach the settings of single wires (seen with UCX 1.13).
class ScopedUcxSettings {
 public:
  explicit ScopedUcxSettings(const FabricOptions& options);
  ~ScopedUcxSettings();
  ScopedUcxSettings(const ScopedUcxSettings&) = delete;
  ScopedUcxSettings& operator=(const ScopedUcxSettings&) = delete;

 private:
  void Set(const char* name, const std::string& value);
  std::vector<const char*> names_;
};

absl::StatusOr<UcxContext> CreateContext();
absl::StatusOr<UcxWorker> CreateWorker(ucp_context_h context);
// What a peer needs to reach the worker.
absl::StatusOr<std::vector<uint8_t>> WorkerAddress(ucp_worker_h worker);

// The wire that carries this endpoint's active messages, e.g. "posix/memory" or "tcp/lo"; empty
// while UCX is still choosing.
std::string TransportOf(ucp_ep_h endpoint);

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_UCX_CONTEXT_H_
