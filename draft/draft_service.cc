#include "draft/draft_service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/exit_code.h"
#include "base/queue.h"
#include "base/random.h"
#include "base/status.h"
#include "link/fabric_counters.h"
#include "link/gpu_slots.h"
#include "link/link.h"
#include "metrics/draft_metrics.h"
#include "metrics/fabric_metrics.h"
#include "model/features.h"
#include "spdlog/spdlog.h"

namespace specfabric::draft {

namespace {

constexpr size_t kInboxSize = 1 << 14;
constexpr base::Nanos kExpireInterval = base::kSecond;
constexpr uint8_t kDraftProbsPool = 0;
constexpr uint8_t kStatePool = 1;
constexpr int32_t kMostStateRows = 256;  // of a tensor of hidden states, where so many fit

struct PeerMessage {
  link::PeerId peer = 0;
  link::Message message;
};
// A target has connected that may ask for draft probabilities: slots to send them from are needed.
struct DraftProbsWanted {};
struct TargetUp {
  uint64_t incarnation = 0;
  int32_t vocabulary = 0;
};
struct TargetGone {
  uint64_t incarnation = 0;
};
struct PeerStates {
  link::PeerId peer = 0;
  transport::Fence fence;
  std::optional<transport::KeptTensor> tensor;  // none: the fabric did not receive it
};
struct DebugQuery {
  std::shared_ptr<std::promise<std::string>> answer;
};
using Input =
    std::variant<PeerMessage, DraftProbsWanted, TargetUp, TargetGone, PeerStates, DebugQuery>;

// A pass that failed would fail again on the same rows. Targets go on without this worker.
void EndIfBroken(const absl::Status& failed) {
  if (failed.ok()) return;
  spdlog::critical("draft step failed: {}", base::Message(failed));
  std::_Exit(base::kExitBroken);
}

void LogFeature(const char* feature, const absl::Status& able) {
  spdlog::info("{}", model::Describe(feature, {.on = able.ok(), .why = base::Message(able)}));
}

// Slots for the draft probabilities of as many trees as are sent at once: of every session where
// they are small.
transport::SlotPoolOptions DraftProbsSlots(const DraftEngineOptions& engine, int32_t vocabulary) {
  constexpr size_t kManySlots = 64, kSmallBytes = size_t{64} << 20;
  const size_t bytes = DraftEngine::DraftProbsSlotBytes(engine, vocabulary);
  const size_t most = std::max(kManySlots, kSmallBytes / std::max<size_t>(bytes, 1));
  return {transport::MemoryKind::kHost, bytes,
          static_cast<int32_t>(std::min<size_t>(engine.sessions.max_sessions, most))};
}

}  // namespace

class DraftService::Impl {
 public:
  // config: of the model that the options name.
  absl::Status Start(const DraftServiceOptions& options, const model::ModelConfig& config,
                     metrics::Registry* registry);
  ~Impl();
  std::string DebugSessions();
  void Drain(base::Nanos timeout);

  const std::string& listen_address() const { return link_->listen_address(); }
  const model::ModelConfig& config() const { return config_; }
  bool draining() const { return draining_.load(); }

 private:
  void Run();
  void Handle(PeerMessage& input);
  void Handle(const DraftProbsWanted&);
  void Handle(const TargetUp& up) { engine_->TargetUp(up.incarnation, up.vocabulary); }
  void Handle(const TargetGone& gone);
  void Handle(PeerStates& states);
  void Handle(const DebugQuery& query);
  // Whether the incarnation is the peer's own: no target may use or end the sessions of another.
  bool IsOf(link::PeerId peer, uint64_t target_incarnation);
  void SendReply(link::PeerId peer, schemas::DraftReply reply, OutgoingDraftProbs draft_probs);
  void UpdateMetrics();
  void ReportEngine();
  link::LinkHandler MakeHandler();
  absl::Status LoadModel(const DraftServiceOptions& options, const model::ModelConfig& config);
  absl::Status CheckGpuDraftProbs(const DraftServiceOptions& options, link::GpuSlots* gpu_slots);
  void SettleStateSlots(const DraftServiceOptions& options, link::GpuSlots* gpu_slots,
                        model::RankOptions* rank);
  void AddGpuSlots();
  absl::Status AddStateSlots();

