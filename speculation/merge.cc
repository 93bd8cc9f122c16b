#include "speculation/merge.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace specfabric::speculation {

MergedTree Merge(TokenTree first, const TokenTree& second, int max_nodes) {
  assert(first.size() > 0 && second.size() > 0 && first.tokens[0] == second.tokens[0]);
  MergedTree merged;
  merged.first_size = first.size();
  merged.tree = std::move(first);
  merged.of_second.assign(merged.first_size, -1);
  merged.of_second[0] = 0;
  std::vector<int32_t> moved(second.size(), -1);  // [nodes of `second`] the index in the union
  moved[0] = 0;
  for (int node = 1; node < second.size(); ++node) {
    const int32_t parent = moved[second.parents[node]];
    if (parent < 0) continue;
    int same = ChildWith(merged.tree, parent, second.tokens[node]);
    if (same < 0) {
      if (merged.tree.size() > max_nodes) continue;
      same = merged.tree.Add(parent, second.tokens[node], second.scores[node]);
      merged.of_second.push_back(-1);
    }
    moved[node] = same;
    if (merged.of_second[same] < 0) merged.of_second[same] = node;
  }
  return merged;
}

Draft Merge(Draft first, const Draft& second) {
  MergedTree merged = Merge(std::move(first.tree), second.tree, kMaxDraftNodes - 1);
  std::vector<Source> sources = std::move(first.sources);
  if (sources.empty()) sources.assign(merged.first_size, Source{first.drafter});
  sources.resize(merged.tree.size());
  for (int node = 0; node < merged.tree.size(); ++node) {
    const int32_t in_first = merged.of_first(node), in_second = merged.of_second[node];
    Source& source = sources[node];
    if (in_first < 0) source = second.source(in_second);
    if (in_first < 0 || in_second < 0) continue;
    float& score = merged.tree.scores[node];
    score = std::max(score, second.tree.scores[in_second]);
    const bool is_forced = source.proposed_by == ProposalSource::kGrammar ||
                           second.source(in_second).proposed_by == ProposalSource::kGrammar;
    if (is_forced) {
      source = {.proposed_by = ProposalSource::kGrammar};
      continue;
    }
    if (source.proposed_by == ProposalSource::kNgramLookup)
      source.drafter = second.source(in_second).drafter;
    source.from_ngram_lookup |= second.source(in_second).from_ngram_lookup;
    source.proposed_by = ProposalSource::kSeveral;
  }
  return {.tree = std::move(merged.tree),
          .draw = first.draw,
          .drafter = first.drafter,
          .sources = std::move(sources)};
}

Agreement AgreesWith(const TokenTree& tree, absl::Span<const base::TokenId> text) {
  int node = 0;
  int32_t levels = 0;
  for (const base::TokenId token : text) {
    node = ChildWith(tree, node, token);
    if (node < 0) return {levels, true};
    ++levels;
  }
  for (int child = node + 1; child < tree.size(); ++child) {
    if (tree.parents[child] == node) return {levels, false};
  }
  return {levels, true};
}

}  // namespace specfabric::speculation
