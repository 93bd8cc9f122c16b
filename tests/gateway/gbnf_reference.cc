#include "tests/gateway/gbnf_reference.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace specfabric::gateway {
namespace {

using Kind = ReferenceNode::Kind;

// Some share their first byte in UTF-8, some mean something in GBNF or Lark.
constexpr std::u32string_view kAlphabet = U"aab c\"\\]-\n/éè漢😀";

int Below(std::mt19937* random, size_t end) { return static_cast<int>((*random)() % end); }

char32_t RandomCharacter(std::mt19937* random) {
  return kAlphabet[Below(random, kAlphabet.size())];
}

ReferenceNode RandomNode(std::mt19937* random, int rules, int depth) {
  ReferenceNode node;
  switch (Below(random, depth == 0 ? 3 : 6)) {
    case 0:
      node.kind = Kind::kText;
      for (int i = Below(random, 4); i > 0; --i) node.text.push_back(RandomCharacter(random));
      return node;
    case 1:
      node.kind = Kind::kSet;
      for (int i = 1 + Below(random, 3); i > 0; --i) node.text.push_back(RandomCharacter(random));
      node.negated = Below(random, 4) == 0;
      return node;
    case 2:
      node.kind = Kind::kRule;
      node.rule = Below(random, rules);
      return node;
    case 3:
      node.kind = Kind::kSequence;
      break;
    case 4:
      node.kind = Kind::kChoice;
      break;
    default: {
      constexpr int kRanges[][2] = {{0, -1}, {1, -1}, {0, 1},  {2, 2},
                                    {0, 2},  {1, 3},  {2, -1}, {0, 0}};
      node.kind = Kind::kRepeat;
      const int* range = kRanges[Below(random, std::size(kRanges))];
      node.least = range[0];
      node.most = range[1];
      node.children.push_back(RandomNode(random, rules, depth - 1));
      return node;
    }
  }
  for (int i = Below(random, 4); i >= 0; --i) {
    node.children.push_back(RandomNode(random, rules, depth - 1));
  }
  return node;
}

std::string Escaped(char32_t c, std::mt19937* random, bool always) {
  const std::string hex = "0123456789abcdef";
  const auto digits = [&](int count) {
    std::string text;
    for (int i = count - 1; i >= 0; --i) text += hex[c >> 4 * i & 0xF];
    return text;
  };
  const int style = Below(random, 8);
  if (c == '\n') return "\\n";
  if (style == 0) return absl::StrCat("\\U", digits(8));
  if (style == 1 && c < 0x10000) return absl::StrCat("\\u", digits(4));
  if (style == 2 && c < 0x100) return absl::StrCat("\\x", digits(2));
  return absl::StrCat(always || c == '"' || c == '\\' ? "\\" : "", Utf8({&c, 1}));
}

class Printer {
 public:
  Printer(const ReferenceGrammar& grammar, std::mt19937* random) : random_(random) {
    // Some differ by what Lark's names may not have, or are names that Lark knows.
    std::vector<std::string> names = {"a-b", "a_b", "A-B", "start", "T1", "r0", "g3", "x"};
    std::shuffle(names.begin(), names.end(), *random);
    names.insert(names.begin(), "root");
    for (size_t i = 0; i < grammar.rules.size(); ++i) names_.push_back(names[i]);
  }

  std::string Print(const ReferenceGrammar& grammar) {
    std::vector<size_t> order;
    for (size_t i = 0; i < grammar.rules.size(); ++i) order.push_back(i);
    std::shuffle(order.begin(), order.end(), *random_);
    std::string text = Below(random_, 2) == 0 ? "# root ::= \"no\"\n" : "";
    for (const size_t i : order) {
      absl::StrAppend(&text, names_[i], " ::= ", Choice(grammar.rules[i]), "\n");
    }
    return text;
  }

 private:
  std::string Space() {
    constexpr const char* kSpaces[] = {" ", "  ", "\t", "\n  ", " # no \" rule ::= here\n "};
    return kSpaces[Below(random_, 20) < 16 ? 0 : Below(random_, std::size(kSpaces))];
  }

