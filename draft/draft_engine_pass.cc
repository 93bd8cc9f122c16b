// What a pass of the draft's model holds, and what is made of its logits.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/bfloat16.h"
#include "draft/draft_engine.h"
#include "sampling/draft_row.h"
#include "sampling/sampling.h"

namespace specfabric::draft {

namespace {

// Of a node: of how many a draft says how sure it is of them.
constexpr int kCandidates = 8;

// A token drawn from a row whose entries sum to `total`.
Candidate Drawn(base::TokenId token, uint16_t prob, double total) {
  const float logprob = static_cast<float>(std::log(base::WidenBFloat16(prob) / total));
  return {{token, logprob}, logprob};
}

}  // namespace

void DraftEngine::NameBlocks(const Session& session, model::Batch* batch) {
  model::BatchSequence& sequence = batch->sequences.back();
  sequence.first_block = static_cast<int32_t>(batch->blocks.size());
  sequence.block_count = static_cast<int32_t>(session.blocks.size());
  batch->blocks.insert(batch->blocks.end(), session.blocks.begin(), session.blocks.end());
}

void DraftEngine::AddPrefix(Job* job, int32_t rows, int32_t budget, model::Batch* batch) {
  Session* session = job->session;
  const bool whole = session->kv_len + rows == session->length();
  // Where the last rows of the prefix fill the pass, the masks behind them are fewer.
  job->masks = whole ? std::clamp(budget - rows, 0, job->most_masks) : 0;
  model::BatchSequence sequence;
  sequence.kv_len = session->kv_len - session->origin;
  sequence.first_row = batch->rows();
  sequence.row_count = rows + job->masks;
  sequence.causal = true;
  // The keys of masks are written behind the prefix, where the next tokens' take their place.
  for (int32_t i = session->kv_len; i < session->kv_len + sequence.row_count; ++i) {
    batch->tokens.push_back(i < session->length() ? session->tokens[i] : mask_token_);
    batch->positions.push_back(PositionOf(i));
    batch->ancestors.insert(batch->ancestors.end(), kMaskWords, 0);
    if (reads_states()) AddState(session->states.at(i - 1), batch);
    if (whole && i + 1 >= session->length()) batch->logit_rows.push_back(batch->rows() - 1);
  }
  batch->sequences.push_back(sequence);
  NameBlocks(*session, batch);
}

void DraftEngine::AddNodes(Session* session, absl::Span<const int32_t> nodes, model::Batch* batch) {
  SpeculationCache& speculation_cache = session->speculation_cache;
  model::BatchSequence sequence;
  sequence.kv_len = session->length() - session->origin;
  sequence.tree_first = speculation_cache.slots_used();
  sequence.first_row = batch->rows();
  sequence.row_count = static_cast<int32_t>(nodes.size());
  sequence.causal = false;
  for (const int32_t node : nodes) {
    speculation_cache.TakeSlot(node);
    uint64_t mask[kMaskWords] = {};
    const int32_t depth = speculation_cache.SeePath(node, mask);
    batch->tokens.push_back(speculation_cache.tree().tokens[node]);
    batch->positions.push_back(PositionOf(session->length() - 1 + depth));
    batch->ancestors.insert(batch->ancestors.end(), mask, mask + kMaskWords);
    if (reads_states()) {
      AddState(speculation_cache.state(speculation_cache.tree().parents[node]), batch);
    }
    batch->logit_rows.push_back(batch->rows() - 1);
  }
  batch->sequences.push_back(sequence);
  NameBlocks(*session, batch);
}

void DraftEngine::AddRows(Job* job, int32_t budget, model::Batch* batch) {
  job->frontier.clear();
  if (block() != nullptr) return AddBlock(job, budget, batch);
  if (budget <= 0) return;
  Session* session = job->session;
  const int32_t missing = session->length() - session->kv_len;
  if (missing > 0) {
    const int32_t ready = reads_states() ? RowsWithStates(session) : missing;
    return ready > 0 ? AddPrefix(job, std::min(ready, budget), budget, batch) : void();
  }
  const int32_t room =
      std::min(budget, SpeculationCache::kSlots - session->speculation_cache.slots_used());
  job->frontier = job->grower.Frontier();
  if (static_cast<int32_t>(job->frontier.size()) > room) job->frontier.resize(room);
  if (room == 0) job->grower.Stop();
  if (job->frontier.empty()) return;
  std::vector<int32_t> nodes;
  for (const int32_t node : job->frontier) nodes.push_back(CacheNodeOf(job, node));
  AddNodes(session, nodes, batch);
}

// The cache node that a node of the job's tree is; it becomes one if it was none.
int DraftEngine::CacheNodeOf(Job* job, int node) {
  const speculation::TokenTree& tree = job->grower.tree();
  for (int n = static_cast<int>(job->node_of.size()); n <= node; ++n) {
    job->node_of.push_back(job->session->speculation_cache.FindOrAdd(
        job->node_of[tree.parents[n]], tree.tokens[n], tree.scores[n]));
  }
  return job->node_of[node];
}

absl::StatusOr<PassLogits> DraftEngine::Run(const model::Batch& batch,
                                            const std::vector<bool>& stays) {
  model_->MoveKv(moves_);
  moves_.clear();
  const absl::StatusOr<model::LogitShard> logits = model_->Forward(batch);
  if (!logits.ok()) return logits.status();
  return Fetch(*logits, stays);
}

absl::StatusOr<PassLogits> DraftEngine::Fetch(model::LogitShard logits,
                                              const std::vector<bool>& stays) {
  if (logits.device == nullptr) return PassLogits(logits);
  std::vector<int32_t> wanted, place(logits.rows, 0);
  for (int32_t row = 0; row < logits.rows; ++row) {
    if (!stays.empty() && stays[row]) continue;
    place[row] = static_cast<int32_t>(wanted.size());
    wanted.push_back(row);
  }
  if (wanted.empty()) return PassLogits(logits);
  const absl::StatusOr<const float*> fetched = logits.device->Fetch(wanted);
  if (!fetched.ok()) return fetched.status();
  logits.data = *fetched;
  return PassLogits(logits, std::move(place));
}

std::vector<Candidate> DraftEngine::BestTokens(Session* session, int32_t position, int width,
                                               int level, absl::Span<const float> logits) {
  const base::SamplingParams& sampling = session->sampling;
  const bool shared = session->verification == speculation::VerificationMethod::kCoupled;
  logits = logits.first(std::min<size_t>(logits.size(), session->vocabulary));
  const absl::Span<const float> noise =
      shared && !sampling.greedy() ? noise_.Row(sampling.seed, position).first(logits.size())
                                   : absl::Span<const float>();
  // What the target's filters would surely drop is not proposed.
  if (!sampling.greedy() && sampling.filtered()) {
    const std::vector<uint8_t> keep = sampling::FilterMask(logits, sampling);
    masked_.assign(logits.begin(), logits.end());
    for (size_t i = 0; i < keep.size(); ++i) {
      if (!keep[i]) masked_[i] = -std::numeric_limits<float>::infinity();
    }
    logits = masked_;
  }
  std::vector<sampling::ScoredToken> best = sampling::PerturbedTopK(
      logits, noise, noise.empty() ? 0 : sampling.temperature, std::max(width, kCandidates));
  std::erase_if(best, [](const auto& c) { return !std::isfinite(c.score); });
  const std::vector<float> logprobs = confidence(session->verification, level).LogProbs(best);
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < best.size(); ++i) candidates.push_back({best[i], logprobs[i]});
  return candidates;
}

