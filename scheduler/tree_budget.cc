#include "scheduler/tree_budget.h"

#include <algorithm>
#include <queue>

namespace specfabric::scheduler {
namespace {

struct Candidate {
  double worth = 0;
  int32_t offer = 0;
  int32_t node = 0;
  // Of equals the earlier offer and the earlier node: parents before children.
  bool operator<(const Candidate& other) const {
    if (worth != other.worth) return worth < other.worth;
    if (offer != other.offer) return offer > other.offer;
    return node > other.node;
  }
};

// First child and next sibling of every node.
struct Links {
  explicit Links(const speculation::TokenTree& tree)
      : child(tree.size(), -1), sibling(tree.size(), -1) {
    for (int node = tree.size() - 1; node > 0; --node) {
      sibling[node] = child[tree.parents[node]];
      child[tree.parents[node]] = node;
    }
  }
  std::vector<int32_t> child, sibling;
};

std::vector<double> PathWorth(const TreeOffer& offer) {
  std::vector<double> worth(offer.tree->size(), offer.value);
  for (int node = 1; node < offer.tree->size(); ++node) {
    worth[node] = worth[offer.tree->parents[node]] * offer.chances[node];
  }
  return worth;
}

}  // namespace

TreeBudget ShareRows(absl::Span<const TreeOffer> offers, int32_t rows, int64_t context,
                     int32_t max_rows, const StepTime& time) {
  std::vector<Links> links;
  std::vector<std::vector<double>> worth;
  std::priority_queue<Candidate> candidates;
  double total = 0;
  const auto offer_node = [&](int32_t o, int32_t node) {
    if (node > 0 && node < offers[o].tree->size()) candidates.push({worth[o][node], o, node});
  };
  for (int32_t o = 0; o < static_cast<int32_t>(offers.size()); ++o) {
    links.emplace_back(*offers[o].tree);
    worth.push_back(PathWorth(offers[o]));
    total += offers[o].value;
    if (!offers[o].any_subtree) {
      offer_node(o, 1);
      continue;
    }
    for (int32_t c = links[o].child[0]; c > 0; c = links[o].sibling[c]) offer_node(o, c);
  }

  std::vector<Candidate> taken;
  size_t best = 0;
  const double without = total;
  const auto goodput = [&] {
    const auto count = static_cast<int32_t>(taken.size());
    return total / std::max<double>(1, static_cast<double>(time.Predict(rows + count, context)));
  };
  double best_goodput = goodput(), best_total = total;
  while (!candidates.empty() && rows + static_cast<int32_t>(taken.size()) < max_rows) {
    const Candidate next = candidates.top();
    candidates.pop();
    taken.push_back(next);
    total += next.worth;
    if (offers[next.offer].any_subtree) {
      const Links& l = links[next.offer];
      for (int32_t c = l.child[next.node]; c > 0; c = l.sibling[c]) offer_node(next.offer, c);
    } else {
      offer_node(next.offer, next.node + 1);
    }
    if (const double now = goodput(); now > best_goodput) {
      best_goodput = now;
      best_total = total;
      best = taken.size();
    }
  }

  TreeBudget budget;
  budget.nodes.resize(offers.size());
  for (size_t i = 0; i < best; ++i) budget.nodes[taken[i].offer].push_back(taken[i].node);
  for (auto& nodes : budget.nodes) std::sort(nodes.begin(), nodes.end());
  budget.expected = best_total - without;
  return budget;
}

}  // namespace specfabric::scheduler
