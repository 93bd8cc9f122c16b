#include "target/drafter_set.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"
#include "base/hash.h"
#include "spdlog/spdlog.h"
#include "speculation/merge.h"

namespace specfabric::target {

using speculation::Draft;
using speculation::DrafterChoice;

namespace {

constexpr int32_t kMaxRewardLevels = 8;  // that a reward counts
constexpr double kStepShare = 0.1;       // of a new step in the smoothed one
constexpr double kRounds = 64;           // that shares are of
// A drafter that was silent so often is tried again now and then, or where all are asked.
constexpr int32_t kMaxUnansweredRounds = 2, kRetryInterval = 64;

void Add(const DraftClientStats& one, DraftClientStats* sum) {
  sum->requests += one.requests;
  for (size_t i = 0; i < std::size(one.replies); ++i) sum->replies[i] += one.replies[i];
  sum->misses += one.misses;
  sum->stale += one.stale;
  sum->invalid += one.invalid;
  sum->mismatched += one.mismatched;
  sum->draft_probs += one.draft_probs;
  sum->draft_probs_bytes += one.draft_probs_bytes;
  sum->refused_draft_probs += one.refused_draft_probs;
  sum->resyncs += one.resyncs;
  sum->unroutable += one.unroutable;
}

}  // namespace

DrafterSet::DrafterSet(const DraftClientOptions& options, const speculation::ChoiceOptions& choice,
                       scheduler::Scheduler* scheduler, DraftClient::Send send,
                       DraftClient::SendEnd send_end)
    : options_(options),
      scheduler_(scheduler),
      send_(std::move(send)),
      send_end_(std::move(send_end)),
      choice_options_(choice),
      choice_(choice, 0) {}

uint8_t DrafterSet::AddDrafter(const std::string& name) {
  const auto drafter = static_cast<uint8_t>(clients_.size());
  DraftClientOptions options = options_;
  options.drafter = drafter;
  DraftSink sink;
  sink.draft = [this, drafter](base::SequenceId id, uint32_t round, Draft draft, base::Nanos now) {
    OnTree(drafter, id, round, std::move(draft), now);
  };
  sink.none = [this, drafter](base::SequenceId id, uint32_t round) { OnNone(drafter, id, round); };
  clients_.push_back(
      std::make_unique<DraftClient>(options, scheduler_, send_, send_end_, std::move(sink)));
  names_.push_back(name);
  choice_.AddDrafter();
  for (double& share : shares_) share *= drafter / (drafter + 1.0);
  shares_.push_back(1.0 / (drafter + 1));
  silence_.emplace_back();
  for (auto& [id, sequence] : sequences_) sequence.choice.AddDrafter();
  return drafter;
}

void DrafterSet::PeerUp(PeerId peer, const schemas::Hello& hello) {
  const auto known = std::find(names_.begin(), names_.end(), hello.model);
  if (known == names_.end() && clients_.size() == speculation::kMaxDrafters) {
    spdlog::warn("draft peer={} model={}: not used, since {} other models draft already", peer,
                 hello.model, clients_.size());
    return;
  }
  const uint8_t drafter = known == names_.end() ? AddDrafter(hello.model)
                                                : static_cast<uint8_t>(known - names_.begin());
  drafter_of_[peer] = drafter;
  clients_[drafter]->PeerUp(peer, hello);
}

DraftClient* DrafterSet::Client(PeerId peer) {
  const auto it = drafter_of_.find(peer);
  return it == drafter_of_.end() ? nullptr : clients_[it->second].get();
}

void DrafterSet::PeerDown(PeerId peer) {
  DraftClient* client = Client(peer);
  if (client == nullptr) return;
  client->PeerDown(peer);
  drafter_of_.erase(peer);
}

void DrafterSet::PeerDraining(PeerId peer) {
  if (DraftClient* client = Client(peer)) client->PeerDraining(peer);
}

void DrafterSet::Open(base::SequenceId id, const DraftTerms& terms) {
  // Its own random numbers, but what is known by now.
  DrafterChoice choice = choice_;
  choice.Reseed(base::Mix64(choice_options_.seed ^ base::Mix64(id)));
  sequences_.insert_or_assign(id, Sequence{.terms = terms, .choice = std::move(choice)});
}

// A round without an answer teaches kHedge nothing, since it does not tell what the others would
// have said; and a sequence that misses its drafts soon stops to ask.
std::vector<bool> DrafterSet::Usable() {
  std::vector<bool> there, answer;
  for (size_t d = 0; d < clients_.size(); ++d) {
    there.push_back(Present(d));
    Silence& silence = silence_[d];
    const bool avoided =
        silence.rounds >= kMaxUnansweredRounds && ++silence.avoided % kRetryInterval != 0;
    answer.push_back(there[d] && !avoided);
  }
  const bool any = std::find(answer.begin(), answer.end(), true) != answer.end();
  return any ? answer : there;
}

void DrafterSet::Want(const scheduler::DraftWanted& want, base::Nanos now) {
  const auto it = sequences_.find(want.id);
  if (it == sequences_.end()) return;
  Sequence* sequence = &it->second;
  Settle(want.id, sequence);
  const std::vector<bool> usable = Usable();
  if (std::find(usable.begin(), usable.end(), true) == usable.end()) {
    return scheduler_->OnNoDraft(want.id, want.round);
  }
  const DrafterChoice::Round round = sequence->choice.Next(usable);
  sequence->chosen = static_cast<uint8_t>(round.drafter);
  for (double& share : shares_) share *= 1 - 1 / kRounds;
  shares_[round.drafter] += 1 / kRounds;
  // One trial at a time: while the text of the last has not come nothing new is scored.
  const bool score = round.score_all && !sequence->trial;
  if (!sequence->trial && clients_.size() > 1) {
    sequence->trial = Trial{.round = want.round,
                            .base = want.committed,
                            .scored = score,
                            .asked = now,
                            .proposals = std::vector<Trial::Proposal>(clients_.size()),
                            .asked_of = std::vector<bool>(clients_.size())};
    scored_rounds_ += score;
  }
  Ask(want, sequence->chosen, false, sequence, now);
  if (!score) return;
  for (size_t other = 0; other < clients_.size(); ++other) {
    if (other == sequence->chosen || !Present(other)) continue;
    Ask(want, static_cast<uint8_t>(other), true, sequence, now);
  }
}

void DrafterSet::Ask(const scheduler::DraftWanted& want, uint8_t drafter, bool extra,
                     Sequence* sequence, base::Nanos now) {
  sequence->open.resize(clients_.size());
  sequence->extra.resize(clients_.size());
  if (!sequence->open[drafter]) clients_[drafter]->Open(want.id, sequence->terms);
  sequence->open[drafter] = true;
  if (extra) sequence->extra[drafter] = want.round;
  if (sequence->trial && sequence->trial->round == want.round) {
    sequence->trial->asked_of[drafter] = true;
  }
  clients_[drafter]->Want(want, now);
}

void DrafterSet::OnTree(uint8_t drafter, base::SequenceId id, uint32_t round, Draft draft,
                        base::Nanos now) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  Sequence& sequence = it->second;
  Note(drafter, id, round, draft.tree, now, &sequence);
  if (sequence.extra[drafter] == round) {
    scheduler_->OnExtraDraft(id, round, std::move(draft));
  } else {
    scheduler_->OnDraft(id, round, std::move(draft), now);
  }
}

