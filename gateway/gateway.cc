#include "gateway/gateway.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "boost/asio/as_tuple.hpp"
#include "boost/asio/co_spawn.hpp"
#include "boost/asio/detached.hpp"
#include "boost/asio/executor_work_guard.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/use_awaitable.hpp"
#include "gateway/dispatcher.h"
#include "gateway/http_server.h"
#include "gateway/middleware.h"
#include "gateway/routes.h"
#include "gateway/target_loads.h"
#include "gateway/workers.h"
#include "link/fabric_counters.h"
#include "link/link.h"
#include "metrics/fabric_metrics.h"
#include "metrics/gateway_metrics.h"
#include "metrics/router_metrics.h"
#include "spdlog/spdlog.h"

namespace specfabric::gateway {

namespace asio = boost::asio;
using link::PeerId;

namespace {

constexpr std::chrono::milliseconds kTick{100};

// How long the io thread handles events of links before it returns to Asio's queue, and after how
// many sequences of a batch it checks the time.
constexpr base::Nanos kTurn = 200 * base::kMicrosecond;
constexpr size_t kSlice = 16;

// CPU time of the calling thread: excludes time in which it waited or was preempted.
base::Nanos ThreadTime() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * base::kSecond + time.tv_nsec;
}

int32_t VocabularyOf(const GatewayOptions& options) {
  return options.vocabulary > 0 ? options.vocabulary : options.tokenizer->vocab_size();
}

// OK if the peer is a target of this gateway's model.
absl::Status Accept(const GatewayOptions& options, const schemas::Hello& hello) {
  if (hello.role != schemas::Role::kTarget) {
    return absl::FailedPreconditionError(
        absl::StrCat("it is a ", schemas::Name(hello.role), ", not a target"));
  }
  if (hello.tokenizer_fingerprint != 0 &&
      hello.tokenizer_fingerprint != options.tokenizer->Fingerprint()) {
    return absl::FailedPreconditionError(absl::StrFormat("its tokenizer %016x is not ours, %016x",
                                                         hello.tokenizer_fingerprint,
                                                         options.tokenizer->Fingerprint()));
  }
  if (hello.vocabulary != 0 && hello.vocabulary != VocabularyOf(options)) {
    return absl::FailedPreconditionError(absl::StrCat("its vocabulary has ", hello.vocabulary,
                                                      " tokens, ours ", VocabularyOf(options)));
  }
  return absl::OkStatus();
}

}  // namespace

class Gateway::Impl {
 public:
  struct Up {
    schemas::Hello hello;
  };
  struct Down {};
  struct PlaceMore {};  // the dispatcher's backlog
  struct Event {
    PeerId peer = 0;
    std::variant<PlaceMore, Up, Down, schemas::Drain, schemas::TokensBatch> what;
    size_t next = 0;  // the first sequence of a batch that was not handled
  };

  Impl(GatewayOptions options, metrics::Registry* registry)
      : options_(std::move(options)),
        model_aliases_(std::make_shared<const std::vector<std::string>>(options_.model_aliases)),
        tenants_(options_.fabric.join_secret),
        metrics_(*registry),
        router_metrics_(*registry, options_.model_name),
        dispatcher_({.max_choices = options_.max_choices,
                     .target_wait = options_.target_wait,
                     .stall_timeout = options_.stall_timeout},
                    {[this](PeerId peer, const schemas::Submit& submit) {
                       return link_->Send(peer, submit);
                     },
                     [this](PeerId peer, const schemas::Cancel& cancel) {
                       link_->Send(peer, cancel).IgnoreError();
                     },
                     [this](PeerId peer) { link_->Close(peer); },
                     [this](schemas::Submit submit) { workers_.Discard(std::move(submit)); }},
                    &metrics_),
        routes_(MakeContext(registry)),
        middleware_(
            {.routes = &routes_,
             .metrics = &metrics_,
             .cors_origins = options_.cors_origins,
             .api_keys = options_.api_keys,
             .access_log = options_.access_log ? std::make_unique<AccessLog>(&tenants_) : nullptr}),
        tick_(io_),
        reload_(io_) {}
  ~Impl();

  absl::Status Start(metrics::Registry* registry);
  const std::string& listen_address() const { return server_->address(); }
  void Drain() { draining_ = true; }
  int in_flight() const { return static_cast<int>(metrics_.in_flight.Value()); }

 private:
  RouteContext MakeContext(metrics::Registry* registry);
  ServedModel Model() const;
  link::LinkHandler MakeLinkHandler();
  void RunIo();
  // Events of links, handled in order. All but Bring run on the io thread.
  void Bring(Event event);
  void HandleInTurns();
  void HandleNext();
  // False: the batch has more.
  bool HandleSlice(Event& event);
  asio::awaitable<void> Tick();
  asio::awaitable<void> Reload();

