// The roles of a cluster's processes: start, tell the parent, wait for a signal, drain, end.

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "app/admin_server.h"
#include "app/flag_checks.h"
#include "app/flags.h"
#include "app/http_options.h"
#include "app/model_options.h"
#include "app/options.h"
#include "app/process.h"
#include "app/roles.h"
#include "app/version.h"
#include "base/exit_code.h"
#include "gateway/gateway.h"
#include "link/peer_address.h"
#include "metrics/trace_metrics.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"
#include "trace/recorder.h"
#include "transport/address.h"
#include "transport/fabric.h"
#include "transport/listen_socket.h"

namespace specfabric::app {

namespace {

std::string ListenOr(const char* fallback) {
  return FLAGS_listen.empty() ? fallback : FLAGS_listen;
}

// A role's listening sockets, opened before anything that takes long.
struct Ports {
  transport::SharedListenSocket listen;  // null where the role has none
  std::unique_ptr<AdminServer> admin;    // null without --admin_listen
};

absl::Status OpenAdmin(metrics::Registry* registry, Ports* ports) {
  if (FLAGS_admin_listen.empty()) return absl::OkStatus();
  auto admin = AdminServer::Start({.listen = FLAGS_admin_listen, .registry = registry});
  if (!admin.ok()) return ForFlag("admin_listen", admin.status());
  ports->admin = *std::move(admin);
  return absl::OkStatus();
}

absl::StatusOr<transport::SharedListenSocket> OpenPort(absl::string_view flag,
                                                       const std::string& address) {
  auto socket = transport::ListenSocket::Open(address);
  if (!socket.ok()) return ForFlag(flag, socket.status());
  return std::make_shared<transport::ListenSocket>(*std::move(socket));
}

absl::StatusOr<Ports> OpenPorts(const std::string& listen, metrics::Registry* registry) {
  auto socket = OpenPort("listen", listen);
  if (!socket.ok()) return socket.status();
  Ports ports;
  ports.listen = *std::move(socket);
  if (absl::Status admin = OpenAdmin(registry, &ports); !admin.ok()) return admin;
  return ports;
}

absl::Status OpenGroupPort(target::GroupOptions* group) {
  if (group->processes == 1) return absl::OkStatus();
  auto socket = OpenPort("group_listen", group->listen);
  if (!socket.ok()) return socket.status();
  group->socket = *std::move(socket);
  group->listen = group->socket->address();
  return absl::OkStatus();
}

// Shows a role's admin pages while this lives; must not outlive what they read.
class ShownPages {
 public:
  ShownPages(AdminServer* admin, AdminPages pages) : admin_(admin) {
    if (admin_ != nullptr) admin_->Show(std::move(pages));
  }
  ~ShownPages() {
    if (admin_ != nullptr) admin_->Hide();
  }
  ShownPages(const ShownPages&) = delete;
  ShownPages& operator=(const ShownPages&) = delete;

