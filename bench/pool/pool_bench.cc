// Measures how a pool of drafts that many targets share scales: N targets and M drafts with the
// real engine, scheduler, router, protocol and fabric, and modelled models that only take time,
// compared with the prediction of `specfabric simulate`. Each of them is a process; one more stands
// for the gateways.
//
//   tokens/s   as the gateway receives them
//   linear     part of the first row's tokens/s times the factor of targets
//   simulated  tokens/s of the simulator, and the measured part of that
//   cores      used by all processes together; close to the machine's, they are the bottleneck
//
//   build/bench/pool/pool_bench --sizes=1x3,16x48

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "bench/pool/forked.h"
#include "bench/pool/modelled_peers.h"
#include "gflags/gflags.h"
#include "spdlog/spdlog.h"

DEFINE_string(sizes, "1x3,2x6,4x12,8x24,16x48", "targets x drafts of each row");
DEFINE_int32(sequences, 6, "sequences at each target, all the time");
DEFINE_double(step_ms, 60, "of a target's step");
DEFINE_double(draft_pass_ms, 2, "of a draft's pass, a level of all its trees");
DEFINE_string(tree, "1,1,1,1", "shape of the trees");
DEFINE_double(acceptance, .7, "mean chance of a first draft token");
DEFINE_string(router, "affinity", "affinity, round_robin, least_loaded or latency");
DEFINE_double(warm_up_seconds, 4, "before anything is counted");
DEFINE_double(seconds, 6, "that are counted");
DEFINE_bool(simulated_only, false, "what the simulator says, alone");

namespace specfabric::bench {
namespace {

using base::Nanos;

Nanos FromSeconds(double seconds) { return static_cast<Nanos>(seconds * 1e9); }

scheduler::SimulationOptions Options() {
  scheduler::SimulationOptions options;
  scheduler::SchedulerOptions& s = options.scheduler;
  s.max_context = 1 << 20;
  s.kv_blocks = 1 << 17;
  s.max_sequences = FLAGS_sequences;
  s.prefix_cache = false;
  options.router.policy = OrDie(scheduler::ParseRoutePolicy(FLAGS_router));
  options.step.weights = FromSeconds(FLAGS_step_ms / 1e3);
  options.draft.round_trip = 200 * base::kMicrosecond;
  options.draft.weights = FromSeconds(FLAGS_draft_pass_ms / 1e3);
  options.draft.tree = OrDie(speculation::GrowthPolicy::Parse(FLAGS_tree));
  options.acceptance.first = FLAGS_acceptance;
  return options;
}

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Sends every target its sequences and counts what comes back.
class Gateway {
 public:
  explicit Gateway(const std::vector<std::string>& targets) {
    link::LinkHandler handler;
    handler.on_up = [this](link::PeerId peer, const schemas::Hello&, const std::string&) {
      std::lock_guard lock(mutex_);
      up_.push_back(peer);
    };
    handler.on_message = [this](link::PeerId, link::Message message) {
      const auto* batch = std::get_if<schemas::TokensBatch>(&message);
      if (batch == nullptr) return;
      for (const schemas::Tokens& tokens : batch->sequences) tokens_ += tokens.tokens.size();
    };
    link::LinkOptions options = LinkAs(schemas::Role::kGateway);
    options.connect = targets;
    StartLink(std::move(options), std::move(handler), &link_);
    while (Up().size() < targets.size()) SleepUntil(base::Now() + base::kMillisecond);
  }

  void SubmitAll() {
    uint64_t id = 0;
    for (link::PeerId peer : Up()) {
      for (int i = 0; i < FLAGS_sequences; ++i) {
        schemas::Submit submit;
        submit.request_id = ++id;
        submit.sequence.prompt = {1};
        submit.sequence.max_tokens = 1 << 19;
        if (const absl::Status sent = link_->Send(peer, submit); !sent.ok()) {
          OrDie(absl::StatusOr<int>(sent));
        }
      }
    }
  }
  uint64_t tokens() const { return tokens_; }

 private:
  std::vector<link::PeerId> Up() {
    std::lock_guard lock(mutex_);
    return up_;
  }

