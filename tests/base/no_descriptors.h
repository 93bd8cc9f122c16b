#ifndef SPECFABRIC_TESTS_BASE_NO_DESCRIPTORS_H_
#define SPECFABRIC_TESTS_BASE_NO_DESCRIPTORS_H_

// A process that has no file descriptor left, and clients that connect to it all the same.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace specfabric::base {

// While it lives, this process opens no descriptor.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int lowest_free = dup(STDIN_FILENO);
    close(lowest_free);
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(lowest_free);
    if (lowest_free < 0 || setrlimit(RLIMIT_NOFILE, &none) != 0) {
      std::perror("NoDescriptors");
      std::abort();
    }
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_ = {};
};

// Has its descriptor before it connects. What it waits for takes a minute at most.
class LateClient {
 public:
  LateClient() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval minute = {60, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof(minute));
  }
  ~LateClient() { close(socket_); }
  LateClient(const LateClient&) = delete;
  LateClient& operator=(const LateClient&) = delete;

  // To "127.0.0.1:port". The kernel accepts; the server need not.
  bool Connect(const std::string& address) const {
    const size_t colon = address.rfind(':');
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
    inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
    return connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
  }
  // The beginning of what comes back.
  std::string Ask(const std::string& request) const {
    char answer[4096];
    if (send(socket_, request.data(), request.size(), MSG_NOSIGNAL) < 0) return "";
    const ssize_t received = recv(socket_, answer, sizeof(answer), 0);
    return received <= 0 ? "" : std::string(answer, static_cast<size_t>(received));
  }

 private:
  const int socket_;
};

// CPU time that this process takes while a second passes.
inline double CpuSecondsOfASecond() {
  const auto now = [] {
    timespec time = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double before = now();
  sleep(1);
  return now() - before;
}

// A loop that tries again at once takes all of a core, even one that it shares with others more
// than this.
constexpr double kIdleCpuSeconds = 0.2;

}  // namespace specfabric::base

#endif  // SPECFABRIC_TESTS_BASE_NO_DESCRIPTORS_H_
