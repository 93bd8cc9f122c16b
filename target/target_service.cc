#include "target/target_service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/exit_code.h"
#include "base/random.h"
#include "base/status.h"
#include "link/fabric_counters.h"
#include "link/gpu_slots.h"
#include "link/link.h"
#include "metrics/fabric_metrics.h"
#include "metrics/target_metrics.h"
#include "model/features.h"
#include "spdlog/spdlog.h"
#include "target/accept_peer.h"
#include "target/measure_steps.h"
#include "target/state_outbox.h"
#include "target/target_engine.h"
#include "tokenizer/grammar.h"
#include "tokenizer/tokenizer.h"

namespace specfabric::target {

namespace {

constexpr int32_t kSpareSlots = 4;
constexpr base::Nanos kProfileBudget = 2 * base::kSecond;  // of a start

// An index of metrics::kExactnessNames.
int ExactnessOf(schemas::VerificationMethod verification, bool batch_invariant) {
  if (!schemas::Lossless(verification)) return 2;
  return verification == schemas::VerificationMethod::kCoupled && batch_invariant ? 0 : 1;
}

absl::StatusOr<std::unique_ptr<tokenizer::Grammars>> LoadVocabulary(const std::string& model_dir) {
  auto tokenizer = tokenizer::Tokenizer::Load(model_dir);
  if (!tokenizer.ok()) return tokenizer.status();
  return tokenizer::Grammars::Create(**tokenizer);
}

// Threads for masks: a mask takes up to a millisecond, so that a few are enough for the sequences
// of a step; where the forward pass needs the cores, more would only be in its way.
int GrammarHelpers() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 8, 1, 8);
}

}  // namespace

class TargetService::Impl {
 public:
  absl::Status Start(const TargetServiceOptions& options, metrics::Registry* registry);
  ~Impl();

  absl::Status StartRanks();
  schemas::GroupPart PartOfGroup() const;
  std::string SettleGpuDraftProbs(link::GpuSlots* gpu_slots);
  std::string SettleGpuStates(link::GpuSlots* gpu_slots);
  absl::Status KeepsStates();
  int32_t DraftProbsSlots() const;
  absl::Status AddDraftProbsPools(size_t slot_bytes);
  void EndIfBroken(const absl::Status& step) const;
  void Watch();
  void StopThreads();

  TargetServiceOptions options_;
  std::unique_ptr<GroupLeader> group_;  // if the group spans processes; its ranks use it
  std::unique_ptr<RankGroup> ranks_;
  std::unique_ptr<metrics::TargetMetrics> metrics_;
  std::unique_ptr<TargetEngine> engine_;
  std::unique_ptr<link::Link> link_;
  // For callbacks, which may run while link_ is being destroyed.
  std::atomic<link::Link*> open_link_{nullptr};
  std::vector<std::shared_ptr<transport::SlotPool>> draft_probs_pools_;  // [ranks], or empty
  std::unique_ptr<metrics::FabricMetrics> fabric_metrics_;
  std::thread leader_;
  std::thread watchdog_;
  std::atomic<bool> stopping_{false};
  std::mutex peers_mutex_;
  std::map<link::PeerId, schemas::Role> peers_;  // guarded by peers_mutex_
};

absl::Status TargetService::Impl::StartRanks() {
  RankGroupOptions options = options_.ranks;
  if (options_.group.processes > 1) {
    // As for a hung collective: the group cannot resume its step (docs/design.md).
    const auto on_lost = [](const absl::Status& why) {
      spdlog::critical("the group is lost: ending the process: {}", base::Message(why));
      std::_Exit(base::kExitBroken);
    };
    group_ = std::make_unique<GroupLeader>(options_.group, options.shape().ranks(), on_lost);
    options.exchange = group_.get();
    options.rank.join_timeout = options_.group.timeout;
    options.rank_count = group_->rank_count();
  }
  if (group_ != nullptr) {
    schemas::Hello hello;
    hello.role = schemas::Role::kTarget;
    hello.model = options_.model_name;
    hello.tokenizer_fingerprint = options_.tokenizer_fingerprint;
    hello.vocabulary = options_.scheduler.vocabulary;
    absl::Status gathered = group_->Gather(options_.fabric, hello, PartOfGroup());
    if (!gathered.ok()) return gathered;
  }
  auto ranks = RankGroup::Start(options);
  if (group_ != nullptr) {
    if (absl::Status met = group_->FinishLoading(ranks); !met.ok()) return met;
  }
  if (!ranks.ok()) return ranks.status();
  ranks_ = *std::move(ranks);
  return absl::OkStatus();
}

