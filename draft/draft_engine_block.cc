// Trees of drafters that predict a block of tokens in one pass over their target's hidden states
// (DFlash, DSpark).

#include <algorithm>
#include <utility>

#include "draft/draft_engine.h"

namespace specfabric::draft {

// Keys of the committed positions whose states have come, then the block's rows, all or none of
// them: what one predicts depends on how many there are.
void DraftEngine::AddBlock(Job* job, int32_t budget, model::Batch* batch) {
  Session* session = job->session;
  const int32_t missing = session->length() - session->kv_len;
  const int32_t ready = missing > 0 ? RowsWithStates(session) : 0;
  job->context_rows = std::max(0, std::min(ready, budget));
  if (job->context_rows > 0) AddContext(*session, job->context_rows);
  budget -= job->context_rows;
  const bool whole = session->kv_len + job->context_rows == session->length();
  // A pass that is too small for a block takes one all the same.
  job->runs_block = whole && (budget >= block()->rows || batch->rows() + context_.rows() == 0);
  job->masks = job->runs_block ? job->most_masks : 0;
  if (!job->runs_block) return;
  const model::BatchSequence sequence = {.kv_len = session->length() - session->origin,
                                         .first_row = batch->rows(),
                                         .row_count = block()->rows,
                                         .block = true};
  const int32_t first = batch->rows() + (block()->from_anchor ? 0 : 1);
  for (int32_t i = 0; i < block()->rows; ++i) {
    batch->tokens.push_back(i == 0 ? session->tokens.back() : mask_token_);
    batch->positions.push_back(session->length() - 1 + i);
  }
  for (int32_t level = 0; level <= job->masks; ++level) batch->logit_rows.push_back(first + level);
  batch->sequences.push_back(sequence);
  NameBlocks(*session, batch);
}

void DraftEngine::AddContext(const Session& session, int32_t rows) {
  context_.sequences.push_back(
      {.kv_len = session.kv_len - session.origin, .first_row = context_.rows(), .row_count = rows});
  for (int32_t i = session.kv_len; i < session.kv_len + rows; ++i) {
    context_.tokens.push_back(session.tokens[i]);
    context_.positions.push_back(PositionOf(i));
    AddState(session.states.at(i - 1), &context_);
  }
  NameBlocks(session, &context_);
}

void DraftEngine::AbsorbBlock(Job* job, const PassLogits& logits, int32_t* logit) {
  Session* session = job->session;
  session->kv_len += job->context_rows;
  if (!job->runs_block) return;
  session->states.DropBefore(session->length() - 2);
  job->first_logit = std::exchange(*logit, *logit + 1 + job->masks);
  if (!shares_levels()) return;
  AbsorbLevels(job, logits);
  ExpandKnown(job);
}

// The nodes to draft after next, one level of each tree, with what their head reads.
DraftEngine::BlockNodes DraftEngine::NextBlockNodes(absl::Span<Job* const> jobs) {
  const size_t rank = recurs() ? block()->markov_rank : 0;
  BlockNodes next;
  for (Job* const job : jobs) {
    if (!job->runs_block) continue;
    const speculation::TokenTree& tree = job->grower.tree();
    for (const int32_t node : job->grower.Frontier()) {
      const int32_t depth = speculation::DepthOf(tree, node);
      if (depth > job->masks || !job->grower.Expandable(node)) continue;
      next.of.emplace_back(job, node);
      next.rows.push_back({.row = job->first_logit + depth, .before = tree.tokens[node]});
      next.states.resize(next.states.size() + rank);
      if (rank == 0 || node == 0) continue;
      const absl::Span<const float> state =
          job->session->speculation_cache.state(CacheNodeOf(job, tree.parents[node]));
      std::copy(state.begin(), state.end(), next.states.end() - rank);
    }
  }
  return next;
}

absl::Status DraftEngine::ContinueBlocks(absl::Span<Job* const> jobs) {
  for (;;) {
    const BlockNodes next = NextBlockNodes(jobs);
    if (next.of.empty()) return absl::OkStatus();
    const absl::StatusOr<model::LogitShard> shard = model_->ContinueBlock(next.rows, next.states);
    if (!shard.ok()) return shard.status();
    std::vector<bool> stays;
    for (const auto& [job, node] : next.of) stays.push_back(job->on_device());
    const absl::StatusOr<PassLogits> logits = Fetch(*shard, stays);
    if (!logits.ok()) return logits.status();
    const absl::Span<const float> said = model_->confidences(), states = model_->next_states();
    const size_t rank = recurs() ? block()->markov_rank : 0;
    for (size_t i = 0; i < next.of.size(); ++i) {
      const auto [job, node] = next.of[i];
      SpeculationCache& speculation_cache = job->session->speculation_cache;
      const int cache_node = CacheNodeOf(job, node);
      if (!said.empty()) speculation_cache.SetSaid(cache_node, said[i]);
      if (rank > 0) speculation_cache.SetState(cache_node, states.subspan(i * rank, rank));
      ExpandNode(job, node, *logits, static_cast<int32_t>(i));
    }
    if (absl::Status drawn = DrawOnDevice(*logits); !drawn.ok()) return drawn;
  }
}

}  // namespace specfabric::draft
