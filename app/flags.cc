#include "app/flags.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "app/command_line.h"
#include "gflags/gflags.h"

DEFINE_string(model, "",
              "folder of the checkpoint (config.json, safetensors, tokenizer); the target's where "
              "there is a draft's too");
DEFINE_string(draft_model, "", "folder of the draft model's checkpoint; empty: no draft workers");
DEFINE_string(target_model, "",
              "folder of the target's checkpoint, for a drafter that shares its embedding or head, "
              "or whose config.json does not name the target's layers that it reads");
DEFINE_string(state_layers, "",
              "the target's layers whose input a drafter of hidden states reads, comma-separated; "
              "empty: those of its config.json");
DEFINE_string(served_model_name, "",
              "names of the model in the API, comma-separated, of which answers have the first; "
              "empty: the checkpoint's folder name");
DEFINE_string(dtype, "bfloat16", "type of weights and KV cache: float32 or bfloat16");
DEFINE_string(listen, "",
              "address to serve on: host:port; port 0: any free port; empty: the role's default");
DEFINE_string(admin_listen, "",
              "address of /metrics, /livez, /readyz and /debug: host:port; empty: none");
DEFINE_string(targets, "",
              "addresses of target groups: host:port or dns:///host:port, comma-separated");
DEFINE_string(drafts, "",
              "addresses of draft workers: host:port or dns:///host:port, comma-separated");
DEFINE_string(num_targets, "",
              "number of target groups; empty: 1; simulate: several numbers, separated by commas, "
              "are tried in turn");
DEFINE_string(num_drafts, "",
              "number of draft workers; empty: 1 with --draft_model, else 0; simulate: several "
              "numbers, separated by commas, are tried in turn; empty: 0,1,2,4");
DEFINE_string(gateway_admin, "", "admin addresses of gateways: host:port, comma-separated");
DEFINE_string(target_admin, "", "admin addresses of targets: host:port, comma-separated");
DEFINE_string(draft_admin, "", "admin addresses of draft workers: host:port, comma-separated");
DEFINE_string(
    tree, "best:24:4:12",
    "shape of draft trees: widths by depth such as 1,1,3,1,1, or best:NODES[:CHILDREN[:DEPTH]]");
DEFINE_string(
    verification, "coupled",
    "verification method: coupled, rejection, traversal (all lossless), auto (for each request the "
    "one of these that yields the most) or typical (lossy)");
DEFINE_string(
    request_verification, "",
    "verification methods that a request may ask for besides --verification, comma-separated");
DEFINE_bool(ahead, true, "drafts on while the target verifies");
DEFINE_int32(ahead_nodes, 200, "most nodes drafted ahead between two commits of a sequence");
DEFINE_int32(ahead_rows, 4, "rows of a pass that drafts ahead; at least one for each sequence");
DEFINE_string(sampled_tree, "2,2,1,1",
              "shape of the trees of rejection and traversal: widths by depth");
DEFINE_string(sampled_draw, "without_replacement",
              "how siblings of these trees are drawn: without_replacement, with_replacement or "
              "deterministic");
DEFINE_string(rate, "1,2,4,8",
              "requests a second; several rates, separated by commas, are tried in turn");
DEFINE_string(workload_trace, "",
              "CSV file with seconds, prompt tokens and output tokens of each request; replaces "
              "--rate");
DEFINE_string(draft_router, "affinity",
              "which draft worker a sequence uses: affinity (keeps one), round_robin (in turn, "
              "keeps it), least_loaded or latency (moves where that clearly saves time)");
DEFINE_string(draft_latency_warn, "50ms",
              "logs a warning about a draft worker whose trees take longer; 0: never");
DEFINE_string(log_level, "info", "debug, info, warning or error");
DEFINE_string(prompt, "", "the prompt; - reads it from standard input");
DEFINE_string(prompt_ids, "", "the prompt as token ids, comma-separated; replaces --prompt");
DEFINE_string(join_secret_file, "",
              "file with the secret (16 to 4096 bytes) that every process of the cluster must "
              "have; empty: no secret, but up and generate make one of their own");
DEFINE_int32(tensor_parallel, 1, "ranks of a target group, or of each of its pipeline stages");
DEFINE_int32(pipeline_stages, 1,
             "consecutive parts of the model's layers, each on --tensor_parallel ranks of its own");
