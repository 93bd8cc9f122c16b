#ifndef SPECFABRIC_TRANSPORT_POLLER_H_
#define SPECFABRIC_TRANSPORT_POLLER_H_

// The file descriptors that end an engine's sleep: UCX's event descriptor, the listening socket,
// the control connections, and an eventfd for other threads. Private to transport/.
//
// Threads: the engine's, but for Wake.

#include <sys/epoll.h>
#include <unistd.h>

#include <cstdint>
#include <iterator>

#include "absl/status/status.h"
#include "base/clock.h"
#include "transport/fabric.h"
#include "transport/unique_fd.h"

namespace specfabric::transport {

class Poller {
 public:
  absl::Status Start();

  absl::Status WatchUcx(int fd) { return Watch(fd, kUcx, EPOLLIN); }
  absl::Status WatchListener(int fd) { return Watch(fd, kListener, EPOLLIN); }
  // While accepting is paused, connections that wait must not end every sleep.
  void SetListenerPaused(int fd, bool paused);
  // Edge-triggered: reported again only once there is more to read or room to write.
  absl::Status WatchControl(int fd, PeerId peer) {
    return Watch(fd, peer, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
  }

  // Calls on_listener() and on_control(peer) for what is ready; does so at most every 200 us, and
  // at once after a Sleep.
  template <typename OnListener, typename OnControl>
  void Poll(base::Nanos now, OnListener on_listener, OnControl on_control) {
    if (now < next_poll_) return;
    next_poll_ = now + kInterval;
    epoll_event ready[64];
    const int count = epoll_wait(epoll_.get(), ready, std::size(ready), 0);
    for (int i = 0; i < count; ++i) {
      if (ready[i].data.u64 == kListener) {
        on_listener();
      } else if (ready[i].data.u64 == kWake) {
        uint64_t wakes;
        (void)!read(wake_.get(), &wakes, sizeof(wakes));
      } else if (ready[i].data.u64 != kUcx) {
        on_control(ready[i].data.u64);
      }
    }
  }
  void Sleep(base::Nanos longest);
  // Ends the current or next Sleep. Any thread.
  void Wake();

 private:
  // Told apart from control connections, which are named by their PeerId.
  static constexpr uint64_t kUcx = 0;
  static constexpr uint64_t kListener = UINT64_MAX;
  static constexpr uint64_t kWake = UINT64_MAX - 1;
  // How often the sockets are polled while UCX keeps the thread from sleeping.
  static constexpr base::Nanos kInterval = 200 * base::kMicrosecond;

  absl::Status Watch(int fd, uint64_t id, uint32_t events);

  UniqueFd epoll_;
  UniqueFd wake_;
  base::Nanos next_poll_ = 0;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_POLLER_H_