// What comes once the text has gone on was of no use, and might only repeat that text.
void DrafterSet::Note(uint8_t drafter, base::SequenceId id, uint32_t round,
                      const speculation::TokenTree& tree, base::Nanos now, Sequence* sequence) {
  std::optional<Trial>& trial = sequence->trial;
  if (!trial || trial->round != round || drafter >= trial->proposals.size()) return;
  const std::vector<base::TokenId>* text = scheduler_->Committed(id);
  if (text == nullptr || static_cast<int32_t>(text->size()) != trial->base) return;
  Trial::Proposal& proposal = trial->proposals[drafter];
  if (proposal.tree.size() == 0) proposal = {tree, now - trial->asked};
  silence_[drafter] = {};
}

void DrafterSet::OnNone(uint8_t drafter, base::SequenceId id, uint32_t round) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end() || it->second.extra[drafter] == round) return;
  scheduler_->OnNoDraft(id, round);
}

double DrafterSet::Reward(const Trial::Proposal& proposal, int32_t levels) const {
  if (proposal.tree.size() == 0) return 0;
  const double tokens = (1.0 + std::min(levels, kMaxRewardLevels)) / (1 + kMaxRewardLevels);
  const double step = std::max(step_, 1.0);
  return tokens * step / (step + static_cast<double>(proposal.latency));
}

