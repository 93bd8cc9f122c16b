#include "gateway/gbnf.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gateway/gbnf_tree.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Lark(const std::string& gbnf) {
  const auto lark = LarkOfGbnf(gbnf);
  EXPECT_TRUE(lark.ok()) << lark.status();
  return lark.ok() ? *lark : "";
}

// What is written of the root, if that is one rule.
std::string LarkOfRoot(const std::string& alternatives) {
  const std::string lark = Lark("root ::= " + alternatives);
  const std::string begin = "start: r0\nr0: ";
  EXPECT_TRUE(lark.starts_with(begin)) << lark;
  return lark.substr(std::min(begin.size(), lark.size()));
}

TEST(GbnfTest, EveryConstruct) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("abc")", R"("abc")"},
      {R"("")", R"("")"},
      {"", R"("")"},
      {R"("\t\r\n\b\f\v\"\\\[\]\-\^\/\'\.")",
       R"("\u0009\u000d\u000a\u0008\u000c\u000b\"\\[]-^/'.")"},
      {R"("\x41\xe9\u6F22\U0001f600\x00")", R"("Aé漢😀\u0000")"},
      {R"("é漢😀")", R"("é漢😀")"},
      {"[a-z]", "/[a-z]/"},
      {"[-+]", R"(/[\x{2b}\x{2d}]/)"},
      {"[a-]", R"(/[\x{2d}a]/)"},
      {R"([\]\\^"x-za])", R"(/[\x{22}\x{5c}-\x{5e}ax-z]/)"},
      {"[a-cb-fg]", "/[a-g]/"},
      {R"([\u00e9-\U0001F600])", R"(/[\x{e9}-\x{d7ff}\x{e000}-\x{1f600}]/)"},
      {R"([^a\n])", R"(/[\x{0}-\x{9}\x{b}-\x{60}b-\x{d7ff}\x{e000}-\x{10ffff}]/)"},
      {R"([\ud800-\udfff!])", R"(/[\x{21}]/)"},
      {".", R"(/[\x{0}-\x{d7ff}\x{e000}-\x{10ffff}]/)"},
      {R"("a" "b" [c])", "T3\nT3: \"a\" \"b\" /[c]/"},
      {R"("a" | | [b])", "T3\nT3: \"a\" | \"\" | /[b]/"},
      {R"(("a" | "b") "c")", "T4\nT4: T2 \"c\"\nT2: \"a\" | \"b\""},
      {R"("ab"*)", "T1\nT1: \"ab\"*"},
      {R"("ab"+)", "T1\nT1: \"ab\"+"},
      {R"("ab"?)", "T1\nT1: \"ab\"{0,1}"},
      {R"("ab"{3})", "T1\nT1: \"ab\"{3,3}"},
      {R"("ab"{ 3 , })", "T1\nT1: \"ab\"{3,}"},
      {R"("ab"{0,3})", "T1\nT1: \"ab\"{0,3}"},
      {R"("ab"{1,})", "T1\nT1: \"ab\"+"},
      {R"("ab"{0} [c])", "T3\nT3: \"\" /[c]/"},
      {R"("a"?*)", "T2\nT2: T1*\nT1: \"a\"{0,1}"},
      {"<think> <[17]> !<[18]>", "<think> <[17]> <[^18]>"},
      {"<[17]>*", "<[17]>*"},
  };
  for (const auto& [gbnf, lark] : cases) EXPECT_EQ(LarkOfRoot(gbnf), lark + "\n") << gbnf;
}

TEST(GbnfTest, RulesOverSeveralLines) {
  const std::string lark = Lark(R"(
# what comes first need not be the root
pair-of	::= "<" root
   "," # between
   root ">"

root::=pair-of|   # an alternative
  [x]
  | "y")");
  EXPECT_EQ(lark, "start: r1\nr1: r0 | /[x]/ | \"y\"\nr0: \"<\" r1 \",\" r1 \">\"\n");
  EXPECT_EQ(Lark("root ::= \"a\" b\r\nb ::= \"c\"\r\n"), Lark("root ::= \"a\" b\nb ::= \"c\""));
}

