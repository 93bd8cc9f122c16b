#include "target/group_leader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "link/fabric_counters.h"
#include "link/link.h"
#include "spdlog/spdlog.h"
#include "target/group_fabric.h"
#include "target/step_parts.h"

namespace specfabric::target {

namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(100);

// A rank process that has joined. It sends a message of one kind only after the previous one of
// that kind was answered, so there is never more than one of each.
struct Member {
  link::PeerId peer = 0;
  std::string address;
  RankRange ranks;
  std::optional<schemas::GroupReady> ready;
  std::optional<schemas::Collective> collective;
  std::optional<schemas::StepDone> done;
};

absl::Status AcceptRank(const schemas::Hello& theirs) {
  if (theirs.role == schemas::Role::kRank) return absl::OkStatus();
  return absl::InvalidArgumentError("only rank processes join a group");
}

}  // namespace

class GroupLeader::Impl {
 public:
  Impl(const GroupOptions& options, int ranks, std::function<void(const absl::Status&)> on_lost)
      : options_(options), ranks_(ranks), on_lost_(std::move(on_lost)) {}
  ~Impl();

  RankRange RanksOf(int process) const {
    const int first = ranks_ * process / options_.processes;
    return {ranks_, first, ranks_ * (process + 1) / options_.processes - first};
  }
  absl::Status Gather(const transport::FabricOptions& fabric, const schemas::Hello& hello,
                      const schemas::GroupPart& part);
  absl::Status FinishLoading(const absl::StatusOr<std::unique_ptr<RankGroup>>& here);
  absl::Status Run(RankGroup* here, const scheduler::StepPlan& plan, const VerifyInputs& inputs,
                   StepTimes* times, scheduler::StepResult* result);
  bool Exchange(const std::vector<absl::Span<const uint8_t>>& mine,
                std::vector<std::vector<uint8_t>>* all);
  metrics::FabricCounters counters() const { return link::ReadCounters(*link_); }
  // The group is lost. Only the first call has an effect.
  void Lose(const absl::Status& why);

 private:
  link::LinkHandler Handler();
  void OnUp(link::PeerId peer, const std::string& address);
  void OnDown(link::PeerId peer, const absl::Status& why);
  void OnMessage(link::PeerId peer, link::Message message);
  void AssignRanks(const schemas::GroupPart& part);
  // Waits for Gather and FinishLoading. `condition` is called with the mutex held.
  template <typename Condition>
  absl::Status WaitFor(const char* what, Condition condition);
  absl::Status CompareFingerprints(uint64_t here);
  // False: the group is lost. Called and returns with the mutex held.
  template <typename Condition>
  bool WaitInStep(std::unique_lock<std::mutex>& lock, Condition condition) {
    changed_.wait(lock, [&] { return !lost_.ok() || condition(); });
    return lost_.ok();
  }
  bool Serving() {
    std::lock_guard lock(mutex_);
    return serving_;
  }
  bool AllMembers(bool (*has)(const Member&)) const {
    return std::all_of(members_.begin(), members_.end(), has);
  }
  template <typename M>
  void SendOrLose(link::PeerId peer, const M& message) {
    const absl::Status sent = link_->Send(peer, message);
    if (!sent.ok()) Lose(sent);
  }
  // Reads members_ without the mutex: they are fixed once the ranks are assigned.
  void SendStep(const scheduler::StepPlan& plan,
                absl::Span<const speculation::DraftProbs* const> draft_probs);
  absl::Status TakeParts(std::vector<std::vector<uint8_t>>* all);
  absl::Status Collect(const scheduler::StepPlan& plan, int32_t vocabulary);

  const GroupOptions options_;
  const int ranks_;
  const std::function<void(const absl::Status&)> on_lost_;
  base::Nanos deadline_ = 0;    // of Gather and FinishLoading
  uint64_t op_ = 0;             // of the rank that exchanges
  VerifyResult verify_result_;  // of Run, kept for its memory

  std::mutex mutex_;  // guards all below except the links
  std::condition_variable changed_;
  std::vector<Member> members_;  // by rank; fixed once assigned_
  bool assigned_ = false, serving_ = false, losing_ = false, closing_ = false;
  absl::Status lost_;

