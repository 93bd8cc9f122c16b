#include "target/rank_service.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "link/fabric_counters.h"
#include "link/link.h"
#include "metrics/fabric_metrics.h"
#include "spdlog/spdlog.h"
#include "target/group_fabric.h"
#include "target/rank_group.h"
#include "target/step_parts.h"

namespace specfabric::target {

namespace {

// Longer than anything that a rank may still be doing when its group ends, except waiting for GPUs
// that are gone.
constexpr base::Nanos kEndGrace = 10 * base::kSecond;

RankGroupOptions OptionsFor(const RankServiceOptions& options, const schemas::GroupPart& part,
                            model::ProcessExchange* exchange) {
  RankGroupOptions ranks;
  ranks.model_dir = options.model_dir;
  ranks.tensor_parallel = part.ranks / part.pipeline_stages;
  ranks.rank.pipeline_stages = part.pipeline_stages;
  ranks.rank.device = part.cuda ? model::DeviceKind::kCuda : model::DeviceKind::kCpu;
  ranks.rank.dtype = part.bfloat16 ? model::DataType::kBFloat16 : model::DataType::kFloat32;
  ranks.rank.kv_blocks = part.kv_blocks;
  ranks.rank.block_size = part.block_size;
  ranks.rank.threads = options.threads;
  ranks.rank.batch_invariant = part.batch_invariant;
  ranks.rank.reference = part.reference;
  ranks.rank.cuda_graphs = part.cuda_graphs;
  ranks.rank.flash_attention = part.flash_attention;
  ranks.rank.max_rows = part.max_rows;
  ranks.rank.join_timeout = part.join_timeout;
  ranks.typical = {.epsilon = part.typical_epsilon, .delta = part.typical_delta};
  ranks.exchange = exchange;
  ranks.first_rank = part.first_rank;
  ranks.rank_count = part.rank_count;
  return ranks;
}

}  // namespace

class RankService::Impl : public model::ProcessExchange {
 public:
  explicit Impl(const RankServiceOptions& options) : options_(options) {}
  ~Impl() override;
  absl::Status Start(metrics::Registry* registry);

  bool Exchange(const std::vector<absl::Span<const uint8_t>>& mine,
                std::vector<std::vector<uint8_t>>* all) override;
  void Diverged() override { End(absl::InternalError("the ranks are in different collectives")); }

  std::atomic<bool> ready_{false}, finished_{false};
  absl::Status result_;  // written before finished_
  std::atomic<base::Nanos> ended_at_{0};
  std::atomic<uint64_t> fingerprint_{0};  // of the ranks here, once they are loaded

  // Ends the service; OK: without an error. False: it had ended before, and `why` is ignored.
  bool End(const absl::Status& why);

 private:
  void OnUp(link::PeerId peer, const schemas::Hello& leader);
  void OnMessage(link::Message message);
  absl::Status CheckLeader(const schemas::Hello& leader) const;
  // Waits until the box is filled and empties it. Nullopt: the service has ended.
  template <typename M>
  std::optional<M> Take(std::optional<M>* box) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || box->has_value(); });
    if (ended_) return std::nullopt;
    return std::exchange(*box, std::nullopt);
  }
  template <typename M>
  bool Send(const M& message) {
    const absl::Status sent = link_->Send(leader_, message);
    if (!sent.ok()) End(sent);
    return sent.ok();
  }
  // The service's thread.
  void Serve();
  absl::Status Load(const schemas::GroupPart& part);
  bool ExchangeReady();
  bool Ended() {
    std::lock_guard lock(mutex_);
    return ended_;
  }
  void Compare(const schemas::GroupReady& leader);
  absl::Status RunStep(const schemas::Step& step, const RankRange& here, int64_t slots);

  const RankServiceOptions options_;
  model::ModelConfig config_;
  std::unique_ptr<RankGroup> ranks_;
  int size_ = 0;                // of the group, in ranks
  uint64_t op_ = 0;             // of the rank that exchanges
  VerifyResult verify_result_;  // of the step at hand

  std::mutex mutex_;  // guards all below except the link and the thread
  std::condition_variable changed_;
  bool ended_ = false;
  absl::Status why_;
  link::PeerId leader_ = 0;  // fixed once part_ has come, or the service has ended
  std::optional<schemas::GroupPart> part_;
  std::optional<schemas::GroupReady> leader_ready_;
  std::optional<schemas::Step> step_;
  std::optional<schemas::Collective> collective_;

  std::thread thread_;
  std::unique_ptr<link::Link> link_;
  std::unique_ptr<metrics::FabricMetrics> fabric_metrics_;
};