TEST(GbnfTest, NamesStayApart) {
  // All are rules that need recursion, so that their names show.
  const std::string lark = Lark(
      "root ::= a-b A-B a_b start T0 r0 g0\n"
      "a-b ::= \"1\" root?\nA-B ::= \"2\" root?\na_b ::= \"3\" root?\n"
      "start ::= \"4\" root?\nT0 ::= \"5\" root?\nr0 ::= \"6\" root?\ng0 ::= \"7\" root?\n");
  EXPECT_THAT(lark, ::testing::StartsWith("start: r0\nr0: r1 r2 r3 r4 r5 r6 r7\n"));
  for (int i = 1; i <= 7; ++i)
    EXPECT_THAT(lark, HasSubstr(absl::StrCat("\nr", i, ": \"", i, "\" ")));
}

// Where the longest text that a terminal matches may be too long, its parts are terminals.
TEST(GbnfTest, TerminalsAreWhatGreedDoesNotHarm) {
  const std::string loop = "loop ::= \"(\" loop \")\" | \"\"\n";  // no terminal
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[a-z]+ \"end\" loop", "/[a-z]/+ \"e\" \"n\" \"d\" r1"},
      {"[a-z]+ \" end\" loop", "T1 \" end\" r1"},
      {"[a-z]* loop", "T1 r1"},
      {"[a-z(]* loop", "/[\\x{28}a-z]/* r1"},
      {".* loop", "/[\\x{0}-\\x{d7ff}\\x{e000}-\\x{10ffff}]/* r1"},
      {"\"\\\"\" ([^\"\\\\] | \"\\\\\" .)* \"\\\"\" loop", "\"\\\"\" T6 \"\\\"\" r1"},
      {"(\"in\" | \"out\") loop", "T2 r1"},
      {"(\"in\" | \"int\") loop", "g2 r1"},
      {"(\"a\" | \"ab\") [bc] loop", "g2 /[b-c]/ r1"},
      {"([ab(]* \"b\") loop", "g3 r1"},
      {"([ab] \"a\"?){2} \"b\" loop", "g3{2,2} \"b\" r1"},
      // After the same text.
      {"\"x\" [a-z]+ \"1\" loop | \"x\" \"bc\" loop",
       "\"x\" /[a-z]/+ \"1\" r1 | \"x\" \"b\" \"c\" r1"},
      {"[a-z]+ [0-9]+ \"x\" loop | [a-z]+ \"12\" loop", "T1 /[0-9]/+ \"x\" r1 | T1 \"1\" \"2\" r1"},
      // Characters that share a byte.
      {"[a-zé]+ \"è\" loop", "/[a-z\\x{e9}]/+ \"è\" r1"},
      {"[a-zé]+ \"漢\" loop", "T1 \"漢\" r1"},
  };
  for (const auto& [alternatives, root] : cases) {
    EXPECT_THAT(Lark("root ::= " + alternatives + "\n" + loop),
                ::testing::StartsWith("start: r0\nr0: " + root + "\n"))
        << alternatives;
  }
}

