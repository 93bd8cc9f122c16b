#include "transport/ucx_context.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "transport/gpu.h"

namespace specfabric::transport {
bool HasMatureProtocols() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return std::pair(major, minor) >= std::pair(1u, 16u);
}

namespace {

absl::StatusCode CodeOf(ucs_status_t status) {
  switch (status) {
    case UCS_OK:
      return absl::StatusCode::kOk;
    case UCS_ERR_BUSY:
      return absl::StatusCode::kAlreadyExists;
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT:
      return absl::StatusCode::kResourceExhausted;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
      return absl::StatusCode::kInvalidArgument;
    case UCS_ERR_TIMED_OUT:
      return absl::StatusCode::kDeadlineExceeded;
    case UCS_ERR_CANCELED:  // not by this process, which ignores those: the endpoint is lost
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_REJECTED:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_IO_ERROR:
    case UCS_ERR_NO_DEVICE:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

// Whether a UCX_TLS list leaves any shared memory in. Settings of a wire that is left out would
// make UCX warn of unused variables.
bool AllowsSharedMemory(const char* wires) {
  if (wires == nullptr) return true;
  for (const char* name : {"all", "sm", "shm", "mm", "posix", "sysv", "^"}) {
    if (absl::StrContains(wires, name)) return true;
  }
  return false;
}

// Whether it leaves TCP in.
bool AllowsTcp(const char* wires) {
  if (wires == nullptr) return true;
  const bool named = absl::StrContains(wires, "tcp");
  return *wires == '^' ? !named : named || absl::StrContains(wires, "all");
}

// Of "#  lane[0]:  2:posix/memory.0 md[2]  -> md[2]/posix/sysdev[255] am am_bw#0": posix/memory.
std::string TransportOfLane(const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (!absl::StartsWith(words[i], "lane[")) continue;
    const std::string& resource = words[i + 1];
    const size_t colon = resource.find(':');
    const size_t dot = resource.rfind('.');
    if (colon == std::string::npos || dot == std::string::npos || dot < colon) return "";
    return resource.substr(colon + 1, dot - colon - 1);
  }
  return "";
}

// The lines that UCX prints about one of its objects.
template <typename Handle>
std::vector<std::string> Report(void (*print)(Handle, FILE*), Handle handle) {
  char* text = nullptr;
  size_t size = 0;
  FILE* stream = open_memstream(&text, &size);
  if (stream == nullptr) return {};
  print(handle, stream);
  std::fclose(stream);
  const std::string report(text, size);
  std::free(text);
  return absl::StrSplit(report, '\n');
}

absl::Status CheckGpuDirect() {
  const GpuDirect found = FindGpuDirect();
  if (found.found()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("GPUDirect is required, but ", found.description));
}

}  // namespace

absl::Status StatusFromUcs(ucs_status_t status, const std::string& what) {
  return absl::Status(CodeOf(status), absl::StrCat(what, ": ", ucs_status_string(status)));
}

bool MayShareMemory(const FabricOptions& options) {
  return options.shared_memory && AllowsSharedMemory(std::getenv("UCX_TLS"));
}

void ApplyUcxSettings(const FabricOptions& options) {
  const bool shared_memory = MayShareMemory(options);
  const bool tcp = AllowsTcp(std::getenv("UCX_TLS"));
  // In UCX before 1.16 the death of a peer may end this process too. Its newer protocols, not yet
  // the default then, fail an assertion when an endpoint fails or is closed while one of their
  // messages waits for room on its wire, or while RDMA reads are under way; the older ones, when a
  // message that leaves in several pieces without a copy waits for room with one piece on its way.
  const bool careful = !HasMatureProtocols();
  const std::pair<const char*, std::string> settings[] = {
      {"UCX_NET_DEVICES", options.net_devices},
      {"UCX_PROTO_ENABLE", careful ? "n" : "y"},
      {"UCX_ZCOPY_THRESH", careful ? "inf" : ""},
      // With larger pieces, copying is as fast over TCP as sending without copies.
      {"UCX_TCP_TX_SEG_SIZE", tcp && careful ? "64k" : ""},
      // With it TCP is a wire for rendezvous beside shared memory, whose polling costs a system
      // call a turn; and over TCP itself, active messages are faster than its emulated puts.
      {"UCX_TCP_PUT_ENABLE", tcp ? "n" : ""},
      // The engine has its own keep-alive (liveness.h).
      {"UCX_KEEPALIVE_INTERVAL", "inf"},
      // Error handling by peer switches shared memory off unless these are set.
      {"UCX_POSIX_ERROR_HANDLING", shared_memory ? "y" : ""},
      {"UCX_SYSV_ERROR_HANDLING", shared_memory ? "y" : ""},
  };
  static std::mutex mutex;
  static std::set<std::string> ours;  // the variables that an earlier call has set
  std::lock_guard lock(mutex);
  for (const auto& [name, value] : settings) {
    if (std::getenv(name) != nullptr && !ours.contains(name)) continue;
    if (value.empty()) {
      unsetenv(name);
    } else {
      setenv(name, value.c_str(), /*replace=*/1);
      ours.insert(name);
    }
  }
}

absl::StatusOr<UcxContext> CreateContext() {
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return StatusFromUcs(status, "cannot read the UCX_* settings");
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  status = ucp_init(&params, config, &context);
  ucp_config_release(config);
  if (status != UCS_OK) {
    return absl::UnavailableError(absl::StrCat("UCX cannot start: ", ucs_status_string(status)));
  }
  return UcxContext(context);
}

absl::StatusOr<UcxWorker> CreateWorker(ucp_context_h context) {
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // Created on the caller's thread, then used on the progress thread alone.
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h worker = nullptr;
  const ucs_status_t status = ucp_worker_create(context, &params, &worker);
  if (status != UCS_OK) {
    return absl::UnavailableError(
        absl::StrCat("UCX cannot open its devices: ", ucs_status_string(status)));
  }
  return UcxWorker(worker);
}

bool IsRdma(absl::string_view wire) {
  for (const char* prefix : {"rc_", "dc_", "ud_", "srd", "gga_"}) {
    if (absl::StartsWith(wire, prefix)) return true;
  }
  return false;
}

bool IsSharedMemory(absl::string_view wire) {
  return absl::EndsWith(wire, "/memory") && !absl::StartsWith(wire, "cuda");
}

bool MayAskForRendezvous() {
  const char* enabled = std::getenv("UCX_PROTO_ENABLE");
  const bool newer = enabled != nullptr && (*enabled == 'y' || *enabled == '1');
  return HasMatureProtocols() || !newer;
}

absl::Status CheckRequirements(ucp_context_h context, const FabricOptions& options) {
  const bool gpudirect = options.require_gpudirect;
  if (gpudirect) {
    ucp_context_attr_t attributes = {};
    attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
    if (ucp_context_query(context, &attributes) != UCS_OK ||
        (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) == 0) {
      return absl::FailedPreconditionError(
          "GPUDirect is required, but this UCX has no support for CUDA memory, or finds no GPU");
    }
  }
  if (!gpudirect && !options.require_rdma) return absl::OkStatus();
  // "# resource 3 : md 2 dev 1 flags -- rc_verbs/rxe0:1"
  for (const std::string& line : Report(ucp_context_print_info, context)) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() > 2 && words[1] == "resource" && IsRdma(words.back())) {
      return gpudirect ? CheckGpuDirect() : absl::OkStatus();
    }
  }
  return absl::FailedPreconditionError(
      absl::StrCat(gpudirect ? "GPUDirect" : "RDMA",
                   " is required, but UCX finds no RDMA device that it may use (UCX_TLS, "
                   "UCX_NET_DEVICES)"));
}

std::string TransportOf(ucp_ep_h endpoint) {
  // UCX before 1.14 has no other public way to ask.
  for (const std::string& line : Report(ucp_ep_print_info, endpoint)) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    for (const std::string& word : words) {
      if (word == "am") return TransportOfLane(line);
    }
  }
  return "";
}

}  // namespace specfabric::transport
