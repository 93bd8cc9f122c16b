#include "target/draft_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/hash.h"
#include "base/status.h"
#include "sampling/uniform.h"
#include "spdlog/spdlog.h"
#include "speculation/tree.h"

namespace specfabric::target {

using schemas::DraftReply;
using schemas::DraftRequest;
using schemas::DraftStatus;

namespace {

// A second resync in a round starts from nothing, a third goes to another worker (design.md).
constexpr int kMaxResyncs = 2;
// After which a worker that answers nothing is counted against, even if nobody waits for it. At
// least twice the time of a step that drafts can speed up.
constexpr base::Nanos kUnansweredLimit = 100 * base::kMillisecond;

speculation::TokenTree ToTree(base::TokenId root, const DraftReply& reply) {
  speculation::TokenTree tree = speculation::TokenTree::Root(root);
  tree.parents.insert(tree.parents.end(), reply.parents.begin(), reply.parents.end());
  tree.tokens.insert(tree.tokens.end(), reply.tokens.begin(), reply.tokens.end());
  tree.scores.insert(tree.scores.end(), reply.scores.begin(), reply.scores.end());
  return tree;
}

// Whether draft_probs come, or have come, beside this reply. A reply without draft tokens needs
// none.
bool AwaitsDraftProbs(speculation::VerificationMethod verification, const DraftReply& reply) {
  return speculation::NeedsDraftRows(verification, reply.draw) && !reply.tokens.empty();
}

uint64_t PrefixHash(const std::vector<base::TokenId>& tokens, int32_t length) {
  return base::ExtendPrefixHash(base::kEmptyPrefixHash, absl::MakeConstSpan(tokens.data(), length));
}

}  // namespace

DraftClient::DraftClient(const DraftClientOptions& options, scheduler::Scheduler* scheduler,
                         Send send, SendEnd send_end, DraftSink sink)
    : options_(options),
      scheduler_(scheduler),
      send_(std::move(send)),
      send_end_(std::move(send_end)),
      sink_(std::move(sink)),
      router_(options.router) {}

void DraftClient::PeerUp(PeerId peer, const schemas::Hello& hello) {
  capacity_[peer] = hello.capacity;
  router_.OnUp(peer, hello.capacity);
}

void DraftClient::ForgetSession(Route* route) {
  route->worker = 0;
  route->acked_length = 0;
  route->acked_hash = base::kEmptyPrefixHash;
}

void DraftClient::GiveUp(Route* route) {
  route->request_id = 0;
  route->early_reply.reset();
  route->early_draft_probs.reset();
  sink_.none(route->want.id, route->want.round);
}

void DraftClient::PeerDown(PeerId peer) {
  if (capacity_.erase(peer) == 0) return;
  router_.OnDown(peer);
  for (auto& [id, route] : routes_) {
    if (route.worker != peer) continue;
    ForgetSession(&route);
    if (route.request_id != 0) {
      ++stats_.misses;
      GiveUp(&route);
    }
  }
}

void DraftClient::PeerDraining(PeerId peer) { router_.OnDrain(peer); }

void DraftClient::Open(base::SequenceId id, const DraftTerms& terms) {
  Route& route = routes_[id];
  route.terms = terms;
  ForgetSession(&route);
}

void DraftClient::Want(const scheduler::DraftWanted& want, base::Nanos now) {
  auto it = routes_.find(want.id);
  if (it == routes_.end()) return;
  Route* route = &it->second;
  if (route->request_id != 0) LeaveRequest(route, now);
  route->request_id = 0;
  route->miss_counted = false;
  route->want = want;
  route->resyncs = 0;
  route->early_reply.reset();
  route->early_draft_probs.reset();
  route->draft_probs.reset();
  const auto worker = router_.Route(want.id, want.committed, now);
  if (!worker.has_value()) {
    ++stats_.unroutable;
    return GiveUp(route);
  }
  SendRequest(route, *worker, now);
}

// It is void; a late reply will be told by its id. That it did not pay to wait is nothing against
// the worker, unless it has been silent for longer than it may be: a step takes longer than the
// usual reply, and a worker that has much to read several steps.
void DraftClient::LeaveRequest(Route* route, base::Nanos now) {
  route->left_id = route->request_id;
  route->left_sent = route->sent;
  route->left_deadline = route->want.deadline;
  const base::Nanos reply_timeout = route->want.deadline - route->sent;
  if (now - route->unanswered_since >= std::max(reply_timeout, kUnansweredLimit)) {
    return CountMiss(route, now);
  }
  if (!std::exchange(route->miss_counted, true)) router_.OnAbandoned(route->worker);
}

void DraftClient::CountMiss(Route* route, base::Nanos now) {
  if (std::exchange(route->miss_counted, true)) return;
  ++stats_.misses;
  router_.OnMiss(route->worker, now);
}

void DraftClient::SendRequest(Route* route, PeerId worker, base::Nanos now) {
  if (worker != route->worker) {
    if (route->worker != 0) send_end_(route->worker, {options_.incarnation, route->want.id});
    ForgetSession(route);
    route->worker = worker;
    route->unanswered_since = 0;
  }
  const std::vector<base::TokenId>* tokens = scheduler_->Committed(route->want.id);
  if (tokens == nullptr) return;
  DraftRequest request;
  request.target_incarnation = options_.incarnation;
  request.sequence = route->want.id;
  request.round = route->want.round;
  request.request_id = route->request_id = next_request_++;
  request.base_length = route->acked_length;
  request.base_hash = route->acked_hash;
  request.append_tokens.assign(tokens->begin() + route->acked_length,
                               tokens->begin() + route->want.committed);
  request.max_nodes = route->want.max_nodes;
  request.max_depth = route->want.max_depth;
  request.trace = route->terms.trace;
  request.cost_per_second = static_cast<float>(route->want.cost_per_second);
  request.cost_per_row = static_cast<float>(route->want.cost_per_row);
  request.time_budget = std::max<base::Nanos>(route->want.deadline - now, 0);
  request.verification = route->terms.verification;
  request.sampling = route->terms.sampling;
  request.prompt_length = route->terms.prompt_length;
  request.draw = sampling::DrawNumber(route->terms.attempt, route->want.round);
  request.draft_probs_pool = static_cast<uint8_t>(route->want.id % options_.draft_probs_pools);
  request.draft_probs_bytes = options_.draft_probs_bytes;
  route->sent = now;
  if (route->unanswered_since == 0) route->unanswered_since = now;
  ++stats_.requests;
  if (absl::Status sent = send_(worker, request); !sent.ok()) {
    CountMiss(route, now);
    ForgetSession(route);
    GiveUp(route);
  }
}

void DraftClient::HandleResync(Route* route, const DraftReply& reply, base::Nanos now) {
  ++stats_.resyncs;
  const PeerId worker = route->worker;
  route->acked_length = 0;
  route->acked_hash = base::kEmptyPrefixHash;
  if (++route->resyncs > kMaxResyncs) {
    // This worker contradicts itself; another may not.
    router_.OnBusy(worker, route->want.id, now);
    ForgetSession(route);
    const auto other = router_.Route(route->want.id, route->want.committed, now);
    if (!other.has_value()) return GiveUp(route);
    route->miss_counted = false;
    return SendRequest(route, *other, now);
  }
  const std::vector<base::TokenId>* tokens = scheduler_->Committed(route->want.id);
  if (tokens == nullptr) return;
  if (route->resyncs == 1) {
    for (const schemas::PrefixPoint& point : reply.known) {
      if (point.length > static_cast<int32_t>(tokens->size())) continue;
      if (PrefixHash(*tokens, point.length) != point.hash) continue;
      route->acked_length = point.length;
      route->acked_hash = point.hash;
      break;
    }
  }
  SendRequest(route, worker, now);
}

absl::StatusOr<speculation::Draft> DraftClient::ToDraft(Route* route, const DraftReply& reply,
                                                        base::TokenId root) {
  speculation::Draft draft = {
      .tree = ToTree(root, reply), .draw = reply.draw, .drafter = options_.drafter};
  const int allowed = std::min(route->want.max_nodes + 1, speculation::kMaxVerifyNodes);
  absl::Status valid = speculation::Validate(draft.tree, allowed, options_.vocabulary);
  if (!valid.ok() || !AwaitsDraftProbs(route->terms.verification, reply)) {
    if (valid.ok()) return draft;
    return valid;
  }
  const int rows = speculation::NodesWithChildren(draft.tree);
  if (reply.draft_probs_rows != rows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "draft_probs: ", reply.draft_probs_rows, " rows for ", rows, " nodes that have children"));
  }
  DraftProbsTensor& tensor = *route->early_draft_probs;
  const speculation::DraftProbsShape shape = {rows, options_.vocabulary, reply.draft_probs_entries};
  auto opened = tensor.on_device() ? options_.open_on_device(shape, tensor.bytes())
                                   : speculation::DraftProbs::Open(shape, tensor.bytes());
  if (!opened.ok()) return opened.status();
  draft.draft_row = speculation::DraftRows(draft.tree);
  ++stats_.draft_probs;
  stats_.draft_probs_bytes += tensor.bytes().size();
  route->draft_probs = ReceivedDraftProbs{std::move(tensor), *std::move(opened)};
  return draft;
}