TEST(GbnfTest, ErrorsSayWhereAndWhatIsAllowed) {
  const std::string symbol =
      "expected a string, a character class, a rule's name, '.', '(' or a token, found ";
  const std::string escape =
      "expected after '\\' one of t r n b f v \\ \" ' [ ] - ^ / . or xNN, uNNNN, UNNNNNNNN in "
      "hexadecimal, found ";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "line 1, column 1: there is no rule 'root', which the whole text matches"},
      {"a ::= \"x\"", "line 1, column 10: there is no rule 'root', which the whole text matches"},
      {"root", "line 1, column 1: expected a rule as NAME ::= ALTERNATIVES, found 'r'"},
      {"root = \"a\"", "line 1, column 1: expected a rule as NAME ::= ALTERNATIVES, found 'r'"},
      {"\n  ::= \"a\"", "line 2, column 3: expected a rule as NAME ::= ALTERNATIVES, found ':'"},
      {"root ::= item\n# é\nlist ::= é item", "line 3, column 10: " + symbol + "'é'"},
      {"root ::= item | \"a\"", "line 1, column 10: rule 'item' is not defined"},
      {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: rule 'root' is defined a second time"},
      {"root ::= *", "line 1, column 10: " + symbol + "'*'"},
      {"root ::= \"a\" )", "line 1, column 14: expected '|', another symbol or a rule, found ')'"},
      {"root ::= (\"a\"\nb ::= \"c\"",
       "line 2, column 1: expected '|', another symbol or ')', found 'b'"},
      {"root ::= (\"a\"",
       "line 1, column 14: expected '|', another symbol or ')', found the end of the grammar"},
      {"root ::= \"é\" \"a", "line 1, column 14: the string that begins here has no closing '\"'"},
      {"root ::= [a-", "line 1, column 10: the class that begins here has no closing ']'"},
      {"root ::= [a-", "line 1, column 10: the class that begins here has no closing ']'"},
      {"root ::= []", "line 1, column 10: no character is in this class"},
      {R"(root ::= [^\x00-\U0010ffff])", "line 1, column 10: no character is in this class"},
      {R"(root ::= [\ud800])", "line 1, column 10: no character is in this class"},
      {"root ::= [z-a]", "line 1, column 11: a range must not end before its first character"},
      {R"(root ::= "\d")", "line 1, column 12: " + escape + "'d'"},
      {"root ::= \"\\", "line 1, column 12: " + escape + "the end of the grammar"},
      {"root ::= \"\\\n\"", "line 1, column 12: " + escape + "the end of the line"},
      {"root ::= \"\\\x01\"", "line 1, column 12: " + escape + "U+0001"},
      {R"(root ::= "\x4")", "line 1, column 14: expected 2 hexadecimal digits, found '\"'"},
      {R"(root ::= "\u12 4")", "line 1, column 15: expected 4 hexadecimal digits, found ' '"},
      {R"(root ::= "\U00110000")", "line 1, column 11: the last character is U+10FFFF"},
      {R"(root ::= "\ud83d")", "line 1, column 11: half of a surrogate pair is no character"},
      {"root ::= \"a\"{,3}",
       "line 1, column 14: expected a number in {M}, {M,} or {M,N}, found ','"},
      {"root ::= \"a\"{2;3}",
       "line 1, column 15: expected '}' at the end of {M}, {M,} or {M,N}, "
       "found ';'"},
      {"root ::= \"a\"{3,2}", "line 1, column 13: {M,N} with an N below M"},
      {"root ::= \"a\"{65537}", "line 1, column 14: at most 65536 repetitions are allowed"},
      {"root ::= \"a\"{1,99999999999999999999}",
       "line 1, column 16: at most 65536 repetitions are allowed"},
      {"root ::= <[x]>", "line 1, column 12: expected a token as <[ID]>, found 'x'"},
      {"root ::= <think",
       "line 1, column 16: expected '>' at the end of a token's name, found the "
       "end of the grammar"},
      {"root ::= <>", "line 1, column 11: expected '>' at the end of a token's name, found '>'"},
      {"root ::= !\"a\"", "line 1, column 11: expected a token as <[ID]> behind '!', found '\"'"},
      {"root ::= !<think>",
       "line 1, column 10: a token behind '!' is named by its id, as in !<[123]>"},
      {"root ::= \"a\" root",
       "line 1, column 1: no text matches rule 'root': whatever it begins "
       "with leads to it again"},
      {"root ::= \"a\" | b\nb ::= c \"x\"\nc ::= b+",
       "line 2, column 1: no text matches rule 'b': "
       "whatever it begins with leads to it again"},
      {"root ::= \"\xff\"", "line 1, column 11: expected UTF-8"},
  };
  for (const auto& [gbnf, message] : cases) {
    const auto lark = LarkOfGbnf(gbnf);
    ASSERT_FALSE(lark.ok()) << gbnf;
    EXPECT_EQ(lark.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(lark.status().message()), message) << gbnf;
  }
}

