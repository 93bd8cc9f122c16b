#include "tests/transport/raw_socket.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/transport/network.h"

namespace specfabric::transport {
namespace {

sockaddr_in AtTestHost(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  if (inet_pton(AF_INET, TestHost().c_str(), &address.sin_addr) != 1) {
    std::fprintf(stderr, "SPECFABRIC_TEST_HOST=\"%s\": must be an IPv4 address\n",
                 TestHost().c_str());
    std::abort();
  }
  address.sin_port = htons(port);
  return address;
}

std::set<std::string> OwnSocketInodes() {
  std::set<std::string> inodes;
  DIR* directory = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(directory)) {
    char target[64] = {};
    const std::string link = std::string("/proc/self/fd/") + entry->d_name;
    if (readlink(link.c_str(), target, sizeof(target) - 1) <= 0) continue;
    const std::string text = target;
    if (text.starts_with("socket:[")) inodes.insert(text.substr(8, text.size() - 9));
  }
  closedir(directory);
  return inodes;
}

void LimitReceiving(int socket) {
  const timeval limit = {10, 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

}  // namespace

SilentServer::SilentServer() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = AtTestHost(0);
  socklen_t size = sizeof(address);
  if (bind(socket_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(socket_, 16) != 0 ||
      getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::perror("SilentServer");
    std::abort();
  }
  address_ = TestHost() + ":" + std::to_string(ntohs(address.sin_port));
}

SilentServer::~SilentServer() { close(socket_); }

int SilentServer::Accept() const { return accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC); }

RawConnection::RawConnection(uint16_t port)
    : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const sockaddr_in address = AtTestHost(port);
  if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    std::perror("RawConnection");
    std::abort();
  }
}

RawConnection::~RawConnection() {
  if (socket_ >= 0) close(socket_);
}

void RawConnection::Send(const std::vector<uint8_t>& bytes) const {
  // The other side may have closed: then the test sees it by what it receives.
  (void)send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

std::vector<uint8_t> RawConnection::Receive(size_t bytes) const {
  LimitReceiving(socket_);
  std::vector<uint8_t> received(bytes);
  const ssize_t count = recv(socket_, received.data(), bytes, MSG_WAITALL);
  received.resize(count < 0 ? 0 : static_cast<size_t>(count));
  return received;
}

std::vector<uint8_t> RawConnection::ReceiveSome() const {
  LimitReceiving(socket_);
  std::vector<uint8_t> received(64 * 1024);
  const ssize_t count = recv(socket_, received.data(), received.size(), 0);
  received.resize(count < 0 ? 0 : static_cast<size_t>(count));
  return received;
}

std::optional<std::vector<uint8_t>> RawConnection::ReceiveToEnd() const {
  LimitReceiving(socket_);
  std::vector<uint8_t> all;
  while (true) {
    uint8_t chunk[4096];
    const ssize_t count = recv(socket_, chunk, sizeof(chunk), 0);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
    if (count <= 0) return all;  // closed, in order or not
    all.insert(all.end(), chunk, chunk + count);
  }
}

uint16_t PortOf(const std::string& address) {
  return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

std::vector<uint16_t> OwnListeningPorts() {
  const std::set<std::string> inodes = OwnSocketInodes();
  std::vector<uint16_t> ports;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);  // titles
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
          timeout >> inode;
      constexpr const char* kListening = "0A";
      if (state != kListening || !inodes.contains(inode)) continue;
      ports.push_back(
          static_cast<uint16_t>(std::stoul(local.substr(local.rfind(':') + 1), nullptr, 16)));
    }
  }
  return ports;
}

void SendRaw(uint16_t port, const std::vector<uint8_t>& bytes) {
  const int raw = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval limit = {2, 0};
  setsockopt(raw, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  const sockaddr_in address = AtTestHost(port);
  if (connect(raw, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t now = send(raw, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (now <= 0) break;
      sent += static_cast<size_t>(now);
    }
  }
  close(raw);
}

}  // namespace specfabric::transport
