// specfabric-perftest: the transport's latency and bandwidth between two processes.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "app/perftest/inline_port.h"
#include "app/perftest/measure.h"
#include "app/perftest/plan.h"
#include "app/perftest/report.h"
#include "app/perftest/threaded_port.h"
#include "gflags/gflags.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"

DEFINE_string(t, "am_lat", "test: am_lat, am_bw, tree or logits");
DEFINE_uint32(s, 8, "bytes of a message (am_lat, am_bw)");
DEFINE_int64(n, 0, "iterations; 0: 100000, fewer for large messages");
DEFINE_int64(w, -1, "warm-up iterations before them; -1: a tenth of -n");
DEFINE_int32(O, 32, "messages outstanding (am_bw)");
DEFINE_int32(p, 13338, "TCP port the server listens on");
DEFINE_string(m, "host", "memory of the tensors: host or cuda");
DEFINE_int32(nodes, 64, "rows of the logits test");
DEFINE_int32(vocab, 32000, "columns of the logits test, two bytes each");
DEFINE_string(bind, "127.0.0.1", "address the server listens on");
DEFINE_string(devices, "", "network devices UCX may use (UCX_NET_DEVICES); lo for 127.0.0.1");
DEFINE_bool(threaded, false, "hand over to a progress thread, as the services do");
DEFINE_double(spin_us, 20, "with --threaded: how long the progress thread polls before it sleeps");
DEFINE_bool(json, false, "print one JSON object");
DEFINE_bool(csv, false, "print CSV: names, then values");
DEFINE_bool(require_rdma, false, "fail on wires that are neither RDMA nor shared memory");

namespace specfabric::perftest {
namespace {

constexpr char kUsage[] =
    "latency and bandwidth of SpecFabric's transport between two processes\n"
    "  server:  specfabric-perftest [-p PORT] [--bind ADDRESS]\n"
    "  client:  specfabric-perftest HOST [-p PORT] [-t am_lat|am_bw|tree|logits] [-s BYTES]\n"
    "           [-n ITERATIONS] [-w WARM_UP] [-m host|cuda] [--threaded] [--json|--csv]\n"
    "The server takes -m and the test from its client, serves one, and ends. UCX_TLS and the like\n"
    "choose the wire, as for ucx_perftest; the client prints the one that UCX took.";

absl::StatusOr<Plan> PlanFromFlags() {
  Plan plan;
  const auto test = ParseTest(FLAGS_t);
  if (!test.ok()) return test.status();
  plan.test = *test;
  plan.bytes = FLAGS_s;
  if (plan.test == Test::kLogits) {
    if (FLAGS_nodes < 1 || FLAGS_nodes > 256) {
      return absl::InvalidArgumentError(
          absl::StrCat("--nodes ", FLAGS_nodes, ": must be from 1 to 256"));
    }
    if (FLAGS_vocab < 1 || FLAGS_vocab > 1'000'000) {
      return absl::InvalidArgumentError(
          absl::StrCat("--vocab ", FLAGS_vocab, ": must be from 1 to 1000000"));
    }
    plan.bytes = static_cast<uint32_t>(2 * FLAGS_nodes * FLAGS_vocab);
  }
  plan.iterations = FLAGS_n;
  if (FLAGS_n == 0) plan.iterations = plan.bytes > 100'000 ? 1000 : 100'000;
  plan.warm_up = FLAGS_w < 0 ? plan.iterations / 10 : FLAGS_w;
  plan.window = FLAGS_O;
  if (FLAGS_m != "host" && FLAGS_m != "cuda") {
    return absl::InvalidArgumentError(absl::StrCat("-m ", FLAGS_m, ": must be host or cuda"));
  }
  plan.memory = FLAGS_m == "cuda" ? transport::MemoryKind::kCuda : transport::MemoryKind::kHost;
  const absl::Status status = Check(plan);
  if (!status.ok()) return status;
  return plan;
}

transport::FabricOptions FabricFromFlags() {
  transport::FabricOptions options;
  options.max_frame_bytes = 1u << 30;
  options.max_outstanding_bytes = uint64_t{4} << 30;
  options.net_devices = FLAGS_devices;
  options.require_rdma = FLAGS_require_rdma;
  options.spin = static_cast<base::Nanos>(FLAGS_spin_us * 1000);
  // The bench polls without end, so a peer that is silent has been stopped.
  options.silence_timeout = 10 * base::kSecond;
  return options;
}

std::string HostPort(const std::string& host) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return ipv6 ? absl::StrCat("[", host, "]:", FLAGS_p) : absl::StrCat(host, ":", FLAGS_p);
}

template <typename Port>
absl::Status RunAsServer(Port& port) {
  const auto address = port.Listen(HostPort(FLAGS_bind));
  if (!address.ok()) return address.status();
  std::fprintf(stderr, "specfabric-perftest: listening on %s\n", address->c_str());
  const absl::Status accepted = port.Accept();
  return accepted.ok() ? RunServer(port) : accepted;
}

template <typename Port>
absl::Status RunAsClient(Port& port, const std::string& host) {
  const auto plan = PlanFromFlags();
  if (!plan.ok()) return plan.status();
  const absl::Status connected = port.Connect(HostPort(host));
  if (!connected.ok()) return connected;
  const auto samples = RunClient(port, *plan);
  if (!samples.ok()) return samples.status();
  const Format format = FLAGS_json ? Format::kJson : FLAGS_csv ? Format::kCsv : Format::kTable;
  std::fputs(Report(*plan, *samples, format).c_str(), stdout);
  return absl::OkStatus();
}

template <typename Port>
absl::Status Run(const std::vector<std::string>& words) {
  Port port(FabricFromFlags());
  const absl::Status started = port.Start();
  if (!started.ok()) return started;
  return words.empty() ? RunAsServer(port) : RunAsClient(port, words[0]);
}

absl::Status Main(const std::vector<std::string>& words) {
  if (words.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", words[1], "\": one host at most, see --help"));
  }
  if (FLAGS_p < 1 || FLAGS_p > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("-p ", FLAGS_p, ": must be from 1 to 65535"));
  }
  const auto plan = PlanFromFlags();
  if (!plan.ok()) return plan.status();
  return FLAGS_threaded ? Run<ThreadedPort>(words) : Run<InlinePort>(words);
}

}  // namespace
}  // namespace specfabric::perftest

int main(int argc, char** argv) {
  gflags::SetUsageMessage(specfabric::perftest::kUsage);
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  spdlog::set_default_logger(spdlog::stderr_color_mt("perftest"));
  const absl::Status status = specfabric::perftest::Main({argv + 1, argv + argc});
  if (status.ok()) return 0;
  std::fprintf(stderr, "specfabric-perftest: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}
