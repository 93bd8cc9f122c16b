#include "target/draft_pool.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "spdlog/spdlog.h"

namespace specfabric::target {

using base::TokenId;

DraftPool::DraftPool(const DraftPoolOptions& options, DraftOutbox outbox)
    : options_(options), outbox_(std::move(outbox)), selection_(options.choice) {}

uint8_t DraftPool::AddDrafter(const std::string& name) {
  const auto index = static_cast<uint8_t>(drafters_.size());
  names_.push_back(name);
  drafters_.emplace_back(index, options_.router, &options_.sessions, &outbox_, &stats_);
  selection_.AddDrafter();
  return index;
}

void DraftPool::PeerUp(PeerId peer, const schemas::Hello& hello) {
  const auto known = std::find(names_.begin(), names_.end(), hello.model);
  if (known == names_.end() && names_.size() == speculation::kMaxDrafters) {
    spdlog::warn("draft peer={} model={}: not used, since {} other models draft already", peer,
                 hello.model, names_.size());
    return;
  }
  const uint8_t drafter = known == names_.end() ? AddDrafter(hello.model)
                                                : static_cast<uint8_t>(known - names_.begin());
  drafter_of_[peer] = drafter;
  drafters_[drafter].router().OnUp(peer, hello.capacity);
  drafters_[drafter].set_reads_states(!hello.state_layers.empty());
}

std::vector<NoDraft> DraftPool::PeerDown(PeerId peer) {
  const auto it = drafter_of_.find(peer);
  if (it == drafter_of_.end()) return {};
  const uint8_t drafter = it->second;
  drafter_of_.erase(it);
  drafters_[drafter].router().OnDown(peer);
  std::vector<NoDraft> without;
  for (auto& [id, sequence] : sequences_) {
    if (drafter >= sequence.sessions.size() || !sequence.sessions[drafter]) continue;
    DraftSession& session = *sequence.sessions[drafter];
    if (session.worker() != peer) continue;
    session.Forget();
    if (!session.in_flight()) continue;
    ++stats_.misses;
    if (const auto none = Drafter::GiveUp(&session)) without.push_back(*none);
  }
  return without;
}

void DraftPool::PeerDraining(PeerId peer) {
  const auto it = drafter_of_.find(peer);
  if (it != drafter_of_.end()) drafters_[it->second].router().OnDrain(peer);
}

scheduler::DraftSources DraftPool::SourcesOf(const std::string& drafter) const {
  if (drafter.empty()) return {};
  scheduler::DraftSources sources = scheduler::kNoDraftSources;
  sources.ngram_lookup = drafter == kNgramLookupName;
  for (size_t d = 0; d < names_.size(); ++d) {
    if (names_[d] == drafter) sources.drafters = 1u << d;
  }
  return sources;
}

uint32_t DraftPool::connected() const {
  uint32_t drafters = 0;
  for (const auto& [peer, drafter] : drafter_of_) drafters |= 1u << drafter;
  return drafters;
}

void DraftPool::Open(base::SequenceId id, const DraftTerms& terms, uint32_t drafters,
                     bool teaches) {
  selection_.Open(id, teaches);
  sequences_.insert_or_assign(id, Sequence{.terms = terms, .drafters = drafters});
}

void DraftPool::Ended(base::SequenceId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  const auto& sessions = it->second.sessions;
  for (size_t d = 0; d < sessions.size(); ++d) {
    if (sessions[d]) drafters_[d].End(id, *sessions[d]);
  }
  selection_.Ended(id);
  sequences_.erase(it);
}

std::optional<NoDraft> DraftPool::Want(const scheduler::DraftWanted& want,
                                       absl::Span<const TokenId> text, base::Nanos now) {
  const auto it = sequences_.find(want.id);
  if (it == sequences_.end()) return std::nullopt;
  Sequence& sequence = it->second;
  text = text.first(want.committed);
  std::vector<bool> present;
  for (size_t d = 0; d < drafters_.size(); ++d) {
    present.push_back(drafters_[d].has_worker() && (sequence.drafters >> d & 1) != 0);
  }
  const auto choice = Choose(want, sequence, text, present, now);
  if (!choice) {
    ++stats_.unroutable;
    return NoDraft{want.id, want.round};
  }
  sequence.chosen = choice->drafter;
  const auto none = Ask(choice->drafter, want, /*extra=*/false, text, now, &sequence);
  for (uint8_t other = 0; choice->ask_others && other < present.size(); ++other) {
    if (other == choice->drafter || !present[other]) continue;
    Ask(other, want, /*extra=*/true, text, now, &sequence);
  }
  return none;
}

// A drafter that the request names is not compared with others.
std::optional<DrafterSelection::Choice> DraftPool::Choose(const scheduler::DraftWanted& want,
                                                          const Sequence& sequence,
                                                          absl::Span<const TokenId> text,
                                                          const std::vector<bool>& present,
                                                          base::Nanos now) {
  if (sequence.drafters == scheduler::kAllDrafters) {
    return selection_.Choose(want.id, want.round, text, present, now);
  }
  const auto found = std::find(present.begin(), present.end(), true);
  if (found == present.end()) return std::nullopt;
  return DrafterSelection::Choice{.drafter = static_cast<uint8_t>(found - present.begin())};
}

std::optional<NoDraft> DraftPool::Ask(uint8_t drafter, const scheduler::DraftWanted& want,
                                      bool extra, absl::Span<const TokenId> text, base::Nanos now,
                                      Sequence* sequence) {
  return drafters_[drafter].Ask(want, extra, text, now, SessionOf(drafter, sequence));
}

DraftSession* DraftPool::SessionOf(uint8_t drafter, Sequence* sequence) {
  if (sequence->sessions.size() <= drafter) sequence->sessions.resize(drafters_.size());
  std::optional<DraftSession>& session = sequence->sessions[drafter];
  if (!session) session.emplace(sequence->terms);
  return &*session;
}

std::vector<PeerId> DraftPool::StateReadersOf(base::SequenceId id, int32_t committed,
                                              base::Nanos now) {
  std::vector<PeerId> readers;
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return readers;
  for (size_t d = 0; d < drafters_.size(); ++d) {
    if (!drafters_[d].reads_states() || (it->second.drafters >> d & 1) == 0) continue;
    const PeerId reader = drafters_[d].StateReader(id, committed, now,
                                                   SessionOf(static_cast<uint8_t>(d), &it->second));
    if (reader != 0) readers.push_back(reader);
  }
  return readers;
}

void DraftPool::StatesLeftOut(PeerId peer, base::SequenceId id) {
  if (const Held held = FindHeld(peer, id, options_.sessions.incarnation);
      held.session != nullptr) {
    held.session->SetHasStates(false);
  }
}

DraftPool::Held DraftPool::FindHeld(PeerId peer, base::SequenceId id, uint64_t incarnation) {
  const auto drafter = drafter_of_.find(peer);
  const auto sequence = sequences_.find(id);
  if (drafter == drafter_of_.end() || sequence == sequences_.end() ||
      incarnation != options_.sessions.incarnation ||
      drafter->second >= sequence->second.sessions.size()) {
    return {};
  }
  std::optional<DraftSession>& session = sequence->second.sessions[drafter->second];
  if (!session || session->worker() != peer) return {};
  return {&drafters_[drafter->second], &*session};
}

DraftPool::Held DraftPool::FindRound(PeerId peer, base::SequenceId id,
                                     const transport::Fence& fence) {
  const Held held = FindHeld(peer, id, fence.incarnation);
  if (held.session != nullptr && held.session->in_flight() &&
      held.session->want().round == fence.round) {
    return held;
  }
  ++stats_.stale;
  return {};
}

std::optional<DraftEvent> DraftPool::Noted(std::optional<DraftEvent> event,
                                           absl::Span<const TokenId> text, base::Nanos now) {
  const auto* arrived = event ? std::get_if<DraftArrived>(&*event) : nullptr;
  if (arrived != nullptr) {
    selection_.OnTree(arrived->draft.drafter, arrived->id, arrived->round, arrived->draft.tree,
                      static_cast<int32_t>(text.size()), now);
  }
  return event;
}

std::optional<DraftEvent> DraftPool::OnReply(PeerId peer, schemas::DraftReply reply,
                                             absl::Span<const TokenId> text, base::Nanos now) {
  const Held held = FindHeld(peer, reply.sequence, reply.target_incarnation);
  if (held.session == nullptr) {
    ++stats_.stale;
    return std::nullopt;
  }
  return Noted(held.drafter->OnReply(std::move(reply), text, now, held.session), text, now);
}

std::optional<DraftEvent> DraftPool::OnDraftProbs(PeerId peer, transport::KeptTensor tensor,
                                                  absl::Span<const TokenId> text, base::Nanos now) {
  const Held held = FindRound(peer, tensor.fields.tag, tensor.fields.fence);
  if (held.session == nullptr) return std::nullopt;
  return Noted(held.drafter->OnDraftProbs(std::move(tensor), text, now, held.session), text, now);
}

std::optional<NoDraft> DraftPool::OnDraftProbsRefused(PeerId peer,
                                                      const transport::TensorFields& fields) {
  const Held held = FindRound(peer, fields.tag, fields.fence);
  if (held.session == nullptr) return std::nullopt;
  ++stats_.refused_draft_probs;
  return Drafter::GiveUp(held.session);
}

const speculation::DraftProbs* DraftPool::draft_probs(base::SequenceId id) const {
  const auto it = sequences_.find(id);
  if (it == sequences_.end() || it->second.chosen >= it->second.sessions.size()) return nullptr;
  const std::optional<DraftSession>& session = it->second.sessions[it->second.chosen];
  return session ? session->draft_probs() : nullptr;
}

void DraftPool::ReleaseDraftProbs(base::SequenceId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  for (std::optional<DraftSession>& session : it->second.sessions) {
    if (session) session->ReleaseDraftProbs();
  }
}

void DraftPool::Expire(base::Nanos now) {
  for (auto& [id, sequence] : sequences_) {
    for (size_t d = 0; d < sequence.sessions.size(); ++d) {
      std::optional<DraftSession>& session = sequence.sessions[d];
      if (!session || !session->in_flight() || now < session->want().deadline) continue;
      // The reply may still come and be used until the next Want: the request stays in flight.
      drafters_[d].CountMiss(now, &*session);
    }
  }
}

const std::vector<scheduler::DraftState>& DraftPool::routes() {
  if (drafters_.size() == 1) return drafters_[0].router().States();
  routes_.clear();
  for (const Drafter& drafter : drafters_) {
    const std::vector<scheduler::DraftState>& workers = drafter.router().States();
    routes_.insert(routes_.end(), workers.begin(), workers.end());
  }
  return routes_;
}

}  // namespace specfabric::target
