#ifndef SPECFABRIC_TARGET_TARGET_ENGINE_H_
#define SPECFABRIC_TARGET_TARGET_ENGINE_H_

// The leader of a target group: it owns the scheduler, the sequences and their routes, and drives
// the ranks step by step (design.md, One round). One thread runs Run(); the link's callbacks and
// the admin server only post to its inbox or read its atomics.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/queue.h"
#include "link/link.h"
#include "metrics/target_metrics.h"
#include "scheduler/scheduler.h"
#include "target/draft_pool.h"
#include "target/draft_watch.h"
#include "target/first_token_watch.h"
#include "target/grammar_states.h"
#include "target/rank_group.h"
#include "target/state_stream.h"
#include "target/token_batches.h"
#include "trace/recorder.h"

namespace specfabric::target {

// The target's hidden states, as RankGroup's; unset: drafters that read them are not served.
struct StateSource {
  int32_t hidden = 0;
  std::function<absl::Status(const std::vector<int32_t>&)> keep = {};
  CopyStates copy = {};
};

struct TargetEngineOptions {
  scheduler::SchedulerOptions scheduler;
  scheduler::DraftRouterOptions router;
  uint64_t incarnation = 0;
  speculation::VerificationMethod verification =
      speculation::VerificationMethod::kCoupled;  // where a request asks for none
  bool chooses_verification = false;              // instead, for each such request
  uint32_t verification_methods =
      1;  // bit set, 1 << VerificationMethod, of those that a request may ask for
  // As DraftSessionOptions.
  int32_t draft_probs_pools = 1;
  uint32_t draft_probs_bytes = 0;
  OpenOnDevice open_on_device = nullptr;
  // A draft worker whose smoothed latency passes this is warned of; 0: none.
  base::Nanos draft_latency_warn = 50 * base::kMillisecond;
  speculation::ChoiceOptions drafter_choice;
  trace::Recorder* recorder = nullptr;  // null: nothing is traced
  StateSource states = {};
  LoadGrammars load_grammars = nullptr;  // unset: requests with a grammar are refused
  int grammar_helpers = 1;               // threads, see GrammarStates
};

// Runs one step: RankGroup::Run, or what stands for it in a bench.
using ExecuteStep =
    std::function<absl::Status(const scheduler::StepPlan&, const VerifyInputs& inputs,
                               StepTimes* times, scheduler::StepResult* result)>;

// How the engine speaks to its peers; the link in a process, a recorder in tests.
struct TargetOutbox {
  SendTokens tokens;
  std::function<absl::Status(link::PeerId, const schemas::DraftRequest&)> draft_request;
  std::function<void(link::PeerId, const schemas::EndSession&)> end_session;
  StateOutbox states = {};
};

struct PeerUp {
  link::PeerId peer = 0;
  schemas::Hello hello;
  std::string address = {};  // for people
};
struct PeerDown {
  link::PeerId peer = 0;
};
// arrived: when the link had it; the leader may be in the middle of a step, and how long drafts
// take must not seem to depend on that.
struct PeerMessage {
  link::PeerId peer = 0;
  link::Message message;
  base::Nanos arrived = base::Now();
};
struct PeerDraftProbs {
  link::PeerId peer = 0;
  transport::KeptTensor tensor;
  base::Nanos arrived = base::Now();
};
struct DraftProbsRefused {
  link::PeerId peer = 0;
  transport::TensorFields fields;
};
// The grammar of a request has been compiled, or could not be.
struct GrammarCompiled {
  link::PeerId peer = 0;
  schemas::Submit submit;
  absl::StatusOr<tokenizer::GrammarMatcher> matcher;
};
using TargetInput =
    std::variant<PeerUp, PeerDown, PeerMessage, PeerDraftProbs, DraftProbsRefused, GrammarCompiled>;

class TargetEngine {
 public:
  static constexpr size_t kInboxSize = 1 << 16;

  // `metrics`, and what `execute` uses, must outlive the engine.
  TargetEngine(const TargetEngineOptions& options, ExecuteStep execute,
               metrics::TargetMetrics* metrics, TargetOutbox outbox);

  // From any thread. That a peer has come or gone is always taken; the rest is refused where the
  // inbox is full.
  void Post(PeerUp up) { inbox_.PushAlways(std::move(up)); }
  void Post(PeerDown down) { inbox_.PushAlways(down); }
  [[nodiscard]] bool Post(PeerMessage message) { return inbox_.Push(std::move(message)); }
  [[nodiscard]] bool Post(PeerDraftProbs draft_probs) {
    return inbox_.Push(std::move(draft_probs));
  }
  [[nodiscard]] bool Post(DraftProbsRefused refused) { return inbox_.Push(refused); }

  // Runs until Stop, or until a drain that has nothing left to do.
  void Run();
  // New work is refused from now on, running sequences are finished, then Run returns.
  void Drain() { Ask(kDrain); }
  void Stop() { Ask(kStop); }

  // Start of the step in flight, or 0: what a watchdog and /livez look at.
  base::Nanos step_started() const { return step_started_.load(std::memory_order_relaxed); }
  base::Nanos last_step_ended() const { return last_step_ended_.load(std::memory_order_relaxed); }
  // Run has returned.
  bool finished() const { return finished_.load(); }
  bool draining() const { return asked_.load(std::memory_order_relaxed) != kRun; }

