// What a draft runs while no target waits for a tree: nodes that the next trees are likely to need.

#include <algorithm>
#include <limits>
#include <utility>

#include "draft/draft_engine.h"

namespace specfabric::draft {

bool DraftEngine::RoomAhead(const AheadShare& share) {
  Session* session = share.session;
  const auto rows = static_cast<int32_t>(share.nodes.size() + share.roots.size() * session->masks);
  const int32_t slots = session->speculation_cache.slots_used() + rows + 1 + session->masks;
  return slots <= SpeculationCache::kSlots &&
         session->length() + slots < options_.sessions.context &&
         sessions_.ReserveFree(session, session->length() + slots);
}

// The likeliest of all sessions together. Those of a parallel draft model are known as far as the
// tree that was sent goes: its nodes are run for their keys, and each next root after any of them
// with the masks that give its levels, all in one pass.
std::vector<DraftEngine::AheadShare> DraftEngine::ChooseAhead() {
  std::vector<AheadShare> shares;
  int32_t masks = 0;
  sessions_.ForEach([&](Session* session) {
    if (session->busy || !session->ahead.any()) return;
    shares.push_back({.session = session});
    masks = std::max(masks, session->masks);
  });
  const auto best = [](const AheadShare& share) {
    return share.session->ahead.any() ? share.session->ahead.best()
                                      : -std::numeric_limits<float>::infinity();
  };
  const auto less = [&](const AheadShare& a, const AheadShare& b) { return best(a) < best(b); };
  int32_t most = std::max<int32_t>(options_.ahead.rows, shares.size());
  most *= 1 + masks;
  most = std::min(most, options_.max_step_tokens);
  for (int32_t rows = 0; rows < most && !shares.empty();) {
    AheadShare& share = *std::max_element(shares.begin(), shares.end(), less);
    Session* session = share.session;
    if (!session->ahead.any()) break;
    if (!RoomAhead(share)) {
      session->ahead.Stop();
      continue;
    }
    const AheadNode node = session->ahead.Take();
    SpeculationCache& speculation_cache = session->speculation_cache;
    share.nodes.push_back(speculation_cache.FindOrAdd(node.parent, node.token, node.logprob));
    ++rows;
    if (!parallel()) continue;
    if (speculation_cache.sent(share.nodes.back())) {
      session->ahead.OnRun(speculation_cache, share.nodes.back());
    } else {
      share.roots.push_back(static_cast<int32_t>(share.nodes.size()) - 1);
      rows += session->masks;
    }
  }
  std::erase_if(shares, [](const AheadShare& share) { return share.nodes.empty(); });
  return shares;
}

// The masks of each next root, which see its path, itself and those before them. Their slots are
// behind those of the nodes, and are not kept.
void DraftEngine::AddMasks(const AheadShare& share, model::Batch* batch) {
  const SpeculationCache& speculation_cache = share.session->speculation_cache;
  int32_t slot = speculation_cache.slots_used();
  for (const int32_t root : share.roots) {
    uint64_t sees[kMaskWords] = {};
    const int32_t depth = speculation_cache.SeePath(share.nodes[root], sees);
    for (int32_t mask = 1; mask <= share.session->masks; ++mask, ++slot) {
      sees[slot / 64] |= uint64_t{1} << (slot % 64);
      batch->tokens.push_back(mask_token_);
      batch->positions.push_back(share.session->length() - 1 + depth + mask);
      batch->ancestors.insert(batch->ancestors.end(), sees, sees + kMaskWords);
      batch->logit_rows.push_back(batch->rows() - 1);
      ++batch->sequences.back().row_count;
    }
  }
}

void DraftEngine::AbsorbAhead(const AheadShare& share, const PassLogits& logits, int32_t* logit) {
  SpeculationCache& speculation_cache = share.session->speculation_cache;
  const int32_t first = std::exchange(*logit, *logit + static_cast<int32_t>(share.nodes.size()));
  if (!parallel()) {
    for (size_t i = 0; i < share.nodes.size(); ++i) {
      SetNodeCandidates(share.session, share.nodes[i], logits.row(first + static_cast<int32_t>(i)));
      share.session->ahead.OnRun(speculation_cache, share.nodes[i]);
    }
    return;
  }
  for (const int32_t root : share.roots) {
    std::vector<int32_t> rows = {first + root};
    for (int32_t mask = 0; mask < share.session->masks; ++mask) rows.push_back((*logit)++);
    const int32_t node = share.nodes[root];
    speculation_cache.SetLevels(node, LevelsFrom(share.session, node, logits, rows));
  }
}

absl::Status DraftEngine::StepAhead() {
  const std::vector<AheadShare> shares = ChooseAhead();
  ahead_ = 0;
  if (!shares.empty()) {
    model::Batch batch;
    batch.mask_words = kMaskWords;
    for (const AheadShare& share : shares) {
      AddNodes(share.session, share.nodes, &batch);
      AddMasks(share, &batch);
    }
    auto logits = Run(batch);
    if (!logits.ok()) return logits.status();
    int32_t logit = 0;
    for (const AheadShare& share : shares) AbsorbAhead(share, *logits, &logit);
    ++stats_.passes_ahead;
    stats_.nodes_ahead += batch.rows();
  }
  sessions_.ForEach([&](Session* session) { ahead_ += session->ahead.any(); });
  return absl::OkStatus();
}

}  // namespace specfabric::draft