  std::string Choice(const ReferenceNode& node) {
    if (node.kind != Kind::kChoice) return Sequence(node);
    std::string text;
    for (size_t i = 0; i < node.children.size(); ++i) {
      if (i > 0) absl::StrAppend(&text, Space(), "|", Space());
      absl::StrAppend(&text, Sequence(node.children[i]));
    }
    return text;
  }

  std::string Sequence(const ReferenceNode& node) {
    if (node.kind != Kind::kSequence) return Symbol(node);
    std::string text;
    for (const ReferenceNode& child : node.children) absl::StrAppend(&text, Symbol(child), Space());
    return text;
  }

  std::string Symbol(const ReferenceNode& node) {
    switch (node.kind) {
      case Kind::kText: {
        std::string text = "\"";
        for (const char32_t c : node.text) text += Escaped(c, random_, false);
        return text + "\"";
      }
      case Kind::kSet: {
        std::string text = node.negated ? "[^" : "[";
        for (const char32_t c : node.text) {
          text += Escaped(c, random_, c == ']' || c == '-');
        }
        return text + "]";
      }
      case Kind::kRule:
        return names_[node.rule];
      case Kind::kRepeat:
        return Repeated(node);
      default:
        return absl::StrCat("(", Choice(node), ")");
    }
  }

  std::string Repeated(const ReferenceNode& node) {
    const std::string one = Symbol(node.children[0]);
    if (Below(random_, 2) == 0) {
      if (node.least == 0 && node.most == -1) return absl::StrCat(one, "*");
      if (node.least == 1 && node.most == -1) return absl::StrCat(one, "+");
      if (node.least == 0 && node.most == 1) return absl::StrCat(one, "?");
    }
    if (node.least == node.most) return absl::StrCat(one, "{", node.least, "}");
    if (node.most == -1) return absl::StrCat(one, "{", node.least, ",}");
    return absl::StrCat(one, "{", node.least, ", ", node.most, "}");
  }

  std::mt19937* random_;
  std::vector<std::string> names_;
};

class Matcher {
 public:
  Matcher(const ReferenceGrammar& grammar, std::u32string_view text)
      : grammar_(grammar),
        text_(text),
        ends_(grammar.rules.size(), std::vector<Ends>(text.size() + 1, 0)) {}

  bool Match() {
    for (bool is_new = true; is_new;) {
      is_new = false;
      for (size_t rule = 0; rule < ends_.size(); ++rule) {
        for (size_t at = 0; at <= text_.size(); ++at) {
          const Ends ends = From(grammar_.rules[rule], Ends{1} << at);
          is_new = is_new || ends != ends_[rule][at];
          ends_[rule][at] = ends;
        }
      }
    }
    return (ends_[0][0] >> text_.size() & 1) != 0;
  }

 private:
  using Ends = uint64_t;  // a set of places in the text

  // Where a match of the node may end that begins at one of `begins`, as far as is known.
  Ends From(const ReferenceNode& node, Ends begins) const {
    Ends ends = 0;
    switch (node.kind) {
      case Kind::kText:
      case Kind::kSet:
      case Kind::kRule:
        for (size_t at = 0; at <= text_.size(); ++at) {
          if ((begins >> at & 1) != 0) ends |= At(node, at);
        }
        return ends;
      case Kind::kSequence:
        for (const ReferenceNode& child : node.children) begins = From(child, begins);
        return begins;
      case Kind::kChoice:
        for (const ReferenceNode& child : node.children) ends |= From(child, begins);
        return ends;
      default: {
        for (int i = 0; i < node.least; ++i) begins = From(node.children[0], begins);
        ends = begins;
        for (int i = node.least; node.most == -1 || i < node.most; ++i) {
          begins = From(node.children[0], begins);
          if ((ends | begins) == ends) break;
          ends |= begins;
        }
        return ends;
      }
    }
  }