absl::Status RankService::Impl::Start(metrics::Registry* registry) {
  auto config = model::LoadModelConfig(options_.model_dir);
  if (!config.ok()) return config.status();
  config_ = *std::move(config);
  link::LinkOptions options;
  options.fabric = GroupFabric(options_.fabric);
  options.connect = {options_.join};
  options.hello.role = schemas::Role::kRank;
  options.hello.model = options_.model_name;
  options.hello.tokenizer_fingerprint = options_.tokenizer_fingerprint;
  options.hello.vocabulary = config_.vocabulary;
  link::LinkHandler handler;
  handler.on_up = [this](link::PeerId peer, const schemas::Hello& leader, const std::string&) {
    OnUp(peer, leader);
  };
  handler.on_message = [this](link::PeerId, link::Message message) {
    OnMessage(std::move(message));
  };
  handler.on_down = [this](link::PeerId, const absl::Status& why) {
    End(absl::UnavailableError(absl::StrCat("the leader at ", options_.join, " is lost: ",
                                            why.ok() ? "it closed" : base::Message(why))));
  };
  auto link = link::Link::Create(std::move(options), std::move(handler));
  if (!link.ok()) return link.status();
  link_ = *std::move(link);
  fabric_metrics_ = std::make_unique<metrics::FabricMetrics>(
      *registry, [this] { return link::ReadCounters(*link_); });
  if (absl::Status started = link_->Start(); !started.ok()) return started;
  thread_ = std::thread([this] { Serve(); });
  return absl::OkStatus();
}

RankService::Impl::~Impl() {
  End(absl::OkStatus());
  if (thread_.joinable()) thread_.join();
  fabric_metrics_.reset();
  link_.reset();
}

absl::Status RankService::Impl::CheckLeader(const schemas::Hello& leader) const {
  if (leader.role != schemas::Role::kTarget) {
    return absl::InvalidArgumentError(absl::StrCat("--join=", options_.join, ": that is a ",
                                                   schemas::Name(leader.role), ", not a target"));
  }
  if (leader.vocabulary != config_.vocabulary ||
      leader.tokenizer_fingerprint != options_.tokenizer_fingerprint) {
    return absl::InvalidArgumentError(
        absl::StrCat(options_.model_dir, " is another model than the leader's '", leader.model,
                     "': its vocabulary or tokenizer.json differs"));
  }
  return absl::OkStatus();
}

void RankService::Impl::OnUp(link::PeerId peer, const schemas::Hello& leader) {
  {
    std::lock_guard lock(mutex_);
    leader_ = peer;
  }
  if (absl::Status fits = CheckLeader(leader); !fits.ok()) End(fits);
}

void RankService::Impl::OnMessage(link::Message message) {
  if (std::holds_alternative<schemas::Drain>(message)) {
    End(absl::OkStatus());
    return;
  }
  if (auto* ready = std::get_if<schemas::GroupReady>(&message)) Compare(*ready);
  bool taken = false;
  {
    std::lock_guard lock(mutex_);
    if (auto* part = std::get_if<schemas::GroupPart>(&message)) {
      taken = !part_.has_value() && !ready_;
      part_ = *part;
    } else if (auto* ready = std::get_if<schemas::GroupReady>(&message)) {
      taken = !leader_ready_.has_value() && !ready_;
      leader_ready_ = *ready;
    } else if (auto* step = std::get_if<schemas::Step>(&message)) {
      taken = !step_.has_value();
      step_ = std::move(*step);
    } else if (auto* collective = std::get_if<schemas::Collective>(&message)) {
      taken = !collective_.has_value();
      collective_ = std::move(*collective);
    }
  }
  if (!taken) End(absl::InternalError("the leader breaks the protocol"));
  changed_.notify_all();
}

bool RankService::Impl::End(const absl::Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return false;
    ended_ = true;
    ended_at_ = base::Now();
    why_ = why;
  }
  changed_.notify_all();
  return true;
}

