#ifndef SPECFABRIC_BENCH_TRANSPORT_MEASURE_H_
#define SPECFABRIC_BENCH_TRANSPORT_MEASURE_H_

// Shared by the programs of the transport benchmark: flags, pinning, warm-up, percentiles and
// output, so that they differ only in the library they send with. A process is a server (--listen)
// or a client (--connect); the client measures and prints.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace specfabric::bench {

struct Settings {
  bool server = false;
  std::string address;  // as the peer's library writes it
  std::string test;     // one of those the peer offers
  int64_t bytes = 8;    // of payload, each way
  int64_t iterations = 0;
  int64_t warm_up = 0;  // further iterations before the first that counts
  bool poll = false;    // spin for a message instead of sleeping in the kernel
};

// Of one way, in microseconds: half a round trip. Percentiles are nearest-rank.
struct Latency {
  double min = 0;
  double p50 = 0;
  double avg = 0;
  double p99 = 0;
  double p999 = 0;
};

// The latency of `round_trips`, which are in nanoseconds and at least one.
Latency Summarize(std::vector<int64_t> round_trips);

// A one-line error about `errno`: "WHAT: strerror".
absl::Status ErrnoError(const std::string& what);

// Times settings.iterations calls of `round_trip`, which returns absl::Status, after the warm-up.
// One clock reading per iteration: a round trip begins at the end of the one before.
template <typename RoundTrip>
absl::StatusOr<Latency> Measure(const Settings& settings, RoundTrip&& round_trip) {
  using Clock = std::chrono::steady_clock;
  for (int64_t i = 0; i < settings.warm_up; ++i) {
    if (absl::Status status = round_trip(); !status.ok()) return status;
  }
  std::vector<int64_t> round_trips(settings.iterations);
  Clock::time_point begin = Clock::now();
  for (int64_t& nanos : round_trips) {
    if (absl::Status status = round_trip(); !status.ok()) return status;
    const Clock::time_point end = Clock::now();
    nanos = std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin).count();
    begin = end;
  }
  return Summarize(std::move(round_trips));
}

// A program's two roles. `serve` returns when its client closes, or never.
struct Peer {
  std::string name;
  std::vector<std::string> tests;  // the first is the default
  std::string address_form;        // for --help and errors, e.g. "127.0.0.1:PORT"
  std::function<absl::Status(const Settings&)> serve;
  std::function<absl::StatusOr<Latency>(const Settings&)> measure;
};

// Parses the flags, pins the process, plays the role and prints the client's figures as two lines
// of CSV. The exit status: 0, 1 for a failure, 2 for bad flags.
int PeerMain(int argc, char** argv, const Peer& peer);

}  // namespace specfabric::bench

#endif  // SPECFABRIC_BENCH_TRANSPORT_MEASURE_H_