  std::unique_ptr<link::Link> link_;
  // For callbacks, which may run while link_ is being destroyed.
  std::atomic<link::Link*> open_link_{nullptr};
};

GroupLeader::Impl::~Impl() {
  std::vector<link::PeerId> peers;
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    for (const Member& member : members_) peers.push_back(member.peer);
  }
  open_link_ = nullptr;
  if (link_ == nullptr) return;
  for (link::PeerId peer : peers) link_->Send(peer, schemas::Drain{}).IgnoreError();
  link_->Flush(link::kLastMessagesTimeout);
  link_.reset();
}

link::LinkHandler GroupLeader::Impl::Handler() {
  link::LinkHandler handler;
  handler.on_up = [this](link::PeerId peer, const schemas::Hello&, const std::string& address) {
    OnUp(peer, address);
  };
  handler.on_down = [this](link::PeerId peer, const absl::Status& why) { OnDown(peer, why); };
  handler.on_message = [this](link::PeerId peer, link::Message message) {
    OnMessage(peer, std::move(message));
  };
  return handler;
}

void GroupLeader::Impl::OnUp(link::PeerId peer, const std::string& address) {
  {
    std::lock_guard lock(mutex_);
    if (!assigned_ && static_cast<int>(members_.size()) + 1 < options_.processes) {
      Member& member = members_.emplace_back();
      member.peer = peer;
      member.address = address;
      return changed_.notify_all();
    }
  }
  spdlog::warn("rank process {} refused: the group already has {} processes", address,
               options_.processes);
  if (link::Link* link = open_link_.load()) link->Close(peer);
}

void GroupLeader::Impl::OnDown(link::PeerId peer, const absl::Status& why) {
  std::string address;
  {
    std::lock_guard lock(mutex_);
    const auto member = std::find_if(members_.begin(), members_.end(),
                                     [peer](const Member& m) { return m.peer == peer; });
    if (member == members_.end() || closing_) return;
    // Before ranks are assigned another process may take its place.
    if (!assigned_) {
      members_.erase(member);
      return;
    }
    address = member->address;
  }
  Lose(absl::UnavailableError(absl::StrCat(
      "rank process ", address, " is lost: ", why.ok() ? "it closed" : base::Message(why))));
}

void GroupLeader::Impl::OnMessage(link::PeerId peer, link::Message message) {
  bool taken = false;
  {
    std::lock_guard lock(mutex_);
    for (Member& member : members_) {
      if (member.peer != peer) continue;
      if (auto* collective = std::get_if<schemas::Collective>(&message)) {
        taken = !member.collective.has_value();
        member.collective = std::move(*collective);
      } else if (auto* done = std::get_if<schemas::StepDone>(&message)) {
        taken = !member.done.has_value();
        member.done = std::move(*done);
      } else if (auto* ready = std::get_if<schemas::GroupReady>(&message)) {
        taken = !member.ready.has_value();
        member.ready = *ready;
      }
    }
  }
  if (!taken) return Lose(absl::InternalError("a rank process breaks the protocol"));
  changed_.notify_all();
}

void GroupLeader::Impl::Lose(const absl::Status& why) {
  bool tell = false;
  {
    std::lock_guard lock(mutex_);
    if (losing_ || closing_) return;
    losing_ = true;
    tell = serving_;
  }
  // Before lost_ is set: a waiting Run would return and report a failed step to clients.
  if (tell) on_lost_(why);
  {
    std::lock_guard lock(mutex_);
    lost_ = why;
  }
  changed_.notify_all();
}

template <typename Condition>
absl::Status GroupLeader::Impl::WaitFor(const char* what, Condition condition) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait_for(lock, kPollInterval, [&] { return !lost_.ok() || condition(); });
    if (!lost_.ok()) return lost_;
    if (condition()) return absl::OkStatus();
    if (options_.give_up && options_.give_up()) return absl::CancelledError("asked to end");
    if (base::Now() < deadline_) continue;
    return absl::DeadlineExceededError(absl::StrCat(members_.size(), " of ", options_.processes - 1,
                                                    " rank processes have joined ", options_.listen,
                                                    ", and not all have ", what));
  }
}

