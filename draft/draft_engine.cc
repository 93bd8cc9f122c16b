#include "draft/draft_engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace specfabric::draft {

using schemas::DraftReply;
using schemas::DraftRequest;
using schemas::DraftStatus;

namespace {

SessionTableOptions For(SessionTableOptions sessions, const model::ModelConfig& model) {
  if (model.mask_token != base::kNoToken) sessions.keeps = SessionTableOptions::Keeps::kLevels;
  if (model.states) sessions.keeps = SessionTableOptions::Keeps::kNothing;
  return sessions;
}

// A drafter that reads states knows none of what is not committed.
DraftEngineOptions For(DraftEngineOptions options, const model::ModelConfig& model) {
  if (model.states) options.ahead.policy = AheadPolicy::kOff;
  return options;
}

// Of noise: for so many positions to come of each session, within a limit that counts where the
// vocabulary is large. What is not kept is made again.
constexpr size_t kNoiseRowsEach = 16, kMostNoiseBytes = size_t{256} << 20;

size_t NoiseBytes(const SessionTableOptions& options, int32_t vocabulary) {
  return std::min(kMostNoiseBytes,
                  options.max_sessions * kNoiseRowsEach * vocabulary * sizeof(float));
}

}  // namespace

DraftEngine::DraftEngine(const DraftEngineOptions& options, std::unique_ptr<model::RankModel> model,
                         std::unique_ptr<verification::DeviceDraftRows> draft_rows,
                         AcquireSlot acquire_slot, Reply reply)
    : options_(For(options, model->config())),
      model_(std::move(model)),
      draft_rows_(std::move(draft_rows)),
      acquire_slot_(std::move(acquire_slot)),
      reply_(std::move(reply)),
      sessions_(For(options.sessions, model_->config())),
      noise_(NoiseBytes(options.sessions, model_->config().vocabulary),
             model_->config().vocabulary),
      mask_token_(model_->config().mask_token) {}

size_t DraftEngine::DraftProbsSlotBytes(const DraftEngineOptions& options, int32_t vocabulary) {
  const int32_t rows = options.sampled_growth.MaxNodesWithChildren();
  return speculation::ShapeFor(rows, vocabulary, options.top_n).bytes();
}

DraftReply DraftEngine::ReplyTo(const DraftRequest& request, DraftStatus status) const {
  DraftReply reply;
  reply.target_incarnation = request.target_incarnation;
  reply.sequence = request.sequence;
  reply.round = request.round;
  reply.request_id = request.request_id;
  reply.status = status;
  reply.free_sessions = sessions_.free_sessions(request.target_incarnation);
  reply.sampling_tag = schemas::SamplingTag(request.verification, request.sampling);
  return reply;
}

void DraftEngine::Leave(Job* job, bool sent) {
  job->session->busy = false;
  rounds_[TargetOf(*job)].Leave(job->session->key.sequence, sent);
}

void DraftEngine::Supersede(const SessionKey& key) {
  std::erase_if(jobs_, [&](const std::unique_ptr<Job>& job) {
    if (!(job->session->key == key)) return false;
    Leave(job.get(), false);
    return true;
  });
}

void DraftEngine::LearnFrom(const DraftRequest& request) {
  const Session* session = sessions_.Find(
      {.target_incarnation = request.target_incarnation, .sequence = request.sequence});
  if (session == nullptr || session->length() != request.base_length) return;
  const SpeculationCache& speculation_cache = session->speculation_cache;
  int node = 0, level = 0;
  for (const base::TokenId token : request.append_tokens) {
    if (node < 0 || node >= speculation_cache.size()) return;
    std::vector<sampling::ScoredToken> among;
    for (const Candidate& candidate : speculation_cache.candidates(node))
      among.push_back(candidate.scored);
    confidence(session->verification, level++).Observe(among, token);
    if (const std::optional<float> said = speculation_cache.said(node); said && !among.empty()) {
      calibrated_[static_cast<size_t>(session->verification)].Observe(*said,
                                                                      among[0].token == token);
    }
    node = speculation_cache.Child(node, token);
  }
}

void DraftEngine::CountOutcome(const Applied& applied, int32_t levels) {
  const int32_t level = std::min(applied.accepted, kOutcomeLevels - 1);
  ++stats_.outcomes[level][static_cast<size_t>(*applied.outcome)];
  // Of the draft tokens on the way down all were accepted but the last, unless there was none left.
  const int32_t tried = applied.accepted + (applied.accepted < levels ? 1 : 0);
  for (int32_t i = 0; i < tried; ++i) {
    constexpr double kShare = 1.0 / 256;
    acceptance_ += kShare * ((i < applied.accepted ? 1.0 : 0.0) - acceptance_);
  }
}

