#include "gateway/gbnf_lexemes.h"

#include <algorithm>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace specfabric::gateway {
namespace {

using Kind = GbnfNode::Kind;

// First bytes of characters in UTF-8: the lexer reads bytes, and two characters whose first byte is
// the same already take it the same way.
using Bytes = std::bitset<256>;

// Of a node that is a terminal, through the rules that it uses: the depth of recursions here.
constexpr int kMostLevels = 2 * kMaxGbnfDepth;
// Of the search for conflicts: steps of some nanoseconds each, a tenth of a second in all. A state
// counts as several, so that few fit into memory.
constexpr int64_t kMostWork = 6'000'000;
constexpr int64_t kWorkOfState = 32;

size_t FirstByte(char32_t c) {
  if (c < 0x80) return c;
  if (c < 0x800) return 0xC0 | c >> 6;
  if (c < 0x10000) return 0xE0 | c >> 12;
  return 0xF0 | c >> 18;
}

Bytes FirstBytes(const std::vector<CodeRange>& set) {
  Bytes bytes;
  for (const CodeRange& range : set) {
    for (size_t byte = FirstByte(range.low); byte <= FirstByte(range.high); ++byte) bytes.set(byte);
  }
  return bytes;
}

// Of the texts that a node without recursion matches.
struct Texts {
  int identity = kGbnfNone;  // none: the node needs recursion
  int levels = 0;
  bool nullable = false;  // the empty one is among them
  Bytes first;            // what they begin with
  Bytes more;             // what may follow a whole one in a longer one; maybe some bytes too many
};

// `a` followed by `b`. Where a text can be cut in two ways, what follows is not known.
void Append(const Texts& b, Texts* a) {
  const bool ambiguous = (a->more & b.first).any();
  if (a->nullable) a->first |= b.first;
  a->more = b.nullable ? a->more | b.more : b.more;
  if (ambiguous) a->more.set();
  a->nullable = a->nullable && b.nullable;
}

class Analysis {
 public:
  explicit Analysis(const GbnfTree& tree) : tree_(tree), texts_(tree.nodes.size()) {
    for (const int rule : RulesInOrder()) {
      for (int node = tree.rules[rule].begin; node < tree.rules[rule].end; ++node) Analyse(node);
    }
  }
  const Texts& operator[](int node) const { return texts_[node]; }

 private:
  // A rule behind those that it uses, as far as they do not need each other.
  std::vector<int> RulesInOrder() const {
    const size_t count = tree_.rules.size();
    std::vector<int> missing(count, 0), order;
    std::vector<std::vector<int>> users(count);
    for (size_t rule = 0; rule < count; ++rule) {
      for (int node = tree_.rules[rule].begin; node < tree_.rules[rule].end; ++node) {
        if (tree_.nodes[node].kind != Kind::kRule) continue;
        users[tree_.nodes[node].rule].push_back(static_cast<int>(rule));
        ++missing[rule];
      }
      if (missing[rule] == 0) order.push_back(static_cast<int>(rule));
    }
    for (size_t i = 0; i < order.size(); ++i) {
      for (const int user : users[order[i]]) {
        if (--missing[user] == 0) order.push_back(user);
      }
    }
    for (size_t rule = 0; rule < count; ++rule) {
      if (missing[rule] > 0) order.push_back(static_cast<int>(rule));
    }
    return order;
  }

