#include "gateway/gbnf.h"

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gateway/gbnf_lexemes.h"
#include "gateway/gbnf_tree.h"

namespace specfabric::gateway {
namespace {

using Kind = GbnfNode::Kind;

bool IsLetterOrDigit(char32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

void AppendUtf8(char32_t c, std::string* out) {
  const auto tail = [&](int shift) {
    out->push_back(static_cast<char>(0x80 | (c >> shift & 0x3F)));
  };
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | c >> 12));
    tail(6);
    tail(0);
  } else {
    out->push_back(static_cast<char>(0xF0 | c >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

// As a string of Lark, whose escapes are JSON's.
std::string Quoted(std::u32string_view text) {
  std::string quoted = "\"";
  for (const char32_t c : text) {
    if (c < 0x20 || c == 0x7F) {
      absl::StrAppendFormat(&quoted, "\\u%04x", static_cast<uint32_t>(c));
      continue;
    }
    if (c == '"' || c == '\\') quoted.push_back('\\');
    AppendUtf8(c, &quoted);
  }
  return quoted + "\"";
}

// As a regular expression of Lark.
std::string Regex(const std::vector<CodeRange>& set) {
  std::string regex = "/[";
  const auto append = [&](char32_t c) {
    if (IsLetterOrDigit(c)) {
      regex.push_back(static_cast<char>(c));
    } else {
      absl::StrAppendFormat(&regex, "\\x{%x}", static_cast<uint32_t>(c));
    }
  };
  for (const CodeRange& range : set) {
    append(range.low);
    if (range.high == range.low) continue;
    regex.push_back('-');
    append(range.high);
  }
  return regex + "]/";
}

// Lark's rules have names in lower case, terminals in upper case. Every rule is `r` and its number;
// parts of rules that Lark would need parentheses for are rules of their own, `g` and the number of
// the node, because it limits how deep they nest. Terminals are `T` and their identity.
class Writer {
 public:
  explicit Writer(const GbnfTree& tree) : tree_(tree), lexemes_(ChooseLexemes(tree)) {}

  absl::StatusOr<std::string> Write() {
    std::string lark = absl::StrCat("start: ", Rule(tree_.root), "\n");
    for (size_t i = 0; i < definitions_.size(); ++i) {
      // definitions_ grows meanwhile.
      const Definition definition = definitions_[i];
      uses_.emplace_back();
      absl::StrAppend(&lark, definition.name, ": ", Choice(definition.node, definition.is_terminal),
                      "\n");
    }
    if (Chain() > kMaxGbnfChain) {
      return absl::InvalidArgumentError(
          absl::StrCat("rules that use each other make a chain of more than ", kMaxGbnfChain));
    }
    return lark;
  }

 private:
  struct Definition {
    std::string name;
    int node = 0;
    bool is_terminal = false;
  };

  std::string Use(std::string name, int node, bool is_terminal) {
    const int next = static_cast<int>(definitions_.size());
    const auto [found, is_new] = numbers_.try_emplace(name, next);
    if (is_new) definitions_.push_back({name, node, is_terminal});
    if (!uses_.empty()) uses_.back().push_back(found->second);
    return name;
  }
  std::string Rule(int rule) {
    return Use(absl::StrCat("r", rule), tree_.rules[rule].body(), /*is_terminal=*/false);
  }
  std::string Terminal(int node) {
    while (tree_.nodes[node].kind == Kind::kRule) node = tree_.rules[tree_.nodes[node].rule].body();
    if (tree_.nodes[node].kind == Kind::kText) return Quoted(tree_.nodes[node].text);
    if (tree_.nodes[node].kind == Kind::kSet) return Regex(tree_.nodes[node].set);
    return Use(absl::StrCat("T", lexemes_.identity[node]), node, /*is_terminal=*/true);
  }
  std::string Part(int node, bool in_terminal) {
    if (in_terminal) return Terminal(node);
    return Use(absl::StrCat("g", node), node, /*is_terminal=*/false);
  }

  // Whether the node is written as a terminal, or a part of one.
  bool IsWhole(int node, bool in_terminal) const { return in_terminal || lexemes_.whole[node]; }

  std::string Choice(int index, bool in_terminal) {
    const GbnfNode& node = tree_.nodes[index];
    if (!in_terminal && lexemes_.whole[index]) return Symbol(index, in_terminal);
    if (node.kind != Kind::kChoice) return Sequence(index, in_terminal);
    std::string text;
    for (const int child : node.children) {
      absl::StrAppend(&text, text.empty() ? "" : " | ", Sequence(child, in_terminal));
    }
    return text;
  }

  std::string Sequence(int index, bool in_terminal) {
    const GbnfNode& node = tree_.nodes[index];
    const bool is_whole = !in_terminal && lexemes_.whole[index];
    if (is_whole || node.kind != Kind::kSequence || node.children.empty()) {
      return Symbol(index, in_terminal, /*in_sequence=*/true);
    }
    std::string text;
    for (const int child : node.children) {
      absl::StrAppend(&text, text.empty() ? "" : " ",
                      Symbol(child, in_terminal, /*in_sequence=*/true));
    }
    return text;
  }

  // One symbol of Lark; in a sequence, maybe several.
  std::string Symbol(int index, bool in_terminal, bool in_sequence = false) {
    const GbnfNode& node = tree_.nodes[index];
    const bool is_whole = IsWhole(index, in_terminal);
    switch (node.kind) {
      case Kind::kText: {
        if (is_whole) return Quoted(node.text);
        if (!in_sequence) return Part(index, in_terminal);
        std::string text;
        for (const char32_t c : node.text) {
          absl::StrAppend(&text, text.empty() ? "" : " ", Quoted({&c, 1}));
        }
        return text;
      }
      case Kind::kSet:
        return Regex(node.set);
      case Kind::kToken:
        return node.token;
      case Kind::kRule:
        return is_whole ? Terminal(index) : Rule(node.rule);
      case Kind::kSequence:
        if (node.children.empty()) return "\"\"";
        break;
      case Kind::kChoice:
        break;
      case Kind::kRepeat:
        if (!in_terminal && is_whole) return Terminal(index);
        return Repeat(node, in_terminal);
    }
    return Part(index, is_whole);
  }

  std::string Repeat(const GbnfNode& node, bool in_terminal) {
    const int child = node.children[0];
    if (node.most == 0) return "\"\"";
    const bool is_part = tree_.nodes[child].kind == Kind::kRepeat;
    std::string text =
        is_part ? Part(child, IsWhole(child, in_terminal)) : Symbol(child, in_terminal);
    if (node.most != kGbnfNoLimit) {
      absl::StrAppend(&text, "{", node.least, ",", node.most, "}");
    } else if (node.least <= 1) {
      text.push_back(node.least == 0 ? '*' : '+');
    } else {
      absl::StrAppend(&text, "{", node.least, ",}");
    }
    return text;
  }

  // The most definitions that are open at once when each is read where it is first used.
  int Chain() const {
    std::vector<bool> seen(definitions_.size(), false);
    std::vector<std::pair<int, size_t>> open = {{0, 0}};  // definition, the next of its uses
    seen[0] = true;
    size_t most = 1;
    while (!open.empty()) {
      auto& [definition, next] = open.back();
      if (next == uses_[definition].size()) {
        open.pop_back();
        continue;
      }
      const int use = uses_[definition][next++];
      if (seen[use]) continue;
      seen[use] = true;
      open.emplace_back(use, 0);
      most = std::max(most, open.size());
    }
    return static_cast<int>(most);
  }

  const GbnfTree& tree_;
  const GbnfLexemes lexemes_;
  std::vector<Definition> definitions_;  // in the order of their first use
  std::map<std::string, int> numbers_;   // by name, those of definitions_
  std::vector<std::vector<int>> uses_;   // by definition: those that it uses
};

}  // namespace

bool IsGbnf(std::string_view grammar) {
  size_t at = 0;
  while (true) {
    at = grammar.find_first_not_of(" \t\r\n", at);
    if (at == std::string_view::npos) return false;
    const std::string_view rest = grammar.substr(at);
    if (!rest.starts_with('#') && !rest.starts_with("//")) break;
    at = grammar.find('\n', at);
    if (at == std::string_view::npos) return false;
  }
  const auto is_name = [](char c) {
    return IsLetterOrDigit(static_cast<unsigned char>(c)) || c == '-' || c == '_';
  };
  const size_t name = at;
  while (at < grammar.size() && is_name(grammar[at])) ++at;
  const size_t next = grammar.find_first_not_of(" \t", at);
  return at > name && next != std::string_view::npos && grammar.substr(next).starts_with("::=");
}

absl::StatusOr<std::string> LarkOfGbnf(std::string_view gbnf) {
  absl::StatusOr<GbnfTree> tree = ParseGbnf(gbnf);
  if (!tree.ok()) return tree.status();
  return Writer(*tree).Write();
}

}  // namespace specfabric::gateway