void DraftEngine::Accept(uint64_t peer, const DraftRequest& request, base::Nanos now) {
  if (draining_) return reply_(peer, ReplyTo(request, DraftStatus::kDraining), {});
  const bool in_vocabulary =
      std::all_of(request.append_tokens.begin(), request.append_tokens.end(),
                  [&](base::TokenId t) { return t >= 0 && t < model_->config().vocabulary; });
  if (!in_vocabulary) return reply_(peer, ReplyTo(request, DraftStatus::kUnsupported), {});
  Supersede({request.target_incarnation, request.sequence});
  LearnFrom(request);
  Applied applied = sessions_.Apply(request, now);
  if (applied.status != DraftStatus::kOk) {
    DraftReply reply = ReplyTo(request, applied.status);
    reply.known = std::move(applied.known);
    return reply_(peer, std::move(reply), {});
  }
  moves_.insert(moves_.end(), applied.moves.begin(), applied.moves.end());
  Session* session = applied.session;
  const auto vocabulary = vocabularies_.find(request.target_incarnation);
  session->vocabulary =
      vocabulary == vocabularies_.end() ? model_->config().vocabulary : vocabulary->second;
  const bool any_tree = !speculation::UsesDraftProbs(request.verification);
  if (any_tree && applied.outcome) CountOutcome(applied, session->sent_levels);
  session->ahead.Stop();
  // Neither the verifier's mask nor the draft's context may overflow.
  const int32_t room = options_.sessions.context - session->length();
  const int max_nodes = std::clamp(request.max_nodes, 0, speculation::kMaxDraftNodes - 1);
  speculation::GrowthPolicy growth =
      speculation::UsesDraftProbs(request.verification) ? options_.sampled_growth : options_.growth;
  growth = growth.Shallower(request.max_depth > 0 ? std::min(room, request.max_depth) : room);
  if (block() != nullptr) growth = growth.Shallower(block()->levels());
  growth = growth.Within(max_nodes);
  const int32_t rows = block() != nullptr ? block()->rows : max_nodes;
  const int32_t slots =
      std::min(session->speculation_cache.slots_used() + rows, SpeculationCache::kSlots);
  if (!sessions_.Reserve(session, session->length() + slots, now)) {
    return reply_(peer, ReplyTo(request, DraftStatus::kBusy), {});
  }
  const float cost_per_row = any_tree ? request.cost_per_row : 0.0f;
  auto job = std::make_unique<Job>(Job{
      .peer = peer,
      .request = request,
      .session = session,
      .grower = speculation::TreeGrower(growth, session->tokens.back(), max_nodes, cost_per_row),
      .started = now});
  if (parallel()) {
    // One level more than the tree has: the last draft token's next ones, which are run ahead.
    const int levels = std::min(growth.Depth(), max_nodes);
    job->most_masks = std::max(0, GoesAhead(request) ? levels : levels - 1);
  }
  if (absl::Status prepared = PrepareDraftProbs(request, job.get()); !prepared.ok()) {
    // Without a free slot this round has no draft. `busy` would send the sequence to a worker that
    // knows nothing of it, with the next one as short of slots.
    const bool no_slot = absl::IsResourceExhausted(prepared);
    DraftReply reply = ReplyTo(request, no_slot ? DraftStatus::kOk : DraftStatus::kUnsupported);
    reply.draw = job->draw;
    return reply_(peer, std::move(reply), {});
  }
  session->busy = true;
  starved_ = false;
  rounds_[request.target_incarnation].Join(request.sequence, CostPerSecond(*job));
  ExpandKnown(job.get());
  jobs_.push_back(std::move(job));
}

// After its reply.
bool DraftEngine::GoesAhead(const DraftRequest& request) const {
  return request.ahead && options_.ahead.policy != AheadPolicy::kOff &&
         !speculation::UsesDraftProbs(request.verification);
}

void DraftEngine::StopUnprofitableGrowth() {
  if (parallel() || block() != nullptr) return;  // all levels come with the first
  absl::flat_hash_map<uint64_t, speculation::GrowthRound::Pass> passes;  // by target
  for (const auto& job : jobs_) {
    if (job->grower.complete()) continue;
    passes[TargetOf(*job)].Add(job->grower, GoesAhead(job->request));
  }
  for (const auto& [target, pass] : passes) {
    if (rounds_[target].Pays(pass, pass_time_.seconds())) continue;
    for (const auto& job : jobs_) {
      const bool any_tree = !speculation::UsesDraftProbs(job->request.verification);
      if (any_tree && TargetOf(*job) == target) job->grower.Stop();
    }
  }
}