absl::Status RankService::Impl::Load(const schemas::GroupPart& part) {
  const RankGroupOptions options = OptionsFor(options_, part, this);
  if (absl::Status split = model::CheckShape(config_, options.shape()); !split.ok()) return split;
  auto ranks = RankGroup::Start(options);
  if (!ranks.ok()) return ranks.status();
  ranks_ = *std::move(ranks);
  return absl::OkStatus();
}

// False: the service has ended.
bool RankService::Impl::ExchangeReady() {
  fingerprint_ = ranks_->NumericsFingerprint();
  return Send(schemas::GroupReady{fingerprint_}) && Take(&leader_ready_).has_value();
}

// Called as soon as the leader's message arrives: if the fingerprints differ, the leader ends right
// after sending it, and that end alone would not look like an error.
void RankService::Impl::Compare(const schemas::GroupReady& leader) {
  const uint64_t ours = fingerprint_;
  if (ours == leader.numerics_fingerprint) return;
  End(absl::InvalidArgumentError(absl::StrFormat(
      "%s has other weights or kernels than the leader's model: its fingerprint is %016x, the "
      "leader's %016x",
      options_.model_dir, ours, leader.numerics_fingerprint)));
}

absl::Status RankService::Impl::RunStep(const schemas::Step& step, const RankRange& here,
                                        int64_t slots) {
  // A step that fails the checks ends the service: the other ranks would wait for this one.
  auto draft_probs = OpenStep(step, config_.vocabulary, slots, here);
  if (!draft_probs.ok()) return draft_probs.status();
  verify_result_.Reset(step.plan);
  StepTimes times;
  const absl::Status ran = ranks_->Execute(step.plan, {.draft_probs = draft_probs->by_sequence},
                                           &verify_result_, &times);
  // If the service ended during a collective, the result lacks other ranks' parts.
  if (Ended()) return absl::OkStatus();
  schemas::StepDone done;
  if (ran.ok()) {
    done = MakeDone(step.plan, verify_result_);
  } else {
    done.step = step.plan.step;
    done.error = base::Message(ran);
  }
  Send(done);
  return absl::OkStatus();
}

void RankService::Impl::Serve() {
  if (const auto part = Take(&part_)) {
    const RankRange here = {part->ranks, part->first_rank, part->rank_count};
    size_ = here.ranks;
    spdlog::info("loading ranks {} to {} of {}", here.first, here.first + here.count - 1,
                 here.ranks);
    if (absl::Status loaded = Load(*part); !loaded.ok()) {
      End(loaded);
    } else {
      ready_ = ExchangeReady();
    }
    while (const auto step = Take(&step_)) {
      const int64_t slots = int64_t{ranks_->rank_options().kv_blocks} * part->block_size;
      if (absl::Status ran = RunStep(*step, here, slots); !ran.ok()) End(ran);
    }
  }
  // Tells the leader at once that this process has ended.
  link_->Close(leader_);
  result_ = why_;
  finished_ = true;
}

bool RankService::Impl::Exchange(const std::vector<absl::Span<const uint8_t>>& mine,
                                 std::vector<std::vector<uint8_t>>* all) {
  schemas::Collective asked;
  asked.op = op_;
  for (const auto part : mine) asked.parts.emplace_back(part.begin(), part.end());
  if (!Send(asked)) return false;
  auto answer = Take(&collective_);
  if (!answer) return false;
  if (answer->op != op_ || static_cast<int>(answer->parts.size()) != size_) {
    Diverged();
    return false;
  }
  ++op_;
  *all = std::move(answer->parts);
  return true;
}

RankService::RankService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RankService::~RankService() = default;

absl::StatusOr<std::unique_ptr<RankService>> RankService::Start(const RankServiceOptions& options,
                                                                metrics::Registry* registry) {
  auto impl = std::make_unique<Impl>(options);
  if (absl::Status started = impl->Start(registry); !started.ok()) return started;
  return std::unique_ptr<RankService>(new RankService(std::move(impl)));
}

bool RankService::Stop() { return impl_->End(absl::OkStatus()); }
bool RankService::ready() const { return impl_->ready_; }
bool RankService::finished() const { return impl_->finished_; }
bool RankService::hangs() const {
  const base::Nanos ended = impl_->ended_at_;
  return ended != 0 && !finished() && base::Now() - ended > kEndGrace;
}
absl::Status RankService::result() const { return impl_->result_; }

}  // namespace specfabric::target
