#include "bench/transport/measure.h"

#include <gflags/gflags.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

DEFINE_string(listen, "", "be the server, at this address");
DEFINE_string(connect, "", "be the client of the server at this address");
DEFINE_string(test, "", "what to measure (default: the first that the peer offers)");
DEFINE_int64(bytes, 8, "payload of a message, each way; both sides must be told the same");
DEFINE_int64(iterations, 10000, "round trips to measure");
DEFINE_int64(warm_up, 1000, "round trips before those");
DEFINE_int32(core, -1, "pin every thread of the process to this core; -1: do not pin");
DEFINE_string(wait, "poll", "how to wait for a message: poll (spin) or block (sleep)");

namespace specfabric::bench {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 30;
constexpr int64_t kMaxIterations = int64_t{1} << 27;

absl::Status OneOf(const char* flag, const std::string& given,
                   const std::vector<std::string>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), given) != allowed.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", given, "; allowed: ", absl::StrJoin(allowed, ", ")));
}

absl::Status InRange(const char* flag, int64_t given, int64_t least, int64_t most) {
  if (least <= given && given <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", given, "; allowed: ", least, " to ", most));
}

absl::StatusOr<Settings> ReadFlags(const Peer& peer) {
  if (FLAGS_listen.empty() == FLAGS_connect.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("give either --listen or --connect, as ", peer.address_form));
  }
  const std::string test = FLAGS_test.empty() ? peer.tests.front() : FLAGS_test;
  for (const absl::Status& status :
       {OneOf("test", test, peer.tests), OneOf("wait", FLAGS_wait, {"poll", "block"}),
        InRange("bytes", FLAGS_bytes, 1, kMaxBytes),
        InRange("iterations", FLAGS_iterations, 1, kMaxIterations),
        InRange("warm_up", FLAGS_warm_up, 0, kMaxIterations),
        InRange("core", FLAGS_core, -1, CPU_SETSIZE - 1)}) {
    if (!status.ok()) return status;
  }
  return Settings{.server = !FLAGS_listen.empty(),
                  .address = FLAGS_listen.empty() ? FLAGS_connect : FLAGS_listen,
                  .test = test,
                  .bytes = FLAGS_bytes,
                  .iterations = FLAGS_iterations,
                  .warm_up = FLAGS_warm_up,
                  .poll = FLAGS_wait == "poll"};
}

// Threads made later inherit the pinning.
absl::Status Pin(int core) {
  if (core < 0) return absl::OkStatus();
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  if (sched_setaffinity(0, sizeof cores, &cores) == 0) return absl::OkStatus();
  return ErrnoError(absl::StrCat("cannot pin to core ", core));
}

void Print(const Peer& peer, const Settings& settings, const Latency& latency) {
  std::printf("system,test,bytes,iterations,min_us,p50_us,avg_us,p99_us,p999_us\n");
  std::printf("%s,%s,%lld,%lld,%.3f,%.3f,%.3f,%.3f,%.3f\n", peer.name.c_str(),
              settings.test.c_str(), static_cast<long long>(settings.bytes),
              static_cast<long long>(settings.iterations), latency.min, latency.p50, latency.avg,
              latency.p99, latency.p999);
}

absl::Status Play(const Peer& peer, const Settings& settings) {
  if (absl::Status status = Pin(FLAGS_core); !status.ok()) return status;
  if (settings.server) return peer.serve(settings);
  const absl::StatusOr<Latency> latency = peer.measure(settings);
  if (!latency.ok()) return latency.status();
  Print(peer, settings, *latency);
  return absl::OkStatus();
}

int Report(const Peer& peer, const absl::Status& status, int exit_status) {
  std::fprintf(stderr, "%s: %s\n", peer.name.c_str(), base::Message(status).c_str());
  return exit_status;
}

}  // namespace

Latency Summarize(std::vector<int64_t> round_trips) {
  std::sort(round_trips.begin(), round_trips.end());
  const double count = static_cast<double>(round_trips.size());
  const auto one_way_us = [](double round_trip_nanos) { return round_trip_nanos / 2e3; };
  const auto percentile = [&](double share) {
    const double rank = std::max(1.0, std::ceil(share * count));
    return one_way_us(static_cast<double>(round_trips[static_cast<size_t>(rank) - 1]));
  };
  const double sum = std::accumulate(round_trips.begin(), round_trips.end(), 0.0);
  return Latency{.min = one_way_us(static_cast<double>(round_trips.front())),
                 .p50 = percentile(0.5),
                 .avg = one_way_us(sum / count),
                 .p99 = percentile(0.99),
                 .p999 = percentile(0.999)};
}

absl::Status ErrnoError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

int PeerMain(int argc, char** argv, const Peer& peer) {
  gflags::SetUsageMessage(absl::StrCat("a server (--listen) and a client (--connect) at ",
                                       peer.address_form,
                                       "; tests: ", absl::StrJoin(peer.tests, ", "),
                                       "; prints one-way latency, half of a round trip"));
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  if (argc > 1) {
    return Report(peer,
                  absl::InvalidArgumentError(absl::StrCat("unknown argument \"", argv[1],
                                                          "\"; allowed: flags (see --help)")),
                  2);
  }
  const absl::StatusOr<Settings> settings = ReadFlags(peer);
  if (!settings.ok()) return Report(peer, settings.status(), 2);
  const absl::Status status = Play(peer, *settings);
  return status.ok() ? 0 : Report(peer, status, 1);
}

}  // namespace specfabric::bench