schemas::GroupPart TargetService::Impl::PartOfGroup() const {
  const model::RankOptions& rank = options_.ranks.rank;
  schemas::GroupPart part;
  part.cuda = rank.device == model::DeviceKind::kCuda;
  part.pipeline_stages = rank.pipeline_stages;
  part.bfloat16 = rank.dtype == model::DataType::kBFloat16;
  part.kv_blocks = rank.kv_blocks;
  part.block_size = rank.block_size;
  part.batch_invariant = rank.batch_invariant;
  part.reference = rank.reference;
  part.cuda_graphs = rank.cuda_graphs;
  part.flash_attention = rank.flash_attention;
  part.max_rows = rank.max_rows;
  part.join_timeout = options_.group.timeout;
  part.typical_epsilon = options_.ranks.typical.epsilon;
  part.typical_delta = options_.ranks.typical.delta;
  return part;
}

absl::Status TargetService::Impl::Start(const TargetServiceOptions& options,
                                        metrics::Registry* registry) {
  options_ = options;
  link::GpuSlots gpu_slots(options.fabric);
  const std::string settled[] = {SettleGpuDraftProbs(&gpu_slots), SettleGpuStates(&gpu_slots)};
  if (absl::Status ranks = StartRanks(); !ranks.ok()) return ranks;
  for (const std::string& feature : settled) {
    if (!feature.empty()) spdlog::info("{}", feature);
  }
  const model::ModelConfig& config = ranks_->config();
  const model::RankOptions& rank = ranks_->rank_options();
  options_.scheduler.kv_blocks = rank.kv_blocks;

  link::LinkOptions link_options;
  link_options.fabric = options.fabric;
  if (options_.gpu_draft_probs || options_.gpu_states) link_options.fabric.gpu = 0;  // rank 0's
  link_options.listen = options.listen;
  link_options.socket = options.socket;
  link_options.connect = options.drafts;
  link_options.lookup_interval = options.lookup_interval;
  schemas::Hello& hello = link_options.hello;
  hello.role = schemas::Role::kTarget;
  hello.incarnation = base::RandomNonzero64();
  hello.model = options.model_name;
  hello.tokenizer_fingerprint = options.tokenizer_fingerprint;
  // 0 tells gateways that only the distribution of the text is guaranteed.
  const bool exact = rank.batch_invariant;
  hello.numerics_fingerprint = exact ? ranks_->NumericsFingerprint() : 0;
  hello.vocabulary = config.vocabulary;
  hello.context = options.scheduler.max_context;
  hello.verification_methods = options.verification_methods;
  hello.chooses_verification = options.chooses_verification;
  hello.capacity = options.scheduler.max_sequences;
  const absl::Status keeps_states = KeepsStates();
  // Keeping what comes after the last layer takes rows through it that are else left out, which the
  // processes of other ranks do not know of.
  const int32_t last_boundary = config.layers - (group_ == nullptr ? 0 : 1);
  link_options.accept = [ours = hello, keeps_states, last_boundary](const schemas::Hello& theirs) {
    absl::Status accepted = AcceptPeer(ours, theirs);
    accepted.Update(AcceptStateReader(theirs, last_boundary, keeps_states));
    return accepted;
  };

  metrics_ = std::make_unique<metrics::TargetMetrics>(*registry, options.model_name,
                                                      speculation::kMaxVerifyNodes - 1);
  metrics_->SetExactness(ExactnessOf(options.verification, exact && !options.chooses_verification));
  metrics_->kv_tokens.Set(static_cast<double>(int64_t{rank.kv_blocks} * rank.block_size));
  if ((options.verification_methods &
       (1u << static_cast<int>(schemas::VerificationMethod::kTypical))) != 0) {
    spdlog::warn(
        "verification method typical is served: its texts do not have the target's distribution");
  }
  TargetEngineOptions engine_options;
  engine_options.scheduler = options_.scheduler;
  engine_options.incarnation = hello.incarnation;
  engine_options.router = options.router;
  engine_options.router.salt = hello.incarnation;
  engine_options.draft_latency_warn = options.draft_latency_warn;
  engine_options.verification = options.verification;
  engine_options.chooses_verification = options.chooses_verification;
  engine_options.verification_methods = options.verification_methods;
  engine_options.drafter_choice = options.drafter_choice;
  engine_options.recorder = options.recorder;
  engine_options.draft_probs_pools = options.ranks.shape().ranks();
  const speculation::DraftProbsShape slot = {options.draft_probs_rows, config.vocabulary,
                                             config.vocabulary};
  engine_options.draft_probs_bytes = static_cast<uint32_t>(slot.bytes());
  if (options_.gpu_draft_probs) {
    engine_options.open_on_device = [this](const auto& shape, auto bytes) {
      return ranks_->OpenOnDevice(shape, bytes);
    };
  }
  if (keeps_states.ok()) {
    engine_options.states = {
        .hidden = config.hidden,
        .keep = [this](const auto& boundaries) { return ranks_->KeepStates(boundaries); },
        .copy = [this](auto copies) { return ranks_->CopyStates(copies); }};
  }
  engine_options.load_grammars = [dir = options.ranks.model_dir] { return LoadVocabulary(dir); };
  engine_options.grammar_helpers = GrammarHelpers();
  TargetOutbox outbox;
  outbox.states = MakeStateOutbox(
      [this] { return link_.get(); },
      options_.gpu_states ? transport::MemoryKind::kCuda : transport::MemoryKind::kHost);
  outbox.tokens = [this](link::PeerId peer, const schemas::TokensBatch& batch) {
    absl::Status sent = link_->Send(peer, batch);
    // A stream that misses tokens is useless. When the connection is closed, the gateway resubmits.
    if (absl::IsResourceExhausted(sent)) link_->Close(peer);
    return sent;
  };
  outbox.draft_request = [this](link::PeerId peer, const schemas::DraftRequest& request) {
    return link_->Send(peer, request);
  };
  outbox.end_session = [this](link::PeerId peer, const schemas::EndSession& end) {
    link_->Send(peer, end).IgnoreError();
  };
  const ExecuteStep execute = [this](const auto& plan, const VerifyInputs& inputs, StepTimes* times,
                                     scheduler::StepResult* result) {
    absl::Status done = group_ == nullptr ? ranks_->Run(plan, inputs, times, result)
                                          : group_->Run(ranks_.get(), plan, inputs, times, result);
    if (!done.ok()) EndIfBroken(done);
    return done;
  };
  if (options_.scheduler.speculation == scheduler::SpeculationPolicy::kGoodput) {
    auto profile = MeasureSteps(options_.scheduler, execute, kProfileBudget);
    if (!profile.ok()) return profile.status();
    spdlog::info("{}", Describe(*profile));
    engine_options.scheduler.profile = *std::move(profile);
  }
  engine_ = std::make_unique<TargetEngine>(engine_options, execute, metrics_.get(), outbox);

  link::LinkHandler handler;
  handler.on_up = [this](link::PeerId peer, const schemas::Hello& theirs,
                         const std::string& address) {
    {
      std::lock_guard lock(peers_mutex_);
      peers_[peer] = theirs.role;
    }
    engine_->Post(PeerUp{peer, theirs, address});
  };
  handler.on_message = [this](link::PeerId peer, link::Message message) {
    // The inbox is full: the leader is far behind. Disconnecting the peer limits the queued work.
    if (engine_->Post(PeerMessage{peer, std::move(message)})) return;
    if (link::Link* link = open_link_.load()) link->Close(peer);
  };
  handler.on_down = [this](link::PeerId peer, const absl::Status&) {
    {
      std::lock_guard lock(peers_mutex_);
      peers_.erase(peer);
    }
    engine_->Post(PeerDown{peer});
  };
  handler.admit_tensor = [ours = hello.incarnation](link::PeerId,
                                                    const transport::TensorFields& fields) {
    return fields.fence.incarnation == ours;
  };
  handler.on_tensor = [this](link::PeerId peer, transport::Tensor&& tensor) {
    // The inbox is full: the slot is freed, and the round goes on without a draft after its
    // deadline.
    if (engine_->Post(PeerDraftProbs{peer, transport::Keep(std::move(tensor))})) return;
    spdlog::warn("target peer={}: draft probabilities dropped: the leader is behind", peer);
  };
  handler.on_refused = [this](link::PeerId peer, const transport::TensorFields& fields,
                              const absl::Status& why) {
    spdlog::warn("target peer={} sequence={} round={}: draft probabilities refused: {}", peer,
                 fields.tag, fields.fence.round, base::Message(why));
    // The inbox is full: the round goes on after its deadline.
    if (engine_->Post(DraftProbsRefused{peer, fields})) return;
    spdlog::warn("target peer={}: a refusal of draft probabilities dropped: the leader is behind",
                 peer);
  };
  auto link = link::Link::Create(std::move(link_options), std::move(handler));
  if (!link.ok()) return link.status();
  link_ = *std::move(link);
  open_link_ = link_.get();
  if (absl::Status pools = AddDraftProbsPools(engine_options.draft_probs_bytes); !pools.ok())
    return pools;
  fabric_metrics_ = std::make_unique<metrics::FabricMetrics>(*registry, [this] {
    metrics::FabricCounters counters = link::ReadCounters(*link_);
    if (group_ != nullptr) metrics::Add(group_->counters(), &counters);
    return counters;
  });
  if (absl::Status started = link_->Start(); !started.ok()) return started;
  leader_ = std::thread([this] { engine_->Run(); });
  watchdog_ = std::thread([this] { Watch(); });
  return absl::OkStatus();
}

