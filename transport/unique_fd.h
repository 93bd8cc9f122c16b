#ifndef SPECFABRIC_TRANSPORT_UNIQUE_FD_H_
#define SPECFABRIC_TRANSPORT_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace specfabric::transport {

// An owned file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() { reset(); }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_UNIQUE_FD_H_