void GroupLeader::Impl::AssignRanks(const schemas::GroupPart& part) {
  std::vector<Member> members;
  {
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < members_.size(); ++i) {
      members_[i].ranks = RanksOf(static_cast<int>(i) + 1);
    }
    assigned_ = true;
    members = members_;
  }
  for (const Member& member : members) {
    schemas::GroupPart theirs = part;
    theirs.ranks = member.ranks.ranks;
    theirs.first_rank = member.ranks.first;
    theirs.rank_count = member.ranks.count;
    spdlog::info("rank process {} holds ranks {} to {}", member.address, theirs.first_rank,
                 theirs.first_rank + theirs.rank_count - 1);
    SendOrLose(member.peer, theirs);
  }
}

absl::Status GroupLeader::Impl::Gather(const transport::FabricOptions& fabric,
                                       const schemas::Hello& hello,
                                       const schemas::GroupPart& part) {
  link::LinkOptions options;
  options.fabric = GroupFabric(fabric);
  options.hello = hello;
  options.listen = options_.listen;
  options.socket = options_.socket;
  options.accept = AcceptRank;
  auto link = link::Link::Create(std::move(options), Handler());
  if (!link.ok()) return link.status();
  link_ = *std::move(link);
  open_link_ = link_.get();
  if (absl::Status started = link_->Start(); !started.ok()) return started;
  spdlog::info("waiting for {} rank processes on {}", options_.processes - 1,
               link_->listen_address());
  deadline_ = base::Now() + options_.timeout;
  absl::Status joined = WaitFor(
      "joined", [this] { return static_cast<int>(members_.size()) + 1 == options_.processes; });
  if (!joined.ok()) return joined;
  AssignRanks(part);
  return absl::OkStatus();
}

absl::Status GroupLeader::Impl::FinishLoading(
    const absl::StatusOr<std::unique_ptr<RankGroup>>& here) {
  if (absl::IsAborted(here.status()) || absl::IsDeadlineExceeded(here.status())) {
    // The process that has the cause ends, and its loss is a more specific error than `here`.
    const absl::Status lost = WaitFor("loaded", [] { return false; });
    std::lock_guard lock(mutex_);
    return absl::IsDeadlineExceeded(lost) && lost_.ok() ? here.status() : lost;
  }
  if (!here.ok()) return here.status();
  absl::Status loaded = WaitFor("loaded", [this] {
    return AllMembers([](const Member& member) { return member.ready.has_value(); });
  });
  if (!loaded.ok()) return loaded;
  const uint64_t fingerprint = (*here)->NumericsFingerprint();
  for (const Member& member : members_) {
    SendOrLose(member.peer, schemas::GroupReady{fingerprint});
  }
  if (absl::Status same = CompareFingerprints(fingerprint); !same.ok()) return same;
  std::lock_guard lock(mutex_);
  serving_ = true;
  return lost_;
}

absl::Status GroupLeader::Impl::CompareFingerprints(uint64_t here) {
  for (const Member& member : members_) {
    const uint64_t theirs = member.ready->numerics_fingerprint;
    if (theirs == here) continue;
    // An error of the other process: this one may try again.
    return absl::UnavailableError(absl::StrFormat(
        "rank process %s has other weights or kernels than the leader: its fingerprint is %016x, "
        "the leader's %016x",
        member.address, theirs, here));
  }
  return absl::OkStatus();
}

void GroupLeader::Impl::SendStep(const scheduler::StepPlan& plan,
                                 absl::Span<const speculation::DraftProbs* const> draft_probs) {
  schemas::EncodedStep same;  // of the members that get no draft probabilities
  for (const Member& member : members_) {
    const schemas::StepView step = MakeStep(plan, draft_probs, member.ranks);
    if (!step.draft_probs.empty()) {
      SendOrLose(member.peer, step);
      continue;
    }
    if (same.bytes.empty()) same.bytes = schemas::Encode(step);
    SendOrLose(member.peer, same);
  }
}

