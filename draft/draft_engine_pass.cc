// What a pass of the draft's model holds, and what is made of its logits.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/bfloat16.h"
#include "draft/draft_engine.h"
#include "speculation/proposal.h"
#include "speculation/sampling.h"

namespace specfabric::draft {

namespace {

// Of a node: of how many a draft says how sure it is of them.
constexpr int kCandidates = 8;
constexpr int kMaskWords = GuessCache::kSlots / 64;

void NameBlocks(const Session& session, model::Batch* batch) {
  model::BatchSequence& sequence = batch->sequences.back();
  sequence.first_block = static_cast<int32_t>(batch->blocks.size());
  sequence.block_count = static_cast<int32_t>(session.blocks.size());
  batch->blocks.insert(batch->blocks.end(), session.blocks.begin(), session.blocks.end());
}

}  // namespace

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
  NameBlocks(*session, batch);
}

void DraftEngine::AddNodes(Session* session, absl::Span<const int32_t> nodes, model::Batch* batch) {
  GuessCache& guesses = session->guesses;
  const speculation::TokenTree& tree = guesses.tree();
  model::BatchSequence sequence;
  sequence.kv_len = session->length();
  sequence.tree_first = guesses.slots_used();
  sequence.first_row = batch->rows();
  sequence.row_count = static_cast<int32_t>(nodes.size());
  sequence.causal = false;
  for (const int32_t node : nodes) {
    guesses.TakeSlot(node);
    uint64_t mask[kMaskWords] = {};
    int32_t depth = 0;
    // The root is a committed slot, so the mask names only what lies below it.
    for (int32_t a = node; a > 0; a = tree.parents[a], ++depth) {
      mask[guesses.slot(a) / 64] |= uint64_t{1} << (guesses.slot(a) % 64);
    }
    batch->tokens.push_back(tree.tokens[node]);
    batch->positions.push_back(session->length() - 1 + depth);
    batch->ancestors.insert(batch->ancestors.end(), mask, mask + kMaskWords);
    batch->logit_rows.push_back(batch->rows() - 1);
  }
  batch->sequences.push_back(sequence);
  NameBlocks(*session, batch);
}

void DraftEngine::AddRows(Job* job, int32_t budget, model::Batch* batch) {
  job->frontier.clear();
  if (budget <= 0) return;
  Session* session = job->session;
  const int32_t missing = session->length() - session->kv_len;
  if (missing > 0) return AddPrefix(job, std::min(missing, budget), batch);
  const int32_t room = std::min(budget, GuessCache::kSlots - session->guesses.slots_used());
  job->frontier = job->grower.Frontier();
  if (static_cast<int32_t>(job->frontier.size()) > room) job->frontier.resize(room);
  if (room == 0) job->grower.Stop();
  if (job->frontier.empty()) return;
  std::vector<int32_t> nodes;
  for (const int32_t node : job->frontier) nodes.push_back(GuessOf(job, node));
  AddNodes(session, nodes, batch);
}

// The guess that a node of the job's tree is; it becomes one if it was none.
int DraftEngine::GuessOf(Job* job, int node) {
  const speculation::TokenTree& tree = job->grower.tree();
  for (int n = static_cast<int>(job->node_of.size()); n <= node; ++n) {
    job->node_of.push_back(job->session->guesses.FindOrAdd(job->node_of[tree.parents[n]],
                                                           tree.tokens[n], tree.scores[n]));
  }
  return job->node_of[node];
}

absl::StatusOr<model::LogitShard> DraftEngine::Run(const model::Batch& batch) {
  model_->MoveKv(moves_);
  moves_.clear();
  absl::StatusOr<model::LogitShard> logits = model_->Forward(batch);
  if (!logits.ok()) return logits;
  if (absl::Status fetched = model::FetchRows(&*logits); !fetched.ok()) return fetched;
  return logits;
}

std::vector<Candidate> DraftEngine::BestTokens(Session* session, int32_t position, int width,
                                               absl::Span<const float> logits) {
  const base::SamplingParams& sampling = session->sampling;
  const bool shared = session->coupling == speculation::Coupling::kCoupled;
  const absl::Span<const float> noise = shared && !sampling.greedy()
                                            ? noise_.Row(sampling.seed, position)
                                            : absl::Span<const float>();
  // What the target's filters would surely drop is not worth a guess.
  if (!sampling.greedy() && sampling.filtered()) {
    const std::vector<uint8_t> keep = speculation::FilterMask(logits, sampling);
    masked_.assign(logits.begin(), logits.end());
    for (size_t i = 0; i < keep.size(); ++i) {
      if (!keep[i]) masked_[i] = -std::numeric_limits<float>::infinity();
    }
    logits = masked_;
  }
  std::vector<speculation::ScoredToken> best = speculation::PerturbedTopK(
      logits, noise, noise.empty() ? 0 : sampling.temperature, std::max(width, kCandidates));
  std::erase_if(best, [](const auto& c) { return !std::isfinite(c.score); });
  const std::vector<float> logprobs = confidence(session->coupling).LogProbs(best);
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < best.size(); ++i) candidates.push_back({best[i], logprobs[i]});
  return candidates;
}

std::vector<Candidate> DraftEngine::DrawnTokens(Job* job, int node, int32_t position, int width,
                                                absl::Span<const float> logits) {
  std::vector<Candidate> drawn;
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
    drawn.push_back({{token, logprob}, logprob});
  }
  return drawn;
}

void DraftEngine::Look(Session* session, int guess, absl::Span<const float> logits) {
  const int32_t position = session->length() + speculation::DepthOf(session->guesses.tree(), guess);
  session->guesses.SetCandidates(
      guess, BestTokens(session, position, options_.growth.max_children, logits));
}