  void Analyse(int index) {
    const GbnfNode& node = tree_.nodes[index];
    Texts texts;
    std::string key = absl::StrCat(static_cast<int>(node.kind));
    for (const int child : node.children) {
      if (texts_[child].identity == kGbnfNone) return;
      texts.levels = std::max(texts.levels, texts_[child].levels + 1);
      absl::StrAppend(&key, " ", texts_[child].identity);
    }
    if (texts.levels > kMostLevels) return;
    switch (node.kind) {
      case Kind::kText:
        texts.first.set(FirstByte(node.text[0]));
        for (const char32_t c : node.text) absl::StrAppend(&key, " ", static_cast<uint32_t>(c));
        break;
      case Kind::kSet:
        texts.first = FirstBytes(node.set);
        for (const auto& [low, high] : node.set) {
          absl::StrAppend(&key, " ", static_cast<uint32_t>(low), "-", static_cast<uint32_t>(high));
        }
        break;
      case Kind::kToken:
        return;
      case Kind::kRule: {
        const Texts& body = texts_[tree_.rules[node.rule].body()];
        if (body.identity == kGbnfNone || body.levels >= kMostLevels) return;
        texts_[index] = body;
        ++texts_[index].levels;
        return;
      }
      case Kind::kSequence:
        texts.nullable = true;
        for (const int child : node.children) Append(texts_[child], &texts);
        break;
      case Kind::kChoice:
        for (const int child : node.children) {
          const Texts& one = texts_[child];
          texts.more |= one.more;
          if ((texts.first & one.first).any()) texts.more.set();
          texts.first |= one.first;
          texts.nullable |= one.nullable;
        }
        if (texts.nullable) texts.more |= texts.first;
        break;
      case Kind::kRepeat: {
        const Texts& one = texts_[node.children[0]];
        absl::StrAppend(&key, " ", node.least, " ", node.most);
        texts.nullable = node.least == 0 || one.nullable;
        texts.first = one.first;
        texts.more = one.more;
        if (node.most > node.least || texts.nullable) texts.more |= one.first;
        if (node.most > 1 && (one.more & one.first).any()) texts.more.set();
        break;
      }
    }
    texts.identity =
        identities_.try_emplace(std::move(key), static_cast<int>(identities_.size())).first->second;
    texts_[index] = texts;
  }

  const GbnfTree& tree_;
  std::vector<Texts> texts_;
  std::map<std::string, int> identities_;
};

// Whether a node is a terminal wherever it may be one.
bool IsCharacter(const GbnfNode& node) {
  return node.kind == Kind::kSet || (node.kind == Kind::kText && node.text.size() == 1);
}

// The grammar as an automaton over terminals, which forgets whence a rule that needs recursion was
// used: it reads all texts of the grammar, and others. States that one text leads to are joined
// into one, until each text leads to one state; what that allows is no less than what the parser
// allows after the text. Terminals that do not do are split into their parts meanwhile.
class Automaton {
 public:
  // whole: what are terminals, to begin with and in the end.
  Automaton(const GbnfTree& tree, const Analysis& analysis, std::vector<bool>* whole)
      : tree_(tree),
        analysis_(analysis),
        whole_(*whole),
        rules_(tree.rules.size()),
        edges_of_(tree.nodes.size()) {}

  // False: that is too much work.
  bool Run() {
    Reach(RuleStates(tree_.root).first);
    for (bool is_done = false; !is_done;) {
      Connect();
      while (!queue_.empty() && Works(1)) {
        const int state = queue_.front();
        queue_.pop_front();
        states_[state].is_queued = false;
        if (joined_[state] == state) JoinNext(Split(state));
      }
      // What was split in one state may be a terminal of others.
      const size_t edges = edges_.size();
      is_done = true;
      for (size_t state = 0; state < states_.size() && Works(1); ++state) {
        if (joined_[state] != static_cast<int>(state)) continue;
        JoinNext(Split(static_cast<int>(state)));
        SplitLost(static_cast<int>(state));
      }
      is_done = queue_.empty() && edges_.size() == edges;
      if (!Works(1)) return false;
    }
    return true;
  }

 private:
  struct Edge {
    int node = kGbnfNone;  // of a terminal of several characters
    int identity = kGbnfNone;
    Bytes first = {};  // none: a token
    Bytes more = {};
    int from = 0, to = 0;
    bool is_split = false;
  };
  struct State {
    std::vector<int> empty;  // states that are reached without a character
    std::vector<int> edges;
    std::vector<int> joined;  // of a state that stands for others: those, and itself
    bool is_queued = false;
  };

  bool Works(size_t steps) {
    work_ -= static_cast<int64_t>(steps);
    return work_ > 0;
  }

  int NewState() {
    work_ -= kWorkOfState;
    joined_.push_back(kGbnfNone);
    seen_.push_back(0);
    states_.emplace_back();
    return static_cast<int>(states_.size()) - 1;
  }
  void AddEdge(int from, Edge edge) {
    const int index = static_cast<int>(edges_.size());
    edge.from = from;
    if (edge.node != kGbnfNone) edges_of_[edge.node].push_back(index);
    states_[from].edges.push_back(index);
    edges_.push_back(edge);
  }

  std::pair<int, int> RuleStates(int rule) {
    if (rules_[rule].second == 0) {
      rules_[rule].first = NewState();
      rules_[rule].second = NewState();
      pending_.push_back(rule);
    }
    return rules_[rule];
  }

