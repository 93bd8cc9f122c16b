// ZeroMQ: two PAIR sockets, its cheapest pattern between two processes. Its I/O thread does the
// socket calls, so when the process is pinned to one core, spinning in the application takes the
// core from it: --wait=block is faster.

#include <zmq.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "bench/transport/measure.h"

namespace specfabric::bench {
namespace {

absl::Status ZmqError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", zmq_strerror(zmq_errno())));
}

struct CloseSocket {
  void operator()(void* socket) const { zmq_close(socket); }
};
struct EndContext {
  void operator()(void* context) const { zmq_ctx_term(context); }
};

// Members are destroyed in reverse: the socket before its context.
struct Endpoint {
  std::unique_ptr<void, EndContext> context;
  std::unique_ptr<void, CloseSocket> socket;
};

absl::StatusOr<Endpoint> Open(const Settings& settings) {
  Endpoint endpoint;
  endpoint.context.reset(zmq_ctx_new());
  if (endpoint.context == nullptr) return ZmqError("cannot make a context");
  endpoint.socket.reset(zmq_socket(endpoint.context.get(), ZMQ_PAIR));
  if (endpoint.socket == nullptr) return ZmqError("cannot make a socket");
  const int linger_ms = 0;
  zmq_setsockopt(endpoint.socket.get(), ZMQ_LINGER, &linger_ms, sizeof linger_ms);
  const int result = settings.server ? zmq_bind(endpoint.socket.get(), settings.address.c_str())
                                     : zmq_connect(endpoint.socket.get(), settings.address.c_str());
  if (result != 0) {
    return ZmqError(
        absl::StrCat("cannot ", settings.server ? "listen at " : "connect to ", settings.address));
  }
  return endpoint;
}

// A message that frees its bytes unless the library owns them.
class Message {
 public:
  Message() { zmq_msg_init(&message_); }
  ~Message() { zmq_msg_close(&message_); }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  zmq_msg_t* get() { return &message_; }

 private:
  zmq_msg_t message_;
};

absl::Status Receive(const Endpoint& endpoint, bool poll, Message& message) {
  const int flags = poll ? ZMQ_DONTWAIT : 0;
  while (zmq_msg_recv(message.get(), endpoint.socket.get(), flags) < 0) {
    if (zmq_errno() != EAGAIN && zmq_errno() != EINTR) return ZmqError("cannot receive");
  }
  return absl::OkStatus();
}

absl::Status Send(const Endpoint& endpoint, Message& message) {
  while (zmq_msg_send(message.get(), endpoint.socket.get(), 0) < 0) {
    if (zmq_errno() != EINTR) return ZmqError("cannot send");
  }
  return absl::OkStatus();
}

// A PAIR socket is not told that its client closed, so this ends by a signal.
absl::Status Serve(const Settings& settings) {
  const absl::StatusOr<Endpoint> endpoint = Open(settings);
  if (!endpoint.ok()) return endpoint.status();
  Message message;
  while (true) {
    if (absl::Status status = Receive(*endpoint, settings.poll, message); !status.ok()) {
      return status;
    }
    // The received bytes are sent back without a copy.
    if (absl::Status status = Send(*endpoint, message); !status.ok()) return status;
  }
}

absl::StatusOr<Latency> MeasureClient(const Settings& settings) {
  const absl::StatusOr<Endpoint> endpoint = Open(settings);
  if (!endpoint.ok()) return endpoint.status();
  const std::string payload(settings.bytes, 'x');
  Message message;
  zmq_msg_init_size(message.get(), payload.size());
  std::memcpy(zmq_msg_data(message.get()), payload.data(), payload.size());
  absl::StatusOr<Latency> latency = Measure(settings, [&]() -> absl::Status {
    if (absl::Status status = Send(*endpoint, message); !status.ok()) return status;
    return Receive(*endpoint, settings.poll, message);
  });
  if (latency.ok() &&
      (zmq_msg_size(message.get()) != payload.size() ||
       std::memcmp(zmq_msg_data(message.get()), payload.data(), payload.size()) != 0)) {
    return absl::DataLossError("the echo differs");
  }
  return latency;
}

}  // namespace
}  // namespace specfabric::bench

int main(int argc, char** argv) {
  namespace bench = specfabric::bench;
  return bench::PeerMain(argc, argv,
                         bench::Peer{.name = "zmq_bench",
                                     .tests = {"echo"},
                                     .address_form = "tcp://IPv4:PORT or ipc://PATH",
                                     .serve = bench::Serve,
                                     .measure = bench::MeasureClient});
}