void DraftEngine::Expand(Job* job, int node, absl::Span<const Candidate> candidates) {
  std::vector<speculation::ScoredToken> tokens;
  std::vector<float> logprobs;
  for (const Candidate& candidate : candidates) {
    tokens.push_back(candidate.scored);
    logprobs.push_back(candidate.logprob);
  }
  job->grower.Expand(node, tokens, logprobs);
}

void DraftEngine::ExpandKnown(Job* job) {
  if (job->slot) return;  // drawn anew in each round
  Session* session = job->session;
  for (bool grown = true; grown;) {
    grown = false;
    for (const int32_t node : job->grower.Frontier()) {
      const absl::Span<const Candidate> known = session->guesses.candidates(GuessOf(job, node));
      if (known.empty() || !job->grower.Expandable(node)) continue;
      Expand(job, node, known);
      grown = true;
    }
    if (grown) job->grower.Refill();
  }
}

void DraftEngine::ExpandNode(Job* job, int node, absl::Span<const float> logits) {
  const int guess = GuessOf(job, node);
  if (!job->slot) {
    Look(job->session, guess, logits);
    // The budget may have run out on the nodes before it.
    if (job->grower.Expandable(node)) Expand(job, node, job->session->guesses.candidates(guess));
    return;
  }
  if (!job->grower.Expandable(node)) return;
  const int32_t depth = speculation::DepthOf(job->grower.tree(), node);
  const int32_t position = job->session->length() + depth;
  Expand(job, node, DrawnTokens(job, node, position, job->grower.Width(depth), logits));
}

void DraftEngine::Absorb(Job* job, int32_t rows, const model::LogitShard& logits, int32_t* logit) {
  Session* session = job->session;
  ++job->passes;
  if (job->frontier.empty()) {
    session->kv_len += rows;
    if (session->kv_len == session->length()) ExpandNode(job, 0, logits.row((*logit)++));
  } else {
    for (const int32_t node : job->frontier) ExpandNode(job, node, logits.row((*logit)++));
  }
  ExpandKnown(job);
}

// The lower third of passes, so that one that was held up says little.
void DraftEngine::NotePassTime(base::Nanos pass) {
  if (pass_time_ == 0) {
    pass_time_ = pass;
  } else {
    pass_time_ += pass > pass_time_ ? pass_time_ / 16 : -pass_time_ / 8;
  }
}

absl::Status DraftEngine::StepJobs() {
  model::Batch batch;
  batch.mask_words = kMaskWords;
  std::vector<std::pair<Job*, int32_t>> stepped;
  for (auto& job : jobs_) {
    const int32_t before = batch.rows();
    AddRows(job.get(), options_.max_step_tokens - before, &batch);
    if (batch.rows() > before) stepped.emplace_back(job.get(), batch.rows() - before);
  }
  if (batch.rows() == 0) return absl::OkStatus();
  const base::Nanos before = base::Now();
  auto logits = Run(batch);
  if (!logits.ok()) return logits.status();
  int32_t logit = 0;
  for (auto [job, rows] : stepped) Absorb(job, rows, *logits, &logit);
  const bool reads_prompts = std::any_of(stepped.begin(), stepped.end(), [](const auto& part) {
    return part.first->frontier.empty() && part.second > 1;
  });
  if (!reads_prompts) NotePassTime(base::Now() - before);
  ++stats_.passes;
  StopWhatDoesNotPay();
  return absl::OkStatus();
}

// The likeliest of all sessions together.
absl::Status DraftEngine::StepAhead() {
  struct Share {
    Session* session;
    std::vector<int32_t> nodes;
  };
  std::vector<Share> shares;
  sessions_.ForEach([&](Session* session) {
    if (!session->busy && session->ahead.any()) shares.push_back({session, {}});
  });
  const auto best = [](const Share& share) {
    return share.session->ahead.any() ? share.session->ahead.best()
                                      : -std::numeric_limits<float>::infinity();
  };
  const auto less = [&](const Share& a, const Share& b) { return best(a) < best(b); };
  const int32_t most =
      std::min(options_.max_step_tokens, std::max<int32_t>(options_.ahead.rows, shares.size()));
  for (int32_t rows = 0; rows < most && !shares.empty(); ++rows) {
    Share& share = *std::max_element(shares.begin(), shares.end(), less);
    Session* session = share.session;
    if (!session->ahead.any()) break;
    GuessCache& guesses = session->guesses;
    const auto slots = guesses.slots_used() + static_cast<int32_t>(share.nodes.size()) + 1;
    if (slots > GuessCache::kSlots || session->length() + slots >= options_.sessions.context ||
        !sessions_.ReserveFree(session, session->length() + slots)) {
      session->ahead.Stop();
      continue;
    }
    const AheadNode node = session->ahead.Take();
    share.nodes.push_back(guesses.FindOrAdd(node.parent, node.token, node.logprob));
  }
  std::erase_if(shares, [](const Share& share) { return share.nodes.empty(); });
  ahead_ = 0;
  if (!shares.empty()) {
    model::Batch batch;
    batch.mask_words = kMaskWords;
    for (Share& share : shares) AddNodes(share.session, share.nodes, &batch);
    auto logits = Run(batch);
    if (!logits.ok()) return logits.status();
    int32_t logit = 0;
    for (Share& share : shares) {
      for (const int32_t node : share.nodes) {
        Look(share.session, node, logits->row(logit++));
        share.session->ahead.OnRun(share.session->guesses, node);
      }
    }
    ++stats_.passes_ahead;
    stats_.nodes_ahead += batch.rows();
  }
  sessions_.ForEach([&](Session* session) { ahead_ += session->ahead.any(); });
  return absl::OkStatus();
}

}  // namespace specfabric::draft