DEFINE_int32(group_processes, 1,
             "processes that hold the ranks of the group: this one, the others are `specfabric "
             "rank`");
DEFINE_string(group_listen, "127.0.0.1:7300", "address where rank processes join: host:port");
DEFINE_string(group_timeout, "5m",
              "how long the rank processes of a group may take to join and to load the model");
DEFINE_string(join, "", "address of the group's leader, its --group_listen: host:port");
DEFINE_int32(threads, 1, "CPU threads of each rank");
DEFINE_int32(
    kv_blocks, 0,
    "blocks of the KV cache; 0: on GPUs, what --gpu_memory_fraction leaves it; on CPUs, enough "
    "for max_sequences contexts within 1 GiB, or for one context if that is more");
DEFINE_int32(block_size, 16, "tokens of a KV block");
DEFINE_int32(max_context, 0,
             "most prompt and output tokens of a sequence; 0: what the model allows");
DEFINE_int32(max_sequences, 64, "most sequences running at once");
DEFINE_int32(max_step_tokens, 512, "most rows of one forward pass");
DEFINE_int32(max_queue, 1024, "most sequences waiting at once; more are answered 429");
DEFINE_int32(draft_top_n, 0,
             "rejection, traversal: draws from the draft's n most likely tokens; 0: from all");
DEFINE_int32(draft_rows, 16,
             "rejection, traversal: nodes with children of the largest tree a draft may send");
DEFINE_int32(requests, 500, "requests at each rate");
DEFINE_int32(prompt_tokens, 500, "mean length of a prompt");
DEFINE_int32(output_tokens, 200, "mean length of an output");
DEFINE_int32(max_sessions, 64, "most sequences that a draft worker holds at once");
DEFINE_int32(max_tokens, 128, "tokens to generate");
DEFINE_int32(top_k, 0, "keeps the k most likely tokens; 0: all");
DEFINE_int32(repeat, 1, "answers the prompt so many times (with --json one line each)");
DEFINE_int32(
    up_pid, 0,
    "without addresses: process id of the `specfabric up` to show; 0: the newest that this user "
    "runs on this machine");
DEFINE_int32(ready_fd, -1, "file descriptor for one JSON line with the bound addresses once ready");
DEFINE_double(typical_epsilon, .09,
              "typical: accepts a draft token with at least this target probability");
DEFINE_double(typical_delta, .3,
              "typical: or with at least this times exp(-entropy), if that is less");
DEFINE_double(acceptance, .7,
              "mean probability that a node's first child is accepted once the node is");
DEFINE_double(sibling_acceptance, .4,
              "part of the remaining probability that each further sibling takes");
DEFINE_double(acceptance_spread, .25, "by how much acceptance varies between positions");
DEFINE_string(step_fixed, "300us", "of a target's step: launching, planning, collectives");
DEFINE_string(step_weights, "20ms", "of a target's step: reading the weights once");
DEFINE_string(step_row, "60us", "of a target's step: arithmetic of a row, while weights are read");
DEFINE_string(step_context, "20ns", "of a target's step: reading the KV of one token");
DEFINE_string(drafter, "model",
              "kind of the drafter: model (a pass a level of its trees), pard (a pass a tree), or "
              "of those that read hidden states eagle3 (a pass a level) and dspark (a pass a tree, "
              "as of DFlash)");
DEFINE_string(draft_place, "apart",
              "of the drafters: apart (on devices of their own), or on their target's, in turns "
              "with its steps (turns) or at once, both slower (shared); --num_drafts is then 0 or "
              "--num_targets");
DEFINE_string(state_shape, "3x4096",
              "what a drafter of hidden states reads of a token: layers x hidden size, bfloat16");
DEFINE_string(state_latency, "155us",
              "of a step's hidden states from target to draft, besides the time of their bytes");
DEFINE_string(state_bandwidth, "46GiB",
              "bytes a second of hidden states from target to draft; 0: no limit");
DEFINE_string(draft_weights, "1.5ms",
              "of a draft's pass (a level of all its trees, or the whole trees)");
DEFINE_string(draft_row, "5us", "of a draft's pass: arithmetic of a row, while weights are read");
DEFINE_string(round_trip, "20us", "network round trip between target and draft");
DEFINE_string(session_ttl, "5m", "draft sessions that are idle for so long are dropped");
DEFINE_string(
    speculation, "goodput",
    "how much is drafted: goodput (what is expected to give most tokens a second, which may be "
    "nothing) or always (the whole tree in every round, and the target waits for it)");
