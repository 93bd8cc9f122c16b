// The overhead of a round besides the models: a target's real engine, scheduler and links, with a
// draft and a gateway at the other ends, and models that only take a fixed time. Every draft token
// is accepted. One process, one thread per role, frames over the real fabric.
//
//   round    median time between two steps that verify the same sequence
//   verify   time that the target spends in steps during a round (of both cohorts, if any)
//   draft    time from request to reply, measured by the target
//   steps    steps per round: 2 where one cohort is verified while the other one drafts
//
// A sequence is drafted for only after it was verified, so that a round of one cohort takes the sum
// of both times; with two cohorts a round takes no longer than the longer of the two.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "link/link.h"
#include "metrics/registry.h"
#include "metrics/target_metrics.h"
#include "spdlog/spdlog.h"
#include "speculation/tree.h"
#include "target/target_engine.h"

namespace specfabric {
namespace {

using base::Nanos;
using base::TokenId;
using link::Link;
using link::PeerId;

constexpr int32_t kVocabulary = 1000;
constexpr Nanos kWarmUp = 2 * base::kSecond, kMeasured = 4 * base::kSecond;

struct Case {
  const char* name;
  int sequences = 1;
  Nanos step = 0, row = 0;  // time of a step: step + row * number of rows
  Nanos draft = 0;          // time that the draft takes for a tree
  int draft_tokens = 3;
};

void SleepUntil(Nanos time) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(std::max<Nanos>(0, time - base::Now())));
}

TokenId TokenAt(int32_t position) { return 1 + position % (kVocabulary - 1); }

link::LinkOptions LinkAs(schemas::Role role) {
  link::LinkOptions options;
  options.listen = "127.0.0.1:0";
  options.hello.role = role;
  options.hello.model = "modelled";
  options.hello.vocabulary = kVocabulary;
  options.hello.context = 1 << 20;
  options.hello.verification_methods = 1;
  options.hello.capacity = 1024;
  return options;
}

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  std::exit(1);
}

// Creates the link in `link`, and only then starts it: its callbacks may use `link`.
void StartLink(link::LinkOptions options, link::LinkHandler handler, std::unique_ptr<Link>* link) {
  *link = OrDie(Link::Create(std::move(options), std::move(handler)));
  const absl::Status started = (*link)->Start();
  if (started.ok()) return;
  std::fprintf(stderr, "%s\n", started.ToString().c_str());
  std::exit(1);
}

// Answers what has come together, in one go.
class Draft {
 public:
  explicit Draft(const Case& bench) : case_(bench) {
    link::LinkHandler handler;
    handler.on_message = [this](PeerId peer, link::Message message) {
      if (const auto* request = std::get_if<schemas::DraftRequest>(&message)) {
        std::lock_guard lock(mutex_);
        asked_.emplace_back(peer, *request);
        come_.notify_one();
      }
    };
    StartLink(LinkAs(schemas::Role::kDraft), std::move(handler), &link_);
    thread_ = std::thread([this] { Serve(); });
  }
  ~Draft() {
    {
      std::lock_guard lock(mutex_);
      ends_ = true;
      come_.notify_one();
    }
    thread_.join();
  }
  const std::string& address() const { return link_->listen_address(); }

 private:
  void Serve() {
    for (;;) {
      std::vector<std::pair<PeerId, schemas::DraftRequest>> asked;
      {
        std::unique_lock lock(mutex_);
        come_.wait(lock, [this] { return ends_ || !asked_.empty(); });
        if (ends_) return;
      }
      const Nanos start = base::Now();
      SleepUntil(start + case_.draft);
      {
        std::lock_guard lock(mutex_);
        asked.swap(asked_);
      }
      for (const auto& [peer, request] : asked) {
        link_->Send(peer, Reply(request, base::Now() - start)).IgnoreError();
      }
    }
  }
  schemas::DraftReply Reply(const schemas::DraftRequest& request, Nanos took) const {
    schemas::DraftReply reply;
    reply.target_incarnation = request.target_incarnation;
    reply.sequence = request.sequence;
    reply.round = request.round;
    reply.request_id = request.request_id;
    reply.sampling_tag = schemas::SamplingTag(request.verification, request.sampling);
    reply.free_sessions = 1024;
    reply.draft_time = took;
    const auto length = request.base_length + static_cast<int32_t>(request.append_tokens.size());
    for (int i = 0; i < std::min(case_.draft_tokens, request.max_nodes); ++i) {
      reply.tree.Add(i, TokenAt(length + i), -0.01f);
    }
    return reply;
  }

