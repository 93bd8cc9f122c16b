#include "scheduler/policy/draft_selection.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "speculation/merge.h"
#include "speculation/ngram_lookup.h"

namespace specfabric::scheduler {
namespace {

using speculation::Draft;

constexpr int32_t kNgramLookupNodes = 24, kNgramLookupDepth = 16;

// Keeps the `most` nodes of the highest expected gain. A node's is never less than its children's,
// so that they form a subtree.
void KeepBest(int32_t most, Draft* draft, std::vector<float>* expected_gain) {
  if (draft->tree.size() - 1 <= most) return;
  std::vector<int32_t> nodes(expected_gain->size());
  std::iota(nodes.begin(), nodes.end(), 1);
  std::stable_sort(nodes.begin(), nodes.end(), [&](int32_t a, int32_t b) {
    return (*expected_gain)[a - 1] > (*expected_gain)[b - 1];
  });
  nodes.resize(most);
  std::sort(nodes.begin(), nodes.end());
  for (int32_t i = 0; i < most; ++i) (*expected_gain)[i] = (*expected_gain)[nodes[i] - 1];
  expected_gain->resize(most);
  Keep(nodes, draft);
}

void PruneTo(int32_t useful, Draft* draft) {
  if (draft->tree.size() > useful + 1) *draft = Prune(std::move(*draft), useful, useful);
}

void SetDraft(Draft draft, Sequence* sequence) {
  sequence->draft = std::move(draft);
  sequence->has_draft = true;
}

// A chain of the first tokens that the sequence's grammar forces.
Draft Forced(const Sequence& sequence, int32_t most) {
  Draft draft = {.tree = speculation::TokenTree::Root(sequence.committed.back()),
                 .draw = speculation::SiblingDraw::kDeterministic};
  const auto count = std::min(most, static_cast<int32_t>(sequence.forced.size()));
  for (int32_t i = 0; i < count; ++i) draft.tree.Add(i, sequence.forced[i], 0.0f);
  draft.sources.assign(draft.tree.size(), {.proposed_by = speculation::ProposalSource::kGrammar});
  return draft;
}

float Sum(const std::vector<float>& expected_gain) {
  return std::accumulate(expected_gain.begin(), expected_gain.end(), 0.0f);
}

}  // namespace

void DraftSelection::CatchUp(Sequence* sequence) const {
  if (!options_.ngram_lookup || !sequence->sources.ngram_lookup) return;
  if (!sequence->ngram_lookup) sequence->ngram_lookup.emplace();
  const int32_t known =
      sequence->phase == Phase::kRunning ? sequence->committed_size() : sequence->kv_written;
  for (int32_t i = sequence->ngram_lookup->size(); i < known; ++i) {
    sequence->ngram_lookup->Append(sequence->committed[i]);
  }
}

float DraftSelection::Propose(Sequence* sequence) const {
  sequence->answered = false;
  const int32_t useful = UsefulNodes(*sequence);
  if (useful <= 0) return 0;
  if (!sequence->forced.empty() && sequence->sources.grammar) {
    SetDraft(Forced(*sequence, useful), sequence);
    control_->EvaluateExtra(sequence->round_kind(), sequence->draft, &sequence->expected_gain);
    return Sum(sequence->expected_gain);
  }
  if (!sequence->ngram_lookup) return 0;
  Draft draft = {
      .tree =
          sequence->ngram_lookup->Propose(std::min(kNgramLookupNodes, useful), kNgramLookupDepth),
      .draw = speculation::SiblingDraw::kDeterministic,
  };
  draft.sources.assign(draft.tree.size(), {.proposed_by = speculation::ProposalSource::kNgramLookup,
                                           .from_ngram_lookup = true});
  control_->EvaluateNgramLookup(sequence->round_kind(), draft, &sequence->expected_gain);
  if (draft.tree.size() > 1) SetDraft(std::move(draft), sequence);
  return Sum(sequence->expected_gain);
}

void DraftSelection::Take(Draft draft, Sequence* sequence) {
  const RoundKind kind = sequence->round_kind();
  const DraftOrder& order = sequence->wait.order();
  const int32_t useful = UsefulNodes(*sequence);
  PruneTo(useful, &draft);
  sequence->answered = true;
  if (sequence->has_draft && speculation::Merges(kind.verification)) {
    draft = speculation::Merge(std::move(draft), sequence->draft);
    control_->Evaluate(kind, draft, order, useful, &sequence->expected_gain);
    KeepBest(useful, &draft, &sequence->expected_gain);
    return SetDraft(std::move(draft), sequence);
  }
  control_->Evaluate(kind, draft, order, useful, &spare_gain_);
  // Choosing by these sums does not change the output distribution: neither depends on what the
  // drafter drew. What the n-gram lookup found follows from the text so far, and the expected gains
  // of a tree verified by draft probabilities are those of earlier trees.
  if (sequence->has_draft && Sum(sequence->expected_gain) > Sum(spare_gain_)) return;
  sequence->expected_gain.swap(spare_gain_);
  SetDraft(std::move(draft), sequence);
}

void DraftSelection::LearnFromStale(Draft draft, const Sequence& sequence) {
  const int32_t useful = UsefulNodes(sequence);
  PruneTo(useful, &draft);
  control_->Evaluate(sequence.round_kind(), draft, sequence.wait.order(), useful, &spare_gain_);
}

void DraftSelection::Merge(Draft draft, Sequence* sequence) const {
  const int32_t useful = UsefulNodes(*sequence);
  PruneTo(useful, &draft);
  if (sequence->has_draft) draft = speculation::Merge(std::move(sequence->draft), draft);
  control_->EvaluateExtra(sequence->round_kind(), draft, &sequence->expected_gain);
  KeepBest(useful, &draft, &sequence->expected_gain);
  SetDraft(std::move(draft), sequence);
}

}  // namespace specfabric::scheduler
