#include "app/flags.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "app/command_line.h"
#include "gflags/gflags.h"

DEFINE_string(model, "", "folder of the target's checkpoint (config.json, safetensors, tokenizer)");
DEFINE_string(draft_model, "", "folder of the draft's checkpoint; empty: no drafts");
DEFINE_string(served_model_name, "", "name in the API; empty: the checkpoint's folder name");
DEFINE_string(dtype, "bfloat16", "weights and KV: float32 or bfloat16");
DEFINE_string(listen, "",
              "address host:port to serve on; port 0 takes a free one; empty: the role's default");
DEFINE_string(admin_listen, "", "address of /metrics, /livez, /readyz, /debug; empty: none");
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
    "how draft tokens are accepted: coupled, rejection, traversal (all lossless) or typical "
    "(lossy)");
DEFINE_string(
    request_verification, "",
    "verification methods that a request may ask for besides --verification, comma-separated");
DEFINE_bool(ahead, true, "drafts go on drafting while the target verifies");
DEFINE_int32(ahead_nodes, 200, "nodes run ahead between two commits of a sequence, at most");
DEFINE_int32(ahead_rows, 4, "of a pass ahead, or one for each sequence if those are more");
DEFINE_string(sampled_tree, "2,2,1,1",
              "shape of the trees of rejection and traversal: widths by depth");
DEFINE_string(sampled_draw, "without_replacement",
              "how their siblings are drawn: without_replacement, with_replacement or "
              "deterministic");
DEFINE_string(rate, "1,2,4,8",
              "requests a second; several, separated by commas, are tried in turn");
DEFINE_string(trace, "",
              "CSV of seconds, prompt tokens, output tokens for each request, instead of --rate");
DEFINE_string(draft_router, "affinity",
              "which draft worker a sequence uses: affinity (stays), round_robin (in turn, stays), "
              "least_loaded or latency (moves where that clearly pays)");
DEFINE_string(draft_latency_warn, "50ms",
              "a draft worker whose trees take longer is warned of; 0: never");
DEFINE_string(log_level, "info", "debug, info, warning or error");
DEFINE_string(prompt, "", "the prompt; - reads it from standard input");
DEFINE_string(prompt_ids, "", "the prompt as token ids, comma-separated, instead of --prompt");
DEFINE_string(join_secret_file, "",
              "file with the secret (16 to 4096 bytes) without which nobody joins this process's "
              "peers; empty: anybody who has none either, but up and generate make their own");
DEFINE_int32(tensor_parallel, 1, "ranks of a target group, or of each of its pipeline stages");
DEFINE_int32(pipeline_stages, 1,
             "runs of the model's layers, each on --tensor_parallel ranks of its own");
DEFINE_int32(group_processes, 1,
             "processes that hold the ranks of the group: this one, and as many `specfabric rank` "
             "as are missing");
DEFINE_string(group_listen, "127.0.0.1:7300", "address host:port where rank processes join");
DEFINE_string(group_timeout, "5m",
              "how long the rank processes of a group may take to join and to load");
DEFINE_string(join, "", "address host:port of the leader: its --group_listen");
DEFINE_int32(threads, 1, "threads inside one rank");
DEFINE_int32(kv_blocks, 0, "KV blocks of the pool; 0: for max_sequences, within 1 GiB");
DEFINE_int32(block_size, 16, "tokens a KV block");
DEFINE_int32(max_context, 0, "prompt + output tokens of a sequence; 0: what the model allows");
DEFINE_int32(max_sequences, 64, "sequences running at once");
DEFINE_int32(max_step_tokens, 512, "rows of one forward pass");
DEFINE_int32(max_queue, 1024, "sequences waiting at once; more are answered 429");
DEFINE_int32(draft_top_n, 0,
             "rejection, traversal: draw from the draft's n likeliest tokens only; 0: from all");
DEFINE_int32(draft_rows, 16,
             "rejection, traversal: nodes with children of the largest tree a draft may send");
DEFINE_int32(requests, 500, "requests at each rate");
DEFINE_int32(prompt_tokens, 500, "mean length of a prompt");
DEFINE_int32(output_tokens, 200, "mean length of an output");
DEFINE_int32(max_sessions, 64, "sequences a draft worker holds at once");
DEFINE_int32(max_tokens, 128, "tokens to generate");
DEFINE_int32(top_k, 0, "keep the k most likely tokens; 0: all");
DEFINE_int32(repeat, 1, "answer the prompt so many times (one JSON line each with --json)");
DEFINE_int32(
    up_pid, 0,
    "status without addresses: the `specfabric up` to show, by its pid; 0: the newest that "
    "this user runs on this machine");