  const Case case_;
  std::mutex mutex_;
  std::condition_variable come_;
  std::vector<std::pair<PeerId, schemas::DraftRequest>> asked_;  // guarded by mutex_
  bool ends_ = false;                                            // guarded by mutex_
  std::unique_ptr<Link> link_;
  std::thread thread_;
};

struct Step {
  Nanos start = 0, end = 0;
  std::vector<base::SequenceId> verified;
};

// A target whose ranks only wait.
class Target {
 public:
  Target(const Case& bench, const std::string& draft)
      : case_(bench), metrics_(registry_, "modelled", speculation::kMaxVerifyNodes - 1) {
    target::TargetEngineOptions options;
    scheduler::SchedulerOptions& s = options.scheduler;
    s.vocabulary = kVocabulary;
    s.max_context = 1 << 20;
    s.kv_blocks = 1 << 18;
    s.max_sequences = bench.sequences;
    s.prefix_cache = false;
    link::LinkOptions link = LinkAs(schemas::Role::kTarget);
    link.hello.incarnation = options.incarnation = 7;
    link.connect = {draft};
    target::TargetOutbox outbox;
    outbox.tokens = [this](PeerId to, const schemas::TokensBatch& tokens) {
      return link_->Send(to, tokens);
    };
    outbox.draft_request = [this](PeerId to, const schemas::DraftRequest& request) {
      return link_->Send(to, request);
    };
    outbox.end_session = [this](PeerId to, const schemas::EndSession& end) {
      link_->Send(to, end).IgnoreError();
    };
    engine_ = std::make_unique<target::TargetEngine>(
        options,
        [this](const scheduler::StepPlan& plan, auto, target::StepTimes*,
               scheduler::StepResult* result) { return Run(plan, result); },
        &metrics_, outbox);
    link::LinkHandler handler;
    handler.on_up = [this](PeerId peer, const schemas::Hello& hello, const std::string&) {
      engine_->Post(target::PeerUp{peer, hello});
      if (hello.role == schemas::Role::kDraft) drafts_up_ = true;
    };
    handler.on_message = [this](PeerId peer, link::Message message) {
      SPECFABRIC_CHECK(engine_->Post(target::PeerMessage{peer, std::move(message)}));
    };
    handler.on_down = [this](PeerId peer, const absl::Status&) {
      engine_->Post(target::PeerDown{peer});
    };
    StartLink(std::move(link), std::move(handler), &link_);
    while (!drafts_up_) SleepUntil(base::Now() + base::kMillisecond);
    thread_ = std::thread([this] { engine_->Run(); });
  }
  ~Target() {
    Stop();
    link_.reset();
  }
  void Stop() {
    engine_->Stop();
    if (thread_.joinable()) thread_.join();
  }
  const std::string& address() const { return link_->listen_address(); }
  // After Stop.
  const std::vector<Step>& steps() const { return steps_; }
  // Seconds and number of the spans from a request to its reply.
  std::pair<double, double> DraftWaits() const {
    const auto metric =
        metrics_.spans[static_cast<int>(metrics::Span::kDraftWait)]->Collect().histogram;
    return {metric.sample_sum, static_cast<double>(metric.sample_count)};
  }

 private:
  absl::Status Run(const scheduler::StepPlan& plan, scheduler::StepResult* result) {
    Step step = {.start = base::Now(), .end = 0, .verified = {}};
    result->step = plan.step;
    result->sequences.Resize(0);
    for (const scheduler::PlanSequence& part : plan.sequences) {
      scheduler::SequenceResult found;
      found.id = part.id;
      if (part.kind == scheduler::RowsKind::kPrefill) {
        if (part.samples) found.accepted.tokens = {TokenAt(part.kv_len + part.row_count)};
      } else {
        step.verified.push_back(part.id);
        for (int32_t row = 0; row < part.row_count; ++row) {  // a chain, all of it accepted
          if (row > 0) found.accepted.path.push_back(row);
          found.accepted.tokens.push_back(TokenAt(part.kv_len + row + 1));
        }
      }
      result->sequences.push_back(std::move(found));
    }
    SleepUntil(step.start + case_.step + plan.rows() * case_.row);
    step.end = base::Now();
    steps_.push_back(std::move(step));
    return absl::OkStatus();
  }

