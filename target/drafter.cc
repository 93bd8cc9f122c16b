#include "target/drafter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status.h"
#include "spdlog/spdlog.h"

namespace specfabric::target {

using base::TokenId;
using schemas::DraftReply;
using schemas::DraftRequest;
using schemas::DraftStatus;
using speculation::Draft;

namespace {

std::optional<DraftEvent> ToEvent(std::optional<NoDraft> none) {
  if (!none) return std::nullopt;
  return *none;
}

}  // namespace

bool Drafter::has_worker() const {
  const std::vector<scheduler::DraftState>& workers = router_.States();
  return std::any_of(workers.begin(), workers.end(),
                     [](const scheduler::DraftState& worker) { return !worker.draining; });
}

std::optional<NoDraft> Drafter::Ask(const scheduler::DraftWanted& want, bool extra,
                                    absl::Span<const TokenId> text, base::Nanos now,
                                    DraftSession* session) {
  if (session->in_flight()) {
    // A late reply to the request that is left will be known by its id.
    const DraftSession::Unanswered left = session->LeaveRequest(now);
    if (left == DraftSession::Unanswered::kAbandoned) router_.OnAbandoned(session->worker());
    if (left == DraftSession::Unanswered::kMiss) {
      ++stats_->misses;
      router_.OnMiss(session->worker(), now);
    }
  }
  session->StartRound(want, extra);
  const std::optional<scheduler::DraftId> worker = router_.Route(want.id, want.committed, now);
  if (!worker) {
    ++stats_->unroutable;
    return GiveUp(session);
  }
  return SendRequest(*worker, text, now, session);
}

PeerId Drafter::StateReader(base::SequenceId id, int32_t committed, base::Nanos now,
                            DraftSession* session) {
  if (session->worker() == 0) {
    const std::optional<scheduler::DraftId> worker = router_.Settle(id, committed, now);
    if (worker) session->MoveTo(*worker);
  }
  session->SetHasStates(session->worker() != 0);
  return session->worker();
}

std::optional<NoDraft> Drafter::SendRequest(PeerId worker, absl::Span<const TokenId> text,
                                            base::Nanos now, DraftSession* session) {
  if (worker != session->worker()) {
    Leave(session);
    session->MoveTo(worker);
  }
  if (reads_states_ && !session->has_states()) {
    // It could only wait for states that will not come. The next step sends it some.
    router_.OnAbandoned(worker);
    ++stats_->unroutable;
    return GiveUp(session);
  }
  ++stats_->requests;
  const DraftRequest request = session->MakeRequest(*options_, text, next_request_++, now);
  if (outbox_->request(worker, request).ok()) return std::nullopt;
  CountMiss(now, session);
  session->Forget();
  return GiveUp(session);
}

void Drafter::Leave(DraftSession* session) {
  if (session->worker() == 0) return;
  outbox_->end_session(session->worker(), {options_->incarnation, session->want().id});
  session->Forget();
}

std::optional<NoDraft> Drafter::GiveUp(DraftSession* session) {
  session->GiveUp();
  const scheduler::DraftWanted& want = session->want();
  if (session->extra(want.round)) return std::nullopt;
  return NoDraft{want.id, want.round};
}

void Drafter::CountMiss(base::Nanos now, DraftSession* session) {
  if (!session->MarkMissed()) return;
  ++stats_->misses;
  router_.OnMiss(session->worker(), now);
}

void Drafter::End(base::SequenceId id, const DraftSession& session) {
  if (session.in_flight() && !session.missed()) router_.OnAbandoned(session.worker());
  router_.OnEnd(id);
  if (session.worker() != 0) outbox_->end_session(session.worker(), {options_->incarnation, id});
}

std::optional<DraftEvent> Drafter::OnReply(DraftReply reply, absl::Span<const TokenId> text,
                                           base::Nanos now, DraftSession* session) {
  LearnLatency(reply, now, session);
  if (!session->in_flight() || session->want().round != reply.round ||
      session->request_id() != reply.request_id) {
    ++stats_->stale;
    return LateDraft(std::move(reply), *session);
  }
  ++stats_->replies[static_cast<int>(reply.status)];
  switch (reply.status) {
    case DraftStatus::kOk:
      return OnOk(std::move(reply), text, now, session);
    case DraftStatus::kNeedResync:
      return ToEvent(Resync(reply, text, now, session));
    case DraftStatus::kBusy:
    case DraftStatus::kDraining:
    case DraftStatus::kUnsupported:
    case DraftStatus::kTooLong:
      break;
  }
  return ToEvent(OnRefusal(reply.status, now, session));
}

// A worker whose replies always come too late is slow, and its latency must show that. One that
// answers within the deadline is not kept out of service because no round waited for its reply.
void Drafter::LearnLatency(const DraftReply& reply, base::Nanos now, DraftSession* session) {
  const auto left = session->OnAnswer(reply.request_id);
  if (!left) return;
  const base::Nanos latency = now - left->sent;
  if (now < left->deadline) {
    router_.OnUnusedReply(session->worker(), reply.sequence, latency, now);
  } else {
    router_.OnLateReply(session->worker(), reply.sequence, latency, now);
  }
}

std::optional<DraftEvent> Drafter::LateDraft(DraftReply reply, const DraftSession& session) const {
  if (reply.status != DraftStatus::kOk || reply.round >= session.want().round ||
      !speculation::Allows(session.terms().verification, reply.draw)) {
    return std::nullopt;
  }
  Draft draft = {.tree = std::move(reply.tree), .draw = reply.draw, .drafter = index_};
  draft.tree.tokens[0] = 0;  // any token will do, since this tree is not verified
  const absl::Status valid =
      speculation::CheckLimits(draft.tree, speculation::kMaxVerifyNodes, options_->vocabulary);
  if (!valid.ok()) return std::nullopt;
  return DraftArrived{.id = reply.sequence,
                      .round = reply.round,
                      .draft = std::move(draft),
                      .extra = session.extra(reply.round)};
}

std::optional<NoDraft> Drafter::OnRefusal(DraftStatus status, base::Nanos now,
                                          DraftSession* session) {
  if (status == DraftStatus::kBusy) {
    router_.OnBusy(session->worker(), session->want().id, now);
  } else if (status == DraftStatus::kDraining) {
    router_.OnDrain(session->worker());
  } else if (!session->missed()) {
    // The worker is well; it only cannot serve this sequence now.
    router_.OnRefused(session->worker());
  }
  Leave(session);
  return GiveUp(session);
}

std::optional<NoDraft> Drafter::Resync(const DraftReply& reply, absl::Span<const TokenId> text,
                                       base::Nanos now, DraftSession* session) {
  ++stats_->resyncs;
  const PeerId worker = session->worker();
  if (session->Resync(reply.known, text)) return SendRequest(worker, text, now, session);
  // This worker contradicts itself; another may not.
  router_.OnBusy(worker, session->want().id, now);
  Leave(session);
  const auto other = router_.Route(session->want().id, session->want().committed, now);
  if (!other) return GiveUp(session);
  return SendRequest(*other, text, now, session);
}

std::optional<DraftEvent> Drafter::OnOk(DraftReply reply, absl::Span<const TokenId> text,
                                        base::Nanos now, DraftSession* session) {
  const DraftTerms& terms = session->terms();
  if (reply.sampling_tag != schemas::SamplingTag(terms.verification, terms.sampling) ||
      !speculation::Allows(terms.verification, reply.draw)) {
    spdlog::warn(
        "draft peer={} sequence={} round={}: draft tokens drawn as {} for other sampling than "
        "was asked for, or not for {}",
        session->worker(), session->want().id, session->want().round, speculation::Name(reply.draw),
        speculation::Name(terms.verification));
    ++stats_->mismatched;
    CountMiss(now, session);
    return ToEvent(GiveUp(session));
  }
  std::optional<DraftReply> complete = session->Join(std::move(reply));
  if (!complete) return std::nullopt;
  return OnComplete(*std::move(complete), text, now, session);
}

std::optional<DraftEvent> Drafter::OnDraftProbs(transport::KeptTensor tensor,
                                                absl::Span<const TokenId> text, base::Nanos now,
                                                DraftSession* session) {
  std::optional<DraftReply> complete = session->Join(std::move(tensor));
  if (!complete) return std::nullopt;
  return OnComplete(*std::move(complete), text, now, session);
}

std::optional<DraftEvent> Drafter::OnComplete(DraftReply reply, absl::Span<const TokenId> text,
                                              base::Nanos now, DraftSession* session) {
  const scheduler::DraftWanted& want = session->want();
  absl::StatusOr<Draft> draft = session->TakeDraft(*options_, text, &reply);
  if (!draft.ok()) {
    spdlog::warn("draft peer={} sequence={} round={}: {}", session->worker(), want.id, want.round,
                 base::Message(draft.status()));
    ++stats_->invalid;
    CountMiss(now, session);
    return ToEvent(GiveUp(session));
  }
  draft->drafter = index_;
  if (session->draft_probs() != nullptr) {
    ++stats_->draft_probs;
    stats_->draft_probs_bytes += session->draft_probs()->bytes().size();
  }
  const base::Nanos round_trip = now - session->sent();
  if (session->missed()) {
    router_.OnLateReply(session->worker(), want.id, round_trip, now);
  } else {
    router_.OnReply(session->worker(), want.id, round_trip, reply.free_sessions, now);
  }
  return DraftArrived{
      .id = want.id,
      .round = want.round,
      .draft = *std::move(draft),
      .extra = session->extra(want.round),
      .times = {{.round_trip = round_trip,
                 .draft = std::clamp<base::Nanos>(reply.draft_time, 0, round_trip)}}};
}

}  // namespace specfabric::target
