#include "transport/peer_listeners.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace specfabric::transport {
namespace {

// How long a listener is kept after its peer has connected.
constexpr base::Nanos kUsedLinger = 200 * base::kMillisecond;
// And if its peer was given up before: it may still connect, late because its machine is
// overloaded.
constexpr base::Nanos kUnusedLinger = 10 * base::kSecond;

}  // namespace

absl::StatusOr<std::unique_ptr<PeerListener>> PeerListeners::Open(PeerId peer,
                                                                  const SocketAddress& local,
                                                                  const std::string& what) {
  auto listener = std::make_unique<PeerListener>();
  listener->owner = this;
  listener->peer = peer;
  ucp_listener_params_t params = {};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&local.storage);
  params.sockaddr.addrlen = local.size;
  params.conn_handler.cb = &PeerListeners::OnConnectionRequest;
  params.conn_handler.arg = listener.get();
  ucp_listener_h handle = nullptr;
  ucp_listener_attr_t attributes = {};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  ucs_status_t status = ucp_listener_create(runtime_.worker(), &params, &handle);
  if (status == UCS_OK) {
    listener->listener.reset(handle);
    status = ucp_listener_query(handle, &attributes);
  }
  if (status != UCS_OK) {
    if (handle != nullptr) Withdraw(std::move(listener));
    return StatusFromUcs(status, absl::StrCat(what, ": UCX cannot listen for it"));
  }
  listener->address = {attributes.sockaddr, local.size};
  return listener;
}

std::vector<PeerId> PeerListeners::TakeRequested() { return std::exchange(requested_, {}); }

void PeerListeners::Withdraw(std::unique_ptr<PeerListener> listener) {
  if (listener == nullptr) return;
  listener->withdrawn_at = base::Now();
  withdrawn_.push_back(std::move(listener));
}

void PeerListeners::Retire(base::Nanos now, bool worker_ends) {
  std::erase_if(withdrawn_, [&](const std::unique_ptr<PeerListener>& listener) {
    for (ucp_conn_request_h request : std::exchange(listener->requests, {})) {
      ucp_listener_reject(listener->listener.get(), request);
      listener->withdrawn_at = now;
    }
    const base::Nanos linger = listener->used || worker_ends ? kUsedLinger : kUnusedLinger;
    return listener->withdrawn_at + linger <= now;
  });
}

void PeerListeners::Clear() {
  withdrawn_.clear();
  requested_.clear();
}

void PeerListeners::OnConnectionRequest(ucp_conn_request_h request, void* listener) {
  PeerListener* const wanted = static_cast<PeerListener*>(listener);
  wanted->requests.push_back(request);
  wanted->used = true;
  wanted->owner->state_.has_events = true;
  wanted->owner->requested_.push_back(wanted->peer);
}

}  // namespace specfabric::transport