DEFINE_bool(ngram_lookup, true,
            "draft tokens from the sequence's own text: what followed where its last tokens "
            "occurred before; verified where that is expected to pay");
DEFINE_string(max_draft_wait, "50ms",
              "longest wait for a draft's tree before a round goes on without");
DEFINE_string(step_timeout, "1m", "a step that takes longer ends the process");
DEFINE_string(
    request_timeout, "0",
    "a request that takes longer is ended with 504; its own field timeout may be shorter; 0: no "
    "limit");
DEFINE_string(target_wait, "5s",
              "how long a request waits for a target to connect before it is answered 503");
DEFINE_string(stall_timeout, "30s",
              "requests leave a connected target that has work and sends nothing for so long; "
              "set it longer than any step takes; 0: never");
DEFINE_string(
    tool_parser, "auto",
    "how the model writes calls of tools: hermes, llama3_json, mistral, json, or auto: as "
    "the marks in its chat template say");
DEFINE_string(cors_origins, "",
              "web pages whose scripts may use the API: origins such as https://app.example.com, "
              "comma-separated, or * for all; empty: none");
DEFINE_string(api_key_file, "",
              "file with the API keys that are accepted, one a line; read again when it changes; "
              "empty: no key is asked for");
DEFINE_string(tls_cert, "",
              "file with the certificate of the API's port and those that lead to its authority, "
              "PEM; read again when it changes; empty: no TLS");
DEFINE_string(tls_key, "", "file with the private key of --tls_cert, PEM without a passphrase");
DEFINE_bool(access_log, false, "logs one line for every HTTP request");
DEFINE_string(slow_request, "0", "logs requests that take longer, with their trace's id; 0: none");
DEFINE_string(span_file, "",
              "appends the spans of this process to this file, which Perfetto and chrome://tracing "
              "open; processes may share it; empty: none");
DEFINE_string(otlp_endpoint, "",
              "sends the spans of requests to an OpenTelemetry collector: http://host:port, OTLP "
              "over HTTP in JSON; empty: none");
DEFINE_double(trace_sample, 1,
              "part of the requests that a gateway traces, 0 to 1, among those whose client sends "
              "no `traceparent`");
DEFINE_string(dns_refresh, "5s", "how often dns:///host:port addresses are looked up");
DEFINE_string(drain_timeout, "20s", "how long SIGTERM waits for running sequences");
DEFINE_string(
    spin, "auto",
    "how long a thread polls the fabric before it sleeps; auto: 20us, or 0 on fewer than 8 cores");
DEFINE_string(simulated_rtt, "0",
              "delays every frame that this process sends by half of it; set on both ends (as up "
              "and generate do) it is the round trip of a far network");
DEFINE_string(silence_timeout, "5s",
              "a peer that sends nothing for so long is disconnected; 0: never");
DEFINE_double(temperature, 0, "0: greedy");
DEFINE_double(top_p, 1, "keeps the smallest set of tokens with this probability");
DEFINE_double(min_p, 0, "keeps tokens at least this likely, relative to the most likely one");
DEFINE_uint64(seed, 0, "seed of all random numbers");
DEFINE_bool(require_rdma, false,
            "ends at start without an RDMA device; refuses peers over other wires than RDMA and "
            "one machine's shared memory");
DEFINE_bool(require_gpudirect, false, "ends at start where GPU memory cannot be sent by RDMA");
DEFINE_bool(batch_invariant, true, "a token's logits do not depend on what else is in the batch");
DEFINE_string(device, "cpu", "what the model runs on: cpu, or cuda (rank r on the r-th GPU)");
DEFINE_string(disable_features, "",
              "features of GPUs not to use, separated by commas: cuda_graphs, flash_attention, "
              "gpu_draft_probs, gpu_states, peer_sums; the others are used where they work");
DEFINE_double(gpu_memory_fraction, 0.9,
              "part of a GPU's memory that may be in use, by all its processes, once the KV cache "
              "is there; for --kv_blocks=0");