  const GatewayOptions options_;
  const std::shared_ptr<const std::vector<std::string>> model_aliases_;
  std::atomic<bool> draining_ = false;
  const Tenants tenants_;
  metrics::GatewayMetrics metrics_;
  metrics::RouterMetrics router_metrics_;
  asio::io_context io_{1};
  GrammarChecker grammars_{options_.tokenizer};
  Workers workers_{io_};
  // On the io thread.
  std::deque<Event> events_;
  bool handling_ = false;  // a HandleInTurns is running or posted
  Dispatcher dispatcher_;
  TargetLoads loads_{&router_metrics_};
  Routes routes_;
  Middleware middleware_;
  asio::steady_timer tick_;
  asio::steady_timer reload_;
  bool stopping_ = false;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<link::Link> link_;  // its callbacks only post to io_
  std::optional<metrics::FabricMetrics> fabric_metrics_;
  std::thread thread_;
};

RouteContext Gateway::Impl::MakeContext(metrics::Registry* registry) {
  RouteContext context;
  context.model = [this] { return Model(); };
  context.created = absl::ToUnixSeconds(absl::Now());
  context.version = options_.version;
  context.model_root = options_.model_root;
  context.tokenizer = options_.tokenizer.get();
  context.grammars = &grammars_;
  context.sampling_defaults = options_.sampling_defaults;
  context.chat_format = ChatFormatOf(*options_.tokenizer, options_.tool_format);
  context.dispatcher = &dispatcher_;
  context.tenants = &tenants_;
  context.registry = registry;
  context.metrics = &metrics_;
  context.workers = &workers_;
  context.request_timeout = options_.request_timeout;
  context.slow_request = options_.slow_request;
  context.stream_header_delay = options_.stream_header_delay;
  context.stream_keep_alive = options_.stream_keep_alive;
  context.recorder = options_.recorder;
  context.draining = [this] { return draining_.load(); };
  return context;
}

ServedModel Gateway::Impl::Model() const {
  const int32_t served = dispatcher_.targets().Context();
  const int32_t context = options_.context == 0 ? served
                          : served == 0         ? options_.context
                                                : std::min(options_.context, served);
  return {options_.model_name, context, VocabularyOf(options_), model_aliases_};
}

link::LinkHandler Gateway::Impl::MakeLinkHandler() {
  link::LinkHandler handler;
  handler.on_up = [this](PeerId peer, const schemas::Hello& hello, const std::string&) {
    Bring({peer, Up{hello}});
  };
  handler.on_down = [this](PeerId peer, const absl::Status&) { Bring({peer, Down{}}); };
  handler.on_message = [this](PeerId peer, link::Message message) {
    if (auto* batch = std::get_if<schemas::TokensBatch>(&message)) {
      Bring({peer, std::move(*batch)});
    } else if (auto* drain = std::get_if<schemas::Drain>(&message)) {
      Bring({peer, *drain});
    }
  };
  return handler;
}

void Gateway::Impl::Bring(Event event) {
  asio::post(io_, [this, event = std::move(event)]() mutable {
    events_.push_back(std::move(event));
    if (!std::exchange(handling_, true)) HandleInTurns();
  });
}

void Gateway::Impl::HandleInTurns() {
  const base::Nanos begin = base::Now();
  do {
    HandleNext();
    if (events_.empty() && dispatcher_.backlog()) {
      events_.push_back({0, PlaceMore{}});
      break;  // PlaceMore takes a turn of its own
    }
  } while (!events_.empty() && base::Now() - begin < kTurn);
  handling_ = !events_.empty();
  if (handling_) asio::post(io_, [this] { HandleInTurns(); });
}

void Gateway::Impl::HandleNext() {
  const base::Nanos now = base::Now();
  Event& next = events_.front();
  if (std::holds_alternative<schemas::TokensBatch>(next.what)) {
    if (!HandleSlice(next)) return;
  } else if (const auto* up = std::get_if<Up>(&next.what)) {
    loads_.Up(next.peer, up->hello);
    dispatcher_.OnUp(next.peer, up->hello, now);
  } else if (std::holds_alternative<Down>(next.what)) {
    loads_.Down(next.peer);
    dispatcher_.OnDown(next.peer, now);
  } else if (std::holds_alternative<schemas::Drain>(next.what)) {
    dispatcher_.OnDrain(next.peer);
  } else {
    dispatcher_.PlaceWaiting(now);
  }
  events_.pop_front();
}