 private:
  AdminServer* const admin_;
};

// Without a secret every peer that reaches the address may join; that may be a mistake.
void WarnIfOpen(const std::string& listen, const transport::FabricOptions& fabric) {
  if (!fabric.join_secret.empty()) return;
  const auto address = transport::ResolveAddress(listen);
  if (!address.ok() || transport::IsLoopback(address->storage)) return;
  spdlog::warn("listening on {} without --join_secret_file: whoever reaches it may join", listen);
}

// /debug/status: what `specfabric status` cannot read from the metrics.
std::function<std::string()> AboutPage(const nlohmann::json& about) {
  return [text = about.dump()] { return text; };
}

// The recorder of spans (null without --span_file and --otlp_endpoint) and its metrics.
struct Traces {
  std::unique_ptr<trace::Recorder> recorder;
  std::unique_ptr<metrics::TraceMetrics> metrics;
};

absl::StatusOr<Traces> StartTraces(const char* role, const std::string& address,
                                   metrics::Registry* registry) {
  auto options = TraceFlags();
  if (!options.ok()) return options.status();
  Traces traces;
  if (options->enabled()) {
    auto recorder = trace::Recorder::Start(*options, trace::ThisProcess(role, address, kVersion));
    if (!recorder.ok()) return recorder.status();
    traces.recorder = *std::move(recorder);
  }
  traces.metrics = std::make_unique<metrics::TraceMetrics>(
      *registry, [recorder = traces.recorder.get()]() -> metrics::TraceCounters {
        if (recorder == nullptr) return {};
        const trace::RecorderStats stats = recorder->stats();
        return {stats.recorded, stats.dropped, stats.lost};
      });
  return traces;
}

std::string AddressOf(const std::unique_ptr<AdminServer>& admin) {
  return admin == nullptr ? "" : admin->listen_address();
}

// The layers below do not know the flag by which a drafter's target is given.
absl::Status NamingTarget(const absl::Status& failed) {
  const auto config = model::LoadModelConfig(FLAGS_model);
  const bool without = config.ok() && config->states && FLAGS_target_model.empty();
  if (!without || !absl::IsInvalidArgument(failed)) return failed;
  return absl::InvalidArgumentError(
      absl::StrCat(failed.message(), " (--target_model=<its folder>)"));
}

}  // namespace

absl::Status RunGateway() {
  auto targets = Addresses("targets", FLAGS_targets, link::CheckPeerAddress);
  if (!targets.ok()) return targets.status();
  if (targets->empty()) {
    return absl::InvalidArgumentError(
        "--targets is missing: give host:port,... or dns:///host:port of target groups");
  }
  if (FLAGS_model.empty()) {
    return absl::InvalidArgumentError("--model is missing: its folder holds the tokenizer");
  }
  auto fabric = FabricFlags();
  if (!fabric.ok()) return fabric.status();
  auto times = GatewayTimeFlags();
  if (!times.ok()) return times.status();
  auto lookups = LookupInterval();
  if (!lookups.ok()) return lookups.status();
  const auto drain_timeout = DrainTimeoutFlag();
  if (!drain_timeout.ok()) return drain_timeout.status();
  gateway::GatewayOptions options;
  if (absl::Status http = SetHttpOptions(&options); !http.ok()) return http;
  auto config = model::LoadModelConfig(FLAGS_model);
  if (!config.ok()) return config.status();
  metrics::Registry registry;
  auto ports = OpenPorts(ListenOr("127.0.0.1:8000"), &registry);
  if (!ports.ok()) return ports.status();
  auto tokenizer = tokenizer::Tokenizer::Load(FLAGS_model);
  if (!tokenizer.ok()) return tokenizer.status();
  auto defaults = SamplingDefaultsOf(FLAGS_model);
  if (!defaults.ok()) return defaults.status();
  if (const std::string text = gateway::Describe(*defaults); !text.empty()) {
    spdlog::info("sampling defaults of {}/generation_config.json: {}", FLAGS_model, text);
  }
  const auto tool_format = ToolParserFlag();
  if (!tool_format.ok()) return tool_format.status();
  options.tool_format = *tool_format;
  options.listen = ports->listen->address();
  options.socket = ports->listen;
  options.sampling_defaults = *defaults;
  options.targets = *targets;
  options.model_aliases = ServedModelNames();
  options.model_name = options.model_aliases.front();
  options.model_aliases.erase(options.model_aliases.begin());
  options.model_root = FLAGS_model;
  options.tokenizer = *std::move(tokenizer);
  options.vocabulary = config->vocabulary;
  options.context = LogContext(FLAGS_model, *config);
  options.version = kVersion;
  options.lookup_interval = *lookups;
  options.request_timeout = times->request_timeout;
  options.target_wait = times->target_wait;
  options.stall_timeout = times->stall_timeout;
  options.slow_request = times->slow_request;
  options.fabric = *std::move(fabric);
  registry.SetBuildInfo("gateway", kVersion, options.model_name);
  auto traces = StartTraces("gateway", options.listen, &registry);
  if (!traces.ok()) return traces.status();
  options.recorder = traces->recorder.get();
  auto service = gateway::Gateway::Start(std::move(options), &registry);
  if (!service.ok()) return service.status();
  gateway::Gateway* gateway = service->get();
  std::atomic<bool> draining{false};
  AdminPages pages;
  pages.ready = [&draining] { return !draining.load(); };
  pages.pages["/debug/status"] = AboutPage({{"listen", gateway->listen_address()}});
  const ShownPages shown(ports->admin.get(), std::move(pages));
  ReportReady("gateway", gateway->listen_address(), AddressOf(ports->admin));
  spdlog::info("draining on {}", WaitForSignal());
  draining = true;
  gateway->Drain();
  const base::Nanos deadline = base::Now() + *drain_timeout;
  while (gateway->in_flight() > 0 && base::Now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return absl::OkStatus();
}

absl::Status RunTarget() {
  auto options = TargetOptions();
  if (!options.ok()) return options.status();
  auto drafts = Addresses("drafts", FLAGS_drafts, link::CheckPeerAddress);
  if (!drafts.ok()) return drafts.status();
  auto lookups = LookupInterval();
  if (!lookups.ok()) return lookups.status();
  const auto drain_timeout = DrainTimeoutFlag();
  if (!drain_timeout.ok()) return drain_timeout.status();
  options->lookup_interval = *lookups;
  metrics::Registry registry;
  auto ports = OpenPorts(ListenOr("127.0.0.1:7100"), &registry);
  if (!ports.ok()) return ports.status();
  options->listen = ports->listen->address();
  options->socket = ports->listen;
  if (absl::Status group = OpenGroupPort(&options->group); !group.ok()) return group;
  options->drafts = *drafts;
  // Before the weights, which take minutes to load.
  const absl::Status able = transport::Fabric::CheckRequirements(options->fabric);
  if (!able.ok()) return able;
  if (absl::Status logged = LogModel(FLAGS_model); !logged.ok()) return logged;
  registry.SetBuildInfo("target", kVersion, options->model_name);
  auto traces = StartTraces("target", options->listen, &registry);
  if (!traces.ok()) return traces.status();
  options->recorder = traces->recorder.get();
  options->group.give_up = [] { return WaitForSignal(0).has_value(); };
  auto service = target::TargetService::Start(*options, &registry);
  // A signal came while it waited for its group.
  if (absl::IsCancelled(service.status())) return absl::OkStatus();
  if (!service.ok()) return service.status();
  target::TargetService* target = service->get();
  WarnIfOpen(target->listen_address(), options->fabric);
  if (options->group.processes > 1) WarnIfOpen(options->group.listen, options->fabric);
  AdminPages pages;
  pages.live = [target] { return target->Liveness(); };
  pages.ready = [target] { return target->ready(); };
  pages.pages["/debug/status"] =
      AboutPage({{"listen", target->listen_address()},
                 {"verification", speculation::Name(options->verification)}});
  const ShownPages shown(ports->admin.get(), std::move(pages));
  ReportReady("target", target->listen_address(), AddressOf(ports->admin));
  spdlog::info("draining on {}", WaitForSignal());
  target->Drain(*drain_timeout);
  return absl::OkStatus();
}

absl::Status RunRank() {
  auto options = RankServiceFlags();
  if (!options.ok()) return options.status();
  const absl::Status able = transport::Fabric::CheckRequirements(options->fabric);
  if (!able.ok()) return able;
  metrics::Registry registry;
  registry.SetBuildInfo("rank", kVersion, options->model_name);
  Ports ports;
  if (absl::Status admin = OpenAdmin(&registry, &ports); !admin.ok()) return admin;
  auto service = target::RankService::Start(*options, &registry);
  if (!service.ok()) return service.status();
  target::RankService* rank = service->get();
  AdminPages pages;
  pages.ready = [rank] { return rank->ready() && !rank->finished(); };
  const ShownPages shown(ports.admin.get(), std::move(pages));
  ReportReady("rank", "none", AddressOf(ports.admin));
  bool asked = false;
  while (!rank->finished()) {
    if (rank->hangs()) {
      spdlog::critical("the group has ended and a rank hangs: ending the process");
      std::_Exit(asked ? 0 : base::kExitBroken);
    }
    if (const auto signal = WaitForSignal(100 * base::kMillisecond)) {
      spdlog::info("ending on {}", *signal);
      asked = rank->Stop() || asked;
    }
  }
  return rank->result();
}

absl::Status RunDraft() {
  auto options = DraftOptions(FLAGS_model, FLAGS_target_model);
  if (!options.ok()) return options.status();
  const auto drain_timeout = DrainTimeoutFlag();
  if (!drain_timeout.ok()) return drain_timeout.status();
  metrics::Registry registry;
  auto ports = OpenPorts(ListenOr("127.0.0.1:7200"), &registry);
  if (!ports.ok()) return ports.status();
  options->listen = ports->listen->address();
  options->socket = ports->listen;
  // Before the weights, which take minutes to load.
  const absl::Status able = transport::Fabric::CheckRequirements(options->fabric);
  if (!able.ok()) return able;
  if (absl::Status logged = LogModel(FLAGS_model, FLAGS_target_model); !logged.ok()) return logged;
  registry.SetBuildInfo("draft", kVersion, options->model_name);
  auto traces = StartTraces("draft", options->listen, &registry);
  if (!traces.ok()) return traces.status();
  options->engine.recorder = traces->recorder.get();
  auto service = draft::DraftService::Start(*options, &registry);
  if (!service.ok()) return NamingTarget(service.status());
  draft::DraftService* draft = service->get();
  WarnIfOpen(draft->listen_address(), options->fabric);
  AdminPages pages;
  pages.ready = [draft] { return draft->ready(); };
  pages.pages["/debug/status"] = AboutPage({{"listen", draft->listen_address()}});
  pages.pages["/debug/sessions"] = [draft] { return draft->DebugSessions(); };
  const ShownPages shown(ports->admin.get(), std::move(pages));
  ReportReady("draft", draft->listen_address(), AddressOf(ports->admin));
  spdlog::info("draining on {}", WaitForSignal());
  draft->Drain(*drain_timeout);
  return absl::OkStatus();
}

}  // namespace specfabric::app
