// What a sequence drafts with in a round: the n-gram lookup at once, a drafter once it has
// answered.

#include <algorithm>
#include <numeric>
#include <utility>

#include "scheduler/scheduler_impl.h"
#include "speculation/merge.h"

namespace specfabric::scheduler {
namespace {

using speculation::Draft;

constexpr int32_t kNgramLookupNodes = 24, kNgramLookupDepth = 16;

// The `most` nodes of the highest expected gain, which is no node's less than its children's.
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

void SetDraft(Draft draft, Sequence* sequence) {
  sequence->draft = std::move(draft);
  sequence->has_draft = true;
}

}  // namespace

void Scheduler::Impl::CatchUp(Sequence* sequence) const {
  if (!options.ngram_lookup || !sequence->request.speculate) return;
  if (!sequence->ngram_lookup) sequence->ngram_lookup.emplace();
  const std::vector<base::TokenId>& committed = sequence->committed;
  const int32_t known =
      sequence->phase == Phase::kRunning ? sequence->committed_size() : sequence->kv_written;
  for (int32_t i = sequence->ngram_lookup->size(); i < known; ++i)
    sequence->ngram_lookup->Append(committed[i]);
}

void Scheduler::Impl::ProposeFromNgramLookup(Sequence* sequence) {
  sequence->answered = false;
  const int32_t useful = sequence->useful_draft_nodes(options.max_tree_nodes);
  if (!sequence->ngram_lookup || useful <= 0) return;
  Draft draft = {
      .tree =
          sequence->ngram_lookup->Propose(std::min(kNgramLookupNodes, useful), kNgramLookupDepth),
      .draw = speculation::SiblingDraw::kDeterministic,
  };
  draft.sources.assign(draft.tree.size(), {.proposed_by = speculation::ProposalSource::kNgramLookup,
                                           .from_ngram_lookup = true});
  control.EvaluateNgramLookup(sequence->request.verification, draft, &sequence->expected_gain);
  if (draft.tree.size() > 1) SetDraft(std::move(draft), sequence);
}

void Scheduler::Impl::TakeDraft(Draft draft, bool stale, Sequence* sequence) {
  const speculation::VerificationMethod verification = sequence->request.verification;
  const DraftOrder& order = sequence->wait.order();
  const int32_t useful = sequence->useful_draft_nodes(options.max_tree_nodes);
  if (draft.tree.size() > useful + 1) draft = Prune(std::move(draft), useful, useful);
  if (stale) return control.Evaluate(verification, draft, order, useful, &spare_gain);
  sequence->answered = true;
  if (sequence->has_draft && speculation::Merges(verification)) {
    draft = Merge(draft, sequence->draft);
    control.Evaluate(verification, draft, order, useful, &sequence->expected_gain);
    KeepBest(useful, &draft, &sequence->expected_gain);
    return SetDraft(std::move(draft), sequence);
  }
  control.Evaluate(verification, draft, order, useful, &spare_gain);
  // Either is known before anything of it is: what the n-gram lookup found follows from the text so
  // far, and what a weighed tree gains from those before it.
  const auto sum = [](const std::vector<float>& expected_gain) {
    return std::accumulate(expected_gain.begin(), expected_gain.end(), 0.0f);
  };
  if (sequence->has_draft && sum(sequence->expected_gain) > sum(spare_gain)) return;
  sequence->expected_gain.swap(spare_gain);
  SetDraft(std::move(draft), sequence);
}

void Scheduler::Impl::AddDraft(Draft draft, Sequence* sequence) {
  const int32_t useful = sequence->useful_draft_nodes(options.max_tree_nodes);
  if (draft.tree.size() > useful + 1) draft = Prune(std::move(draft), useful, useful);
  if (sequence->has_draft) draft = Merge(sequence->draft, draft);
  control.EvaluateExtra(sequence->request.verification, draft, &sequence->expected_gain);
  KeepBest(useful, &draft, &sequence->expected_gain);
  SetDraft(std::move(draft), sequence);
}

}  // namespace specfabric::scheduler