  // The rules that have got states.
  void Connect() {
    for (; !pending_.empty() && Works(1);) {
      const int rule = pending_.back();
      pending_.pop_back();
      Connect(tree_.rules[rule].body(), rules_[rule].first, rules_[rule].second);
    }
  }

  void Connect(int index, int from, int to) {
    const GbnfNode& node = tree_.nodes[index];
    const Texts& texts = analysis_[index];
    if (!Works(1)) return;
    if (whole_[index]) {
      Edge edge{.first = texts.first, .to = to};
      if (!IsCharacter(node)) {
        edge.node = index;
        edge.identity = texts.identity;
        edge.more = texts.more;
      }
      AddEdge(from, edge);
      if (texts.nullable) states_[from].empty.push_back(to);
      return;
    }
    switch (node.kind) {
      case Kind::kText:
        for (size_t i = 0; i < node.text.size() && Works(1); ++i) {
          Edge edge{.to = i + 1 < node.text.size() ? NewState() : to};
          edge.first.set(FirstByte(node.text[i]));
          AddEdge(from, edge);
          from = edge.to;
        }
        return;
      case Kind::kSet:
        return;  // is whole
      case Kind::kToken:
        return AddEdge(from, {.to = to});
      case Kind::kRule: {
        // Without recursion each use has states of its own.
        if (texts.identity != kGbnfNone) return Connect(tree_.rules[node.rule].body(), from, to);
        const auto [begin, end] = RuleStates(node.rule);
        states_[from].empty.push_back(begin);
        states_[end].empty.push_back(to);
        return;
      }
      case Kind::kSequence:
        for (const int child : node.children) {
          const int next = NewState();
          Connect(child, from, next);
          from = next;
        }
        states_[from].empty.push_back(to);
        return;
      case Kind::kChoice:
        for (const int child : node.children) Connect(child, from, to);
        return;
      case Kind::kRepeat: {
        const int begin = NewState(), end = NewState();
        Connect(node.children[0], begin, end);
        states_[from].empty.push_back(begin);
        states_[end].empty.push_back(to);
        if (node.most > 1) states_[end].empty.push_back(begin);
        if (node.least == 0) states_[from].empty.push_back(to);
        return;
      }
    }
  }

  // The state that stands for `state`, which some text leads to.
  int Find(int state) {
    while (joined_[state] != state) state = joined_[state] = joined_[joined_[state]];
    return state;
  }

  void Reach(int state) {
    if (joined_[state] != kGbnfNone) return;
    joined_[state] = state;
    states_[state].joined = {state};
    Enqueue(state);
  }

  void Enqueue(int state) {
    if (!states_[state].is_queued) queue_.push_back(state);
    states_[state].is_queued = true;
  }

  // One text leads to both.
  void Join(int a, int b) {
    Reach(a);
    Reach(b);
    a = Find(a);
    b = Find(b);
    if (a == b) return;
    if (states_[a].joined.size() < states_[b].joined.size()) std::swap(a, b);
    joined_[b] = a;
    std::vector<int>& moved = states_[b].joined;
    work_ -= static_cast<int64_t>(moved.size());
    states_[a].joined.insert(states_[a].joined.end(), moved.begin(), moved.end());
    moved.clear();
    Enqueue(a);
  }

  // The edges that leave what `state` stands for, and what is reached from there without a
  // character.
  std::vector<int> Leaving(int state) {
    ++visit_;
    std::vector<int> edges, from = states_[state].joined;
    while (!from.empty()) {
      const State& here = states_[from.back()];
      const bool is_new = std::exchange(seen_[from.back()], visit_) != visit_;
      from.pop_back();
      if (!is_new) continue;
      if (!Works(1 + here.empty.size() + here.edges.size())) return {};
      from.insert(from.end(), here.empty.begin(), here.empty.end());
      for (const int edge : here.edges) {
        if (!edges_[edge].is_split) edges.push_back(edge);
      }
    }
    return edges;
  }

  // Joins the states that one character, or the same terminal, leads to.
  void JoinNext(const std::vector<int>& edges) {
    std::map<int, int> by_terminal;              // identity, state
    std::vector<std::pair<Bytes, int>> by_byte;  // apart
    for (const int index : edges) {
      const Edge& edge = edges_[index];
      if (edge.node != kGbnfNone) {
        Join(edge.to, by_terminal.try_emplace(edge.identity, edge.to).first->second);
        continue;
      }
      Reach(edge.to);
      if (edge.first.none()) continue;
      if (!Works(by_byte.size())) return;
      std::pair<Bytes, int> own = {edge.first, edge.to};
      std::erase_if(by_byte, [&](const std::pair<Bytes, int>& other) {
        if ((other.first & edge.first).none()) return false;
        own.first |= other.first;
        Join(own.second, other.second);
        return true;
      });
      by_byte.push_back(own);
    }
  }