sampling::DrawSite DraftEngine::SiteOf(const Job& job, int node) const {
  const int32_t depth = speculation::DepthOf(job.grower.tree(), node);
  return {.purpose = sampling::Purpose::kDraft,
          .position = static_cast<uint32_t>(job.session->length() + depth),
          .draw = job.request.draw,
          .node = static_cast<uint32_t>(node)};
}

void DraftEngine::MakeDraftProbs(const Job& job, absl::Span<const float> logits,
                                 absl::Span<uint16_t> probs) {
  const size_t common = std::min(logits.size(), probs.size());
  logits = logits.first(common);
  std::fill(probs.begin() + static_cast<std::ptrdiff_t>(common), probs.end(), uint16_t{0});
  if (reads_states()) {
    // Of a reduced vocabulary the other tokens have no score, which would make the row look broken.
    constexpr float kNever = std::numeric_limits<float>::lowest();
    masked_.assign(logits.begin(), logits.end());
    std::replace(masked_.begin(), masked_.end(), -std::numeric_limits<float>::infinity(), kNever);
    logits = masked_;
  }
  sampling::MakeDraftProbs(logits, job.request.sampling, options_.top_n, probs.first(common));
}

std::vector<Candidate> DraftEngine::DrawnTokens(Job* job, int node,
                                                absl::Span<const float> logits) {
  std::vector<Candidate> drawn;
  if (job->rows == job->shape.rows) return drawn;
  speculation::DraftProbsWriter writer(job->shape, job->slot.data());
  cut_probs_.resize(job->shape.vocabulary);
  const absl::Span<uint16_t> draft_probs =
      job->shape.whole() ? writer.WholeRow(job->rows) : absl::MakeSpan(cut_probs_);
  MakeDraftProbs(*job, logits, draft_probs);
  const sampling::DrawSite site = SiteOf(*job, node);
  const uint64_t seed = job->request.sampling.seed;
  const int width = job->grower.Width(speculation::DepthOf(job->grower.tree(), node));
  const std::vector<base::TokenId> tokens =
      job->draw == schemas::SiblingDraw::kWithReplacement
          ? sampling::DrawWithReplacement(draft_probs, width, seed, site)
          : sampling::DrawWithoutReplacement(draft_probs, width, seed, site);
  if (tokens.empty()) return drawn;
  if (!job->shape.whole()) writer.Write(job->rows, draft_probs);
  ++job->rows;
  const double total = sampling::TotalProb(draft_probs);
  for (base::TokenId token : tokens) drawn.push_back(Drawn(token, draft_probs[token], total));
  return drawn;
}

