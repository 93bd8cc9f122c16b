#include "transport/acceptor.h"

#include <utility>

#include "base/status.h"

namespace specfabric::transport {

absl::StatusOr<std::string> Acceptor::Listen(ListenSocket socket) {
  if (listener_.listening()) return absl::FailedPreconditionError("listening already");
  const absl::Status watched = poller_.WatchListener(socket.fd());
  if (!watched.ok()) return watched;
  socket.WidenQueue();
  listener_ = ControlListener(std::move(socket));
  return listener_.address();
}

void Acceptor::Accept() {
  for (;;) {
    auto next = listener_.Accept();
    if (!next.ok()) return Pause(next.status());
    if (!next->has_value()) return;
    if ((*next)->gone) {
      ++state_.counters.connect_failures;
      continue;
    }
    const PeerId peer = state_.peers.Name();
    if (peer != 0) connector_.Accept(peer, **std::move(next));
  }
}

void Acceptor::Pause(const absl::Status& why) {
  failures_.Report("transport", listener_.address(), base::Message(why), state_.now);
  poller_.SetListenerPaused(listener_.fd(), true);
  resume_at_ = state_.now + AcceptFailures::kPause;
}

void Acceptor::ResumeIfDue() {
  if (state_.now < resume_at_) return;
  resume_at_ = base::kForever;
  poller_.SetListenerPaused(listener_.fd(), false);
}

}  // namespace specfabric::transport
