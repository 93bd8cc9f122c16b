#include "transport/poller.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace specfabric::transport {

absl::Status Poller::Start() {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  return Watch(wake_.get(), kWake, EPOLLIN);
}

absl::Status Poller::Watch(int fd, uint64_t id, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot watch a socket: ", std::strerror(errno)));
}

void Poller::SetListenerPaused(int fd, bool paused) {
  epoll_event event = {};
  if (!paused) event.events = EPOLLIN;
  event.data.u64 = kListener;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Poller::Sleep(base::Nanos longest) {
  pollfd events = {epoll_.get(), POLLIN, 0};
  const timespec limit = {static_cast<time_t>(longest / base::kSecond),
                          static_cast<long>(longest % base::kSecond)};
  ppoll(&events, 1, &limit, nullptr);
  next_poll_ = 0;
}

void Poller::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

}  // namespace specfabric::transport