DEFINE_bool(reference_kernels, false, "libtorch's operations instead of our kernels");
DEFINE_bool(
    use_generation_config, true,
    "requests that leave them out get temperature, top_p, top_k, min_p, repetition_penalty and "
    "max_new_tokens from the model's generation_config.json");
DEFINE_bool(ignore_eos, false, "does not stop at the end-of-sequence token");
DEFINE_bool(json, false, "prints JSON instead of text");
DEFINE_bool(once, false, "prints once, also on a terminal");
DEFINE_bool(print_pids, false, "prints one JSON line with every process, once all are ready");

namespace specfabric::app {

namespace {

using Names = std::vector<absl::string_view>;

// What `--help` of a role shows, and what only `--help=all` does.
struct Group {
  absl::string_view title;
  Names common;
  Names more = {};
};
struct Role {
  absl::string_view name;
  absl::string_view what;
  Names groups;
};

const std::vector<Group>& Groups() {
  static const auto* groups = new std::vector<Group>{
      {"every role", {"log_level", "flagfile"}},
      {"traces", {}, {"span_file", "otlp_endpoint", "trace_sample"}},
      {"fabric",
       {"join_secret_file", "require_rdma"},
       {"require_gpudirect", "silence_timeout", "spin", "simulated_rtt"}},
      {"process", {"listen", "admin_listen", "drain_timeout"}, {"ready_fd"}},
      {"model",
       {"model", "device", "dtype", "threads", "kv_blocks", "max_context"},
       {"max_step_tokens", "block_size", "batch_invariant", "gpu_memory_fraction",
        "disable_features", "reference_kernels"}},
      {"target",
       {"tensor_parallel", "verification", "max_sequences", "ngram_lookup"},
       {"pipeline_stages", "request_verification", "draft_rows", "typical_epsilon", "typical_delta",
        "max_queue", "speculation", "draft_router", "draft_latency_warn", "max_draft_wait",
        "step_timeout"}},
      {"cluster", {"drafts", "served_model_name"}, {"dns_refresh"}},
      {"group", {"group_processes", "group_listen"}, {"group_timeout"}},
      {"rank", {"join", "model", "threads", "admin_listen"}, {"ready_fd"}},
      {"draft",
       {"tree", "max_sessions"},
       {"state_layers", "ahead", "ahead_nodes", "ahead_rows", "sampled_tree", "sampled_draw",
        "draft_top_n", "session_ttl"}},
      {"drafter", {"target_model"}},
      {"gateway",
       {"model", "served_model_name", "targets", "max_context", "use_generation_config",
        "request_timeout", "target_wait"},
       {"stall_timeout", "slow_request", "tool_parser", "dns_refresh"}},
      {"HTTP", {"cors_origins", "api_key_file", "tls_cert", "tls_key"}, {"access_log"}},
      {"HTTP of the gateway",
       {},
       {"cors_origins", "api_key_file", "tls_cert", "tls_key", "access_log"}},
      {"up",
       {"draft_model", "num_targets", "num_drafts", "served_model_name", "request_timeout"},
       {"use_generation_config", "target_wait", "stall_timeout", "slow_request", "tool_parser",
        "print_pids"}},
      {"generate",
       {"draft_model", "num_drafts", "prompt", "max_tokens", "temperature", "top_k", "top_p",
        "seed", "json"},
       {"prompt_ids", "min_p", "ignore_eos", "repeat"}},
      {"load",
       {"rate", "requests", "prompt_tokens", "output_tokens", "workload_trace", "seed", "json"}},
      {"status", {"gateway_admin", "target_admin", "draft_admin", "up_pid", "once", "json"}},
      {"modelled target",
       {"num_targets", "step_weights", "step_row", "max_sequences"},
       {"step_fixed", "step_context", "max_step_tokens", "kv_blocks", "block_size", "speculation",
        "max_draft_wait"}},
      {"modelled drafts",
       {"num_drafts", "drafter", "draft_place", "tree", "acceptance", "draft_weights", "round_trip",
        "max_sessions"},
       {"state_shape", "state_latency", "state_bandwidth", "draft_router", "sibling_acceptance",
        "acceptance_spread", "draft_row", "ahead", "ahead_nodes", "ahead_rows"}},
  };
  return *groups;
}

const std::vector<Role>& Roles() {
  static const auto* roles = new std::vector<Role>{
      {"up",
       "start a whole local cluster: gateway, targets and drafts as processes",
       {"up", "process", "model", "target", "draft", "fabric", "HTTP of the gateway", "traces",
        "every role"}},
      {"gateway",
       "serve the OpenAI API and route requests to targets",
       {"gateway", "HTTP", "process", "fabric", "traces", "every role"}},
      {"target",
       "serve a model with a tensor-parallel group of ranks",
       {"cluster", "target", "group", "model", "process", "fabric", "traces", "every role"}},
      {"rank",
       "hold some ranks of a target's group on another machine",
       {"rank", "fabric", "every role"}},
      {"draft",
       "propose token trees to targets",
       {"drafter", "draft", "model", "process", "fabric", "traces", "every role"}},
      {"generate",
       "answer one prompt with a target (and drafts) inside this process",
       {"generate", "model", "target", "draft", "fabric", "every role"}},
      {"simulate",
       "what load a target carries with how many drafts: the real scheduler, modelled times",
       {"load", "modelled target", "modelled drafts", "every role"}},
      {"status",
       "print what the processes of a cluster do, each second on a terminal",
       {"status", "every role"}},
  };
  return *roles;
}

const Role* FindRole(absl::string_view name) {
  for (const Role& role : Roles()) {
    if (role.name == name) return &role;
  }
  return nullptr;
}

Names FlagsOf(const Role& role) {
  Names flags;
  for (const Group& group : Groups()) {
    if (!absl::c_linear_search(role.groups, group.title)) continue;
    flags.insert(flags.end(), group.common.begin(), group.common.end());
    flags.insert(flags.end(), group.more.begin(), group.more.end());
  }
  return flags;
}

}  // namespace

bool IsRole(absl::string_view role) { return FindRole(role) != nullptr; }

std::string NoSuchRole(absl::string_view given) {
  Names known = {"perftest", "version", "help"};
  for (const Role& role : Roles()) known.push_back(role.name);
  const absl::string_view nearest = Nearest(given, known);
  return absl::StrCat("'", given, "' is not a role; ",
                      nearest.empty() ? "" : absl::StrCat("did you mean ", nearest, "? "),
                      "`specfabric help` lists them");
}

absl::Status ParseFlags(absl::string_view role_name, const std::vector<std::string>& args) {
  const Role* role = FindRole(role_name);
  if (role == nullptr) return absl::InvalidArgumentError(NoSuchRole(role_name));
  const auto words = ReadFlags({absl::StrCat("specfabric ", role->name), FlagsOf(*role)}, args);
  if (!words.ok()) return words.status();
  if (words->empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", words->front(), "': not a flag; flags are written --name=value"));
}

std::vector<std::string> RoleNames() {
  std::vector<std::string> names;
  for (const Role& role : Roles()) names.emplace_back(role.name);
  return names;
}

std::string Overview() {
  std::string text =
      "specfabric: speculative decoding of large language models over a fabric\n\n"
      "usage: specfabric ROLE [--flag=value ...]\n\n";
  for (const Role& role : Roles()) {
    absl::StrAppendFormat(&text, "  %-10s %s\n", role.name, role.what);
  }
  return absl::StrCat(
      text,
      "  perftest   measure the fabric's latency and bandwidth\n"
      "  version    print the version\n\n"
      "specfabric ROLE --help lists a role's common flags, --help=all every flag.\n");
}

std::string Help(absl::string_view role_name, HelpScope scope) {
  const Role* role = FindRole(role_name);
  if (role == nullptr) return Overview();
  std::string text = absl::StrCat("specfabric ", role->name, ": ", role->what, "\n");
  int hidden = 0;
  for (absl::string_view title : role->groups) {
    const auto group = absl::c_find_if(Groups(), [&](const Group& g) { return g.title == title; });
    Names shown = group->common;
    if (scope == HelpScope::kAll) {
      shown.insert(shown.end(), group->more.begin(), group->more.end());
    } else {
      hidden += static_cast<int>(group->more.size());
    }
    if (!shown.empty()) absl::StrAppend(&text, "\n", title, "\n");
    for (absl::string_view flag : shown) absl::StrAppend(&text, Describe(flag));
  }
  if (hidden > 0) {
    absl::StrAppend(&text, "\n", hidden, " more flags: specfabric ", role->name, " --help=all\n");
  }
  return text;
}

}  // namespace specfabric::app