bool DraftClient::HandleTree(Route* route, const DraftReply& reply, base::Nanos now) {
  const std::vector<base::TokenId>* tokens = scheduler_->Committed(route->want.id);
  if (tokens == nullptr) return false;
  // What was asked for, which may be over by now.
  const auto asked = absl::MakeConstSpan(*tokens).first(route->want.committed);
  auto draft = ToDraft(route, reply, asked.back());
  if (!draft.ok()) {
    spdlog::warn("draft peer={} sequence={} round={}: {}", route->worker, route->want.id,
                 route->want.round, base::Message(draft.status()));
    ++stats_.invalid;
    CountMiss(route, now);
    GiveUp(route);
    return false;
  }
  route->request_id = 0;
  route->early_draft_probs.reset();
  route->acked_hash = base::ExtendPrefixHash(route->acked_hash, asked.subspan(route->acked_length));
  route->acked_length = route->want.committed;
  last_round_trip_ = now - route->sent;
  last_draft_time_ = std::clamp<base::Nanos>(reply.draft_time, 0, last_round_trip_);
  if (route->miss_counted) {
    router_.OnLateReply(route->worker, route->want.id, last_round_trip_, now);
  } else {
    router_.OnReply(route->worker, route->want.id, last_round_trip_, reply.free_sessions, now);
  }
  sink_.draft(route->want.id, route->want.round, *std::move(draft), now);
  return true;
}