TEST(GbnfTest, WhatIsTooDeepIsRefused) {
  const auto nested = [](int levels, const std::string& after) {
    std::string open, close;
    for (int i = 0; i < levels; ++i) {
      open += "(\"a\" ";
      close += ")" + after;
    }
    return "root ::= " + open + "\"b\"" + close;
  };
  EXPECT_TRUE(LarkOfGbnf(nested(kMaxGbnfGroups, "*")).ok());
  for (const int levels : {kMaxGbnfGroups + 1, 60'000}) {
    EXPECT_THAT(std::string(LarkOfGbnf(nested(levels, "")).status().message()),
                HasSubstr("at most 64 levels are allowed"));
  }
  EXPECT_THAT(
      std::string(LarkOfGbnf("root ::= \"a\"" + std::string(200'000, '*')).status().message()),
      HasSubstr("at most 64 levels are allowed"));

  const auto chain = [](int rules, const std::string& last) {
    std::string gbnf = "root ::= \"a\" a1 | \"b\"\n";
    for (int i = 1; i < rules; ++i) absl::StrAppend(&gbnf, "a", i, " ::= \"a\" a", i + 1, "\n");
    return absl::StrCat(gbnf, "a", rules, " ::= ", last);
  };
  EXPECT_TRUE(LarkOfGbnf(chain(kMaxGbnfChain - 1, "root")).ok());
  for (const char* last : {"root", "\"b\""}) {
    EXPECT_THAT(std::string(LarkOfGbnf(chain(10'000, last)).status().message()),
                HasSubstr("a chain of more than 500"));
  }
}

// In a second or so, all of them.
TEST(GbnfTest, HostileGrammarsTakeBoundedTime) {
  // Each rule doubles what it stands for.
  std::string doubling = "root ::= a1 [b] root | \"\"\n";
  for (int i = 1; i < 60; ++i)
    absl::StrAppend(&doubling, "a", i, " ::= a", i + 1, " a", i + 1, "\n");
  EXPECT_TRUE(LarkOfGbnf(doubling + "a60 ::= [a-c]* \"b\"").ok());
  // As an automaton that reads each character once it has 2 to the power of 60 states.
  const std::string states = "root ::= ([ab]* \"a\" " + [] {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "[ab] ";
    return text;
  }() + "x)\nx ::= \"(\" x \")\" | \"\"";
  EXPECT_TRUE(LarkOfGbnf(states).ok());
  // Many alternatives, that begin alike.
  std::string many = "root ::= \"(\" root \")\"";
  for (int i = 0; i < 20'000; ++i) absl::StrAppend(&many, "|\"k", i, "\"");
  EXPECT_TRUE(LarkOfGbnf(many).ok());
  std::string rules = "root ::= \"(\" root \")\" | ";
  for (int i = 0; i < 5'000; ++i) absl::StrAppend(&rules, " | a", i);
  for (int i = 0; i < 5'000; ++i) absl::StrAppend(&rules, "\na", i, " ::= \"k", i, "\" root");
  EXPECT_TRUE(LarkOfGbnf(rules).ok());
}

TEST(GbnfTest, GbnfOrLark) {
  for (const char* gbnf : {"root ::= \"a\"", "root::=a", "# start: x\n\n\troot-1 \t::= y",
                           "A_b ::=", "// a\n# b\r\nroot ::= c"}) {
    EXPECT_TRUE(IsGbnf(gbnf)) << gbnf;
  }
  for (const char* lark :
       {"", "# root ::= \"a\"", "start: \"::=\"", "start: /a ::= b/",
        "start: a // b ::= c\na: \"d\"", "?start: a\na ::= b", "start::_ : \"a\"",
        "%import common.INT\nstart: INT", "start", "root : := a", "::= \"a\""}) {
    EXPECT_FALSE(IsGbnf(lark)) << lark;
  }
}

}  // namespace
}  // namespace specfabric::gateway