// Adds one pool for each rank, so that draft probabilities are received near the rank that owns the
// sequence. Call before the leader runs and asks for draft probabilities.
absl::Status TargetService::Impl::AddDraftProbsPools(size_t slot_bytes) {
  if (slot_bytes == 0) return absl::OkStatus();
  const int ranks = options_.ranks.shape().ranks();
  transport::SlotPoolOptions slots = {transport::MemoryKind::kHost, slot_bytes, DraftProbsSlots()};
  if (options_.gpu_draft_probs) slots.kind = transport::MemoryKind::kCuda;
  for (int rank = 0; rank < ranks; ++rank) {
    absl::Status gpu;
    auto pool = link::AddPoolOrHosts(*link_, static_cast<uint8_t>(rank), slots, &gpu);
    if (!gpu.ok()) {
      spdlog::warn(
          "{}", model::Describe(model::kGpuDraftProbs, {.on = false, .why = base::Message(gpu)}));
    }
    if (!pool.ok()) return pool.status();
    draft_probs_pools_.push_back(*std::move(pool));
  }
  return absl::OkStatus();
}

// In a rank's pool: one for the round of each sequence, and some for late tensors.
int32_t TargetService::Impl::DraftProbsSlots() const {
  return options_.scheduler.max_sequences / options_.ranks.shape().ranks() + kSpareSlots;
}