  Ends At(const ReferenceNode& node, size_t at) const {
    if (node.kind == Kind::kRule) return ends_[node.rule][at];
    if (node.kind == Kind::kText) {
      const bool matches = text_.substr(at).starts_with(node.text);
      return matches ? Ends{1} << (at + node.text.size()) : 0;
    }
    if (at == text_.size()) return 0;
    const bool is_in = node.text.find(text_[at]) != std::u32string::npos;
    return is_in != node.negated ? Ends{1} << (at + 1) : 0;
  }

  const ReferenceGrammar& grammar_;
  const std::u32string_view text_;
  std::vector<std::vector<Ends>> ends_;  // by rule and place
};

// Gives up where it takes too long.
void Draw(const ReferenceGrammar& grammar, const ReferenceNode& node, int depth,
          std::mt19937* random, std::u32string* text) {
  if (depth == 0 || text->size() > 30) return;
  switch (node.kind) {
    case Kind::kText:
      *text += node.text;
      return;
    case Kind::kSet: {
      const char32_t c =
          node.negated ? RandomCharacter(random) : node.text[Below(random, node.text.size())];
      text->push_back(c);
      return;
    }
    case Kind::kRule:
      return Draw(grammar, grammar.rules[node.rule], depth - 1, random, text);
    case Kind::kSequence:
      for (const ReferenceNode& child : node.children) {
        Draw(grammar, child, depth - 1, random, text);
      }
      return;
    case Kind::kChoice:
      return Draw(grammar, node.children[Below(random, node.children.size())], depth - 1, random,
                  text);
    default: {
      const int most = node.most == -1 ? node.least + 3 : node.most;
      const int count = node.least + Below(random, most - node.least + 1);
      for (int i = 0; i < count; ++i) Draw(grammar, node.children[0], depth - 1, random, text);
    }
  }
}

}  // namespace

ReferenceGrammar RandomGrammar(std::mt19937* random, int rules) {
  ReferenceGrammar grammar;
  const int count = 1 + Below(random, rules);
  for (int i = 0; i < count; ++i) grammar.rules.push_back(RandomNode(random, count, 3));
  return grammar;
}

std::string GbnfOf(const ReferenceGrammar& grammar, std::mt19937* random) {
  return Printer(grammar, random).Print(grammar);
}

std::u32string RandomTextOf(const ReferenceGrammar& grammar, std::mt19937* random) {
  std::u32string text;
  Draw(grammar, grammar.rules[0], 12, random, &text);
  text.resize(std::min<size_t>(text.size(), 40));
  if (Below(random, 2) == 0) return text;
  const size_t at = Below(random, text.size() + 1);
  if (Below(random, 2) == 0) {
    text.insert(at, 1, RandomCharacter(random));
  } else if (at < text.size()) {
    text.erase(at, 1);
  }
  return text;
}

bool Matches(const ReferenceGrammar& grammar, std::u32string_view text) {
  return Matcher(grammar, text).Match();
}

std::string Utf8(std::u32string_view text) {
  std::string bytes;
  for (const char32_t c : text) {
    const int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    constexpr int kFirst[] = {0, 0xC0, 0xE0, 0xF0};
    bytes.push_back(static_cast<char>(kFirst[more] | c >> 6 * more));
    for (int i = more - 1; i >= 0; --i) {
      bytes.push_back(static_cast<char>(0x80 | (c >> 6 * i & 0x3F)));
    }
  }
  return bytes;
}

std::u32string FromUtf8(std::string_view text) {
  std::u32string characters;
  for (const char byte : text) {
    const char32_t value = static_cast<unsigned char>(byte);
    if (value < 0x80) {
      characters.push_back(value);
    } else if (value >= 0xC0) {
      characters.push_back(value < 0xE0 ? value & 0x1F : value < 0xF0 ? value & 0x0F : value & 7);
    } else {
      characters.back() = characters.back() << 6 | (value & 0x3F);
    }
  }
  return characters;
}

}  // namespace specfabric::gateway