// A node that the budget does not reach, or of whose row nothing could be drawn, leaves its place
// in the slot to the next one's row: what is behind it is drawn once more, to the same tokens.
absl::Status DraftEngine::DrawOnDevice(const PassLogits& logits) {
  std::vector<verification::DrawnRow> drawn;
  for (;;) {
    const std::vector<verification::RowDraw> draws = NextDraws();
    if (draws.empty()) return absl::OkStatus();
    drawn.resize(draws.size());
    absl::Status status = draft_rows_->Draw(logits.on_device(), draws, absl::MakeSpan(drawn));
    if (!status.ok()) {
      on_device_.clear();
      return status;
    }
    ExpandDrawn(drawn);
  }
}

std::vector<verification::RowDraw> DraftEngine::NextDraws() {
  std::vector<verification::RowDraw> draws;
  std::vector<DeviceNode> left;
  int32_t row = 0;
  for (DeviceNode waiting : std::exchange(on_device_, {})) {
    Job* const job = waiting.job;
    if (!job->grower.Expandable(waiting.node)) continue;
    const int width = job->grower.Width(speculation::DepthOf(job->grower.tree(), waiting.node));
    if (job->rows == job->shape.rows || width == 0) {
      Expand(job, waiting.node, {});
      continue;
    }
    row = left.empty() || left.back().job != job ? job->rows : row + 1;
    waiting.drawn = row < job->shape.rows;
    left.push_back(waiting);
    if (!waiting.drawn) continue;
    draws.push_back({.logit = waiting.logit,
                     .sampling = job->request.sampling,
                     .top_n = options_.top_n,
                     .row = job->slot.data() + row * job->shape.row_bytes(),
                     .entries = job->shape.entries,
                     .draw = job->draw,
                     .siblings = width,
                     .site = SiteOf(*job, waiting.node)});
  }
  on_device_ = std::move(left);
  return draws;
}

void DraftEngine::ExpandDrawn(absl::Span<const verification::DrawnRow> drawn) {
  std::vector<DeviceNode> left;
  const Job* moved = nullptr;  // whose rows behind this one are not where they should be
  size_t next = 0;
  for (const DeviceNode& waiting : std::exchange(on_device_, {})) {
    Job* const job = waiting.job;
    const verification::DrawnRow* const row = waiting.drawn ? &drawn[next++] : nullptr;
    if (row == nullptr || job == moved) {
      left.push_back(waiting);
      continue;
    }
    const bool reached = job->grower.Expandable(waiting.node);
    if (!reached || row->count == 0) moved = job;
    if (!reached) continue;
    job->rows += row->count > 0;
    std::vector<Candidate> candidates;
    for (const verification::DrawnSibling& sibling : absl::MakeSpan(row->siblings, row->count)) {
      candidates.push_back(Drawn(sibling.token, sibling.prob, row->total));
    }
    Expand(job, waiting.node, candidates);
  }
  on_device_ = std::move(left);
}