// Whether this model keeps hidden states at all.
absl::Status TargetService::Impl::KeepsStates() {
  absl::Status keeps = ranks_->KeepStates({0});
  if (keeps.ok()) keeps = ranks_->KeepStates({});
  return keeps;
}

// As SettleGpuDraftProbs.
std::string TargetService::Impl::SettleGpuStates(link::GpuSlots* gpu_slots) {
  model::RankOptions& rank = options_.ranks.rank;
  if (rank.device == model::DeviceKind::kCpu) {
    options_.gpu_states = false;
    return "";
  }
  const absl::Status able =
      options_.gpu_states ? gpu_slots->Check() : absl::FailedPreconditionError(model::kDisabled);
  options_.gpu_states = able.ok();
  if (able.ok()) {
    rank.kv_sizing.reserved_bytes += int64_t{schemas::kStateSlotBytes} * schemas::kStateSlots;
  }
  return model::Describe(model::kGpuStates, {.on = able.ok(), .why = base::Message(able)});
}

// Before the ranks load, which leave the slots' memory free. Returns a line for the log, on GPUs.
std::string TargetService::Impl::SettleGpuDraftProbs(link::GpuSlots* gpu_slots) {
  if (options_.ranks.rank.device == model::DeviceKind::kCpu) {
    options_.gpu_draft_probs = false;
    return "";
  }
  model::FeatureState state;
  if (options_.draft_probs_rows == 0) {
    state.why = "no verification method served here reads draft probabilities";
  } else if (const int ranks = options_.ranks.shape().ranks(); ranks > 1) {
    state.why = absl::StrCat(ranks, " ranks gather whole rows on the host");
  } else if (!options_.gpu_draft_probs) {
    state.why = model::kDisabled;
  } else {
    const absl::Status able = gpu_slots->Check();
    state = {.on = able.ok(), .why = base::Message(able)};
  }
  options_.gpu_draft_probs = state.on;
  std::string told = model::Describe(model::kGpuDraftProbs, state);
  if (!state.on) return told;
  const int32_t vocabulary = options_.scheduler.vocabulary;
  const speculation::DraftProbsShape slot = {options_.draft_probs_rows, vocabulary, vocabulary};
  options_.ranks.rank.kv_sizing.reserved_bytes +=
      static_cast<int64_t>(slot.bytes()) * DraftProbsSlots();
  return told;
}

