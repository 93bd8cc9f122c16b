// `specfabric up`: a whole cluster on this machine, every role a process of its own.

#include <signal.h>
#include <sys/wait.h>

#include <cstdio>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "app/admin_server.h"
#include "app/child.h"
#include "app/flag_checks.h"
#include "app/flags.h"
#include "app/http_options.h"
#include "app/join_secret.h"
#include "app/model_options.h"
#include "app/options.h"
#include "app/process.h"
#include "app/roles.h"
#include "app/status/local_clusters.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"
#include "transport/listen_socket.h"

namespace specfabric::app {

namespace {

constexpr base::Nanos kStartTimeout = 600 * base::kSecond;  // large checkpoints load slowly

struct Cluster {
  std::string secret;
  base::Nanos drain_timeout = 0;
  std::vector<Child> drafts, targets, gateways;

  std::vector<Child> all() const {
    std::vector<Child> children = gateways;
    children.insert(children.end(), targets.begin(), targets.end());
    children.insert(children.end(), drafts.begin(), drafts.end());
    return children;
  }
};

std::string BoolArg(absl::string_view flag, bool value) {
  return absl::StrCat("--", flag, "=", value ? "true" : "false");
}

// What every process of the cluster gets.
std::vector<std::string> CommonArgs() {
  return {absl::StrCat("--log_level=", FLAGS_log_level),
          absl::StrCat("--spin=", FLAGS_spin),
          absl::StrCat("--silence_timeout=", FLAGS_silence_timeout),
          BoolArg("require_rdma", FLAGS_require_rdma),
          BoolArg("require_gpudirect", FLAGS_require_gpudirect),
          absl::StrCat("--simulated_rtt=", FLAGS_simulated_rtt),
          absl::StrCat("--span_file=", FLAGS_span_file),
          absl::StrCat("--otlp_endpoint=", FLAGS_otlp_endpoint),
          absl::StrCat("--trace_sample=", FLAGS_trace_sample),
          absl::StrCat("--drain_timeout=", FLAGS_drain_timeout)};
}

std::vector<std::string> ModelArgs(const std::string& model) {
  return {absl::StrCat("--model=", model),
          absl::StrCat("--device=", FLAGS_device),
          absl::StrCat("--dtype=", FLAGS_dtype),
          absl::StrCat("--threads=", FLAGS_threads),
          absl::StrCat("--block_size=", FLAGS_block_size),
          absl::StrCat("--max_context=", FLAGS_max_context),
          absl::StrCat("--max_step_tokens=", FLAGS_max_step_tokens),
          BoolArg("batch_invariant", FLAGS_batch_invariant),
          absl::StrCat("--disable_features=", FLAGS_disable_features),
          BoolArg("reference_kernels", FLAGS_reference_kernels),
          "--admin_listen=127.0.0.1:0"};
}

std::vector<std::string> DraftArgs() {
  std::vector<std::string> args = ModelArgs(FLAGS_draft_model);
  args.push_back(absl::StrCat("--gpu_memory_fraction=", FLAGS_gpu_memory_fraction));
  args.emplace_back("--listen=127.0.0.1:0");
  args.push_back(absl::StrCat("--target_model=", FLAGS_model));
  args.push_back(absl::StrCat("--state_layers=", FLAGS_state_layers));
  args.push_back(absl::StrCat("--tree=", FLAGS_tree));
  args.push_back(absl::StrCat("--sampled_tree=", FLAGS_sampled_tree));
  args.push_back(BoolArg("ahead", FLAGS_ahead));
  args.push_back(absl::StrCat("--ahead_nodes=", FLAGS_ahead_nodes));
  args.push_back(absl::StrCat("--ahead_rows=", FLAGS_ahead_rows));
  args.push_back(absl::StrCat("--sampled_draw=", FLAGS_sampled_draw));
  args.push_back(absl::StrCat("--draft_top_n=", FLAGS_draft_top_n));
  args.push_back(absl::StrCat("--max_sessions=", FLAGS_max_sessions));
  args.push_back(absl::StrCat("--session_ttl=", FLAGS_session_ttl));
  return args;
}

std::vector<std::string> TargetArgs(const std::vector<std::string>& drafts) {
  std::vector<std::string> args = ModelArgs(FLAGS_model);
  args.emplace_back("--listen=127.0.0.1:0");
  args.push_back(absl::StrCat("--drafts=", absl::StrJoin(drafts, ",")));
  args.push_back(absl::StrCat("--tensor_parallel=", FLAGS_tensor_parallel));
  args.push_back(absl::StrCat("--pipeline_stages=", FLAGS_pipeline_stages));
  args.push_back(absl::StrCat("--kv_blocks=", FLAGS_kv_blocks));
  args.push_back(absl::StrCat("--verification=", FLAGS_verification));
  args.push_back(absl::StrCat("--request_verification=", FLAGS_request_verification));
  args.push_back(absl::StrCat("--draft_rows=", FLAGS_draft_rows));
  args.push_back(absl::StrCat("--typical_epsilon=", FLAGS_typical_epsilon));
  args.push_back(absl::StrCat("--typical_delta=", FLAGS_typical_delta));
  args.push_back(absl::StrCat("--max_sequences=", FLAGS_max_sequences));
  args.push_back(absl::StrCat("--max_queue=", FLAGS_max_queue));
  args.push_back(absl::StrCat("--speculation=", FLAGS_speculation));
  args.push_back(absl::StrCat("--draft_router=", FLAGS_draft_router));
  args.push_back(absl::StrCat("--draft_latency_warn=", FLAGS_draft_latency_warn));
  args.push_back(BoolArg("ngram_lookup", FLAGS_ngram_lookup));
  args.push_back(absl::StrCat("--max_draft_wait=", FLAGS_max_draft_wait));
  args.push_back(absl::StrCat("--step_timeout=", FLAGS_step_timeout));
  args.push_back(absl::StrCat("--served_model_name=", ServedModelName()));
  return args;
}

std::string GatewayListen() { return FLAGS_listen.empty() ? "127.0.0.1:8000" : FLAGS_listen; }
std::string GatewayAdmin() {
  return FLAGS_admin_listen.empty() ? "127.0.0.1:0" : FLAGS_admin_listen;
}

std::vector<std::string> GatewayArgs(const std::vector<std::string>& targets) {
  return {absl::StrCat("--model=", FLAGS_model),
          absl::StrCat("--served_model_name=", absl::StrJoin(ServedModelNames(), ",")),
          absl::StrCat("--listen=", GatewayListen()),
          absl::StrCat("--targets=", absl::StrJoin(targets, ",")),
          absl::StrCat("--max_context=", FLAGS_max_context),
          BoolArg("use_generation_config", FLAGS_use_generation_config),
          absl::StrCat("--request_timeout=", FLAGS_request_timeout),
          absl::StrCat("--target_wait=", FLAGS_target_wait),
          absl::StrCat("--stall_timeout=", FLAGS_stall_timeout),
          absl::StrCat("--slow_request=", FLAGS_slow_request),
          absl::StrCat("--tool_parser=", FLAGS_tool_parser),
          absl::StrCat("--cors_origins=", FLAGS_cors_origins),
          absl::StrCat("--api_key_file=", FLAGS_api_key_file),
          absl::StrCat("--tls_cert=", FLAGS_tls_cert),
          absl::StrCat("--tls_key=", FLAGS_tls_key),
          BoolArg("access_log", FLAGS_access_log),
          absl::StrCat("--admin_listen=", GatewayAdmin())};
}

// Checks all flags before a process is started, so that a mistake is one line and not one for each
// child.
absl::Status Check(int drafts) {
  if (auto options = TargetOptions(); !options.ok()) return options.status();
  if (auto times = GatewayTimeFlags(); !times.ok()) return times.status();
  gateway::GatewayOptions gateway;
  if (absl::Status http = SetHttpOptions(&gateway); !http.ok()) return http;
  if (auto defaults = SamplingDefaultsOf(FLAGS_model); !defaults.ok()) return defaults.status();
  if (auto tools = ToolParserFlag(); !tools.ok()) return tools.status();
  if (auto traces = TraceFlags(); !traces.ok()) return traces.status();
  if (drafts == 0) return absl::OkStatus();
  if (FLAGS_draft_model.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--num_drafts=", drafts, " needs --draft_model=<folder of a checkpoint>"));
  }
  if (auto options = DraftOptions(FLAGS_draft_model, FLAGS_model); !options.ok())
    return options.status();
  return CheckPair(FLAGS_model, FLAGS_draft_model);
}

absl::Status CheckFiles(int drafts) {
  absl::Status files = CheckModelFiles(FLAGS_model);
  if (files.ok() && drafts > 0) files = CheckModelFiles(FLAGS_draft_model, FLAGS_model);
  return files;
}

absl::Status StartMany(const std::string& role, int count, std::vector<std::string> args,
                       const std::string& secret, std::vector<Child>* children) {
  const std::vector<std::string> common = CommonArgs();
  args.insert(args.end(), common.begin(), common.end());
  for (int i = 0; i < count; ++i) {
    auto child = StartChild(role, args, secret, kStartTimeout);
    if (!child.ok()) return child.status();
    children->push_back(*std::move(child));
  }
  return absl::OkStatus();
}

std::vector<std::string> Addresses(const std::vector<Child>& children, std::string Child::*which) {
  std::vector<std::string> addresses;
  for (const Child& child : children) addresses.push_back(child.*which);
  return addresses;
}

// The gateway's ports. It opens them itself, but starts last, so they are bound here, without
// listening: connections are refused until the gateway is ready.
struct ReservedPorts {
  transport::ListenSocket listen, admin;
};

absl::StatusOr<transport::ListenSocket> Reserve(absl::string_view flag,
                                                const std::string& address) {
  auto port = transport::ListenSocket::Reserve(address);
  if (!port.ok()) return ForFlag(flag, port.status());
  return port;
}

absl::StatusOr<ReservedPorts> ReservePorts() {
  auto listen = Reserve("listen", GatewayListen());
  if (!listen.ok()) return listen.status();
  auto admin = Reserve("admin_listen", AdminAddress(GatewayAdmin()));
  if (!admin.ok()) return admin.status();
  if (listen->address() == admin->address()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--admin_listen=", FLAGS_admin_listen, ": is --listen already"));
  }
  return ReservedPorts{*std::move(listen), *std::move(admin)};
}

// All processes see the same GPUs. Drafts, which start first, leave targets most of the memory
// (LimitDraftCache); target i of n may use it up to (i + 1) / n of --gpu_memory_fraction.
absl::Status StartTargets(int targets, const std::vector<std::string>& drafts, Cluster* cluster) {
  for (int i = 0; i < targets; ++i) {
    std::vector<std::string> args = TargetArgs(drafts);
    const double fraction = FLAGS_gpu_memory_fraction * (i + 1) / targets;
    args.push_back(absl::StrCat("--gpu_memory_fraction=", fraction));
    absl::Status started =
        StartMany("target", 1, std::move(args), cluster->secret, &cluster->targets);
    if (!started.ok()) return started;
  }
  return absl::OkStatus();
}

absl::Status StartAll(int targets, int drafts, ReservedPorts ports, Cluster* cluster) {
  absl::Status status = StartMany("draft", drafts, DraftArgs(), cluster->secret, &cluster->drafts);
  if (status.ok()) {
    status = StartTargets(targets, Addresses(cluster->drafts, &Child::listen), cluster);
  }
  ports = {};
  if (status.ok()) {
    status = StartMany("gateway", 1, GatewayArgs(Addresses(cluster->targets, &Child::listen)),
                       cluster->secret, &cluster->gateways);
  }
  return status;
}

// The command that shows this cluster, for any user.
std::string StatusCommand(const ClusterAddresses& admin) {
  std::string line =
      absl::StrCat("specfabric status --gateway_admin=", absl::StrJoin(admin.gateways, ","),
                   " --target_admin=", absl::StrJoin(admin.targets, ","));
  if (!admin.drafts.empty()) {
    absl::StrAppend(&line, " --draft_admin=", absl::StrJoin(admin.drafts, ","));
  }
  return line;
}

// Lets `specfabric status` find this cluster while the returned file lives.
std::optional<LocalClusterFile> Announce(const Cluster& cluster) {
  const ClusterAddresses admin = {Addresses(cluster.gateways, &Child::admin),
                                  Addresses(cluster.targets, &Child::admin),
                                  Addresses(cluster.drafts, &Child::admin)};
  auto file = LocalClusterFile::Write(cluster.gateways[0].listen, admin);
  if (!file.ok()) {
    spdlog::warn("`specfabric status` will not find this cluster by itself: {}",
                 base::Message(file.status()));
    spdlog::info("to see what it does: {}", StatusCommand(admin));
    return std::nullopt;
  }
  spdlog::info("to see what it does: specfabric status; as another user: {}", StatusCommand(admin));
  return *std::move(file);
}

void PrintPids(const Cluster& cluster) {
  nlohmann::json line;
  for (const Child& child : cluster.all()) {
    line[child.role].push_back(
        {{"pid", child.pid}, {"listen", child.listen}, {"admin", child.admin}});
  }
  std::puts(line.dump().c_str());
  std::fflush(stdout);
}

// Returns on a signal, or with an error when the last process of a role has ended; a cluster
// without drafts is only slower.
absl::Status Supervise(Cluster* cluster) {
  sigset_t set;
  sigemptyset(&set);
  for (int s : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&set, s);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  for (;;) {
    // With a timeout, because a child may end before SIGCHLD is blocked.
    const timespec bound{1, 0};
    const int caught = sigtimedwait(&set, nullptr, &bound);
    if (caught == SIGTERM || caught == SIGINT) return absl::OkStatus();
    for (auto* group : {&cluster->drafts, &cluster->targets, &cluster->gateways}) {
      for (auto it = group->begin(); it != group->end();) {
        int status = 0;
        if (waitpid(it->pid, &status, WNOHANG) != it->pid) {
          ++it;
          continue;
        }
        const Child gone = *it;
        it = group->erase(it);
        spdlog::warn("{} pid={} ended (wait status {:#x})", gone.role, gone.pid, status);
        if (gone.role != "draft" && group->empty()) {
          return absl::InternalError(absl::StrCat("the last ", gone.role, " has ended"));
        }
      }
    }
  }
}

void EndAll(const Cluster& cluster) {
  const base::Nanos grace = cluster.drain_timeout + 5 * base::kSecond;
  // Gateways first, so that no process loses a peer that it still needs.
  for (const Child& child : cluster.all()) {
    if (!EndChild(child, grace))
      spdlog::warn("{} pid={} did not end cleanly", child.role, child.pid);
  }
}

}  // namespace

absl::Status RunUp() {
  auto targets = Count("num_targets", FLAGS_num_targets, 1, 1, 64);
  if (!targets.ok()) return targets.status();
  auto drafts = Count("num_drafts", FLAGS_num_drafts, FLAGS_draft_model.empty() ? 0 : 1, 0, 256);
  if (!drafts.ok()) return drafts.status();
  if (absl::Status checked = Check(*drafts); !checked.ok()) return checked;
  auto ports = ReservePorts();
  if (!ports.ok()) return ports.status();
  if (absl::Status files = CheckFiles(*drafts); !files.ok()) return files;
  auto secret = JoinSecretOrRandom();
  if (!secret.ok()) return secret.status();
  const auto drain_timeout = DrainTimeoutFlag();
  if (!drain_timeout.ok()) return drain_timeout.status();
  Cluster cluster;
  cluster.drain_timeout = *drain_timeout;
  cluster.secret = *std::move(secret);
  absl::Status status = StartAll(*targets, *drafts, *std::move(ports), &cluster);
  if (status.ok()) {
    spdlog::info("cluster ready: {}://{} targets={} drafts={}",
                 FLAGS_tls_cert.empty() ? "http" : "https", cluster.gateways[0].listen, *targets,
                 *drafts);
    const auto announced = Announce(cluster);
    if (FLAGS_print_pids) PrintPids(cluster);
    status = Supervise(&cluster);
  }
  EndAll(cluster);
  return status;
}

}  // namespace specfabric::app