  model::ModelConfig config_;
  std::unique_ptr<model::Communicator> communicator_;
  std::unique_ptr<model::RankModel> model_;                    // until it is the engine's
  std::unique_ptr<verification::DeviceDraftRows> draft_rows_;  // likewise; null: on the host
  std::unique_ptr<DraftEngine> engine_;                        // engine thread only, once it runs
  std::unique_ptr<metrics::DraftMetrics> metrics_;
  std::unique_ptr<link::Link> link_;
  transport::SlotPoolOptions draft_probs_slots_;
  transport::SlotPoolOptions state_slots_ = {transport::MemoryKind::kHost, schemas::kStateSlotBytes,
                                             schemas::kStateSlots};
  // Engine thread; null until the first target needs it.
  std::shared_ptr<transport::SlotPool> draft_probs_pool_;
  std::unique_ptr<metrics::FabricMetrics> fabric_metrics_;
  base::BoundedQueue<Input> inbox_{kInboxSize};
  StateInboxes states_{[this](uint64_t incarnation, const ArrivedStates& arrived) {
    return engine_->AddStates(incarnation, arrived, base::Now());
  }};  // engine thread
  std::thread thread_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> draining_{false};
  std::atomic<bool> busy_{false};
  SessionStats reported_;
  DraftEngineStats reported_engine_;
  uint64_t reported_lost_states_ = 0;
  std::mutex peers_mutex_;
  absl::flat_hash_map<link::PeerId, uint64_t> peers_;  // guarded: incarnation of each target
};

link::LinkHandler DraftService::Impl::MakeHandler() {
  link::LinkHandler handler;
  handler.on_up = [this](link::PeerId peer, const schemas::Hello& hello, const std::string&) {
    std::lock_guard lock(peers_mutex_);
    peers_[peer] = hello.incarnation;
    inbox_.PushAlways(TargetUp{hello.incarnation, hello.vocabulary});
    if ((hello.verification_methods & speculation::kMethodsUsingDraftProbs) != 0)
      inbox_.PushAlways(DraftProbsWanted{});
  };
  handler.on_message = [this](link::PeerId peer, link::Message message) {
    // A full inbox drops the message. A dropped request is a miss for the target, whose round goes
    // on without a draft; a session whose end is dropped expires.
    if (inbox_.Push(PeerMessage{peer, std::move(message)})) return;
    metrics_->dropped_messages.Increment();
  };
  handler.on_down = [this](link::PeerId peer, const absl::Status&) {
    uint64_t incarnation = 0;
    {
      std::lock_guard lock(peers_mutex_);
      incarnation = std::exchange(peers_[peer], 0);
      peers_.erase(peer);
      // If another connection of the same incarnation is up, its sessions stay.
      for (const auto& [other, its] : peers_) {
        if (its == incarnation) return;
      }
    }
    inbox_.PushAlways(TargetGone{incarnation});
  };
  handler.admit_tensor = [this](link::PeerId peer, const transport::TensorFields& fields) {
    std::lock_guard lock(peers_mutex_);
    const auto its = peers_.find(peer);
    return its != peers_.end() && its->second == fields.fence.incarnation;
  };
  handler.on_tensor = [this](link::PeerId peer, transport::Tensor&& tensor) {
    const transport::Fence fence = tensor.fields.fence;
    if (inbox_.Push(PeerStates{peer, fence, transport::Keep(std::move(tensor))})) return;
    metrics_->dropped_messages.Increment();
  };
  handler.on_refused = [this](link::PeerId peer, const transport::TensorFields& fields,
                              const absl::Status&) {
    // Where the inbox is full, those that come later show that this one is lost.
    if (inbox_.Push(PeerStates{peer, fields.fence, std::nullopt})) return;
    metrics_->dropped_messages.Increment();
  };
  return handler;
}

// Whether draft probabilities may lie in GPU memory, before the model is loaded.
absl::Status DraftService::Impl::CheckGpuDraftProbs(const DraftServiceOptions& options,
                                                    link::GpuSlots* gpu_slots) {
  if (!options.gpu_draft_probs) return absl::FailedPreconditionError(model::kDisabled);
  if (draft_probs_slots_.slot_bytes == 0) {
    return absl::FailedPreconditionError("this draft sends no draft probabilities");
  }
  return gpu_slots->Check();
}

// Hidden states are received in GPU memory by a draft that runs on a GPU, if they can be. Before
// the model is loaded, whose KV cache leaves that memory free.
void DraftService::Impl::SettleStateSlots(const DraftServiceOptions& options,
                                          link::GpuSlots* gpu_slots, model::RankOptions* rank) {
  if (rank->device == model::DeviceKind::kCpu) return;
  const absl::Status able =
      options.gpu_states ? gpu_slots->Check() : absl::FailedPreconditionError(model::kDisabled);
  LogFeature(model::kGpuStates, able);
  if (!able.ok()) return;
  state_slots_.kind = transport::MemoryKind::kCuda;
  rank->kv_sizing.reserved_bytes +=
      static_cast<int64_t>(state_slots_.slot_bytes) * state_slots_.slots;
}

absl::Status DraftService::Impl::AddStateSlots() {
  absl::Status gpu;
  const auto pool = link::AddPoolOrHosts(*link_, kStatePool, state_slots_, &gpu);
  if (!gpu.ok()) LogFeature(model::kGpuStates, gpu);
  return pool.status();
}

// A draft that runs on a GPU keeps draft probabilities there if it can: their slots' memory is left
// free by the KV cache and taken at once. Otherwise they are on the host.
absl::Status DraftService::Impl::LoadModel(const DraftServiceOptions& options,
                                           const model::ModelConfig& config) {
  const bool on_gpu = options.rank.device == model::DeviceKind::kCuda;
  link::GpuSlots gpu_slots(options.fabric);
  draft_probs_slots_ = DraftProbsSlots(options.engine, config.vocabulary);
  const auto slot_bytes = draft_probs_slots_.slot_bytes;
  absl::Status able = on_gpu ? CheckGpuDraftProbs(options, &gpu_slots) : absl::OkStatus();
  model::RankOptions rank = options.rank;
  if (config.states) SettleStateSlots(options, &gpu_slots, &rank);
  if (on_gpu && able.ok()) {
    rank.kv_sizing.reserved_bytes += static_cast<int64_t>(slot_bytes) * draft_probs_slots_.slots;
  }
  auto model = model::RankModel::Load(options.model_dir, rank, communicator_.get());
  if (!model.ok()) return model.status();
  model_ = *std::move(model);
  config_ = model_->config();
  if (!on_gpu) return absl::OkStatus();
  if (able.ok()) {
    // Each row of a pass may need a row of draft probabilities.
    draft_rows_ = verification::DeviceDraftRows::Create(model_->device());
    able = draft_rows_->Reserve(config_.vocabulary, options.engine.max_step_tokens);
  }
  if (able.ok()) {
    draft_probs_slots_.kind = transport::MemoryKind::kCuda;
  } else {
    draft_rows_.reset();
    LogFeature(model::kGpuDraftProbs, able);
  }
  return absl::OkStatus();
}

// Takes the slots in GPU memory at once; on the host, if they cannot be had, when a target needs
// them.
void DraftService::Impl::AddGpuSlots() {
  auto pool = link_->AddPool(kDraftProbsPool, draft_probs_slots_);
  LogFeature(model::kGpuDraftProbs, pool.status());
  if (pool.ok()) {
    draft_probs_pool_ = *std::move(pool);
  } else {
    draft_probs_slots_.kind = transport::MemoryKind::kHost;
  }
}

absl::Status DraftService::Impl::Start(const DraftServiceOptions& options,
                                       const model::ModelConfig& config,
                                       metrics::Registry* registry) {
  communicator_ = std::move(model::MakeThreadCommunicators(1)[0]);
  if (absl::Status loaded = LoadModel(options, config); !loaded.ok()) return loaded;
  const bool draft_probs_on_gpu = draft_probs_slots_.kind == transport::MemoryKind::kCuda;
  const bool states_on_gpu = state_slots_.kind == transport::MemoryKind::kCuda;
  const model::RankOptions& rank = model_->options();

  link::LinkOptions link_options;
  link_options.fabric = options.fabric;
  if (draft_probs_on_gpu || states_on_gpu) link_options.fabric.gpu = 0;  // the only rank's
  link_options.listen = options.listen;
  link_options.socket = options.socket;
  schemas::Hello& hello = link_options.hello;
  hello.role = schemas::Role::kDraft;
  hello.incarnation = base::RandomNonzero64();
  hello.model = options.model_name;
  hello.tokenizer_fingerprint = options.tokenizer_fingerprint;
  hello.numerics_fingerprint = model_->NumericsFingerprint();
  hello.vocabulary = config_.vocabulary;
  hello.context = options.engine.sessions.context;
  hello.verification_methods = (1u << speculation::kVerificationMethods) - 1;
  hello.capacity = options.engine.sessions.max_sessions;
  if (config_.states) {
    const size_t row_bytes = config_.states->layers.size() * config_.states->target_hidden * 2;
    if (row_bytes > schemas::kStateSlotBytes) {
      return absl::UnimplementedError(absl::StrCat("a position's hidden states have ", row_bytes,
                                                   " bytes; allowed: up to ",
                                                   schemas::kStateSlotBytes));
    }
    hello.state_layers = config_.states->layers;
    spdlog::info("{} reads the target's hidden states at boundaries {} of its layers",
                 model::Name(config_.states->kind), absl::StrJoin(hello.state_layers, ", "));
    hello.state_rows =
        std::min(kMostStateRows, static_cast<int32_t>(schemas::kStateSlotBytes / row_bytes));
    hello.state_pool = kStatePool;
  }
  link_options.accept = [ours = hello](const schemas::Hello& theirs) {
    return theirs.role == schemas::Role::kTarget ? schemas::CheckPair(theirs, ours)
                                                 : absl::OkStatus();
  };

  metrics_ = std::make_unique<metrics::DraftMetrics>(*registry);
  metrics_->capacity.Set(options.engine.sessions.max_sessions);
  metrics_->kv_tokens.Set(static_cast<double>(int64_t{rank.kv_blocks} * rank.block_size));
  DraftEngineOptions engine = options.engine;
  engine.sessions.kv_blocks = rank.kv_blocks;
  engine_ = std::make_unique<DraftEngine>(
      engine, std::move(model_), std::move(draft_rows_),
      [this](const transport::Fence& fence) -> absl::StatusOr<transport::Lease> {
        if (draft_probs_pool_ == nullptr)
          return absl::UnavailableError("no memory for draft probabilities");
        return draft_probs_pool_->Acquire(fence);
      },
      [this](link::PeerId peer, schemas::DraftReply reply, OutgoingDraftProbs draft_probs) {
        SendReply(peer, std::move(reply), std::move(draft_probs));
      });
  auto link = link::Link::Create(std::move(link_options), MakeHandler());
  if (!link.ok()) return link.status();
  link_ = *std::move(link);
  if (draft_probs_on_gpu) AddGpuSlots();
  if (config_.states) {
    if (absl::Status added = AddStateSlots(); !added.ok()) return added;
  }
  fabric_metrics_ = std::make_unique<metrics::FabricMetrics>(
      *registry, [this] { return link::ReadCounters(*link_); });
  if (absl::Status started = link_->Start(); !started.ok()) return started;
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

DraftService::Impl::~Impl() {
  stopping_ = true;
  inbox_.Close();
  if (thread_.joinable()) thread_.join();
  fabric_metrics_.reset();
  link_.reset();
}

void DraftService::Impl::SendReply(link::PeerId peer, schemas::DraftReply reply,
                                   OutgoingDraftProbs draft_probs) {
  metrics_->CountRequest(static_cast<int>(reply.status));
  if (reply.status == schemas::DraftStatus::kOk) {
    metrics_->draft_seconds.Observe(base::ToSeconds(reply.draft_time));
  }
  absl::Status sent = absl::OkStatus();
  // The larger part first: the target cannot use the reply alone.
  if (draft_probs.lease) {
    metrics_->draft_probs_bytes.Increment(draft_probs.bytes);
    const transport::TensorFields fields = {
        {reply.target_incarnation, reply.round}, draft_probs.pool, reply.sequence};
    sent = link_->SendTensor(peer, schemas::TensorType::kDraftProbs, fields,
                             std::move(draft_probs.lease), draft_probs.bytes);
  }
  if (sent.ok()) sent = link_->Send(peer, reply);
  if (!sent.ok()) {
    spdlog::warn("draft peer={} sequence={} round={}: reply not sent: {}", peer, reply.sequence,
                 reply.round, base::Message(sent));
  }
}

bool DraftService::Impl::IsOf(link::PeerId peer, uint64_t target_incarnation) {
  std::lock_guard lock(peers_mutex_);
  const auto own = peers_.find(peer);
  if (own == peers_.end()) return false;  // the peer has gone in the meantime
  if (own->second == target_incarnation) return true;
  metrics_->foreign_messages.Increment();
  return false;
}

void DraftService::Impl::Handle(PeerMessage& input) {
  if (auto* request = std::get_if<schemas::DraftRequest>(&input.message)) {
    if (!IsOf(input.peer, request->target_incarnation)) return;
    engine_->Accept(input.peer, *request, base::Now());
  } else if (auto* end = std::get_if<schemas::EndSession>(&input.message)) {
    if (!IsOf(input.peer, end->target_incarnation)) return;
    engine_->EndSession({end->target_incarnation, end->sequence});
  } else if (auto* states = std::get_if<schemas::HiddenStates>(&input.message)) {
    if (!IsOf(input.peer, states->target_incarnation)) return;
    EndIfBroken(states_.Add(std::move(*states)));
  } else if (!std::holds_alternative<schemas::Drain>(input.message)) {
    spdlog::warn("draft peer={}: message of a kind drafts do not take", input.peer);
  }
}

void DraftService::Impl::Handle(const DraftProbsWanted&) {
  if (draft_probs_pool_ != nullptr || draft_probs_slots_.slot_bytes == 0) return;
  auto pool = link_->AddPool(kDraftProbsPool, draft_probs_slots_);
  if (pool.ok()) {
    draft_probs_pool_ = *std::move(pool);
  } else {
    spdlog::error("draft: {} slots of {} bytes for draft probabilities: {}",
                  draft_probs_slots_.slots, draft_probs_slots_.slot_bytes,
                  base::Message(pool.status()));
  }
}

void DraftService::Impl::Handle(const TargetGone& gone) {
  engine_->TargetGone(gone.incarnation);
  states_.TargetGone(gone.incarnation);
}

void DraftService::Impl::Handle(PeerStates& states) {
  if (!IsOf(states.peer, states.fence.incarnation)) return;
  EndIfBroken(states_.Add(states.fence, std::move(states.tensor)));
}

void DraftService::Impl::Handle(const DebugQuery& query) {
  query.answer->set_value(engine_->sessions().DebugJson(base::Now()));
}

void DraftService::Impl::UpdateMetrics() {
  const SessionStats stats = engine_->sessions().stats();
  metrics_->sessions.Set(stats.sessions);
  for (; reported_.evicted_lru < stats.evicted_lru; ++reported_.evicted_lru) {
    metrics_->CountEviction(metrics::Eviction::kLru);
  }
  for (; reported_.expired_ttl < stats.expired_ttl; ++reported_.expired_ttl) {
    metrics_->CountEviction(metrics::Eviction::kTtl);
  }
  for (; reported_.purged < stats.purged; ++reported_.purged) {
    metrics_->CountEviction(metrics::Eviction::kPurge);
  }
  ReportEngine();
}

void DraftService::Impl::ReportEngine() {
  const DraftEngineStats& now = engine_->stats();
  const auto count = [](uint64_t total, uint64_t* reported, metrics::Counter* counter) {
    counter->Increment(static_cast<double>(total - *reported));
    *reported = total;
  };
  count(now.nodes_sent, &reported_engine_.nodes_sent, &metrics_->tree_nodes);
  count(now.passes, &reported_engine_.passes, &metrics_->passes);
  count(now.passes_ahead, &reported_engine_.passes_ahead, &metrics_->passes_ahead);
  count(now.nodes_ahead, &reported_engine_.nodes_ahead, &metrics_->nodes_ahead);
  count(now.replies_without_pass, &reported_engine_.replies_without_pass,
        &metrics_->replies_without_pass);
  count(now.states, &reported_engine_.states, &metrics_->states);
  count(now.state_bytes, &reported_engine_.state_bytes, &metrics_->state_bytes);
  count(now.invalid_states, &reported_engine_.invalid_states, &metrics_->invalid_states);
  count(now.refused_states, &reported_engine_.refused_states, &metrics_->refused_states);
  count(states_.lost(), &reported_lost_states_, &metrics_->lost_states);
  for (int level = 0; level < kOutcomeLevels; ++level) {
    for (int outcome = 0; outcome < kOutcomes; ++outcome) {
      uint64_t* reported = &reported_engine_.outcomes[level][outcome];
      if (now.outcomes[level][outcome] == *reported) continue;
      count(now.outcomes[level][outcome], reported, metrics_->Outcomes(outcome, level));
    }
  }
}

void DraftService::Impl::Run() {
  base::Nanos expire_at = base::Now() + kExpireInterval;
  while (!stopping_.load()) {
    for (Input& input : inbox_.PopAll(engine_->can_step() ? 0 : expire_at)) {
      busy_ = true;
      std::visit([this](auto& i) { Handle(i); }, input);
    }
    if (draining_.load()) engine_->SetDraining();
    EndIfBroken(engine_->Step());
    busy_ = !engine_->idle();
    if (base::Now() >= expire_at) {
      engine_->sessions().Expire(base::Now());
      expire_at = base::Now() + kExpireInterval;
    }
    UpdateMetrics();
  }
}

std::string DraftService::Impl::DebugSessions() {
  auto answer = std::make_shared<std::promise<std::string>>();
  auto future = answer->get_future();
  const bool asked = inbox_.Push(DebugQuery{answer});
  if (!asked || future.wait_for(std::chrono::seconds(2)) != std::future_status::ready) {
    return "{\"error\":\"the engine did not answer within 2 s\"}";
  }
  return future.get();
}

void DraftService::Impl::Drain(base::Nanos timeout) {
  draining_ = true;
  inbox_.Wake();
  {
    std::lock_guard lock(peers_mutex_);
    for (const auto& [peer, incarnation] : peers_) {
      link_->Send(peer, schemas::Drain{}).IgnoreError();
    }
  }
  const base::Nanos deadline = base::Now() + timeout;
  while (busy_.load() && base::Now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  link_->Flush(link::kLastMessagesTimeout);  // the last trees
}

DraftService::DraftService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DraftService::~DraftService() = default;

absl::StatusOr<std::unique_ptr<DraftService>> DraftService::Start(
    const DraftServiceOptions& options, metrics::Registry* registry) {
  auto config = model::LoadDraftConfig(options.model_dir, options.rank.target_dir);
  if (!config.ok()) return config.status();
  DraftServiceOptions filled = options;
  SessionTableOptions& sessions = filled.engine.sessions;
  sessions.block_size = options.rank.block_size;
  auto context = model::ServedContext(*config, sessions.context);
  if (!context.ok()) return context.status();
  sessions.context = *context;
  auto impl = std::make_unique<Impl>();
  if (absl::Status status = impl->Start(filled, *config, registry); !status.ok()) return status;
  return std::unique_ptr<DraftService>(new DraftService(std::move(impl)));
}

const std::string& DraftService::listen_address() const { return impl_->listen_address(); }
const model::ModelConfig& DraftService::config() const { return impl_->config(); }
bool DraftService::ready() const { return !impl_->draining(); }
std::string DraftService::DebugSessions() { return impl_->DebugSessions(); }
void DraftService::Drain(base::Nanos timeout) { impl_->Drain(timeout); }

}  // namespace specfabric::draft
