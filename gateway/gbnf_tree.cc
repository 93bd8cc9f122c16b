#include "gateway/gbnf_tree.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gateway/json_fields.h"

namespace specfabric::gateway {
namespace {

using Kind = GbnfNode::Kind;

constexpr char32_t kLastCodePoint = 0x10FFFF;
constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsWord(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || IsDigit(c) || c == '-' || c == '_';
}

// The character at `at` of well-formed UTF-8, and its length.
std::pair<char32_t, size_t> Decode(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(text[at + i]) & 0xFF; };
  const auto tail = [&](size_t i) { return byte(i) & 0x3F; };
  if (byte(0) < 0x80) return {byte(0), 1};
  if (byte(0) < 0xE0) return {(byte(0) & 0x1F) << 6 | tail(1), 2};
  if (byte(0) < 0xF0) return {(byte(0) & 0x0F) << 12 | tail(1) << 6 | tail(2), 3};
  return {(byte(0) & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4};
}

bool IsSurrogate(char32_t c) { return c >= kFirstSurrogate && c <= kLastSurrogate; }

// Ascending and apart, without surrogates; of all other characters if `negated`.
std::vector<CodeRange> Normalized(std::vector<CodeRange> ranges, bool negated) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CodeRange& a, const CodeRange& b) { return a.low < b.low; });
  std::vector<CodeRange> joined;
  for (const CodeRange& range : ranges) {
    if (!joined.empty() && range.low <= joined.back().high + 1) {
      joined.back().high = std::max(joined.back().high, range.high);
    } else {
      joined.push_back(range);
    }
  }
  std::vector<CodeRange> wanted;
  if (negated) {
    char32_t next = 0;
    for (const CodeRange& range : joined) {
      if (range.low > next) wanted.push_back({next, range.low - 1});
      next = range.high + 1;
    }
    if (next <= kLastCodePoint) wanted.push_back({next, kLastCodePoint});
  } else {
    wanted = std::move(joined);
  }
  std::vector<CodeRange> set;
  for (const CodeRange& range : wanted) {
    if (range.low < kFirstSurrogate) {
      set.push_back({range.low, std::min<char32_t>(range.high, kFirstSurrogate - 1)});
    }
    if (range.high > kLastSurrogate) {
      set.push_back({std::max<char32_t>(range.low, kLastSurrogate + 1), range.high});
    }
  }
  return set;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  absl::StatusOr<GbnfTree> Parse() {
    if (const auto invalid = FirstInvalidUtf8(text_)) {
      Fail(*invalid, "expected UTF-8");
    } else {
      SkipSpace();
      while (ok() && at_ < text_.size()) ParseRule();
      CheckNames();
      CheckEnds();
    }
    if (!ok()) return error_;
    return std::move(tree_);
  }

 private:
  bool ok() const { return error_.ok(); }

  // Only the first error counts. Columns are characters; both begin with 1.
  int Fail(size_t at, const std::string& what) {
    if (!ok()) return kGbnfNone;
    const std::string_view before = text_.substr(0, at);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const std::string_view same = before.substr(before.rfind('\n') + 1);  // npos + 1 is 0
    const auto column =
        std::count_if(same.begin(), same.end(), [](char c) { return (c & 0xC0) != 0x80; }) + 1;
    error_ =
        absl::InvalidArgumentError(absl::StrCat("line ", line, ", column ", column, ": ", what));
    return kGbnfNone;
  }

  int Expected(const std::string& what) {
    return Fail(at_, absl::StrCat("expected ", what, ", found ", Found(at_)));
  }

  std::string Found(size_t at) const {
    if (at >= text_.size()) return "the end of the grammar";
    if (text_[at] == '\n' || text_[at] == '\r') return "the end of the line";
    const auto [c, length] = Decode(text_, at);
    if (c < 0x20 || (c >= 0x7F && c < 0xA0)) return absl::StrFormat("U+%04X", static_cast<int>(c));
    return absl::StrCat("'", std::string(text_.substr(at, length)), "'");
  }

  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool Take(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }

  void SkipSpace() {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find_first_of("\r\n", at_), text_.size() - 1);
      } else if (c != ' ' && c != '\t' && c != '\r' && c != '\n') {
        return;
      }
    }
  }

  size_t EndOfName(size_t at) const {
    while (at < text_.size() && IsWord(text_[at])) ++at;
    return at;
  }

  bool AtRule() const {
    const size_t end = EndOfName(at_);
    const size_t next = text_.find_first_not_of(" \t", end);
    return end > at_ && next != std::string_view::npos && text_.substr(next).starts_with("::=");
  }

  int Add(GbnfNode node) {
    int depth = 0;
    for (const int child : node.children) depth = std::max(depth, depths_[child]);
    if (depth >= kMaxGbnfDepth) return FailDepth();
    depths_.push_back(depth + 1);
    tree_.nodes.push_back(std::move(node));
    return static_cast<int>(tree_.nodes.size()) - 1;
  }

  int FailDepth() {
    return Fail(at_, absl::StrCat("groups and repetitions nest too deep; at most ", kMaxGbnfGroups,
                                  " levels are allowed"));
  }

  // The rule of that name, which may be defined later.
  int RuleAt(size_t begin, size_t end) {
    const std::string_view name = text_.substr(begin, end - begin);
    const auto [found, is_new] = names_.try_emplace(name, static_cast<int>(tree_.rules.size()));
    if (is_new) {
      tree_.rules.push_back({std::string(name)});
      first_.push_back(begin);
    }
    return found->second;
  }

  void ParseRule() {
    if (!AtRule()) {
      Expected("a rule as NAME ::= ALTERNATIVES");
      return;
    }
    const size_t begin = at_;
    at_ = EndOfName(at_);
    const int rule = RuleAt(begin, at_);
    if (tree_.rules[rule].end > 0) {
      Fail(begin, absl::StrCat("rule ", Shown(rule), " is defined a second time"));
      return;
    }
    first_[rule] = begin;
    at_ = text_.find("::=", at_) + 3;
    const int first = static_cast<int>(tree_.nodes.size());
    ParseChoice(0);
    tree_.rules[rule].begin = first;
    tree_.rules[rule].end = static_cast<int>(tree_.nodes.size());
    if (ok() && at_ < text_.size() && !AtRule()) Expected("'|', another symbol or a rule");
  }

  int ParseChoice(int depth) {
    GbnfNode choice{Kind::kChoice};
    do {
      choice.children.push_back(ParseSequence(depth));
      if (!ok()) return kGbnfNone;
    } while (Take("|"));
    return choice.children.size() == 1 ? choice.children[0] : Add(std::move(choice));
  }

  int ParseSequence(int depth) {
    GbnfNode sequence{Kind::kSequence};
    for (SkipSpace(); at_ < text_.size() && Peek() != '|' && Peek() != ')'; SkipSpace()) {
      if (AtRule()) break;
      int symbol = ParseSymbol(depth);
      for (SkipSpace(); ok() && AtRepeat(); SkipSpace()) symbol = ParseRepeat(symbol);
      if (!ok()) return kGbnfNone;
      sequence.children.push_back(symbol);
    }
    return sequence.children.size() == 1 ? sequence.children[0] : Add(std::move(sequence));
  }

  int ParseSymbol(int depth) {
    switch (Peek()) {
      case '"':
        return ParseText();
      case '[':
        return ParseSet();
      case '<':
      case '!':
        return ParseToken();
      case '.':
        ++at_;
        return Add({.kind = Kind::kSet, .set = Normalized({}, /*negated=*/true)});
      case '(': {
        if (depth >= kMaxGbnfGroups) return FailDepth();
        ++at_;
        const int group = ParseChoice(depth + 1);
        if (!ok()) return kGbnfNone;
        return Take(")") ? group : Expected("'|', another symbol or ')'");
      }
      default:
        break;
    }
    if (!IsWord(Peek())) {
      return Expected(R"(a string, a character class, a rule's name, '.', '(' or a token)");
    }
    const size_t begin = at_;
    at_ = EndOfName(at_);
    return Add({.kind = Kind::kRule, .rule = RuleAt(begin, at_)});
  }

  int ParseText() {
    const size_t begin = at_++;
    GbnfNode node{Kind::kText};
    while (Peek() != '"') {
      if (at_ >= text_.size())
        return Fail(begin, "the string that begins here has no closing '\"'");
      const size_t at = at_;
      const auto c = ParseCharacter();
      if (!c) return kGbnfNone;
      if (IsSurrogate(*c)) return Fail(at, "half of a surrogate pair is no character");
      node.text.push_back(*c);
    }
    ++at_;
    return node.text.empty() ? Add({Kind::kSequence}) : Add(std::move(node));
  }

  int ParseSet() {
    const size_t begin = at_++;
    const bool negated = Take("^");
    std::vector<CodeRange> ranges;
    while (Peek() != ']') {
      if (at_ >= text_.size()) return Fail(begin, "the class that begins here has no closing ']'");
      const size_t at = at_;
      const auto low = ParseCharacter();
      if (!low) return kGbnfNone;
      auto high = low;
      if (Peek() == '-' && Peek(1) != ']' && at_ + 1 < text_.size()) {
        ++at_;
        high = ParseCharacter();
        if (!high) return kGbnfNone;
      }
      if (*high < *low) return Fail(at, "a range must not end before its first character");
      ranges.push_back({*low, *high});
    }
    ++at_;
    GbnfNode node{.kind = Kind::kSet, .set = Normalized(std::move(ranges), negated)};
    if (node.set.empty()) return Fail(begin, "no character is in this class");
    return Add(std::move(node));
  }

  // Of a string or a class; not at the end.
  std::optional<char32_t> ParseCharacter() {
    if (Peek() != '\\') {
      const auto [c, length] = Decode(text_, at_);
      at_ += length;
      return c;
    }
    constexpr std::string_view kLetters = "trnbfv", kMeanings = "\t\r\n\b\f\v";
    constexpr std::string_view kThemselves = "\\\"'[]-^/.";
    const size_t begin = at_++;
    const char c = Peek();
    if (c == 'x') return ParseHex(begin, 2);
    if (c == 'u') return ParseHex(begin, 4);
    if (c == 'U') return ParseHex(begin, 8);
    const size_t letter = at_ < text_.size() ? kLetters.find(c) : std::string_view::npos;
    if (letter != std::string_view::npos) {
      ++at_;
      return kMeanings[letter];
    }
    if (at_ < text_.size() && kThemselves.find(c) != std::string_view::npos) {
      ++at_;
      return c;
    }
    Expected(
        R"(after '\' one of t r n b f v \ " ' [ ] - ^ / . or xNN, uNNNN, UNNNNNNNN in hexadecimal)");
    return std::nullopt;
  }

  std::optional<char32_t> ParseHex(size_t begin, size_t digits) {
    ++at_;
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const size_t digit = std::string_view("0123456789abcdef0123456789ABCDEF").find(Peek());
      if (digit == std::string_view::npos) {
        Expected(absl::StrCat(digits, " hexadecimal digits"));
        return std::nullopt;
      }
      value = value << 4 | static_cast<uint32_t>(digit % 16);
    }
    if (value > kLastCodePoint) {
      Fail(begin, "the last character is U+10FFFF");
      return std::nullopt;
    }
    return value;
  }

  int ParseToken() {
    const size_t begin = at_;
    const bool negated = Take("!");
    if (!Take("<")) return Expected("a token as <[ID]> behind '!'");
    if (Take("[")) {
      const size_t digits = at_;
      while (IsDigit(Peek())) ++at_;
      const std::string_view id = text_.substr(digits, at_ - digits);
      if (id.empty() || id.size() > 9 || !Take("]>")) return Expected("a token as <[ID]>");
      return Add({.kind = Kind::kToken,
                  .token = absl::StrCat("<[", negated ? "^" : "", std::string(id), "]>")});
    }
    const size_t name = at_;
    const auto ends = [](unsigned char c) { return c <= ' ' || c == '<' || c == '>' || c == 0x7F; };
    while (at_ < text_.size() && !ends(text_[at_])) ++at_;
    if (at_ == name || Peek() != '>') return Expected("'>' at the end of a token's name");
    if (negated) return Fail(begin, "a token behind '!' is named by its id, as in !<[123]>");
    ++at_;
    return Add({.kind = Kind::kToken, .token = std::string(text_.substr(begin, at_ - begin))});
  }

  bool AtRepeat() const {
    const char c = Peek();
    return c == '*' || c == '+' || c == '?' || c == '{';
  }

  int ParseRepeat(int symbol) {
    const size_t begin = at_;
    GbnfNode node{.kind = Kind::kRepeat, .most = kGbnfNoLimit, .children = {symbol}};
    const char c = text_[at_++];
    if (c == '+') node.least = 1;
    if (c == '?') node.most = 1;
    if (c == '{') {
      if (!ParseCount(&node.least)) return kGbnfNone;
      if (!Take(",")) {
        node.most = node.least;
      } else if (SkipSpace(); IsDigit(Peek()) && !ParseCount(&node.most)) {
        return kGbnfNone;
      }
      if (!Take("}")) return Expected("'}' at the end of {M}, {M,} or {M,N}");
      if (node.most < node.least) return Fail(begin, "{M,N} with an N below M");
    }
    return Add(std::move(node));
  }

  bool ParseCount(int* count) {
    SkipSpace();
    const size_t begin = at_;
    while (IsDigit(Peek())) ++at_;
    if (at_ == begin) {
      Expected("a number in {M}, {M,} or {M,N}");
      return false;
    }
    if (!absl::SimpleAtoi(std::string(text_.substr(begin, at_ - begin)), count) ||
        *count > kMaxGbnfRepeat) {
      Fail(begin, absl::StrCat("at most ", kMaxGbnfRepeat, " repetitions are allowed"));
      return false;
    }
    SkipSpace();
    return true;
  }

  std::string Shown(int rule) const {
    return absl::StrCat("'", ShownText(tree_.rules[rule].name), "'");
  }

  void CheckNames() {
    if (!ok()) return;
    for (size_t i = 0; i < tree_.rules.size() && ok(); ++i) {
      if (tree_.rules[i].end > 0) continue;
      Fail(first_[i], absl::StrCat("rule ", Shown(static_cast<int>(i)), " is not defined"));
    }
    const auto root = names_.find("root");
    if (root == names_.end()) {
      Fail(text_.size(), "there is no rule 'root', which the whole text matches");
    } else {
      tree_.root = root->second;
    }
  }

  // Some text matches each rule. From the nodes that a text surely matches to those that they make
  // match one.
  void CheckEnds() {
    if (!ok()) return;
    const size_t count = tree_.nodes.size();
    std::vector<int> parents(count, kGbnfNone), missing(count, 0), of_rule(count, kGbnfNone), ready;
    std::vector<std::vector<int>> uses(tree_.rules.size());
    std::vector<bool> ends(count, false);
    for (size_t i = 0; i < tree_.rules.size(); ++i) {
      of_rule[tree_.rules[i].body()] = static_cast<int>(i);
    }
    const auto mark = [&](int node) {
      if (!ends[node]) ready.push_back(node);
      ends[node] = true;
    };
    for (size_t i = 0; i < count; ++i) {
      const GbnfNode& node = tree_.nodes[i];
      for (const int child : node.children) parents[child] = static_cast<int>(i);
      missing[i] = node.kind == Kind::kSequence ? static_cast<int>(node.children.size()) : 1;
      if (node.kind == Kind::kRule) {
        uses[node.rule].push_back(static_cast<int>(i));
      } else if (node.children.empty() || (node.kind == Kind::kRepeat && node.least == 0)) {
        mark(static_cast<int>(i));
      }
    }
    while (!ready.empty()) {
      const int node = ready.back();
      ready.pop_back();
      if (const int rule = of_rule[node]; rule != kGbnfNone) {
        for (const int use : uses[rule]) mark(use);
      }
      if (const int parent = parents[node]; parent != kGbnfNone && --missing[parent] == 0)
        mark(parent);
    }
    for (size_t i = 0; i < tree_.rules.size() && ok(); ++i) {
      if (ends[tree_.rules[i].body()]) continue;
      Fail(first_[i], absl::StrCat("no text matches rule ", Shown(static_cast<int>(i)),
                                   ": whatever it begins with leads to it again"));
    }
  }

  const std::string_view text_;
  size_t at_ = 0;
  absl::Status error_;
  GbnfTree tree_;
  std::map<std::string_view, int> names_;  // rules
  std::vector<size_t> first_;              // by rule: its definition, or else its first use
  std::vector<int> depths_;                // by node
};

}  // namespace

absl::StatusOr<GbnfTree> ParseGbnf(std::string_view text) { return Parser(text).Parse(); }

}  // namespace specfabric::gateway
