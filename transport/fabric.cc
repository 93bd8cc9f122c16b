#include "transport/fabric.h"

#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "transport/address.h"
#include "transport/engine.h"
#include "transport/mailbox.h"
#include "transport/peer_table.h"
#include "transport/ucx_context.h"

namespace specfabric::transport {

namespace {

// Time that peers get to read what they received, at the end of a flush.
constexpr std::chrono::milliseconds kReadingTime(250);

}  // namespace

class Fabric::Impl {
 public:
  Impl(const FabricOptions& options, FabricHandler handler)
      : options_(options),
        handler_(std::move(handler)),
        peers_(options.max_outstanding_sends, options.max_outstanding_bytes) {}

  ~Impl() {
    if (!progress_.joinable()) return;
    mailbox_.Push(Stop{});
    progress_.join();
  }

  absl::Status Start() {
    auto engine = Engine::Create(options_, handler_, peers_, counters_);
    if (!engine.ok()) return engine.status();
    engine_ = *std::move(engine);
    progress_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Listen(ListenSocket socket) {
    return OnProgressThread([&] { return engine_->Listen(std::move(socket)); });
  }

  absl::StatusOr<PeerId> Connect(const std::string& text) {
    const auto address = ResolveAddress(text);
    if (!address.ok()) return address.status();
    const PeerId peer = peers_.Name();
    if (peer == 0) return absl::ResourceExhaustedError("65536 connections already");
    peers_.Add(peer);
    mailbox_.Push(ConnectTo{peer, *address, text});
    return peer;
  }

  absl::Status Send(PeerId peer, uint16_t type, std::vector<uint8_t> payload) {
    const absl::Status status = Reserve(peer, payload.size());
    if (!status.ok()) return status;
    Outgoing frame = {.kind = FrameKind::kData, .type = type, .payload = std::move(payload)};
    frame.data = frame.payload.data();
    frame.bytes = frame.payload.size();
    mailbox_.Push(SendTo{peer, std::move(frame)});
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<SlotPool>> AddPool(uint8_t id, const SlotPoolOptions& options) {
    if (id > kLastPool) {
      return absl::InvalidArgumentError(absl::StrCat("pool ", id, ", must be at most ", kLastPool));
    }
    return OnProgressThread([&] { return engine_->AddPool(id, options); });
  }

  absl::Status SendTensor(PeerId peer, uint16_t type, const TensorFields& fields, Lease lease,
                          uint32_t bytes) {
    if (!lease || bytes > lease.capacity()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor of ", bytes, " bytes in a slot of ", lease.capacity()));
    }
    const absl::Status status = Reserve(peer, bytes);
    if (!status.ok()) return status;
    Outgoing frame = {.kind = FrameKind::kTensor, .type = type, .fields = fields};
    frame.bytes = bytes;
    PointAtSlot(lease, frame);
    frame.lease = std::move(lease);
    mailbox_.Push(SendTo{peer, std::move(frame)});
    return absl::OkStatus();
  }

  bool Flush(base::Nanos timeout) {
    const base::Nanos deadline = base::Now() + timeout;
    while (peers_.AnyOutstanding() || !OnProgressThread([&] { return engine_->Flushed(); })) {
      if (base::Now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    // The end of a connection travels by the control connection, the data by UCX: a peer that sees
    // the end first drops what it has not read.
    std::this_thread::sleep_for(kReadingTime);
    return true;
  }

  void Close(PeerId peer) {
    peers_.Remove(peer);
    mailbox_.Push(CloseTo{peer});
  }

  std::string Transport(PeerId peer) {
    return OnProgressThread([&] { return engine_->Transport(peer); });
  }

  std::string PayloadTransport(PeerId peer, MemoryKind kind) {
    return OnProgressThread([&] { return engine_->PayloadTransport(peer, kind); });
  }

  std::vector<ConnectionStats> Connections() const { return engine_->OpenConnections(); }
  std::vector<PoolStats> Pools() const { return engine_->Pools(); }
  FabricStats stats() const { return counters_.Read(); }

 private:
  struct ConnectTo {
    PeerId peer;
    SocketAddress address;
    std::string text;
  };
  struct SendTo {
    PeerId peer;
    Outgoing frame;
  };
  struct CloseTo {
    PeerId peer;
  };
  using Call = std::function<void()>;
  struct Stop {};
  using Command = std::variant<Stop, ConnectTo, SendTo, CloseTo, Call>;

  // Takes a place among the peer's outstanding sends.
  absl::Status Reserve(PeerId peer, size_t bytes) {
    if (bytes > options_.max_frame_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("frame of ", bytes, " bytes, must be at most ", options_.max_frame_bytes));
    }
    absl::Status status = peers_.Reserve(peer, bytes);
    if (absl::IsResourceExhausted(status)) ++counters_.back_pressure;
    return status;
  }

  void Run() {
    engine_->UseThread().IgnoreError();  // as on the thread that made it
    std::vector<Command> commands;
    base::Nanos last_event = base::Now();
    while (true) {
      mailbox_.TakeAll(commands);
      for (Command& command : commands) {
        if (!Do(std::move(command))) {
          engine_->Shutdown();
          return;
        }
      }
      const bool worked = !commands.empty();
      commands.clear();
      if (engine_->Turn() || worked) {
        last_event = base::Now();
      } else if (base::Now() - last_event >= options_.spin && mailbox_.PrepareSleep()) {
        engine_->Sleep(options_.max_sleep);
      }
    }
  }

  // False: stop.
  bool Do(Command command) {
    if (auto* send = std::get_if<SendTo>(&command)) {
      engine_->Send(send->peer, std::move(send->frame));
    } else if (auto* connect = std::get_if<ConnectTo>(&command)) {
      engine_->Connect(connect->peer, connect->address, connect->text);
    } else if (auto* close = std::get_if<CloseTo>(&command)) {
      engine_->Close(close->peer);
    } else if (auto* call = std::get_if<Call>(&command)) {
      (*call)();
    } else {
      return false;
    }
    return true;
  }

  template <typename Function>
  auto OnProgressThread(Function function) -> decltype(function()) {
    if (std::this_thread::get_id() == progress_.get_id()) return function();
    std::packaged_task<decltype(function())()> task(std::move(function));
    auto result = task.get_future();
    mailbox_.Push(Call([&task] { task(); }));  // `task` outlives the call: we wait for it
    return result.get();
  }

  const FabricOptions options_;
  const FabricHandler handler_;
  PeerTable peers_;
  Counters counters_;
  std::unique_ptr<Engine> engine_;
  Mailbox<Command> mailbox_{[this] { engine_->Wake(); }};
  std::thread progress_;
};

Fabric::Fabric(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Fabric::~Fabric() = default;

absl::StatusOr<std::unique_ptr<Fabric>> Fabric::Create(const FabricOptions& options,
                                                       FabricHandler handler) {
  auto impl = std::make_unique<Impl>(options, std::move(handler));
  const absl::Status status = impl->Start();
  if (!status.ok()) return status;
  return std::unique_ptr<Fabric>(new Fabric(std::move(impl)));
}

absl::Status Fabric::CheckRequirements(const FabricOptions& options) {
  if (!options.require_rdma && !options.require_gpudirect) return absl::OkStatus();
  ApplyUcxSettings(options);
  const auto context = CreateContext();
  if (!context.ok()) return context.status();
  return transport::CheckRequirements(context->get(), options);
}

absl::StatusOr<std::string> Fabric::Listen(const std::string& address) {
  auto socket = ListenSocket::Open(address);
  if (!socket.ok()) return socket.status();
  return impl_->Listen(*std::move(socket));
}

absl::StatusOr<std::string> Fabric::Listen(ListenSocket socket) {
  return impl_->Listen(std::move(socket));
}

absl::StatusOr<PeerId> Fabric::Connect(const std::string& address) {
  return impl_->Connect(address);
}

absl::Status Fabric::Send(PeerId peer, uint16_t type, std::vector<uint8_t> payload) {
  return impl_->Send(peer, type, std::move(payload));
}

absl::StatusOr<std::shared_ptr<SlotPool>> Fabric::AddPool(uint8_t id,
                                                          const SlotPoolOptions& options) {
  return impl_->AddPool(id, options);
}

absl::Status Fabric::SendTensor(PeerId peer, uint16_t type, const TensorFields& fields, Lease lease,
                                uint32_t bytes) {
  return impl_->SendTensor(peer, type, fields, std::move(lease), bytes);
}

bool Fabric::Flush(base::Nanos timeout) { return impl_->Flush(timeout); }

void Fabric::Close(PeerId peer) { impl_->Close(peer); }

std::string Fabric::Transport(PeerId peer) const { return impl_->Transport(peer); }

std::string Fabric::PayloadTransport(PeerId peer, MemoryKind kind) const {
  return impl_->PayloadTransport(peer, kind);
}

std::vector<ConnectionStats> Fabric::Connections() const { return impl_->Connections(); }
std::vector<PoolStats> Fabric::Pools() const { return impl_->Pools(); }

FabricStats Fabric::stats() const { return impl_->stats(); }

}  // namespace specfabric::transport
