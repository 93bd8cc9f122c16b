#include "transport/fabric.h"

#include <atomic>
#include <future>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "transport/address.h"
#include "transport/engine.h"
#include "transport/mailbox.h"
#include "transport/peer_table.h"

namespace specfabric::transport {

class Fabric::Impl {
 public:
  Impl(const FabricOptions& options, FabricHandler handler)
      : options_(options), handler_(std::move(handler)), peers_(options.max_outstanding_sends) {}

  ~Impl() {
    if (!progress_.joinable()) return;
    mailbox_.Push(Stop{});
    progress_.join();
  }

  absl::Status Start() {
    auto engine = Engine::Create(options_, handler_, peers_, counters_, last_peer_id_);
    if (!engine.ok()) return engine.status();
    engine_ = *std::move(engine);
    progress_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Listen(const std::string& text) {
    const auto address = ResolveAddress(text);
    if (!address.ok()) return address.status();
    return OnProgressThread([&] { return engine_->Listen(*address, text); });
  }

  absl::StatusOr<PeerId> Connect(const std::string& text) {
    const auto address = ResolveAddress(text);
    if (!address.ok()) return address.status();
    const PeerId peer = ++last_peer_id_;
    peers_.Add(peer);
    mailbox_.Push(ConnectTo{peer, *address, text});
    return peer;
  }

  absl::Status Send(PeerId peer, uint16_t type, std::vector<uint8_t> payload) {
    if (payload.size() > options_.max_frame_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "frame of ", payload.size(), " bytes, must be at most ", options_.max_frame_bytes));
    }
    const absl::Status status = peers_.Reserve(peer);
    if (!status.ok()) return status;
    mailbox_.Push(SendTo{peer, type, std::move(payload)});
    return absl::OkStatus();
  }

  void Close(PeerId peer) {
    peers_.Remove(peer);
    mailbox_.Push(CloseTo{peer});
  }

  std::string Transport(PeerId peer) {
    return OnProgressThread([&] { return engine_->Transport(peer); });
  }

  FabricStats stats() const { return counters_.Read(); }

 private:
  struct ConnectTo {
    PeerId peer;
    SocketAddress address;
    std::string text;
  };
  struct SendTo {
    PeerId peer;
    uint16_t type;
    std::vector<uint8_t> payload;
  };
  struct CloseTo {
    PeerId peer;
  };
  using Call = std::function<void()>;
  struct Stop {};
  using Command = std::variant<ConnectTo, SendTo, CloseTo, Call, Stop>;

  void Run() {
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
        mailbox_.EndSleep();
      }
    }
  }

  // False: stop.
  bool Do(Command command) {
    if (auto* send = std::get_if<SendTo>(&command)) {
      engine_->Send(send->peer, send->type, std::move(send->payload));
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
  std::atomic<PeerId> last_peer_id_{0};
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

absl::StatusOr<std::string> Fabric::Listen(const std::string& address) {
  return impl_->Listen(address);
}

absl::StatusOr<PeerId> Fabric::Connect(const std::string& address) {
  return impl_->Connect(address);
}

absl::Status Fabric::Send(PeerId peer, uint16_t type, std::vector<uint8_t> payload) {
  return impl_->Send(peer, type, std::move(payload));
}

void Fabric::Close(PeerId peer) { impl_->Close(peer); }

std::string Fabric::Transport(PeerId peer) const { return impl_->Transport(peer); }

FabricStats Fabric::stats() const { return impl_->stats(); }

}  // namespace specfabric::transport