absl::Status DraftEngine::PrepareDraftProbs(const DraftRequest& request, Job* job) {
  switch (request.verification) {
    case schemas::VerificationMethod::kCoupled:
      job->draw = schemas::SiblingDraw::kCoupledTopK;
      break;
    case schemas::VerificationMethod::kTypical:
      job->draw = schemas::SiblingDraw::kDeterministic;
      break;
    case schemas::VerificationMethod::kRejection:
    case schemas::VerificationMethod::kTraversal:
      job->draw = options_.sampled_draw;
      break;
  }
  if (!speculation::NeedsDraftRows(request.verification, job->draw)) return absl::OkStatus();
  if (draft_rows_ != nullptr && job->session->vocabulary != model_->config().vocabulary) {
    return absl::UnimplementedError("rows made on a device have the draft's vocabulary");
  }
  job->shape = speculation::ShapeFor(1, job->session->vocabulary, options_.top_n);
  auto slot = acquire_slot_({request.target_incarnation, request.round});
  if (!slot.ok()) return slot.status();
  job->slot = *std::move(slot);
  // Nodes past what both slots take stay without children.
  const size_t bytes = std::min<size_t>(request.draft_probs_bytes, job->slot.capacity());
  job->shape.rows = static_cast<int32_t>(
      std::min<size_t>(bytes / job->shape.row_bytes(), schemas::kMaxTreeNodes));
  if (job->shape.rows == 0) return absl::UnimplementedError("no row of draft probabilities fits");
  return absl::OkStatus();
}

void DraftEngine::EndSession(const SessionKey& key) {
  Supersede(key);
  sessions_.End(key);
}

void DraftEngine::TargetGone(uint64_t target_incarnation) {
  std::erase_if(jobs_, [&](const std::unique_ptr<Job>& job) {
    if (job->session->key.target_incarnation != target_incarnation) return false;
    Leave(job.get(), false);
    return true;
  });
  rounds_.erase(target_incarnation);
  vocabularies_.erase(target_incarnation);
  sessions_.Purge(target_incarnation);
}

bool DraftEngine::Done(const Job& job, base::Nanos now) const {
  if (job.session->kv_len < job.session->length()) return false;
  const bool late = now - job.started >= job.request.time_budget;
  return job.grower.complete() || (late && job.grower.tree().size() > 1);
}

void DraftEngine::Finish(Job* job, base::Nanos now) {
  DraftReply reply = ReplyTo(job->request, DraftStatus::kOk);
  Session* session = job->session;
  job->grower.Fill();
  const int nodes = job->grower.tree().size();
  for (int node = 0; node < nodes; ++node) {
    const int cache_node = CacheNodeOf(job, node);
    session->speculation_cache.MarkSent(cache_node);
    if (shares_levels()) {
      const absl::Span<const Candidate> known = KnownCandidates(job, node);
      session->speculation_cache.SetCandidates(cache_node, {known.begin(), known.end()});
    }
  }
  session->masks = job->most_masks;
  const auto depths = speculation::DepthArray(job->grower.tree());
  session->sent_levels = *std::max_element(depths.begin(), depths.begin() + nodes);
  reply.tree = std::move(job->grower).Take();
  reply.draft_time = now - job->started;
  reply.draw = job->draw;
  OutgoingDraftProbs draft_probs;
  if (job->rows > 0) {
    const speculation::DraftProbsShape shape = {job->rows, job->shape.vocabulary,
                                                job->shape.entries};
    reply.draft_probs_rows = shape.rows;
    reply.draft_probs_entries = shape.entries;
    draft_probs = {std::move(job->slot), static_cast<uint32_t>(shape.bytes()),
                   job->request.draft_probs_pool};
  }
  Leave(job, true);
  session->last_used = now;
  stats_.nodes_sent += nodes - 1;
  stats_.replies_without_pass += job->passes == 0;
  if (options_.recorder != nullptr && job->request.trace.traced()) {
    options_.recorder->Record({.name = "draft",
                               .parent = job->request.trace,
                               .id = trace::NewSpanId(),
                               .begin = job->started,
                               .end = now,
                               .attributes = {{"round", int64_t{job->request.round}},
                                              {"nodes", int64_t{nodes - 1}},
                                              {"passes", int64_t{job->passes}}}});
  }
  reply_(job->peer, std::move(reply), std::move(draft_probs));
  if (GoesAhead(job->request)) {
    // With its masks a next root takes as many rows, and each of them must pay.
    AheadOptions ahead = options_.ahead;
    ahead.least_chance *= static_cast<float>(1 + session->masks);
    session->ahead.Start(ahead, session->speculation_cache, acceptance_);
    ahead_ += session->ahead.any();
  }
}

void DraftEngine::FinishDone(base::Nanos now) {
  std::erase_if(jobs_, [&](const std::unique_ptr<Job>& job) {
    if (!Done(*job, now)) return false;
    Finish(job.get(), now);
    return true;
  });
}

absl::Status DraftEngine::Step() {
  // What needs no pass does not wait for those that do.
  StopUnprofitableGrowth();
  FinishDone(base::Now());
  if (jobs_.empty()) return ahead_ > 0 ? StepAhead() : absl::OkStatus();
  absl::Status stepped = StepJobs();
  FinishDone(base::Now());
  return stepped;
}

}  // namespace specfabric::draft