absl::Status GroupLeader::Impl::Run(RankGroup* here, const scheduler::StepPlan& plan,
                                    const VerifyInputs& inputs, StepTimes* times,
                                    scheduler::StepResult* result) {
  SendStep(plan, inputs.draft_probs);
  verify_result_.Reset(plan);
  const absl::Status own = here->Execute(plan, inputs, &verify_result_, times);
  const absl::Status theirs = Collect(plan, here->config().vocabulary);
  if (!own.ok()) return own;
  if (!theirs.ok()) return theirs;
  Accept(plan, verify_result_, result);
  return absl::OkStatus();
}

absl::Status GroupLeader::Impl::Collect(const scheduler::StepPlan& plan, int32_t vocabulary) {
  std::unique_lock lock(mutex_);
  const auto done = [](const Member& member) { return member.done.has_value(); };
  if (!WaitInStep(lock, [&] { return AllMembers(done); })) return lost_;
  absl::Status merged;
  for (Member& member : members_) {
    merged.Update(MergeDone(plan, *member.done, vocabulary, &verify_result_));
    member.done.reset();
  }
  return merged;
}

absl::Status GroupLeader::Impl::TakeParts(std::vector<std::vector<uint8_t>>* all) {
  for (Member& member : members_) {
    if (member.collective->op != op_ ||
        static_cast<int>(member.collective->parts.size()) != member.ranks.count) {
      return absl::InternalError(
          absl::StrCat("rank process ", member.address, " is in another collective"));
    }
    for (auto& part : member.collective->parts) all->push_back(std::move(part));
    member.collective.reset();
  }
  return absl::OkStatus();
}

bool GroupLeader::Impl::Exchange(const std::vector<absl::Span<const uint8_t>>& mine,
                                 std::vector<std::vector<uint8_t>>* all) {
  schemas::Collective answer;
  answer.op = op_;
  for (const auto part : mine) answer.parts.emplace_back(part.begin(), part.end());
  absl::Status taken;
  {
    const auto here = [](const Member& member) { return member.collective.has_value(); };
    // The watchdog limits the time of a step, but not of loading.
    if (!Serving()) {
      const absl::Status met = WaitFor("loaded", [&] { return AllMembers(here); });
      if (!met.ok()) {
        Lose(met);
        return false;
      }
    }
    std::unique_lock lock(mutex_);
    if (!WaitInStep(lock, [&] { return AllMembers(here); })) return false;
    taken = TakeParts(&answer.parts);
  }
  if (!taken.ok()) {
    Lose(taken);
    return false;
  }
  for (const Member& member : members_) SendOrLose(member.peer, answer);
  ++op_;
  *all = std::move(answer.parts);
  return true;
}

GroupLeader::GroupLeader(const GroupOptions& options, int ranks,
                         std::function<void(const absl::Status&)> on_lost)
    : impl_(std::make_unique<Impl>(options, ranks, std::move(on_lost))) {}
GroupLeader::~GroupLeader() = default;

int GroupLeader::rank_count() const { return impl_->RanksOf(0).count; }
absl::Status GroupLeader::Gather(const transport::FabricOptions& fabric,
                                 const schemas::Hello& hello, const schemas::GroupPart& part) {
  return impl_->Gather(fabric, hello, part);
}
absl::Status GroupLeader::FinishLoading(const absl::StatusOr<std::unique_ptr<RankGroup>>& here) {
  return impl_->FinishLoading(here);
}
absl::Status GroupLeader::Run(RankGroup* here, const scheduler::StepPlan& plan,
                              const VerifyInputs& inputs, StepTimes* times,
                              scheduler::StepResult* result) {
  return impl_->Run(here, plan, inputs, times, result);
}
metrics::FabricCounters GroupLeader::counters() const { return impl_->counters(); }
bool GroupLeader::Exchange(const std::vector<absl::Span<const uint8_t>>& mine,
                           std::vector<std::vector<uint8_t>>* all) {
  return impl_->Exchange(mine, all);
}
void GroupLeader::Diverged() {
  impl_->Lose(absl::InternalError("the ranks are in different collectives"));
}

}  // namespace specfabric::target