// Ends the process if a step has failed in a way that it cannot recover from: the state of a GPU
// after an error is unknown, and if one rank has failed, the ranks are no longer in the same state.
// Gateways resubmit to other targets (docs/design.md).
void TargetService::Impl::EndIfBroken(const absl::Status& step) const {
  const bool on_gpus = options_.ranks.rank.device == model::DeviceKind::kCuda;
  const bool broken = absl::IsInternal(step) || absl::IsAborted(step);
  // All ranks refuse an invalid batch alike; any other error may be that of one rank alone.
  const bool alone = options_.ranks.shape().ranks() > 1 && !absl::IsInvalidArgument(step);
  if (!on_gpus || !(broken || alone)) return;
  spdlog::critical("a step has failed for good: ending the process: {}", base::Message(step));
  std::_Exit(base::kExitBroken);
}

void TargetService::Impl::Watch() {
  while (!stopping_.load()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const base::Nanos started = engine_->step_started();
    if (started == 0 || base::Now() - started < options_.step_timeout) continue;
    // A hung collective cannot be cancelled. Gateways resubmit to other targets (docs/design.md).
    spdlog::critical("a step has run for more than {} s: ending the process",
                     base::ToSeconds(options_.step_timeout));
    std::_Exit(base::kExitBroken);
  }
}

void TargetService::Impl::StopThreads() {
  stopping_ = true;
  if (engine_ != nullptr) engine_->Stop();
  if (leader_.joinable()) leader_.join();
  if (watchdog_.joinable()) watchdog_.join();
}

TargetService::Impl::~Impl() {
  // The leader thread uses the link, so it ends first; then the link, which posts to the engine.
  StopThreads();
  open_link_ = nullptr;
  fabric_metrics_.reset();
  link_.reset();
}

TargetService::TargetService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TargetService::~TargetService() = default;

absl::StatusOr<std::unique_ptr<TargetService>> TargetService::Start(
    const TargetServiceOptions& options, metrics::Registry* registry) {
  auto config = model::LoadModelConfig(options.ranks.model_dir);
  if (!config.ok()) return config.status();
  absl::Status split = model::CheckShape(*config, options.ranks.shape());
  if (!split.ok()) return split;
  TargetServiceOptions filled = options;
  filled.scheduler.vocabulary = config->vocabulary;
  filled.scheduler.block_size = options.ranks.rank.block_size;
  auto context = model::ServedContext(*config, options.scheduler.max_context);
  if (!context.ok()) return context.status();
  filled.scheduler.max_context = *context;
  auto impl = std::make_unique<Impl>();
  if (absl::Status status = impl->Start(filled, registry); !status.ok()) return status;
  return std::unique_ptr<TargetService>(new TargetService(std::move(impl)));
}

const std::string& TargetService::listen_address() const { return impl_->link_->listen_address(); }
const model::ModelConfig& TargetService::config() const { return impl_->ranks_->config(); }
bool TargetService::ready() const { return !impl_->engine_->draining(); }

std::string TargetService::Liveness() const {
  const base::Nanos now = base::Now();
  const base::Nanos started = impl_->engine_->step_started();
  const base::Nanos ended = impl_->engine_->last_step_ended();
  std::string line = "ok";
  if (started != 0) {
    absl::StrAppendFormat(&line, " step_age_seconds=%.3f", base::ToSeconds(now - started));
  }
  if (ended != 0) {
    absl::StrAppendFormat(&line, " last_step_seconds_ago=%.3f", base::ToSeconds(now - ended));
  }
  return line + "\n";
}

void TargetService::WaitForDrafts(base::Nanos timeout) {
  const base::Nanos deadline = base::Now() + timeout;
  while (base::Now() < deadline) {
    size_t up = 0;
    {
      std::lock_guard lock(impl_->peers_mutex_);
      for (const auto& [peer, role] : impl_->peers_) up += role == schemas::Role::kDraft;
    }
    if (up >= impl_->options_.drafts.size()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void TargetService::Drain(base::Nanos timeout) {
  impl_->engine_->Drain();
  {
    std::lock_guard lock(impl_->peers_mutex_);
    for (const auto& [peer, role] : impl_->peers_) {
      impl_->link_->Send(peer, schemas::Drain{}).IgnoreError();
    }
  }
  const base::Nanos deadline = base::Now() + timeout;
  while (!impl_->engine_->finished() && base::Now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  // The last tokens may still be in the send queue.
  impl_->link_->Flush(link::kLastMessagesTimeout);
}

}  // namespace specfabric::target