void DraftEngine::SetNodeCandidates(Session* session, int cache_node,
                                    absl::Span<const float> logits) {
  SpeculationCache& speculation_cache = session->speculation_cache;
  const int32_t position =
      session->length() + speculation::DepthOf(speculation_cache.tree(), cache_node);
  std::vector<Candidate> candidates =
      BestTokens(session, position, options_.growth.max_children, /*level=*/0, logits);
  const std::optional<float> said = speculation_cache.said(cache_node);
  if (said) ApplySaid(*session, *said, &candidates);
  speculation_cache.SetCandidates(cache_node, std::move(candidates));
}

// The first one's chance is what the drafter says; the others share what is left.
void DraftEngine::ApplySaid(const Session& session, float said,
                            std::vector<Candidate>* candidates) const {
  if (candidates->empty()) return;
  const float chance = calibrated_[static_cast<size_t>(session.verification)].Of(said);
  const float left = std::max(1 - std::exp(candidates->front().logprob), 1e-6f);
  const float more = std::log1p(-chance) - std::log(left);
  for (Candidate& candidate : *candidates) candidate.logprob += more;
  candidates->front().logprob = std::log(chance);
}

SpeculationCache::Levels DraftEngine::LevelsFrom(Session* session, int cache_node,
                                                 const PassLogits& logits,
                                                 absl::Span<const int32_t> rows) {
  const int32_t position =
      session->length() + speculation::DepthOf(session->speculation_cache.tree(), cache_node);
  SpeculationCache::Levels levels;
  for (const int32_t row : rows) {
    const auto level = static_cast<int32_t>(levels.size());
    levels.push_back(BestTokens(session, position + level, options_.growth.max_children, level,
                                logits.row(row)));
  }
  return levels;
}

absl::Span<const Candidate> DraftEngine::KnownCandidates(Job* job, int node) {
  const SpeculationCache& speculation_cache = job->session->speculation_cache;
  if (!shares_levels()) return speculation_cache.candidates(CacheNodeOf(job, node));
  const auto level = static_cast<size_t>(speculation::DepthOf(job->grower.tree(), node));
  const SpeculationCache::Levels& levels = speculation_cache.levels(0);
  return level < levels.size() ? absl::MakeConstSpan(levels[level]) : absl::Span<const Candidate>();
}

void DraftEngine::Expand(Job* job, int node, absl::Span<const Candidate> candidates) {
  std::vector<sampling::ScoredToken> tokens;
  std::vector<float> logprobs;
  for (const Candidate& candidate : candidates) {
    tokens.push_back(candidate.scored);
    logprobs.push_back(candidate.logprob);
  }
  job->grower.Expand(node, tokens, logprobs);
}

void DraftEngine::ExpandKnown(Job* job) {
  if (job->slot) return;  // drawn anew in each round
  for (bool grown = true; grown;) {
    grown = false;
    for (const int32_t node : job->grower.Frontier()) {
      const absl::Span<const Candidate> known = KnownCandidates(job, node);
      if (known.empty() || !job->grower.Expandable(node)) continue;
      Expand(job, node, known);
      grown = true;
    }
    if (grown) job->grower.Refill();
  }
}

void DraftEngine::ExpandNode(Job* job, int node, const PassLogits& logits, int32_t logit) {
  const int cache_node = CacheNodeOf(job, node);
  if (job->on_device()) return on_device_.push_back({job, node, logit});
  if (!job->slot) {
    SetNodeCandidates(job->session, cache_node, logits.row(logit));
    // The budget may have run out on the nodes before it.
    if (job->grower.Expandable(node))
      Expand(job, node, job->session->speculation_cache.candidates(cache_node));
    return;
  }
  if (!job->grower.Expandable(node)) return;
  Expand(job, node, DrawnTokens(job, node, logits.row(logit)));
}

bool DraftEngine::DrawLevels(Job* job, const PassLogits& logits) {
  bool draws = false;
  for (bool grown = true; grown;) {
    grown = false;
    for (const int32_t node : job->grower.Frontier()) {
      const int32_t depth = speculation::DepthOf(job->grower.tree(), node);
      if (depth > job->masks || !job->grower.Expandable(node)) continue;
      ExpandNode(job, node, logits, job->first_logit + depth);
      (job->on_device() ? draws : grown) = true;
    }
    if (grown) job->grower.Refill();
  }
  return draws;
}

