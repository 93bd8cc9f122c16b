// What a sequence guesses with in a round: the lookup at once, a drafter once it has answered.

#include <algorithm>
#include <numeric>
#include <utility>

#include "scheduler/scheduler_impl.h"
#include "speculation/merge.h"

namespace specfabric::scheduler {
namespace {

using speculation::Draft;

constexpr int32_t kLookupNodes = 24, kLookupDepth = 16;

// The `most` nodes of the highest worth, which is no node's less than its children's.
void KeepBest(int32_t most, Draft* draft, std::vector<float>* worth) {
  if (draft->tree.size() - 1 <= most) return;
  std::vector<int32_t> nodes(worth->size());
  std::iota(nodes.begin(), nodes.end(), 1);
  std::stable_sort(nodes.begin(), nodes.end(),
                   [&](int32_t a, int32_t b) { return (*worth)[a - 1] > (*worth)[b - 1]; });
  nodes.resize(most);
  std::sort(nodes.begin(), nodes.end());
  for (int32_t i = 0; i < most; ++i) (*worth)[i] = (*worth)[nodes[i] - 1];
  worth->resize(most);
  Keep(nodes, draft);
}

void Guess(Draft draft, Sequence* sequence) {
  sequence->draft = std::move(draft);
  sequence->guesses = true;
}

}  // namespace

void Scheduler::Impl::CatchUp(Sequence* sequence) const {
  if (!options.lookup || !sequence->request.speculate) return;
  if (!sequence->lookup) sequence->lookup.emplace();
  const std::vector<base::TokenId>& committed = sequence->committed;
  const int32_t known =
      sequence->phase == Phase::kRunning ? sequence->committed_size() : sequence->kv_written;
  for (int32_t i = sequence->lookup->size(); i < known; ++i) sequence->lookup->Append(committed[i]);
}

void Scheduler::Impl::LookUp(Sequence* sequence) {
  sequence->answered = false;
  const int32_t useful = sequence->useful_draft_nodes(options.max_tree_nodes);
  if (!sequence->lookup || useful <= 0) return;
  Draft draft = {
      .tree = sequence->lookup->Guess(std::min(kLookupNodes, useful), kLookupDepth),
      .draw = speculation::SiblingDraw::kDeterministic,
  };
  draft.sources.assign(draft.tree.size(),
                       {.guesser = speculation::Guesser::kLookup, .looked_up = true});
  control.JudgeLookup(sequence->request.coupling, draft, &sequence->worth);
  if (draft.tree.size() > 1) Guess(std::move(draft), sequence);
}

void Scheduler::Impl::TakeDraft(Draft draft, bool stale, Sequence* sequence) {
  const speculation::Coupling coupling = sequence->request.coupling;
  const DraftOrder& order = sequence->wait.order();
  const int32_t useful = sequence->useful_draft_nodes(options.max_tree_nodes);
  if (draft.tree.size() > useful + 1) draft = Prune(std::move(draft), useful, useful);
  if (stale) return control.Judge(coupling, draft, order, useful, &unused_worth);
  sequence->answered = true;
  if (sequence->guesses && speculation::Merges(coupling)) {
    draft = Merge(draft, sequence->draft);
    control.Judge(coupling, draft, order, useful, &sequence->worth);
    KeepBest(useful, &draft, &sequence->worth);
    return Guess(std::move(draft), sequence);
  }
  control.Judge(coupling, draft, order, useful, &unused_worth);
  // Either is known before anything of it is: what the lookup found follows from the text so far,
  // and what a weighed tree is worth from those before it.
  const auto sum = [](const std::vector<float>& worth) {
    return std::accumulate(worth.begin(), worth.end(), 0.0f);
  };
  if (sequence->guesses && sum(sequence->worth) > sum(unused_worth)) return;
  sequence->worth.swap(unused_worth);
  Guess(std::move(draft), sequence);
}

void Scheduler::Impl::AddDraft(Draft draft, Sequence* sequence) {
  const int32_t useful = sequence->useful_draft_nodes(options.max_tree_nodes);
  if (draft.tree.size() > useful + 1) draft = Prune(std::move(draft), useful, useful);
  if (sequence->guesses) draft = Merge(sequence->draft, draft);
  control.JudgeExtra(sequence->request.coupling, draft, &sequence->worth);
  KeepBest(useful, &draft, &sequence->worth);
  Guess(std::move(draft), sequence);
}

}  // namespace specfabric::scheduler