bool Gateway::Impl::HandleSlice(Event& event) {
  auto& batch = std::get<schemas::TokensBatch>(event.what);
  if (const auto load = std::exchange(batch.load, std::nullopt)) loads_.Report(event.peer, *load);
  auto& sequences = batch.sequences;
  const auto begin = sequences.begin() + static_cast<ptrdiff_t>(event.next);
  event.next = std::min(event.next + kSlice, sequences.size());
  const auto end = sequences.begin() + static_cast<ptrdiff_t>(event.next);
  schemas::TokensBatch slice;
  slice.sequences.assign(std::make_move_iterator(begin), std::make_move_iterator(end));
  dispatcher_.OnBatch(event.peer, std::move(slice), base::Now());
  return event.next == sequences.size();
}

void Gateway::Impl::RunIo() {
  base::Nanos before = ThreadTime(), longest = 0;
  while (io_.run_one() > 0) {
    const base::Nanos now = ThreadTime();
    metrics_.io_event.Observe(base::ToSeconds(now - before));
    if (now - before > longest) {
      longest = now - before;
      metrics_.io_event_max.Set(base::ToSeconds(longest));
    }
    before = now;
  }
}

asio::awaitable<void> Gateway::Impl::Tick() {
  while (!stopping_) {
    tick_.expires_after(kTick);
    co_await tick_.async_wait(asio::as_tuple(asio::use_awaitable));
    dispatcher_.Tick(base::Now());
    if (dispatcher_.backlog()) Bring({0, PlaceMore{}});
  }
}

asio::awaitable<void> Gateway::Impl::Reload() {
  const auto job = [this] {
    if (options_.api_keys != nullptr) options_.api_keys->Reload();
    if (options_.tls != nullptr) options_.tls->Reload();
    return true;
  };
  while (!stopping_) {
    reload_.expires_after(std::chrono::nanoseconds(options_.reload_interval));
    co_await reload_.async_wait(asio::as_tuple(asio::use_awaitable));
    if (!stopping_) co_await workers_.Run(Work::kLong, job);
  }
}

absl::Status Gateway::Impl::Start(metrics::Registry* registry) {
  HttpServerOptions http;
  http.listen = options_.listen;
  http.socket = options_.socket;
  http.tls = options_.tls;
  if (options_.tls != nullptr) spdlog::info("TLS: {}", options_.tls->Describe());
  http.max_connections = options_.max_connections;
  http.max_body_bytes = options_.max_body_bytes;
  auto server = HttpServer::Start(io_, std::move(http), middleware_.Service());
  if (!server.ok()) return server.status();
  server_ = *std::move(server);

  link::LinkOptions options;
  options.fabric = options_.fabric;
  options.hello.role = schemas::Role::kGateway;
  options.hello.model = options_.model_name;
  options.hello.tokenizer_fingerprint = options_.tokenizer->Fingerprint();
  options.hello.vocabulary = VocabularyOf(options_);
  options.hello.context = options_.context;
  options.hello.build = options_.version;
  options.connect = options_.targets;
  options.lookup_interval = options_.lookup_interval;
  options.accept = [this](const schemas::Hello& hello) { return Accept(options_, hello); };
  auto link = link::Link::Create(std::move(options), MakeLinkHandler());
  if (!link.ok()) return link.status();
  link_ = *std::move(link);
  fabric_metrics_.emplace(*registry, [this] { return link::ReadCounters(*link_); });
  if (absl::Status started = link_->Start(); !started.ok()) return started;

  asio::co_spawn(io_, Tick(), asio::detached);
  if (options_.api_keys != nullptr || options_.tls != nullptr) {
    asio::co_spawn(io_, Reload(), asio::detached);
  }
  thread_ = std::thread([this] { RunIo(); });
  return absl::OkStatus();
}

Gateway::Impl::~Impl() {
  fabric_metrics_.reset();
  if (thread_.joinable()) {
    // Cancels all operations; the io thread ends when none is left.
    asio::post(io_, [this] {
      stopping_ = true;
      tick_.cancel();
      reload_.cancel();
      server_->Stop();
    });
    thread_.join();
  }
  workers_.Join();
  link_.reset();
  metrics_.targets_up.Set(0);
}

Gateway::Gateway(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Gateway::~Gateway() = default;

absl::StatusOr<std::unique_ptr<Gateway>> Gateway::Start(GatewayOptions options,
                                                        metrics::Registry* registry) {
  auto impl = std::make_unique<Impl>(std::move(options), registry);
  if (absl::Status status = impl->Start(registry); !status.ok()) return status;
  return std::unique_ptr<Gateway>(new Gateway(std::move(impl)));
}

const std::string& Gateway::listen_address() const { return impl_->listen_address(); }
void Gateway::Drain() { impl_->Drain(); }
int Gateway::in_flight() const { return impl_->in_flight(); }

}  // namespace specfabric::gateway