bool DraftClient::HandleOk(Route* route, DraftReply reply, base::Nanos now) {
  const speculation::VerificationMethod verification = route->terms.verification;
  if (reply.sampling_tag != schemas::SamplingTag(verification, route->terms.sampling) ||
      !speculation::Allows(verification, reply.draw)) {
    spdlog::warn(
        "draft peer={} sequence={} round={}: draft tokens drawn as {} for other sampling than "
        "was asked for, or not for {}",
        route->worker, route->want.id, route->want.round, speculation::Name(reply.draw),
        speculation::Name(verification));
    ++stats_.mismatched;
    CountMiss(route, now);
    GiveUp(route);
    return false;
  }
  if (AwaitsDraftProbs(verification, reply) && !route->early_draft_probs) {
    route->early_reply = std::move(reply);
    return false;
  }
  return HandleTree(route, reply, now);
}

DraftClient::Route* DraftClient::FindRound(PeerId peer, base::SequenceId id,
                                           const transport::Fence& fence) {
  const auto it = routes_.find(id);
  if (it == routes_.end() || fence.incarnation != options_.incarnation ||
      it->second.worker != peer || it->second.request_id == 0 ||
      it->second.want.round != fence.round) {
    ++stats_.stale;
    return nullptr;
  }
  return &it->second;
}