DEFINE_int32(ready_fd, -1, "descriptor for one JSON line with the bound addresses once ready");
DEFINE_double(typical_epsilon, .09,
              "typical: a draft token of at least this probability is accepted");
DEFINE_double(typical_delta, .3,
              "typical: or of at least this times exp(-entropy), if that is less");
DEFINE_double(acceptance, .7, "mean chance of a first draft token, its parent being right");
DEFINE_double(sibling_acceptance, .4, "share of what is left that each further sibling takes");
DEFINE_double(acceptance_spread, .25, "by how much the chance varies from position to position");
DEFINE_string(step_fixed, "300us", "of a target's step: launching, planning, collectives");
DEFINE_string(step_weights, "20ms", "of a target's step: reading the weights once");
DEFINE_string(step_row, "60us", "of a target's step: arithmetic of a row, beside reading weights");
DEFINE_string(step_context, "20ns", "of a target's step: the KV of one token of a sequence");
DEFINE_string(draft_weights, "1.5ms", "of a draft's pass (a level of all its trees)");
DEFINE_string(draft_row, "5us", "of a draft's pass: arithmetic of a row, beside reading weights");
DEFINE_string(round_trip, "20us", "between target and draft");
DEFINE_string(session_ttl, "5m", "idle draft sessions are dropped after this");
DEFINE_string(
    speculation, "goodput",
    "how much is drafted: goodput (what is expected to yield most tokens a second, nothing "
    "included) or always (the whole tree, in every round, and all wait for it)");
DEFINE_bool(ngram_lookup, true,
            "draft tokens from the sequence's own text: what followed where its last tokens "
            "occurred before; verified where that is expected to pay");
DEFINE_string(max_draft_wait, "50ms", "longest wait for a draft before a round goes on plainly");
DEFINE_string(step_timeout, "1m", "a step that takes longer ends the process");
DEFINE_string(
    request_timeout, "0",
    "a request that is not answered in full after this is cut off with 504; its own field "
    "timeout may be shorter; 0: none");
DEFINE_string(target_wait, "5s",
              "how long a request waits for a target to come (back) before it is given up");
DEFINE_string(stall_timeout, "30s",
              "a target that has work and says nothing for so long, though connected, is left for "
              "another; longer than any step takes; 0: never");
DEFINE_string(slow_request, "0",
              "requests that take longer are logged, with their trace's id; 0: none are");
DEFINE_string(trace_file, "",
              "appends what this process does, span by span, to this file, which Perfetto and "
              "chrome://tracing open; processes may share it. Empty: no file");
DEFINE_string(otlp_endpoint, "",
              "sends the spans of requests to an OpenTelemetry collector: http://host:port, OTLP "
              "over HTTP in JSON. Empty: to none");
DEFINE_double(trace_sample, 1,
              "share of the requests that are traced, 0 to 1, among those whose client does not "
              "say by `traceparent`; only gateways ask");
DEFINE_string(dns_refresh, "5s", "how often dns:///host:port addresses are looked up");
DEFINE_string(drain_timeout, "20s", "how long SIGTERM waits for running sequences");
DEFINE_string(
    spin, "auto",
    "how long a thread polls the fabric before it sleeps; auto: 20us, or 0 on fewer than 8 cores");
DEFINE_string(simulated_rtt, "0",
              "half of it delays everything this process sends: give it to both ends (up and "
              "generate do) to see the round trip of a far network");
DEFINE_string(silence_timeout, "5s",
              "a peer of which nothing was heard for so long is given up; 0: never");
DEFINE_double(temperature, 0, "0 is greedy");
DEFINE_double(top_p, 1, "keep the smallest set of tokens with this mass");
DEFINE_double(min_p, 0, "keep tokens at least this likely, relative to the likeliest");
DEFINE_uint64(seed, 0, "key of all random numbers of the answer");
DEFINE_bool(require_rdma, false,
            "end rather than start without an RDMA device; refuse peers that meet over neither "
            "RDMA nor one machine's shared memory");
DEFINE_bool(require_gpudirect, false,
            "end rather than start where GPU memory cannot be sent by RDMA");