  std::mutex mutex_;
  std::vector<link::PeerId> up_;  // guarded by mutex_
  std::atomic<uint64_t> tokens_{0};
  std::unique_ptr<link::Link> link_;
};

struct Measured {
  double tokens_per_second = 0;
  double cores = 0;
};

double AllCpuSeconds(const std::vector<Forked>& drafts, const std::vector<Forked>& targets) {
  double seconds = CpuSeconds();
  for (const auto* peers : {&drafts, &targets}) {
    for (const Forked& peer : *peers) seconds += peer.CpuSeconds();
  }
  return seconds;
}

std::vector<std::string> Addresses(std::vector<Forked>* peers) {
  std::vector<std::string> addresses;
  for (Forked& peer : *peers) addresses.push_back(peer.ReadAddress());
  return addresses;
}

Measured Measure(const scheduler::SimulationOptions& options) {
  std::vector<Forked> drafts, targets;
  for (int d = 0; d < options.drafts; ++d) {
    drafts.emplace_back([&] { return std::make_unique<DraftPeer>(options); });
  }
  const std::vector<std::string> addresses = Addresses(&drafts);
  for (int t = 0; t < options.targets; ++t) {
    targets.emplace_back([&] {
      auto target = std::make_unique<TargetPeer>(options, t + 1, addresses);
      while (target->drafts_up() < options.drafts) SleepUntil(base::Now() + base::kMillisecond);
      return target;
    });
  }
  Gateway gateway(Addresses(&targets));
  gateway.SubmitAll();
  SleepUntil(base::Now() + FromSeconds(FLAGS_warm_up_seconds));
  const Nanos begin = base::Now();
  const uint64_t tokens = gateway.tokens();
  const double cpu = AllCpuSeconds(drafts, targets);
  SleepUntil(begin + FromSeconds(FLAGS_seconds));
  const double seconds = base::ToSeconds(base::Now() - begin);
  const Measured measured = {static_cast<double>(gateway.tokens() - tokens) / seconds,
                             (AllCpuSeconds(drafts, targets) - cpu) / seconds};
  for (const auto* peers : {&drafts, &targets}) {
    for (const Forked& peer : *peers) peer.SayEnd();
  }
  return measured;
}

// In a process of its own, since what it starts must come from one without threads.
Measured MeasureApart(const scheduler::SimulationOptions& options) {
  int ends[2];
  if (pipe(ends) != 0) std::exit(1);
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    const Measured measured = Measure(options);
    std::_Exit(write(ends[1], &measured, sizeof(measured)) == sizeof(measured) ? 0 : 1);
  }
  close(ends[1]);
  Measured measured;
  const bool complete = read(ends[0], &measured, sizeof(measured)) == sizeof(measured);
  close(ends[0]);
  waitpid(pid, nullptr, 0);
  if (!complete) std::exit(1);
  return measured;
}

// Of sequences that all run at once, each at its own pace: what they yield is not changed by their
// ends.
double Simulated(const scheduler::SimulationOptions& options) {
  const int count = options.targets * FLAGS_sequences;
  const std::vector<scheduler::Arrival> arrivals(count, scheduler::Arrival{0, 1, 600});
  return count / scheduler::Simulate(options, arrivals).tpot.p50;
}

int Main() {
  // That the gateway goes first is nobody's fault.
  spdlog::set_level(spdlog::level::err);
  std::printf("%7s %6s %10s %9s %7s %10s %7s %6s\n", "targets", "drafts", "tokens/s", "a target",
              "linear", "simulated", "of it", "cores");
  std::fflush(stdout);  // or children would say it again
  double first = 0;
  for (const std::string& size : std::vector<std::string>(absl::StrSplit(FLAGS_sizes, ','))) {
    const std::vector<std::string> parts = absl::StrSplit(size, 'x');
    scheduler::SimulationOptions options = Options();
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &options.targets) ||
        !absl::SimpleAtoi(parts[1], &options.drafts) || options.targets < 1 || options.drafts < 0) {
      std::fprintf(stderr, "--sizes=%s: allowed are TARGETSxDRAFTS, ...\n", FLAGS_sizes.c_str());
      return 2;
    }
    const double simulated = Simulated(options);
    Measured measured;
    if (!FLAGS_simulated_only) measured = MeasureApart(options);
    const double yields = FLAGS_simulated_only ? simulated : measured.tokens_per_second;
    const double each = yields / options.targets;
    if (first == 0) first = each;
    std::printf("%7d %6d %10.1f %9.1f %6.1f%% %10.1f %6.1f%% %6.2f\n", options.targets,
                options.drafts, yields, each, 100 * each / first, simulated,
                100 * yields / simulated, measured.cores);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace specfabric::bench

int main(int argc, char** argv) {
  gflags::SetUsageMessage("how a shared pool of drafts scales");
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  return specfabric::bench::Main();
}