bool DraftClient::OnDraftProbs(PeerId peer, DraftProbsTensor tensor, base::Nanos now) {
  Route* route = FindRound(peer, tensor.fields.tag, tensor.fields.fence);
  if (route == nullptr) return false;
  route->early_draft_probs = std::move(tensor);
  if (!route->early_reply) return false;
  const DraftReply reply = *std::exchange(route->early_reply, std::nullopt);
  return HandleTree(route, reply, now);
}

void DraftClient::OnDraftProbsRefused(PeerId peer, const transport::TensorFields& fields) {
  Route* route = FindRound(peer, fields.tag, fields.fence);
  if (route == nullptr) return;
  ++stats_.refused_draft_probs;
  GiveUp(route);
}

void DraftClient::LearnFrom(PeerId peer, const DraftReply& reply, base::Nanos now) {
  const auto it = routes_.find(reply.sequence);
  if (it == routes_.end() || it->second.worker != peer ||
      reply.target_incarnation != options_.incarnation) {
    return;
  }
  Route& route = it->second;
  route.unanswered_since = 0;
  // A worker whose replies are never waited for is a slow one, and must look it; but out of service
  // it must not stay for that alone.
  if (reply.request_id == route.left_id && route.left_id != 0) {
    const base::Nanos latency = now - route.left_sent;
    if (now < route.left_deadline) {
      router_.OnUnusedReply(peer, reply.sequence, latency, now);
    } else {
      router_.OnLateReply(peer, reply.sequence, latency, now);
    }
    route.left_id = 0;
  }
  if (reply.status != DraftStatus::kOk || reply.round >= route.want.round ||
      !speculation::Allows(route.terms.verification, reply.draw)) {
    return;
  }
  speculation::Draft late = {
      .tree = ToTree(0, reply), .draw = reply.draw, .drafter = options_.drafter};
  if (!Validate(late.tree, speculation::kMaxVerifyNodes, options_.vocabulary).ok()) return;
  sink_.draft(reply.sequence, reply.round, std::move(late), now);
}

const speculation::DraftProbs* DraftClient::draft_probs(base::SequenceId id) const {
  const auto it = routes_.find(id);
  return it == routes_.end() || !it->second.draft_probs ? nullptr : &it->second.draft_probs->rows;
}

void DraftClient::ReleaseDraftProbs(base::SequenceId id) {
  if (auto it = routes_.find(id); it != routes_.end()) it->second.draft_probs.reset();
}

bool DraftClient::OnReply(PeerId peer, DraftReply reply, base::Nanos now) {
  LearnFrom(peer, reply, now);
  Route* route = FindRound(peer, reply.sequence, {reply.target_incarnation, reply.round});
  if (route == nullptr) return false;
  if (route->request_id != reply.request_id) {
    ++stats_.stale;
    return false;
  }
  ++stats_.replies[static_cast<int>(reply.status)];
  switch (reply.status) {
    case DraftStatus::kOk:
      return HandleOk(route, std::move(reply), now);
    case DraftStatus::kNeedResync:
      HandleResync(route, reply, now);
      return false;
    case DraftStatus::kBusy:
      router_.OnBusy(peer, reply.sequence, now);
      break;
    case DraftStatus::kDraining:
      router_.OnDrain(peer);
      break;
    case DraftStatus::kUnsupported:
    case DraftStatus::kTooLong:
      // The worker is well; it cannot serve this sequence now. Nobody waits for it.
      if (!route->miss_counted) router_.OnRefused(peer);
      break;
  }
  GiveUp(route);
  ForgetSession(route);
  return false;
}

void DraftClient::Expire(base::Nanos now) {
  for (auto& [id, route] : routes_) {
    if (route.request_id == 0 || now < route.want.deadline) continue;
    // Its reply may still come and be used until the next Want, so the request stays known.
    CountMiss(&route, now);
  }
}

void DraftClient::Ended(base::SequenceId id) {
  auto it = routes_.find(id);
  if (it == routes_.end()) return;
  if (it->second.request_id != 0 && !it->second.miss_counted)
    router_.OnAbandoned(it->second.worker);
  router_.OnEnd(id);
  if (it->second.worker != 0) send_end_(it->second.worker, {options_.incarnation, id});
  routes_.erase(it);
}

}  // namespace specfabric::target