DEFINE_bool(batch_invariant, true, "a token's logits do not depend on what else is in the batch");
DEFINE_string(device, "cpu", "what the model runs on: cpu, or cuda, rank r on the r-th GPU seen");
DEFINE_bool(cuda_graphs, false,
            "passes of up to 256 rows are captured as CUDA graphs and launched as one");
DEFINE_bool(flash_attention, false,
            "attention by FlashInfer's kernels: in bfloat16, of heads of 64 and 128");
DEFINE_bool(gpu_draft_probs, false,
            "draft probabilities stay in GPU memory: made, sent, received and verified there");
DEFINE_bool(
    peer_sums, false,
    "GPUs that reach each other's memory add a small step's parts up by themselves, not by NCCL");
DEFINE_bool(reference_kernels, false, "libtorch's plain operations instead of our kernels");
DEFINE_bool(
    use_generation_config, true,
    "temperature, top_p, top_k, min_p, repetition_penalty and max_new_tokens of the model's "
    "generation_config.json hold for requests that leave them out");
DEFINE_bool(ignore_eos, false, "do not stop at the end-of-sequence token");
DEFINE_bool(json, false, "print one JSON object instead of the text");
DEFINE_bool(once, false, "status: print once, also on a terminal");
DEFINE_bool(print_pids, false, "print one JSON line with every process, once all are ready");

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
      {"traces", {}, {"trace_file", "otlp_endpoint", "trace_sample"}},
      {"fabric",
       {"join_secret_file", "require_rdma"},
       {"require_gpudirect", "silence_timeout", "spin", "simulated_rtt"}},
      {"process", {"listen", "admin_listen", "drain_timeout"}, {"ready_fd"}},
      {"model",
       {"model", "device", "dtype", "threads", "kv_blocks", "max_context"},
       {"max_step_tokens", "block_size", "batch_invariant", "cuda_graphs", "flash_attention",
        "gpu_draft_probs", "peer_sums", "reference_kernels"}},
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
       {"ahead", "ahead_nodes", "ahead_rows", "sampled_tree", "sampled_draw", "draft_top_n",
        "session_ttl"}},
      {"gateway",
       {"model", "served_model_name", "targets", "max_context", "use_generation_config",
        "request_timeout", "target_wait"},
       {"stall_timeout", "slow_request", "dns_refresh"}},
      {"up",
       {"draft_model", "num_targets", "num_drafts", "served_model_name", "request_timeout"},
       {"use_generation_config", "target_wait", "stall_timeout", "slow_request", "print_pids"}},
      {"generate",
       {"draft_model", "num_drafts", "prompt", "max_tokens", "temperature", "top_k", "top_p",
        "seed", "json"},
       {"prompt_ids", "min_p", "ignore_eos", "repeat"}},
      {"load", {"rate", "requests", "prompt_tokens", "output_tokens", "trace", "seed", "json"}},
      {"status", {"gateway_admin", "target_admin", "draft_admin", "up_pid", "once", "json"}},
      {"modelled target",
       {"num_targets", "step_weights", "step_row", "max_sequences"},
       {"step_fixed", "step_context", "max_step_tokens", "kv_blocks", "block_size", "speculation",
        "max_draft_wait"}},
      {"modelled drafts",
       {"num_drafts", "tree", "acceptance", "draft_weights", "round_trip", "max_sessions"},
       {"draft_router", "sibling_acceptance", "acceptance_spread", "draft_row", "ahead",
        "ahead_nodes", "ahead_rows"}},
  };
  return *groups;
}

const std::vector<Role>& Roles() {
  static const auto* roles = new std::vector<Role>{
      {"up",
       "start a whole local cluster: gateway, targets and drafts as processes",
       {"up", "process", "model", "target", "draft", "fabric", "traces", "every role"}},
      {"gateway",
       "serve the OpenAI API and route requests to targets",
       {"gateway", "process", "fabric", "traces", "every role"}},
      {"target",
       "serve a model with a tensor-parallel group of ranks",
       {"cluster", "target", "group", "model", "process", "fabric", "traces", "every role"}},
      {"rank",
       "hold some ranks of a target's group on another machine",
       {"rank", "fabric", "every role"}},
      {"draft",
       "propose token trees to targets",
       {"draft", "model", "process", "fabric", "traces", "every role"}},
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
