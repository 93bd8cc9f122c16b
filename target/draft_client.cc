#include "target/draft_client.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"
#include "base/hash.h"
#include "base/status.h"
#include "spdlog/spdlog.h"
#include "speculation/tree.h"

namespace specfabric::target {

using schemas::DraftReply;
using schemas::DraftRequest;
using schemas::DraftStatus;

namespace {

// A second resync in a round starts from nothing, a third goes to another worker (design.md).
constexpr int kMaxResyncs = 2;

speculation::TokenTree ToTree(base::TokenId root, const DraftReply& reply) {
  speculation::TokenTree tree = speculation::TokenTree::Root(root);
  tree.parents.insert(tree.parents.end(), reply.parents.begin(), reply.parents.end());
  tree.tokens.insert(tree.tokens.end(), reply.tokens.begin(), reply.tokens.end());
  tree.scores.insert(tree.scores.end(), reply.scores.begin(), reply.scores.end());
  return tree;
}

uint64_t PrefixHash(const std::vector<base::TokenId>& tokens, int32_t length) {
  return base::ExtendPrefixHash(base::kEmptyPrefixHash, absl::MakeConstSpan(tokens.data(), length));
}

}  // namespace

DraftClient::DraftClient(const DraftClientOptions& options, scheduler::Scheduler* scheduler,
                         Send send, SendEnd send_end)
    : options_(options),
      scheduler_(scheduler),
      send_(std::move(send)),
      send_end_(std::move(send_end)),
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
  scheduler_->OnNoDraft(route->want.id, route->want.round);
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

void DraftClient::Open(base::SequenceId id, const base::SamplingParams& sampling,
                       int32_t prompt_length) {
  Route& route = routes_[id];
  route.sampling = sampling;
  route.prompt_length = prompt_length;
  ForgetSession(&route);
}

void DraftClient::Want(const scheduler::DraftWanted& want, base::Nanos now) {
  auto it = routes_.find(want.id);
  if (it == routes_.end()) return;
  Route* route = &it->second;
  // An unanswered request of the round before is void; its late reply will be told by its id.
  if (route->request_id != 0) Charge(route, now);
  route->request_id = 0;
  route->charged = false;
  route->want = want;
  route->resyncs = 0;
  const auto worker = router_.Route(want.id, now);
  if (!worker.has_value()) {
    ++stats_.unroutable;
    return GiveUp(route);
  }
  SendRequest(route, *worker, now);
}

void DraftClient::Charge(Route* route, base::Nanos now) {
  if (std::exchange(route->charged, true)) return;
  ++stats_.misses;
  router_.OnMiss(route->worker, now);
}

void DraftClient::SendRequest(Route* route, PeerId worker, base::Nanos now) {
  if (worker != route->worker) {
    if (route->worker != 0) send_end_(route->worker, {options_.incarnation, route->want.id});
    ForgetSession(route);
    route->worker = worker;
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
  request.append_tokens.assign(tokens->begin() + route->acked_length, tokens->end());
  request.max_nodes = route->want.max_nodes;
  request.time_budget = std::max<base::Nanos>(route->want.deadline - now, 0);
  request.sampling = route->sampling;
  request.prompt_length = route->prompt_length;
  route->sent = now;
  ++stats_.requests;
  if (absl::Status sent = send_(worker, request); !sent.ok()) {
    Charge(route, now);
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
    const auto other = router_.Route(route->want.id, now);
    if (!other.has_value()) return GiveUp(route);
    route->charged = false;
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

void DraftClient::HandleTree(Route* route, DraftReply reply, base::Nanos now) {
  const std::vector<base::TokenId>* tokens = scheduler_->Committed(route->want.id);
  if (tokens == nullptr) return;
  route->request_id = 0;
  speculation::TokenTree tree = ToTree(tokens->back(), reply);
  const int allowed = std::min(route->want.max_nodes + 1, speculation::kMaxVerifyNodes);
  if (absl::Status valid = speculation::Validate(tree, allowed, options_.vocabulary); !valid.ok()) {
    spdlog::warn("draft peer={} sequence={} round={}: {}", route->worker, route->want.id,
                 route->want.round, base::Message(valid));
    ++stats_.invalid;
    if (!std::exchange(route->charged, true)) router_.OnMiss(route->worker, now);
    return GiveUp(route);
  }
  route->acked_hash = base::ExtendPrefixHash(
      route->acked_hash, absl::MakeConstSpan(*tokens).subspan(route->acked_length));
  route->acked_length = static_cast<int32_t>(tokens->size());
  last_round_trip_ = now - route->sent;
  last_draft_time_ = std::clamp<base::Nanos>(reply.draft_time, 0, last_round_trip_);
  if (route->charged) {
    router_.OnLateReply(route->worker, last_round_trip_);
  } else {
    router_.OnReply(route->worker, last_round_trip_, reply.free_sessions);
  }
  scheduler_->OnDraft(route->want.id, route->want.round, std::move(tree), now);
}

void DraftClient::OnReply(PeerId peer, DraftReply reply, base::Nanos now) {
  auto it = routes_.find(reply.sequence);
  if (it == routes_.end() || reply.target_incarnation != options_.incarnation ||
      it->second.worker != peer || it->second.request_id == 0 ||
      it->second.request_id != reply.request_id || it->second.want.round != reply.round) {
    ++stats_.stale;
    return;
  }
  Route* route = &it->second;
  ++stats_.replies[static_cast<int>(reply.status)];
  switch (reply.status) {
    case DraftStatus::kOk:
      return HandleTree(route, std::move(reply), now);
    case DraftStatus::kNeedResync:
      return HandleResync(route, reply, now);
    case DraftStatus::kBusy:
      router_.OnBusy(peer, reply.sequence, now);
      break;
    case DraftStatus::kDraining:
      router_.OnDrain(peer);
      break;
    case DraftStatus::kUnsupported:
    case DraftStatus::kTooLong:
      // The worker is well; it cannot serve this sequence now. Nobody waits for it.
      if (!route->charged) router_.OnReply(peer, now - route->sent, reply.free_sessions);
      break;
  }
  GiveUp(route);
  ForgetSession(route);
}

void DraftClient::Expire(base::Nanos now) {
  for (auto& [id, route] : routes_) {
    if (route.request_id == 0 || now < route.want.deadline) continue;
    // Its reply may still come and be used until the next Want, so the request stays known.
    Charge(&route, now);
  }
}

void DraftClient::Ended(base::SequenceId id) {
  auto it = routes_.find(id);
  if (it == routes_.end()) return;
  if (it->second.request_id != 0 && !it->second.charged) router_.OnAbandoned(it->second.worker);
  router_.OnEnd(id);
  if (it->second.worker != 0) send_end_(it->second.worker, {options_.incarnation, id});
  routes_.erase(it);
}

}  // namespace specfabric::target
