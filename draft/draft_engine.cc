#include "draft/draft_engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/bfloat16.h"
#include "speculation/proposal.h"
#include "speculation/sampling.h"

namespace specfabric::draft {

using schemas::DraftReply;
using schemas::DraftRequest;
using schemas::DraftStatus;

namespace {

// Of a node: of how many a draft says how sure it is of them.
constexpr int kCandidates = 8;
constexpr int kMaskWords = speculation::kMaxDraftNodes / 64;

int32_t DepthOf(const speculation::TokenTree& tree, int node) {
  int32_t depth = 0;
  for (int32_t a = node; a > 0; a = tree.parents[a]) ++depth;
  return depth;
}

}  // namespace

DraftEngine::DraftEngine(const DraftEngineOptions& options, std::unique_ptr<model::RankModel> model,
                         AcquireSlot acquire_slot, Reply reply)
    : options_(options),
      model_(std::move(model)),
      acquire_slot_(std::move(acquire_slot)),
      reply_(std::move(reply)),
      sessions_(options.sessions) {}

size_t DraftEngine::WeightsSlotBytes(const DraftEngineOptions& options, int32_t vocabulary) {
  const int32_t rows = options.sampled_growth.MaxNodesWithChildren();
  return schemas::ShapeFor(rows, vocabulary, options.top_n).bytes();
}

DraftReply DraftEngine::ReplyTo(const DraftRequest& request, DraftStatus status) const {
  DraftReply reply;
  reply.target_incarnation = request.target_incarnation;
  reply.sequence = request.sequence;
  reply.round = request.round;
  reply.request_id = request.request_id;
  reply.status = status;
  reply.free_sessions = sessions_.free_sessions();
  reply.sampling_tag = schemas::SamplingTag(request.coupling, request.sampling);
  return reply;
}

void DraftEngine::Leave(Job* job) {
  job->session->busy = false;
  rounds_[job->session->key.target_incarnation].Leave();
}

void DraftEngine::Supersede(const SessionKey& key) {
  std::erase_if(jobs_, [&](const std::unique_ptr<Job>& job) {
    if (!(job->session->key == key)) return false;
    Leave(job.get());
    return true;
  });
}

void DraftEngine::LearnFrom(const DraftRequest& request) {
  const Session* session = sessions_.Find(
      {.target_incarnation = request.target_incarnation, .sequence = request.sequence});
  if (session == nullptr || session->length() != request.base_length) return;
  int node = 0;
  for (const base::TokenId token : request.append_tokens) {
    if (node < 0 || node >= static_cast<int>(session->candidates.size())) return;
    confidence(request.coupling).Observe(session->candidates[node], token);
    node = speculation::ChildWith(session->tree, node, token);
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
  // Neither the verifier's mask nor the draft's context may overflow.
  const int32_t room = options_.sessions.context - session->length();
  const int max_nodes = std::clamp(request.max_nodes, 0, speculation::kMaxDraftNodes - 1);
  speculation::GrowthPolicy growth =
      speculation::WeighsDraft(request.coupling) ? options_.sampled_growth : options_.growth;
  growth = growth.Shallower(request.max_depth > 0 ? std::min(room, request.max_depth) : room);
  if (!sessions_.Reserve(session, session->length() + max_nodes)) {
    return reply_(peer, ReplyTo(request, DraftStatus::kBusy), {});
  }
  const bool any_tree = !speculation::WeighsDraft(request.coupling);
  const float row_price = any_tree ? request.row_price : 0.0f;
  auto job = std::make_unique<Job>(
      Job{.peer = peer,
          .request = request,
          .session = session,
          .grower = speculation::TreeGrower(growth, session->tokens.back(), max_nodes, row_price),
          .started = now});
  if (absl::Status prepared = PrepareWeights(request, job.get()); !prepared.ok()) {
    const bool busy = absl::IsResourceExhausted(prepared);
    return reply_(peer, ReplyTo(request, busy ? DraftStatus::kBusy : DraftStatus::kUnsupported),
                  {});
  }
  session->busy = true;
  rounds_[request.target_incarnation].Join(any_tree ? request.second_price : 0.0f);
  jobs_.push_back(std::move(job));
}

void DraftEngine::StopWhatDoesNotPay() {
  for (auto& [target, round] : rounds_) {
    float gain = 0;
    for (const auto& job : jobs_) {
      if (job->session->key.target_incarnation == target) gain += job->grower.Gain();
    }
    if (round.Pays(gain, base::ToSeconds(pass_time_))) continue;
    for (const auto& job : jobs_) {
      const bool any_tree = !speculation::WeighsDraft(job->request.coupling);
      if (any_tree && job->session->key.target_incarnation == target) job->grower.Stop();
    }
  }
}

absl::Status DraftEngine::PrepareWeights(const DraftRequest& request, Job* job) {
  switch (request.coupling) {
    case schemas::Coupling::kCoupled:
      job->draw = schemas::SiblingDraw::kCoupledTopK;
      break;
    case schemas::Coupling::kTypical:
      job->draw = schemas::SiblingDraw::kDeterministic;
      break;
    case schemas::Coupling::kRejection:
    case schemas::Coupling::kTraversal:
      job->draw = options_.sampled_draw;
      break;
  }
  if (!speculation::NeedsDraftRows(request.coupling, job->draw)) return absl::OkStatus();
  job->shape = schemas::ShapeFor(1, model_->config().vocabulary, options_.top_n);
  auto slot = acquire_slot_({request.target_incarnation, request.round});
  if (!slot.ok()) return slot.status();
  job->slot = *std::move(slot);
  // Nodes past what both slots take stay without children.
  const size_t bytes = std::min<size_t>(request.weights_bytes, job->slot.capacity());
  job->shape.rows = static_cast<int32_t>(
      std::min<size_t>(bytes / job->shape.row_bytes(), schemas::kMaxTreeNodes));
  if (job->shape.rows == 0) return absl::UnimplementedError("no row of weights fits");
  return absl::OkStatus();
}

void DraftEngine::EndSession(const SessionKey& key) {
  Supersede(key);
  sessions_.End(key);
}

void DraftEngine::PeerGone(uint64_t target_incarnation) {
  std::erase_if(jobs_, [&](const std::unique_ptr<Job>& job) {
    if (job->session->key.target_incarnation != target_incarnation) return false;
    Leave(job.get());
    return true;
  });
  rounds_.erase(target_incarnation);
  sessions_.Purge(target_incarnation);
}

void DraftEngine::AddPrefix(Job* job, int32_t rows, model::Batch* batch) {
  Session* session = job->session;
  model::BatchSequence sequence;
  sequence.kv_len = session->kv_len;
  sequence.first_row = batch->rows();
  sequence.row_count = rows;
  sequence.causal = true;
  for (int32_t i = session->kv_len; i < session->kv_len + rows; ++i) {
    batch->tokens.push_back(session->tokens[i]);
    batch->positions.push_back(i);
    batch->ancestors.insert(batch->ancestors.end(), kMaskWords, 0);
  }
  if (session->kv_len + rows == session->length()) {
    batch->logit_rows.push_back(batch->rows() - 1);
  }
  batch->sequences.push_back(sequence);
}

void DraftEngine::AddFrontier(Job* job, model::Batch* batch) {
  Session* session = job->session;
  const speculation::TokenTree& tree = job->grower.tree();
  model::BatchSequence sequence;
  sequence.kv_len = session->length();
  sequence.tree_first = session->tree_slots_used;
  sequence.first_row = batch->rows();
  sequence.row_count = static_cast<int32_t>(job->frontier.size());
  sequence.causal = false;
  session->tree_slot.resize(tree.size(), -1);
  for (int32_t node : job->frontier) {
    const int32_t slot = session->tree_slots_used++;
    session->tree_slot[node] = slot;
    uint64_t mask[kMaskWords] = {};
    int32_t depth = 0;
    // The root is a committed slot, so the mask names only what lies below it.
    for (int32_t a = node; a > 0; a = tree.parents[a], ++depth) {
      mask[session->tree_slot[a] / 64] |= uint64_t{1} << (session->tree_slot[a] % 64);
    }
    batch->tokens.push_back(tree.tokens[node]);
    batch->positions.push_back(session->length() - 1 + depth);
    batch->ancestors.insert(batch->ancestors.end(), mask, mask + kMaskWords);
    batch->logit_rows.push_back(batch->rows() - 1);
  }
  batch->sequences.push_back(sequence);
}

void DraftEngine::AddRows(Job* job, int32_t budget, model::Batch* batch) {
  job->frontier.clear();
  if (budget <= 0) return;
  const int32_t missing = job->session->length() - job->session->kv_len;
  if (missing > 0) {
    AddPrefix(job, std::min(missing, budget), batch);
  } else {
    job->frontier = job->grower.Frontier();
    if (static_cast<int32_t>(job->frontier.size()) > budget) job->frontier.resize(budget);
    if (job->frontier.empty()) return;
    AddFrontier(job, batch);
  }
  model::BatchSequence& sequence = batch->sequences.back();
  sequence.first_block = static_cast<int32_t>(batch->blocks.size());
  sequence.block_count = static_cast<int32_t>(job->session->blocks.size());
  batch->blocks.insert(batch->blocks.end(), job->session->blocks.begin(),
                       job->session->blocks.end());
}

absl::Span<const float> DraftEngine::Noise(Job* job, int32_t position) {
  if (job->request.sampling.greedy()) return {};
  for (const NoiseRow& row : job->noise) {
    if (row.position == position) return row.values;
  }
  NoiseRow& row = job->noise.emplace_back();
  row.position = position;
  row.values.resize(model_->config().vocabulary);
  speculation::GumbelNoise(job->request.sampling.seed, static_cast<uint32_t>(position), 0,
                           absl::MakeSpan(row.values));
  return row.values;
}

DraftEngine::Candidates DraftEngine::BestTokens(const Job& job, int width,
                                                absl::Span<const float> noise,
                                                absl::Span<const float> logits) {
  const base::SamplingParams& sampling = job.request.sampling;
  // What the target's filters would surely drop is not worth a guess.
  if (!sampling.greedy() && sampling.filtered()) {
    const std::vector<uint8_t> keep = speculation::FilterMask(logits, sampling);
    masked_.assign(logits.begin(), logits.end());
    for (size_t i = 0; i < keep.size(); ++i) {
      if (!keep[i]) masked_[i] = -std::numeric_limits<float>::infinity();
    }
    logits = masked_;
  }
  Candidates best;
  best.tokens = speculation::PerturbedTopK(logits, noise, noise.empty() ? 0 : sampling.temperature,
                                           std::max(width, kCandidates));
  std::erase_if(best.tokens, [](const auto& c) { return !std::isfinite(c.score); });
  best.logprobs = confidence(job.request.coupling).LogProbs(best.tokens);
  return best;
}

DraftEngine::Candidates DraftEngine::DrawnTokens(Job* job, int node, int32_t position, int width,
                                                 absl::Span<const float> logits) {
  Candidates drawn;
  if (job->rows == job->shape.rows) return drawn;
  schemas::DraftWeightsWriter writer(job->shape, job->slot.data());
  cut_weights_.resize(logits.size());
  const absl::Span<uint16_t> weights =
      job->shape.whole() ? writer.WholeRow(job->rows) : absl::MakeSpan(cut_weights_);
  speculation::MakeWeights(logits, job->request.sampling, options_.top_n, weights);
  const base::DrawSite site = {.purpose = base::Purpose::kDraft,
                               .position = static_cast<uint32_t>(position),
                               .draw = job->request.draw,
                               .node = static_cast<uint32_t>(node)};
  const uint64_t seed = job->request.sampling.seed;
  const std::vector<base::TokenId> tokens =
      job->draw == schemas::SiblingDraw::kWithReplacement
          ? speculation::DrawWithReplacement(weights, width, seed, site)
          : speculation::DrawWithoutReplacement(weights, width, seed, site);
  if (tokens.empty()) return drawn;
  if (!job->shape.whole()) writer.Write(job->rows, weights);
  ++job->rows;
  const double total = speculation::TotalWeight(weights);
  for (base::TokenId token : tokens) {
    const float logprob = static_cast<float>(std::log(base::WidenBFloat16(weights[token]) / total));
    drawn.tokens.push_back({token, logprob});
    drawn.logprobs.push_back(logprob);
  }
  return drawn;
}

void DraftEngine::ExpandNode(Job* job, int node, absl::Span<const float> logits) {
  // The budget may have run out on the nodes before it.
  if (!job->grower.Expandable(node)) return;
  const int32_t depth = DepthOf(job->grower.tree(), node);
  const int32_t position = job->session->length() + depth;
  const int width = job->grower.Width(depth);
  Candidates candidates;
  if (job->slot) {
    candidates = DrawnTokens(job, node, position, width, logits);
  } else {
    const bool shared = job->draw == schemas::SiblingDraw::kCoupledTopK;
    const auto noise = shared ? Noise(job, position) : absl::Span<const float>();
    candidates = BestTokens(*job, width, noise, logits);
    job->session->candidates.resize(job->grower.tree().size());
    job->session->candidates[node] = candidates.tokens;
  }
  job->grower.Expand(node, candidates.tokens, candidates.logprobs);
}

void DraftEngine::Absorb(Job* job, int32_t rows, const model::LogitShard& logits, int32_t* logit) {
  Session* session = job->session;
  if (job->frontier.empty()) {
    session->kv_len += rows;
    if (session->kv_len == session->length()) ExpandNode(job, 0, logits.row((*logit)++));
    return;
  }
  for (int32_t node : job->frontier) ExpandNode(job, node, logits.row((*logit)++));
}

bool DraftEngine::Done(const Job& job, base::Nanos now) const {
  if (job.session->kv_len < job.session->length()) return false;
  const bool late = now - job.started >= job.request.time_budget;
  return job.grower.Frontier().empty() || (late && job.grower.tree().size() > 1);
}

void DraftEngine::Finish(Job* job, base::Nanos now) {
  DraftReply reply = ReplyTo(job->request, DraftStatus::kOk);
  Session* session = job->session;
  session->tree = std::move(job->grower).Take();
  session->tree_slot.resize(session->tree.size(), -1);
  const speculation::TokenTree& tree = session->tree;
  reply.parents.assign(tree.parents.begin() + 1, tree.parents.end());
  reply.tokens.assign(tree.tokens.begin() + 1, tree.tokens.end());
  reply.scores.assign(tree.scores.begin() + 1, tree.scores.end());
  reply.draft_time = now - job->started;
  reply.draw = job->draw;
  OutgoingWeights weights;
  if (job->rows > 0) {
    const schemas::DraftWeightsShape shape = {job->rows, job->shape.vocabulary, job->shape.entries};
    reply.weights_rows = shape.rows;
    reply.weights_entries = shape.entries;
    weights = {std::move(job->slot), static_cast<uint32_t>(shape.bytes()),
               job->request.weights_pool};
  }
  Leave(job);
  session->last_used = now;
  nodes_drafted_ += reply.tokens.size();
  reply_(job->peer, std::move(reply), std::move(weights));
}

absl::Status DraftEngine::Step() {
  model::Batch batch;
  batch.mask_words = kMaskWords;
  std::vector<std::pair<Job*, int32_t>> stepped;
  for (auto& job : jobs_) {
    const int32_t before = batch.rows();
    AddRows(job.get(), options_.max_step_tokens - before, &batch);
    if (batch.rows() > before) stepped.emplace_back(job.get(), batch.rows() - before);
  }
  if (batch.rows() > 0) {
    const base::Nanos before = base::Now();
    model_->MoveKv(moves_);
    moves_.clear();
    auto logits = model_->Forward(batch);
    if (!logits.ok()) return logits.status();
    int32_t logit = 0;
    for (auto [job, rows] : stepped) Absorb(job, rows, *logits, &logit);
    const base::Nanos pass = base::Now() - before;
    pass_time_ += (pass - pass_time_) / (pass < pass_time_ ? 4 : 16);
    StopWhatDoesNotPay();
  }
  const base::Nanos after = base::Now();
  std::erase_if(jobs_, [&](const std::unique_ptr<Job>& job) {
    if (!Done(*job, after)) return false;
    Finish(job.get(), after);
    return true;
  });
  return absl::OkStatus();
}

}  // namespace specfabric::draft