void DrafterSet::Settle(base::SequenceId id, Sequence* sequence) {
  if (!sequence->trial) return;
  const Trial& trial = *sequence->trial;
  const std::vector<base::TokenId>* text = scheduler_->Committed(id);
  if (text == nullptr || static_cast<int32_t>(text->size()) < trial.base) {
    return sequence->trial.reset();
  }
  const auto said = absl::MakeConstSpan(*text).subspan(trial.base);
  // A round that is not scored is over with the next: what was verified of its tree is known.
  const bool at_last = !trial.scored || static_cast<int32_t>(said.size()) > kMaxRewardLevels;
  std::vector<std::optional<double>> rewards(clients_.size());
  for (size_t d = 0; d < trial.proposals.size(); ++d) {
    if (!trial.asked_of[d]) continue;
    const Trial::Proposal& proposal = trial.proposals[d];
    speculation::Agreement agreement = {.levels = 0, .decided = true};
    if (proposal.tree.size() > 0) agreement = speculation::AgreesWith(proposal.tree, said);
    if (!agreement.decided && !at_last) return;
    rewards[d] = Reward(proposal, agreement.levels);
  }
  for (size_t d = 0; d < trial.proposals.size(); ++d) {
    silence_[d].rounds += trial.asked_of[d] && trial.proposals[d].tree.size() == 0;
  }
  for (DrafterChoice* choice : {&choice_, &sequence->choice}) {
    if (trial.scored) choice->Scored(rewards);
    for (size_t d = 0; d < rewards.size(); ++d) {
      if (rewards[d]) choice->Rewarded(static_cast<int32_t>(d), *rewards[d]);
    }
  }
  sequence->trial.reset();
}

bool DrafterSet::Noted(bool tree, PeerId peer) {
  if (!tree) return false;
  const DraftClient* client = Client(peer);
  last_round_trip_ = client->last_round_trip();
  last_draft_time_ = client->last_draft_time();
  return true;
}

bool DrafterSet::OnReply(PeerId peer, schemas::DraftReply reply, base::Nanos now) {
  DraftClient* client = Client(peer);
  return client != nullptr && Noted(client->OnReply(peer, std::move(reply), now), peer);
}

bool DrafterSet::OnDraftProbs(PeerId peer, DraftProbsTensor tensor, base::Nanos now) {
  DraftClient* client = Client(peer);
  return client != nullptr && Noted(client->OnDraftProbs(peer, std::move(tensor), now), peer);
}

void DrafterSet::OnDraftProbsRefused(PeerId peer, const transport::TensorFields& fields) {
  if (DraftClient* client = Client(peer)) client->OnDraftProbsRefused(peer, fields);
}

const speculation::DraftProbs* DrafterSet::draft_probs(base::SequenceId id) const {
  const auto it = sequences_.find(id);
  if (it == sequences_.end() || clients_.empty()) return nullptr;
  return clients_[it->second.chosen]->draft_probs(id);
}

void DrafterSet::ReleaseDraftProbs(base::SequenceId id) {
  for (const auto& client : clients_) client->ReleaseDraftProbs(id);
}

void DrafterSet::Expire(base::Nanos now) {
  for (const auto& client : clients_) client->Expire(now);
}

void DrafterSet::Ended(base::SequenceId id) {
  for (const auto& client : clients_) client->Ended(id);
  sequences_.erase(id);
}

void DrafterSet::OnStep(base::Nanos time) {
  const auto now = static_cast<double>(time);
  step_ = step_ == 0 ? now : step_ + kStepShare * (now - step_);
}

bool DrafterSet::Present(size_t drafter) const {
  const std::vector<scheduler::DraftState>& states = clients_[drafter]->routes();
  return std::any_of(states.begin(), states.end(),
                     [](const scheduler::DraftState& state) { return !state.draining; });
}

const std::vector<scheduler::DraftState>& DrafterSet::routes() {
  if (clients_.size() == 1) return clients_[0]->routes();
  routes_.clear();
  for (const auto& client : clients_) {
    routes_.insert(routes_.end(), client->routes().begin(), client->routes().end());
  }
  return routes_;
}

DraftClientStats DrafterSet::stats() const {
  DraftClientStats sum;
  for (const auto& client : clients_) Add(client->stats(), &sum);
  return sum;
}

}  // namespace specfabric::target
