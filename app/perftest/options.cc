#include "app/perftest/options.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "app/command_line.h"
#include "app/flag_checks.h"
#include "app/secret_file.h"
#include "gflags/gflags.h"
#include "transport/address.h"

DEFINE_string(t, "am_lat", "test: am_lat, am_bw, tree or logits");
DEFINE_string(s, "8", "size of a message, in bytes or as in 64KiB (am_lat, am_bw)");
DEFINE_int64(n, 0, "iterations; 0: 100000, or 1000 of large messages");
DEFINE_int64(w, -1, "warm-up iterations before them; -1: a tenth of -n");
DEFINE_int32(O, 32, "messages outstanding (am_bw)");
DEFINE_int32(p, 13338, "TCP port the server listens on; 0, for the server: any free one");
DEFINE_string(m, "host", "memory of the tensors: host or cuda, of the first GPU that an end sees");
DEFINE_int32(nodes, 64, "rows of the logits test");
DEFINE_int32(vocab, 32000, "columns of the logits test, two bytes each");
DEFINE_string(bind, "127.0.0.1", "address the server listens on");
DEFINE_string(devices, "",
              "network devices UCX may use (UCX_NET_DEVICES); empty: all, but lo for loopback");
DEFINE_string(join_secret_file, "",
              "file with the secret (16 to 4096 bytes) that both ends must have; empty: none");
DEFINE_bool(threaded, false, "hand over to a progress thread, as the services do");
DEFINE_string(spin, "20us", "with --threaded: how long the progress thread polls before it sleeps");
DEFINE_bool(json, false, "print one JSON object");
DEFINE_bool(csv, false, "print CSV: names, then values");
DEFINE_bool(require_rdma, false, "fail on wires that are neither RDMA nor shared memory");

namespace specfabric::perftest {
namespace {

constexpr absl::string_view kFlags[] = {"t",
                                        "s",
                                        "n",
                                        "w",
                                        "O",
                                        "p",
                                        "m",
                                        "nodes",
                                        "vocab",
                                        "bind",
                                        "devices",
                                        "json",
                                        "csv",
                                        "threaded",
                                        "spin",
                                        "require_rdma",
                                        "join_secret_file"};
constexpr uint32_t kLargeMessage = 100'000;

absl::StatusOr<Plan> PlanFromFlags() {
  Plan plan;
  const auto test = ParseTest(FLAGS_t);
  if (!test.ok()) return test.status();
  plan.test = *test;
  const auto memory = ParseMemory(FLAGS_m);
  if (!memory.ok()) return memory.status();
  plan.memory = *memory;
  const auto bytes = app::ParseSizeFlag("s", FLAGS_s, 1, kMaxBytes);
  if (!bytes.ok()) return bytes.status();
  plan.bytes = static_cast<uint32_t>(*bytes);
  for (const absl::Status& status : {CheckRange("--nodes", FLAGS_nodes, 1, 256),
                                     CheckRange("--vocab", FLAGS_vocab, 1, 1'000'000),
                                     CheckRange("-n", FLAGS_n, 0, kMaxIterations),
                                     CheckRange("-w", FLAGS_w, -1, kMaxIterations)}) {
    if (!status.ok()) return status;
  }
  if (plan.test == TestKind::kLogits) {
    plan.bytes = 2 * static_cast<uint32_t>(FLAGS_nodes) * static_cast<uint32_t>(FLAGS_vocab);
  }
  plan.iterations = FLAGS_n;
  if (FLAGS_n == 0) plan.iterations = plan.bytes > kLargeMessage ? 1000 : 100'000;
  plan.warm_up = FLAGS_w < 0 ? plan.iterations / 10 : FLAGS_w;
  plan.window = FLAGS_O;
  const absl::Status status = Check(plan);
  if (!status.ok()) return status;
  return plan;
}

absl::StatusOr<transport::FabricOptions> FabricFromFlags() {
  transport::FabricOptions options;
  const absl::Status spin =
      app::ParseDurationFlags({{"spin", FLAGS_spin, &options.spin, {.most = absl::Seconds(1)}}});
  if (!spin.ok()) return spin;
  if (!FLAGS_join_secret_file.empty()) {
    auto secret = app::ReadJoinSecret(FLAGS_join_secret_file);
    if (!secret.ok()) return secret.status();
    options.join_secret = *std::move(secret);
  }
  options.connect_timeout = 20 * base::kSecond;  // a loaded machine is no failure
  options.max_frame_bytes = 1u << 30;
  options.max_outstanding_bytes = uint64_t{4} << 30;
  options.max_peers = 1;
  options.require_rdma = FLAGS_require_rdma;
  // The bench polls without end, so a peer that is silent has been stopped.
  options.silence_timeout = 10 * base::kSecond;
  return options;
}

std::string HostPort(const std::string& host) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return ipv6 ? absl::StrCat("[", host, "]:", FLAGS_p) : absl::StrCat(host, ":", FLAGS_p);
}

absl::StatusOr<Options> OptionsFromFlags(const std::vector<std::string>& hosts) {
  if (hosts.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", hosts[1], "': one host at most, and that is '", hosts[0], "' already"));
  }
  if (FLAGS_json && FLAGS_csv) {
    return absl::InvalidArgumentError("--json and --csv: one of them at most");
  }
  Options options;
  options.server = hosts.empty();
  const absl::Status port = CheckRange("-p", FLAGS_p, options.server ? 0 : 1, 65535);
  if (!port.ok()) return port;
  const auto plan = PlanFromFlags();
  if (!plan.ok()) return plan.status();
  options.plan = *plan;
  auto fabric = FabricFromFlags();
  if (!fabric.ok()) return fabric.status();
  options.fabric = *std::move(fabric);
  options.address = HostPort(options.server ? FLAGS_bind : hosts[0]);
  const auto address = transport::ResolveAddress(options.address);
  if (!address.ok()) return address.status();
  options.fabric.net_devices = FLAGS_devices;
  if (FLAGS_devices.empty() && transport::IsLoopback(address->storage)) {
    options.fabric.net_devices = "lo";
  }
  options.format = FLAGS_json ? Format::kJson : FLAGS_csv ? Format::kCsv : Format::kTable;
  options.threaded = FLAGS_threaded;
  return options;
}

}  // namespace

absl::StatusOr<Options> ReadOptions(const std::vector<std::string>& args) {
  const auto hosts =
      app::ReadFlags({"specfabric-perftest", {std::begin(kFlags), std::end(kFlags)}}, args);
  if (!hosts.ok()) return hosts.status();
  return OptionsFromFlags(*hosts);
}

std::string Help() {
  std::string text =
      "specfabric-perftest: latency and bandwidth of the fabric between two processes\n\n"
      "  server:  specfabric-perftest [--bind=ADDRESS] [-p PORT] [--threaded]\n"
      "  client:  specfabric-perftest HOST [-p PORT] [-t TEST] [--flag=value ...]\n\n"
      "The server takes test and memory from its client, serves one, and ends. UCX_TLS and the\n"
      "like choose the wire, as for ucx_perftest; the client prints the one that UCX took.\n\n";
  for (const absl::string_view flag : kFlags) absl::StrAppend(&text, app::Describe(flag));
  return text;
}

}  // namespace specfabric::perftest