 private:
  enum Asked { kRun, kDrain, kStop };

  // Who asked for a sequence, and its totals for the gateway, metrics and traces.
  struct Client {
    link::PeerId peer = 0;
    uint64_t request_id = 0;
    uint32_t attempt = 0;
    int32_t prompt_size = 0;
    schemas::Speculation speculation = {};
    int32_t cached_tokens = 0;      // of its prompt
    base::Nanos wanted_draft = 0;   // when its last DraftWanted was sent, 0: not waiting
    base::TraceContext trace = {};  // the gateway's
    uint64_t span = 0;              // from its submission to its end
    base::Nanos submitted = 0, first_token = 0;
  };
  struct RequestKey {
    link::PeerId peer = 0;
    uint64_t request_id = 0;
    bool operator==(const RequestKey&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const RequestKey& key) {
      return H::combine(std::move(h), key.peer, key.request_id);
    }
  };

  void Serve();
  void Ask(Asked what);
  void TakeInput(base::Nanos deadline);
  // Heartbeat to the gateways while there is work, and once after it (a TokensBatch with the load
  // alone). An open connection proves only that the progress thread is alive, not this one.
  void SendHeartbeats(base::Nanos now);
  schemas::TargetLoad Load() const;
  void Handle(const PeerUp& up);
  void Handle(const PeerDown& down);
  void Handle(PeerMessage& input);
  void Handle(PeerDraftProbs& input);
  void Handle(const DraftProbsRefused& refused);
  void Handle(GrammarCompiled& compiled);
  // Hand to the scheduler what the draft pool has found out.
  void OnDraftEvent(std::optional<DraftEvent> event, base::Nanos now);
  void OnNoDraft(const std::optional<NoDraft>& none);
  void PruneByGrammar(base::SequenceId id, speculation::Draft* draft);
  // A sequence's tree has come in its round.
  void ObserveDraft(base::SequenceId id, const DraftArrived::Times& times);
  // Its committed tokens; empty if it is over.
  absl::Span<const base::TokenId> Text(base::SequenceId id) const;
  void OnSubmit(link::PeerId peer, schemas::Submit submit);
  // grammar: null for a request without one.
  void Admit(link::PeerId peer, schemas::Submit submit, tokenizer::GrammarMatcher* grammar);
  void OnCancel(link::PeerId peer, const schemas::Cancel& cancel);
  void Refuse(const RequestKey& key, uint32_t attempt, schemas::Finish finish, std::string why);
  void RunStep(const scheduler::StepPlan& plan, base::Nanos started);
  // The states that drafters want now are kept from the next step on.
  void KeepStates();
  void SendStates(const scheduler::StepPlan& plan, base::Nanos now);
  void Dispatch(const std::vector<scheduler::Event>& events);
  void Emit(const scheduler::TokensEvent& event);
  void LogNotFinite(base::SequenceId id, const Client& client, const std::string& what);
  void OnEnded(base::SequenceId id);
  // Records the spans of a step. They belong to no request's trace, because a step serves many.
  void TraceStep(const scheduler::StepPlan& plan, base::Nanos started, base::Nanos planned,
                 const StepTimes& times, base::Nanos ran);
  void TraceSequence(const Client& client);
  void CountDraftTokens(const scheduler::TokensEvent& event);
  void WatchFirstToken(size_t drafter, bool accepted);
  void UpdateDrafters();
  void UpdateGauges();

  const TargetEngineOptions options_;
  const ExecuteStep execute_;
  metrics::TargetMetrics* const metrics_;
  const TargetOutbox outbox_;
  scheduler::Scheduler scheduler_;
  // Of the step in flight, kept for their memory.
  std::vector<const speculation::DraftProbs*> draft_probs_;  // [plan.sequences]
  scheduler::StepResult result_;
  DraftPool drafts_;
  DraftWatch watch_;
  StateStream states_;
  bool keeps_states_ = false;
  TokenBatches tokens_;  // since the last step, or the last input
  base::BoundedQueue<TargetInput> inbox_;
  absl::flat_hash_map<base::SequenceId, Client> clients_;
  absl::flat_hash_map<RequestKey, base::SequenceId> sequences_;
  // Requests whose grammar is being compiled, with their attempt.
  absl::flat_hash_map<RequestKey, uint32_t> compiling_;
  absl::flat_hash_map<link::PeerId, schemas::Role> peers_;
  base::SequenceId next_sequence_ = 1;
  base::Nanos next_heartbeat_ = 0;
  bool heartbeat_due_ = false;  // there was work at the last one
  base::Nanos next_not_finite_line_ = 0;
  int64_t not_finite_unsaid_ = 0;
  scheduler::SchedulerStats reported_;
  DraftPoolStats reported_drafts_;
  StateStreamStats reported_states_;
  uint64_t reported_scored_ = 0;
  std::vector<metrics::DrafterMetrics> drafter_metrics_;  // by drafter
  std::vector<FirstTokenWatch> first_tokens_;             // likewise
  std::atomic<int> asked_{kRun};
  std::atomic<base::Nanos> step_started_{0};
  std::atomic<base::Nanos> last_step_ended_{0};
  std::atomic<bool> finished_{false};
  GrammarStates grammars_;  // last: its helpers post to the inbox
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_TARGET_ENGINE_H_
