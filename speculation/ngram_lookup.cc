#include "speculation/ngram_lookup.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <queue>

#include "base/hash.h"

namespace specfabric::speculation {

// Grows the tree best-first. Each node has the matches whose continuation is the path to it.
class NgramLookup::Grower {
 public:
  Grower(const std::vector<base::TokenId>& text, std::vector<Match> matches)
      : text_(text), matches_(std::move(matches)), tree_(TokenTree::Root(text.back())) {}

  TokenTree Grow(int32_t max_nodes, int32_t max_depth) {
    path_ = {0};
    depth_ = {0};
    Offer(0, matches_, max_depth);
    while (tree_.size() - 1 < max_nodes && !offers_.empty()) {
      Offered best = offers_.top();
      offers_.pop();
      const int node = tree_.Add(best.parent, best.token, best.score);
      path_.push_back(best.path);
      depth_.push_back(depth_[best.parent] + 1);
      Offer(node, best.matches, max_depth);
    }
    return std::move(tree_);
  }

 private:
  struct Offered {
    double path = 0;  // log-probability
    int64_t order = 0;
    int parent = 0;
    base::TokenId token = base::kNoToken;
    float score = 0;
    std::vector<Match> matches;
    bool operator<(const Offered& other) const {
      return path != other.path ? path < other.path : order > other.order;
    }
  };

  // The token that the match proposes below `node`: from the text or, past its end, from the path
  // to the node.
  base::TokenId Next(const Match& match, int node) const {
    const int32_t place = match.next + depth_[node];
    const auto size = static_cast<int32_t>(text_.size());
    if (place < size) return text_[place];
    int at = node;
    for (int32_t up = depth_[node] - (place - size) - 1; up > 0; --up) at = tree_.parents[at];
    return tree_.tokens[at];
  }

  void Offer(int node, const std::vector<Match>& matches, int32_t max_depth) {
    if (depth_[node] >= max_depth) return;
    struct Child {
      base::TokenId token;
      double weight = 0;
      std::vector<Match> matches;
    };
    std::vector<Child> children;  // latest first
    double total = 0;
    for (const Match& match : matches) {
      const base::TokenId token = Next(match, node);
      auto child = std::find_if(children.begin(), children.end(),
                                [&](const Child& c) { return c.token == token; });
      if (child == children.end()) child = children.insert(children.end(), {token, 0, {}});
      child->weight += match.weight;
      child->matches.push_back(match);
      total += match.weight;
    }
    std::stable_sort(children.begin(), children.end(),
                     [](const Child& a, const Child& b) { return a.weight > b.weight; });
    const double unseen = std::ldexp(1.0, -depth_[node]);
    for (Child& child : children) {
      const double score = std::log(child.weight / (unseen + total));
      offers_.push({path_[node] + score, ++offered_, node, child.token, static_cast<float>(score),
                    std::move(child.matches)});
    }
  }

  const std::vector<base::TokenId>& text_;
  const std::vector<Match> matches_;
  TokenTree tree_;
  std::vector<double> path_;    // [nodes]
  std::vector<int32_t> depth_;  // [nodes]
  std::priority_queue<Offered> offers_;
  int64_t offered_ = 0;
};

NgramLookup::NgramLookup(const NgramLookupOptions& options) : options_(options) {
  assert(options.min_match >= 1 && options.max_match >= options.min_match);
  assert(options.candidates >= 1);
}

uint64_t NgramLookup::Key(int32_t end) const {
  const auto last = absl::MakeConstSpan(tokens_).subspan(end - options_.min_match);
  return base::ExtendPrefixHash(base::kEmptyPrefixHash, last.first(options_.min_match));
}

bool NgramLookup::SameKey(int32_t a, int32_t b) const {
  return std::equal(tokens_.begin() + a - options_.min_match, tokens_.begin() + a,
                    tokens_.begin() + b - options_.min_match);
}

void NgramLookup::Append(base::TokenId token) {
  tokens_.push_back(token);
  previous_.push_back(-1);
  const int32_t end = size();
  if (end < options_.min_match) return;
  const auto [entry, fresh] = latest_.try_emplace(Key(end), end);
  if (fresh) return;
  previous_.back() = entry->second;
  entry->second = end;
}

void NgramLookup::Truncate(int32_t length) {
  assert(length >= 0 && length <= size());
  for (int32_t end = size(); end > length; --end) {
    if (end >= options_.min_match) {
      const auto entry = latest_.find(Key(end));
      if (previous_.back() < 0) {
        latest_.erase(entry);
      } else {
        entry->second = previous_.back();
      }
    }
    tokens_.pop_back();
    previous_.pop_back();
  }
}

std::vector<NgramLookup::Match> NgramLookup::Matches() const {
  std::vector<Match> matches;
  const int32_t end = size();
  int32_t at = end < options_.min_match ? -1 : previous_[end - 1];
  for (int looked = 0; at > 0 && looked < options_.candidates; ++looked) {
    if (SameKey(at, end)) {  // keys with the same hash may differ
      int32_t length = options_.min_match;
      const int32_t most = std::min(options_.max_match, at);
      while (length < most && tokens_[at - length - 1] == tokens_[end - length - 1]) ++length;
      matches.push_back({at, std::ldexp(1.0, length - options_.min_match)});
    }
    at = previous_[at - 1];
  }
  return matches;
}

TokenTree NgramLookup::Propose(int32_t max_nodes, int32_t max_depth) const {
  assert(size() > 0);
  std::vector<Match> matches = Matches();
  if (matches.empty()) return TokenTree::Root(tokens_.back());
  return Grower(tokens_, std::move(matches))
      .Grow(std::min(max_nodes, kMaxDraftNodes - 1), max_depth);
}

}  // namespace specfabric::speculation