  // A terminal becomes its parts, wherever the node is one.
  void SplitNode(int node) {
    // What a rule stands for is the same terminal.
    std::vector<int> nodes;
    for (; whole_[node] && !IsCharacter(tree_.nodes[node]);
         node = tree_.rules[tree_.nodes[node].rule].body()) {
      whole_[node] = false;
      nodes.push_back(node);
      if (tree_.nodes[node].kind != Kind::kRule) break;
    }
    for (const int split : nodes) {
      for (const int index : std::exchange(edges_of_[split], {})) {
        edges_[index].is_split = true;
        Connect(split, edges_[index].from, edges_[index].to);
      }
    }
    Connect();
  }

  // Splits terminals until none of those that leave `state` begins as another one, or a character,
  // does: the simplest one stays, since others may be made of it. Returns what leaves then.
  std::vector<int> Split(int state) {
    while (true) {
      std::vector<int> edges = Leaving(state);
      std::map<int, int> terminals;  // by identity, one of their nodes
      Bytes characters;
      for (const int index : edges) {
        const Edge& edge = edges_[index];
        if (edge.node == kGbnfNone) {
          characters |= edge.first;
        } else {
          terminals.emplace(edge.identity, edge.node);
        }
      }
      std::set<int> split;  // identities
      for (const auto& [identity, node] : terminals) {
        if (!Works(terminals.size())) return {};
        const Texts& texts = analysis_[node];
        bool is_lost = (texts.first & characters).any();
        for (const auto& [other_identity, other_node] : terminals) {
          const Texts& other = analysis_[other_node];
          is_lost = is_lost || (other_identity != identity && (texts.first & other.first).any() &&
                                texts.levels >= other.levels);
        }
        if (is_lost) split.insert(identity);
      }
      if (split.empty()) return edges;
      for (const int index : edges) {
        if (split.contains(edges_[index].identity)) SplitNode(edges_[index].node);
      }
      if (!Works(1)) return {};
    }
  }

  // Splits the terminals that leave `state` and may go on where they might end.
  void SplitLost(int state) {
    for (const int index : Leaving(state)) {
      const Edge edge = edges_[index];
      if (edge.node == kGbnfNone || edge.is_split) continue;
      // An edge of a state that was joined just now: `state` is queued, and comes again.
      if (joined_[edge.to] == kGbnfNone) continue;
      for (const int next : Leaving(Find(edge.to))) {
        if ((edges_[next].first & edge.more).none()) continue;
        SplitNode(edge.node);
        break;
      }
    }
  }

  const GbnfTree& tree_;
  const Analysis& analysis_;
  std::vector<bool>& whole_;
  int64_t work_ = kMostWork;  // that is left
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<std::pair<int, int>> rules_;  // first and last state; 0, 0: none yet
  std::vector<std::vector<int>> edges_of_;  // by node: its terminals
  std::vector<int> pending_;                // rules that have states, to be connected
  // By state: another one that stands for it; itself; kGbnfNone while no text leads to it.
  std::vector<int> joined_;
  std::deque<int> queue_;  // states that have come to stand for something new
  std::vector<int> seen_;  // by state: the last visit_ there
  int visit_ = 0;
};

}  // namespace

GbnfLexemes ChooseLexemes(const GbnfTree& tree) {
  const Analysis analysis(tree);
  const size_t count = tree.nodes.size();
  GbnfLexemes lexemes{std::vector<bool>(count, false), std::vector<int>(count, kGbnfNone)};
  for (size_t i = 0; i < count; ++i) {
    lexemes.identity[i] = analysis[static_cast<int>(i)].identity;
    lexemes.whole[i] =
        lexemes.identity[i] != kGbnfNone && analysis[static_cast<int>(i)].first.any();
  }
  if (Automaton(tree, analysis, &lexemes.whole).Run()) return lexemes;
  for (size_t i = 0; i < count; ++i) lexemes.whole[i] = IsCharacter(tree.nodes[i]);
  return lexemes;
}

}  // namespace specfabric::gateway
