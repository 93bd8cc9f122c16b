#include "gateway/dispatcher.h"

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace specfabric::gateway {

using link::PeerId;
using schemas::Finish;

namespace {

// Longer prompts (in tokens) are freed by TargetSender::discard.
constexpr size_t kLongPrompt = 16 << 10;

}  // namespace

Dispatcher::Dispatcher(DispatcherOptions options, TargetSender sender,
                       metrics::GatewayMetrics* metrics)
    : options_(options), sender_(std::move(sender)), metrics_(metrics) {}

uint64_t Dispatcher::Start(schemas::Submit submit, ChoiceSink sink, base::Nanos now,
                           TimeLimit limit) {
  now_ = now;
  if (choices_.empty()) rate_.Begin(now);
  const uint64_t id = next_id_++;
  submit.request_id = id;
  submit.sequence.attempt = 0;
  auto choice = std::make_unique<Choice>(std::move(submit), std::move(sink), limit);
  PlaceOrWait(*choice, now);
  choices_.emplace(id, std::move(choice));
  return id;
}

void Dispatcher::Cancel(uint64_t id) {
  Choice* choice = Find(id);
  if (choice == nullptr || choice->ended) return;
  if (choice->target)
    sender_.cancel(*choice->target, {id, choice->replay.submit().sequence.attempt});
  Release(*choice);
  rate_.Finish(now_);
  Erase(id);
}

bool Dispatcher::Placed(uint64_t id) const {
  const auto found = choices_.find(id);
  return found != choices_.end() && found->second->target.has_value();
}

ChoiceRecord Dispatcher::Record(uint64_t id) const {
  const auto found = choices_.find(id);
  if (found == choices_.end()) return {};
  const Choice& choice = *found->second;
  return {choice.replay.speculation(), choice.fingerprint, choice.exact,
          choice.replay.cached_tokens()};
}

void Dispatcher::OnUp(PeerId peer, const schemas::Hello& hello, base::Nanos now) {
  targets_.Add(peer, hello, now);
  ShowTargets();
  Tick(now);
}

void Dispatcher::OnDown(PeerId peer, base::Nanos now) {
  targets_.Remove(peer);
  ShowTargets();
  std::vector<uint64_t> lost;
  for (const auto& [id, choice] : choices_) {
    if (choice->target == peer) lost.push_back(id);
  }
  for (const uint64_t id : lost) {
    Choice* choice = Find(id);  // an earlier one's sink may have cancelled it
    if (choice == nullptr) continue;
    choice->target.reset();
    if (++choice->losses >= options_.max_attempts) {
      Fail(id, ServerError(absl::StrCat("gave up after ", choice->losses,
                                        " targets were lost while they worked on the request")));
    } else {
      metrics_->resubmissions.Increment();
      NextAttempt(id, now);
    }
  }
  PlaceWaiting(now);
}

void Dispatcher::OnDrain(PeerId peer) {
  targets_.SetDraining(peer);
  ShowTargets();
}

void Dispatcher::OnBatch(PeerId peer, schemas::TokensBatch batch, base::Nanos now) {
  targets_.Heard(peer, now);
  ShowTargets();
  for (schemas::Tokens& tokens : batch.sequences) OnTokens(peer, std::move(tokens), now);
}

void Dispatcher::OnTokens(PeerId peer, schemas::Tokens message, base::Nanos now) {
  now_ = now;
  const uint64_t id = message.request_id;
  Choice* choice = Find(id);
  std::optional<schemas::Tokens> news;
  const uint32_t attempt = message.attempt;
  const bool goes_on = message.finish == Finish::kNone;
  const bool ours = choice != nullptr && choice->target == peer;
  if (ours) news = choice->replay.Apply(std::move(message));
  if (!news) {
    metrics_->stale_tokens.Increment();
    // The target still runs a request that was cancelled: the cancellation was lost, or is under
    // way.
    const bool wanted = ours && choice->replay.submit().sequence.attempt == attempt;
    if (goes_on && !wanted) sender_.cancel(peer, {id, attempt});
    return;
  }
  const Finish finish = news->finish;
  if (finish == Finish::kStop || finish == Finish::kLength) return End(id, *std::move(news));
  const std::string error = std::move(news->error);
  if (!news->prompt_logprobs.empty() || !news->tokens.empty()) {
    news->finish = Finish::kNone;  // the client does not see the end of this attempt
    choice->sink.tokens(*std::move(news));
  }
  if (finish != Finish::kNone && Find(id) != nullptr) Refused(id, peer, finish, error, now);
}

void Dispatcher::Tick(base::Nanos now) {
  now_ = now;
  LeaveStalled(now);
  std::vector<uint64_t> expired;
  for (const auto& [id, choice] : choices_) {
    if (!choice->ended && choice->expired(now)) expired.push_back(id);
  }
  for (const uint64_t id : expired) {
    if (Find(id) != nullptr) Expire(id);  // an earlier one's sink may have cancelled it
  }
  PlaceWaiting(now);
}

void Dispatcher::PlaceWaiting(base::Nanos now) {
  now_ = now;
  backlog_ = false;
  std::vector<uint64_t> waiting;
  for (const auto& [id, choice] : choices_) {
    if (!choice->ended && !choice->target) waiting.push_back(id);
  }
  size_t sent = 0;
  for (const uint64_t id : waiting) {
    Choice* choice = Find(id);  // an earlier one's sink may have cancelled it
    if (choice == nullptr) continue;
    const size_t cost = SubmitCost(choice->replay.submit());
    backlog_ = sent > 0 && sent + cost > kSubmitsATurn;
    if (backlog_) return;
    if (Place(*choice)) {
      sent += cost;
    } else if (now >= choice->deadline) {
      Fail(id, NoTarget(absl::StrCat("no target took the request within ",
                                     options_.target_wait / base::kSecond, " s")));
    }
  }
}

void Dispatcher::LeaveStalled(base::Nanos now) {
  if (options_.stall_timeout == 0) return;
  // This process may itself have been stopped, with messages of its targets still unread.
  if (now - std::exchange(last_check_, now) > options_.stall_timeout / 2) targets_.AllHeard(now);
  for (const PeerId peer : targets_.SilentSince(now - options_.stall_timeout)) {
    spdlog::warn("gateway peer={}: target with work is silent for {} s: its work goes elsewhere",
                 peer, base::ToSeconds(options_.stall_timeout));
    metrics_->stalled_targets.Increment();
    targets_.RemoveStalled(peer);
    sender_.close(peer);  // causes a second OnDown, which finds nothing to do
    OnDown(peer, now);
  }
}

Exactness ExactnessOf(const ChoiceRecord& record) {
  const schemas::VerificationMethod verification = record.speculation.verification;
  if (!schemas::Lossless(verification)) return Exactness::kNone;
  // Only with coupled sampling do the tokens not depend on what the drafts proposed.
  const bool token = record.exact && verification == schemas::VerificationMethod::kCoupled;
  return token ? Exactness::kToken : Exactness::kDistribution;
}

Dispatcher::Choice* Dispatcher::Find(uint64_t id) {
  const auto found = choices_.find(id);
  return found == choices_.end() ? nullptr : found->second.get();
}

bool Dispatcher::Place(Choice& choice) {
  const bool begun = !choice.replay.emitted().empty();
  std::set<PeerId> except = choice.refused_by;
  // The target whose step failed with this choice is the last one to try.
  if (choice.failed_on && except.insert(*choice.failed_on).second && !targets_.Choose(0, except)) {
    except.erase(*choice.failed_on);
  }
  while (const auto peer = targets_.Choose(begun ? choice.fingerprint : 0, except)) {
    if (!sender_.submit(*peer, choice.replay.submit()).ok()) {
      except.insert(*peer);
      continue;
    }
    targets_.Assigned(*peer, now_);
    choice.target = peer;
    const uint64_t fingerprint = targets_.Fingerprint(*peer);
    if (!begun) choice.fingerprint = fingerprint;
    choice.exact = fingerprint != 0 && fingerprint == choice.fingerprint &&
                   (!begun || choice.exact) &&
                   !targets_.ChoosesVerification(*peer, choice.replay.submit());
    return true;
  }
  return false;
}

void Dispatcher::PlaceOrWait(Choice& choice, base::Nanos now) {
  if (!Place(choice)) choice.deadline = now + options_.target_wait;
}

void Dispatcher::Release(Choice& choice) {
  if (choice.target) targets_.Released(*choice.target);
  choice.target.reset();
}

void Dispatcher::Retry(uint64_t id, base::Nanos now) {
  Release(*Find(id));
  if (!NextAttempt(id, now)) return;
  Choice& choice = *Find(id);
  PlaceOrWait(choice, now);
}

bool Dispatcher::NextAttempt(uint64_t id, base::Nanos now) {
  Choice& choice = *Find(id);
  if (const auto finish = choice.replay.NextAttempt()) {
    schemas::Tokens last;
    last.finish = *finish;
    End(id, std::move(last));
    return false;
  }
  choice.deadline = now + options_.target_wait;
  return true;
}

void Dispatcher::Refused(uint64_t id, PeerId peer, Finish finish, const std::string& error,
                         base::Nanos now) {
  Choice& choice = *Find(id);
  switch (finish) {
    case Finish::kRejected:
      return Fail(id, BadRequest("", error));
    case Finish::kOverloaded:
      choice.refused_by.insert(peer);
      if (!targets_.Choose(0, choice.refused_by)) {
        return Fail(id, Overloaded(error, RetryAfter(now)));
      }
      return Retry(id, now);
    case Finish::kDraining:
      OnDrain(peer);
      return Retry(id, now);
    default:  // kError, or a cancellation that nobody asked for
      if (choice.failed_on) {
        return Fail(id, ServerError(absl::StrCat("the target failed: ", error)));
      }
      choice.failed_on = peer;
      metrics_->resubmissions.Increment();
      return Retry(id, now);
  }
}

void Dispatcher::End(uint64_t id, schemas::Tokens last) {
  Choice& choice = *Find(id);
  rate_.Finish(now_);
  Release(choice);
  choice.ended = true;
  choice.sink.tokens(std::move(last));
  Erase(id);
}

void Dispatcher::Fail(uint64_t id, ApiError error) {
  Choice& choice = *Find(id);
  Release(choice);
  choice.ended = true;
  choice.sink.failed(std::move(error));
  Erase(id);
}

void Dispatcher::Erase(uint64_t id) {
  auto node = choices_.extract(id);
  if (node.empty() || sender_.discard == nullptr) return;
  RequestReplay& replay = node.mapped()->replay;
  if (replay.submit().sequence.prompt.size() > kLongPrompt) {
    sender_.discard(std::move(replay).TakeSubmit());
  }
}

void Dispatcher::Expire(uint64_t id) {
  const Choice& choice = *Find(id);
  if (choice.target) sender_.cancel(*choice.target, {id, choice.replay.submit().sequence.attempt});
  Fail(id, TimedOut(absl::StrCat("the request was not finished within ",
                                 base::ToSeconds(choice.limit.timeout), " s")));
}

void Dispatcher::ShowTargets() { metrics_->targets_up.Set(targets_.Available()); }

}  // namespace specfabric::gateway
