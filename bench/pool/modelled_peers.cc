#include "bench/pool/modelled_peers.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace specfabric::bench {
namespace {

using base::Nanos;
using link::PeerId;

// The text of a target's sequence, among those of all targets.
uint64_t TextOf(uint64_t incarnation, base::SequenceId sequence) {
  return (incarnation << 32) + sequence;
}

}  // namespace

void SleepUntil(Nanos time) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(std::max<Nanos>(0, time - base::Now())));
}

void StartLink(link::LinkOptions options, link::LinkHandler handler,
               std::unique_ptr<link::Link>* link) {
  *link = OrDie(link::Link::Create(std::move(options), std::move(handler)));
  const absl::Status started = (*link)->Start();
  if (started.ok()) return;
  std::fprintf(stderr, "%s\n", started.ToString().c_str());
  std::exit(1);
}

link::LinkOptions LinkAs(schemas::Role role) {
  link::LinkOptions options;
  options.fabric.spin = 0;
  options.listen = "127.0.0.1:0";
  options.hello.role = role;
  options.hello.model = "modelled";
  options.hello.vocabulary = scheduler::ModelledText::kVocabulary;
  options.hello.context = 1 << 20;
  options.hello.verification_methods = 1;
  options.hello.capacity = 1024;
  return options;
}

DraftPeer::DraftPeer(const scheduler::SimulationOptions& options)
    : options_(options), text_(options.acceptance, options.seed), draft_(options_.draft, text_) {
  link::LinkHandler handler;
  handler.on_message = [this](PeerId peer, link::Message message) {
    std::lock_guard lock(mutex_);
    inbox_.emplace_back(peer, std::move(message));
    come_.notify_one();
  };
  link::LinkOptions link = LinkAs(schemas::Role::kDraft);
  link.hello.capacity = options.draft_sessions;
  StartLink(std::move(link), std::move(handler), &link_);
  thread_ = std::thread([this] { Serve(); });
}

DraftPeer::~DraftPeer() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
    come_.notify_one();
  }
  thread_.join();
}

bool DraftPeer::TakeInput(bool wait) {
  std::vector<std::pair<PeerId, link::Message>> inbox;
  {
    std::unique_lock lock(mutex_);
    if (wait) come_.wait(lock, [this] { return ends_ || !inbox_.empty(); });
    if (ends_) return false;
    inbox.swap(inbox_);
  }
  for (auto& [peer, message] : inbox) {
    if (auto* request = std::get_if<schemas::DraftRequest>(&message)) {
      scheduler::DraftWanted want;
      want.id = TextOf(request->target_incarnation, request->sequence);
      want.round = request->round;
      want.committed = request->base_length + static_cast<int32_t>(request->append_tokens.size());
      want.max_nodes = request->max_nodes;
      want.max_depth = request->max_depth;
      want.cost_per_row = request->cost_per_row;
      want.cost_per_second = request->cost_per_second;
      draft_.Ask(want, request->target_incarnation);
      asked_[want.id] = {peer, std::move(*request)};
    } else if (auto* end = std::get_if<schemas::EndSession>(&message)) {
      draft_.Forget(TextOf(end->target_incarnation, end->sequence));
    }
  }
  return true;
}

void DraftPeer::Serve() {
  while (TakeInput(draft_.idle())) {
    if (draft_.idle()) continue;
    draft_.StartPass(base::Now());
    SleepUntil(draft_.ends());
    for (scheduler::ModelledDraft::Reply& reply : draft_.EndPass()) Send(std::move(reply));
  }
}

void DraftPeer::Send(scheduler::ModelledDraft::Reply grown) {
  const Asked& asked = asked_.at(grown.want.id);
  if (asked.request.round != grown.want.round) return;  // the target has moved on
  schemas::DraftReply reply;
  reply.target_incarnation = asked.request.target_incarnation;
  reply.sequence = asked.request.sequence;
  reply.round = asked.request.round;
  reply.request_id = asked.request.request_id;
  reply.sampling_tag = schemas::SamplingTag(asked.request.verification, asked.request.sampling);
  reply.free_sessions = options_.draft_sessions - draft_.sessions();
  reply.tree = std::move(grown.tree);
  link_->Send(asked.peer, reply).IgnoreError();
}

TargetPeer::TargetPeer(const scheduler::SimulationOptions& simulation, uint64_t incarnation,
                       const std::vector<std::string>& drafts)
    : options_(simulation),
      incarnation_(incarnation),
      text_(simulation.acceptance, simulation.seed),
      metrics_(registry_, "modelled", speculation::kMaxVerifyNodes - 1) {
  target::TargetEngineOptions options;
  options.scheduler = simulation.scheduler;
  options.scheduler.vocabulary = scheduler::ModelledText::kVocabulary;
  options.router = simulation.router;
  options.router.salt = incarnation;
  options.incarnation = incarnation;
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
  handler.on_up = [this](PeerId peer, const schemas::Hello& hello, const std::string& address) {
    engine_->Post(target::PeerUp{peer, hello, address});
    if (hello.role == schemas::Role::kDraft) ++drafts_up_;
  };
  handler.on_message = [this](PeerId peer, link::Message message) {
    SPECFABRIC_CHECK(engine_->Post(target::PeerMessage{peer, std::move(message)}));
  };
  handler.on_down = [this](PeerId peer, const absl::Status&) {
    engine_->Post(target::PeerDown{peer});
  };
  link::LinkOptions link = LinkAs(schemas::Role::kTarget);
  link.hello.incarnation = incarnation;
  link.connect = drafts;
  StartLink(std::move(link), std::move(handler), &link_);
  thread_ = std::thread([this] { engine_->Run(); });
}

TargetPeer::~TargetPeer() {
  Stop();
  link_.reset();
}

void TargetPeer::Stop() {
  engine_->Stop();
  if (thread_.joinable()) thread_.join();
}

absl::Status TargetPeer::Run(const scheduler::StepPlan& plan, scheduler::StepResult* result) const {
  const Nanos ends = base::Now() + options_.step.Of(plan);
  *result = text_.Verify(plan, TextOf(incarnation_, 0));
  SleepUntil(ends);
  return absl::OkStatus();
}

}  // namespace specfabric::bench