void DraftEngine::AbsorbPrefix(Job* job, const PassLogits& logits) {
  if (reads_states()) {
    KeepState(job->session, 0, job->first_logit);
    job->session->states.DropBefore(job->session->length() - 2);
  }
  if (!parallel()) return ExpandNode(job, 0, logits, job->first_logit);
  AbsorbLevels(job, logits);
}

void DraftEngine::AbsorbLevels(Job* job, const PassLogits& logits) {
  if (job->slot) {
    DrawLevels(job, logits);
    return;
  }
  std::vector<int32_t> rows(1 + job->masks);
  std::iota(rows.begin(), rows.end(), job->first_logit);
  SpeculationCache& speculation_cache = job->session->speculation_cache;
  speculation_cache.SetLevels(0, LevelsFrom(job->session, 0, logits, rows));
}

void DraftEngine::Absorb(Job* job, int32_t rows, const PassLogits& logits, int32_t* logit) {
  Session* session = job->session;
  ++job->passes;
  if (block() != nullptr) return AbsorbBlock(job, logits, logit);
  if (job->frontier.empty()) {
    session->kv_len += rows - job->masks;
    if (session->kv_len == session->length()) {
      job->first_logit = *logit;
      *logit += 1 + job->masks;
      AbsorbPrefix(job, logits);
    }
  } else {
    for (const int32_t node : job->frontier) {
      if (reads_states()) KeepState(session, CacheNodeOf(job, node), *logit);
      ExpandNode(job, node, logits, (*logit)++);
    }
  }
  ExpandKnown(job);
}

absl::Status DraftEngine::StepJobs() {
  model::Batch batch;
  batch.mask_words = kMaskWords;
  context_ = {};
  std::vector<Job*> stepped;
  std::vector<int32_t> rows;  // [stepped]
  std::vector<bool> stays;    // [logit rows]
  for (auto& job : jobs_) {
    const int32_t before = batch.rows() + context_.rows();
    AddRows(job.get(), options_.max_step_tokens - before, &batch);
    stays.resize(batch.logit_rows.size(), job->on_device() || continues_blocks());
    const int32_t added = batch.rows() + context_.rows() - before;
    if (added == 0) continue;
    stepped.push_back(job.get());
    rows.push_back(added);
  }
  starved_ = stepped.empty();
  if (starved_) return absl::OkStatus();
  const base::Nanos before = base::Now();
  if (context_.rows() > 0) {
    if (absl::Status written = model_->WriteContext(context_); !written.ok()) return written;
  }
  absl::StatusOr<PassLogits> logits = PassLogits(model::LogitShard());
  if (batch.rows() > 0) logits = Run(batch, stays);
  if (!logits.ok()) return logits.status();
  int32_t logit = 0;
  for (size_t i = 0; i < stepped.size(); ++i) Absorb(stepped[i], rows[i], *logits, &logit);
  if (continues_blocks()) {
    if (absl::Status drafted = ContinueBlocks(stepped); !drafted.ok()) return drafted;
  }
  if (absl::Status drawn = DrawAllOnDevice(stepped, *logits); !drawn.ok()) return drawn;
  // A drafter that reads states runs the tokens that a round has committed.
  const int32_t most_rows =
      (reads_states() ? kOutcomeLevels : 1) + (block() != nullptr ? block()->rows : 0);
  bool reads_prompts = false;
  for (size_t i = 0; i < stepped.size(); ++i) {
    reads_prompts = reads_prompts || (stepped[i]->frontier.empty() && rows[i] > most_rows);
  }
  if (!reads_prompts) pass_time_.Note(base::Now() - before);
  ++stats_.passes;
  StopUnprofitableGrowth();
  return absl::OkStatus();
}

// Also ends the growth of the trees of parallel models, all of whose levels there are: further ones
// would take a pass for each token.
absl::Status DraftEngine::DrawAllOnDevice(absl::Span<Job* const> jobs, const PassLogits& logits) {
  for (bool draws = true; draws;) {
    if (absl::Status drawn = DrawOnDevice(logits); !drawn.ok()) return drawn;
    draws = false;
    if (!parallel()) break;
    for (Job* const job : jobs) {
      const bool runs =
          block() == nullptr ? job->session->kv_len == job->session->length() : job->runs_block;
      if (!runs) continue;
      if (job->on_device() && shares_levels() && DrawLevels(job, logits)) {
        draws = true;
      } else {
        job->grower.Stop();
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace specfabric::draft