  const Case case_;
  metrics::Registry registry_;
  metrics::TargetMetrics metrics_;
  std::vector<Step> steps_;  // the leader's
  std::atomic<bool> drafts_up_{false};
  std::unique_ptr<target::TargetEngine> engine_;
  std::unique_ptr<Link> link_;
  std::thread thread_;
};

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void Print(const Case& bench, const std::vector<Step>& steps, double draft) {
  const Nanos from = steps.front().start + kWarmUp;
  std::map<base::SequenceId, size_t> last;
  std::vector<double> rounds, verifies, counts;
  for (size_t i = 0; i < steps.size(); ++i) {
    for (base::SequenceId id : steps[i].verified) {
      const auto before = last.find(id);
      if (before != last.end() && steps[before->second].start > from) {
        double verify = 0;
        for (size_t s = before->second; s < i; ++s) {
          verify += base::ToSeconds(steps[s].end - steps[s].start);
        }
        rounds.push_back(1e3 * base::ToSeconds(steps[i].start - steps[before->second].start));
        verifies.push_back(1e3 * verify);
        counts.push_back(static_cast<double>(i - before->second));
      }
      last[id] = i;
    }
  }
  const double round = Median(rounds), verify = Median(verifies), count = Median(counts);
  std::printf("%-34s %9.2f %9.2f %9.2f %6.0f %14.3f %14.3f\n", bench.name, round, verify, draft,
              count, round / std::max(verify, draft), round / (verify + (count > 1 ? 0 : draft)));
}

void Measure(const Case& bench) {
  Draft draft(bench);
  Target target(bench, draft.address());
  std::atomic<PeerId> up{0};
  link::LinkOptions options = LinkAs(schemas::Role::kGateway);
  options.connect = {target.address()};
  link::LinkHandler handler;
  handler.on_up = [&up](PeerId peer, const schemas::Hello&, const std::string&) { up = peer; };
  std::unique_ptr<Link> gateway;
  StartLink(std::move(options), std::move(handler), &gateway);
  while (up == 0) SleepUntil(base::Now() + base::kMillisecond);
  for (int i = 0; i < bench.sequences; ++i) {
    schemas::Submit submit;
    submit.request_id = i + 1;
    submit.sequence.prompt = {TokenAt(0)};
    submit.sequence.max_tokens = 1 << 19;
    if (!gateway->Send(up, submit).ok()) std::exit(1);
  }
  SleepUntil(base::Now() + kWarmUp);
  const auto before = target.DraftWaits();
  SleepUntil(base::Now() + kMeasured);
  const auto after = target.DraftWaits();
  target.Stop();
  const double waits = std::max(1.0, after.second - before.second);
  Print(bench, target.steps(), 1e3 * (after.first - before.first) / waits);
}

int Main() {
  spdlog::set_level(spdlog::level::warn);
  using base::kMicrosecond;
  using base::kMillisecond;
  std::printf("%-34s %9s %9s %9s %6s %14s %14s\n", "", "round, ms", "verify", "draft", "steps",
              "/max of both", "/what it must");
  for (const Case& bench : std::vector<Case>{
           {"1 sequence, quick draft", 1, 20 * kMillisecond, 0, kMillisecond},
           {"8 sequences, quick draft", 8, 20 * kMillisecond, 0, kMillisecond},
           {"8 sequences, slow draft", 8, 20 * kMillisecond, 0, 8 * kMillisecond},
           {"8 sequences, rows cost", 8, 4 * kMillisecond, 250 * kMicrosecond, 6 * kMillisecond},
           {"32 sequences, rows cost", 32, 4 * kMillisecond, 60 * kMicrosecond,
            6 * kMillisecond}}) {
    Measure(bench);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace specfabric

int main() { return specfabric::Main(); }
