// What grammars in GBNF allow once they are written in Lark and compiled for a vocabulary.

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gateway/gbnf.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/gbnf_reference.h"
#include "tests/tokenizer/fixture.h"
#include "tokenizer/grammar.h"

namespace specfabric::gateway {
namespace {

using base::GrammarLanguage;
using base::TokenId;
using ::testing::HasSubstr;
using ::testing::Not;
using tokenizer::GrammarMatcher;
using Ids = std::vector<TokenId>;

class GbnfGrammarTest : public ::testing::Test {
 protected:
  GbnfGrammarTest() : tokenizer_(tokenizer::LoadFixture("byte_level_split")) {
    auto made = tokenizer::Grammars::Create(*tokenizer_);
    EXPECT_TRUE(made.ok()) << made.status();
    grammars_ = *std::move(made);
  }

  absl::StatusOr<GrammarMatcher> Compile(const std::string& gbnf) const {
    auto lark = LarkOfGbnf(gbnf);
    if (!lark.ok()) return lark.status();
    return grammars_->Compile({GrammarLanguage::kLark, *std::move(lark)});
  }
  Ids TokensOf(const std::string& text) const { return *tokenizer_->Encode(text, false); }

  // Whether the grammar allows the tokens, and then an end.
  bool Accepts(const GrammarMatcher& start, const Ids& ids) const {
    GrammarMatcher matcher = start.Clone();
    if (matcher.Allowed(ids) != static_cast<int>(ids.size())) return false;
    return matcher.Consume(ids).ok() && matcher.Accepts();
  }
  bool Accepts(const GrammarMatcher& start, const std::string& text) const {
    return Accepts(start, TokensOf(text));
  }

  // What the masks allow, drawn at random; nothing if it does not end soon.
  std::string Draw(GrammarMatcher matcher, std::mt19937* random) const {
    Ids text;
    std::vector<uint32_t> mask(tokenizer::MaskWords(tokenizer_->vocab_size()));
    for (int i = 0; i < 30; ++i) {
      EXPECT_EQ(matcher.Mask(absl::MakeSpan(mask)), absl::OkStatus());
      Ids allowed;
      for (TokenId id = 0; id < tokenizer_->vocab_size(); ++id) {
        if (mask[id / 32] >> (id % 32) & 1) allowed.push_back(id);
      }
      const TokenId next = allowed[(*random)() % allowed.size()];
      const auto& ends = tokenizer_->eos_ids();
      const bool is_end = std::find(ends.begin(), ends.end(), next) != ends.end();
      if (is_end || (i > 10 && matcher.Accepts())) return *tokenizer_->Decode(text, true);
      EXPECT_EQ(matcher.Consume({next}), absl::OkStatus());
      text.push_back(next);
    }
    return "";
  }

  const std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  std::unique_ptr<tokenizer::Grammars> grammars_;
};

struct Sample {
  const char* gbnf;
  std::vector<std::string> good, bad;
};

const std::vector<Sample>& Samples() {
  static const auto* samples = new std::vector<Sample>{
      {R"g(# any JSON value, with little white space
root    ::= value
value   ::= object | array | string | number | ("true" | "false" | "null") ws
object  ::= "{" ws (member ("," ws member)*)? "}" ws
member  ::= string ":" ws value
array   ::= "[" ws (value ("," ws value)*)? "]" ws
string  ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number  ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws      ::= | " " | "\n" [ \t]{0,20}
)g",
       {"{}", "[1, -2.5e+3, true]", R"({"a": {"b": [null]}, "é\n\u00e9\"": ""})", "0", "\"\\\\\"",
        "{\n  \"a\": 1\n}"},
       {"", "{", "01", "[1,]", "{\"a\"}", "{a: 1}", "\"\n\"", "nul", "[1  ]", "\"\\x\"", "1."}},
      {R"g(root ::= (expr "=" ws term "\n")+
expr ::= term ([-+*/] ws term)*
term ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num ::= [0-9]+ ws
ws ::= [ \t\n]*)g",
       {"a=1\n", "(a_1 + 22)*(c-d) = x\n", "a=1\n\nb = ( c ) \n"},
       {"a=1", "=1\n", "a+=1\n", "(a=1\n", "A=1\n", "a b=1\n", "\n"}},
      {R"g(# left recursion, which binds to the left
root ::= sum
sum ::= sum [-+] product | product
product ::= product [*/] atom | atom
atom ::= [0-9]+ | "(" sum ")" | "-" atom)g",
       {"1", "1+2-3*4/5", "((1))*(2+-3)", "--1"},
       {"", "1+", "(1", "1 + 2", "1++2", "()"}},
      {"root ::= (\"- \" item)+\nitem ::= [^\\n]+ \"\\n\"",
       {"- a\n", "- a b\n- - \n- é漢😀\n"},
       {"", "- \n", "- a", "a\n", "- a\n\n"}},
      {R"g(root ::= (
    # the first move, and the others
    "1. " move " " move "\n"
    ([1-9] [0-9]? ". " move " " move "\n")*
)
move ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?)g",
       {"1. e4 e5\n", "1. e4 e5\n2. Nf3 Nc6\n3. Bb5 axb6+\n", "1. O-O-O O-O\n10. Qa1xb2# exd8=Q\n",
        "1. Nb1d2 R1a3\n"},
       {"1. e4\n", "2. e4 e5\n", "1. e9 e5\n", "1. e4 e5", "1. O-O-O-O e5\n", "1. e4 Nb\n"}},
      {R"g(root ::= year "-" month-day
year ::= [0-9]{4}
month-day ::= ("0" [13578] | "1" [02]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])
  | ("0" [469] | "11") "-" ("0" [1-9] | [12] [0-9] | "30")
  | "02-" ("0" [1-9] | [12] [0-9]))g",
       {"2024-02-29", "1999-12-31", "0000-11-30", "2020-01-01"},
       {"2024-02-30", "2024-13-01", "2024-00-10", "24-01-01", "2024-11-31", "2024-1-1",
        "2024-01-0"}},
      {R"g(root ::= octet ("." octet){3}
octet ::= "25" [0-5] | "2" [0-4] [0-9] | "1" [0-9]{2} | [1-9]? [0-9])g",
       {"0.0.0.0", "255.249.199.99", "10.1.100.7"},
       {"256.0.0.1", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1..2.3", "1.2.3.4."}},
      {R"g(root ::= "(" text ")"
text ::= [^()] text | "(" text ")" text | )g",
       {"()", "(a(b)()é)", "((()))"},
       {"", "(", ")(", "(()", "())", "a"}},
      {R"g(root ::= row ("\n" row)*
row ::= field ("," field)*
field ::= [^",\n]* | "\"" ([^"] | "\"\"")* "\"")g",
       {"", ",", "a,b\nc,", "\"a\nb\",\"\"\"\"", "é,\"\""},
       {"\"", "a\"b", "\"\"\"", "\"a\"b"}},
      {R"g(root ::= thousands hundreds tens ones
thousands ::= "M"{0,3}
hundreds ::= "CM" | "CD" | "D"? "C"{0,3}
tens ::= "XC" | "XL" | "L"? "X"{0,3}
ones ::= "IX" | "IV" | "V"? "I"{0,3})g",
       {"", "MMXXVI", "CDXLIV", "III", "MCMXCIX"},
       {"IIII", "VX", "IC", "MMMM", "IXI", "XM"}},
      {R"g(root ::= word ("-" word)* | "none"
word ::= [a-z]+ | UPPER
UPPER ::= [A-Z] [A-Z0-9]*)g",
       {"none", "nonesuch", "a-B2-c", "n", "AB"},
       {"", "-", "a-", "aB", "none-", "2"}},
      {R"g(root ::= [a-z]+ "end" [0-9]? | .* "END")g",
       {"aend", "endend", "bendend7", "END", "ENENDEND", "x\n END"},
       {"end", "aen", "aend77", "en", "ENDE", ""}},
      {R"g(root ::= "<b>" inline* "</b>"
inline ::= [^<>&] | "&" ("lt" | "gt" | "amp" | "#" [0-9]{1,5}) ";" | "<i>" inline* "</i>")g",
       {"<b></b>", "<b>a &lt; <i>b</i>&#12;</b>"},
       {"<b>", "<b>&</b>", "<b>&lt</b>", "<b><i></b></i>", "<b>&#123456;</b>"}},
      // Where reading the longest text of one part would lose the rest.
      {R"g(root ::= ([ab(]* "b") x
x ::= "(" x ")" | "")g",
       {"b", "b()", "ab(b", "b(b(())"},
       {"", "a", "b(", "b(a"}},
      {R"g(root ::= ([ab] "a"?){2} "b" x
x ::= "(" x ")" | "")g",
       {"bab", "baab()", "bbb", "aaaab"},
       {"bb", "babb(", "aaaaab"}},
      {R"g(root ::= "x" [a-z]+ "1" | "x" "b" x
x ::= "c" x "d" | "e")g",
       {"xbe", "xbced", "xbced1", "xb1"},
       {"xb", "xbcd", "x1"}},
      {R"g(root ::= [a-z]+ [0-9]+ "x" | [a-z]+ "1" x
x ::= "2" x "3" | "4")g",
       {"a14", "ab1243", "a12x", "a1x"},
       {"a1", "a123", "12"}},
      {R"g(root ::= [a-zé]+ "è" x
x ::= "(" x ")" | "")g",
       {"aè", "éè()"},
       {"è", "é", "éé"}},
      {"root ::= \"\\u00bf\" [\\u00c0-\\u00ff 漢-語]+ \"?\" | [\\U0001F600-\\U0001F64F]{2}",
       {"¿é漢 ÿ?", "😀😁"},
       {"¿?", "¿a?", "😀", "😀😁😂", "é?"}},
  };
  return *samples;
}

TEST_F(GbnfGrammarTest, SamplesAllowTheirTexts) {
  std::mt19937 random(3);
  for (const Sample& sample : Samples()) {
    SCOPED_TRACE(sample.gbnf);
    const auto start = Compile(sample.gbnf);
    ASSERT_TRUE(start.ok()) << start.status();
    for (const std::string& text : sample.good) EXPECT_TRUE(Accepts(*start, text)) << text;
    for (const std::string& text : sample.bad) EXPECT_FALSE(Accepts(*start, text)) << text;
  }
}

TEST_F(GbnfGrammarTest, TokensByIdAndByName) {
  const TokenId begin = TokensOf("<|begin|>")[0];
  const TokenId a = TokensOf("a")[0], b = TokensOf("b")[0], d = TokensOf("d")[0];
  for (const std::string& token : {std::string("<|begin|>"), absl::StrCat("<[", begin, "]>")}) {
    const auto start = Compile("root ::= [a-c]+ " + token + " \"a\"");
    ASSERT_TRUE(start.ok()) << start.status();
    EXPECT_TRUE(Accepts(*start, Ids{a, begin, a}));
    EXPECT_TRUE(Accepts(*start, Ids{a, b, begin, a}));
    EXPECT_FALSE(Accepts(*start, Ids{a, d, a}));
    EXPECT_FALSE(Accepts(*start, Ids{begin, a}));
    EXPECT_FALSE(Accepts(*start, Ids{a, a}));
  }
  const auto until = Compile(absl::StrCat("root ::= !<[", begin, "]>* <[", begin, "]> \"a\""));
  ASSERT_TRUE(until.ok()) << until.status();
  EXPECT_TRUE(Accepts(*until, Ids{begin, a}));
  EXPECT_TRUE(Accepts(*until, Ids{b, d, a, begin, a}));
  EXPECT_FALSE(Accepts(*until, Ids{b, a}));
  EXPECT_FALSE(Accepts(*until, Ids{b, begin, b}));
  for (const char* token : {"<nobody>", "<[99999]>", "<[999999999]>"}) {
    const auto unknown = Compile(absl::StrCat("root ::= ", token));
    EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(unknown.status().message()), Not(HasSubstr("\n")));
  }
}

TEST_F(GbnfGrammarTest, RandomGrammarsMatchWhatTheReferenceMatches) {
  std::mt19937 random(7);
  int compiled = 0, matched = 0, refused = 0, drawn = 0;
  for (int i = 0; i < 500; ++i) {
    const ReferenceGrammar grammar = RandomGrammar(&random, 4);
    const std::string gbnf = GbnfOf(grammar, &random);
    SCOPED_TRACE(gbnf);
    const auto start = Compile(gbnf);
    if (!start.ok()) {
      ASSERT_THAT(std::string(start.status().message()), HasSubstr("no text matches rule"));
      continue;
    }
    ++compiled;
    for (int j = 0; j < 12; ++j) {
      const std::u32string text = RandomTextOf(grammar, &random);
      const bool matches = Matches(grammar, text);
      ++(matches ? matched : refused);
      ASSERT_EQ(Accepts(*start, Utf8(text)), matches) << Utf8(text);
    }
    const std::u32string text = FromUtf8(Draw(start->Clone(), &random));
    if (text.empty() || text.size() > 60) continue;
    ++drawn;
    ASSERT_TRUE(Matches(grammar, text)) << Utf8(text);
  }
  // The random grammars are neither trivial nor all alike.
  EXPECT_GT(compiled, 250);
  EXPECT_GT(matched, 1000);
  EXPECT_GT(refused, 1000);
  EXPECT_GT(drawn, 50);
}

TEST_F(GbnfGrammarTest, BrokenGrammarsAreRefusedInOneLine) {
  std::mt19937 random(5);
  const std::string pieces = "\"[]()|*+?{}<>!:=.-^\\\n #,a0_\xFF";
  int refused = 0, compiled = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string gbnf = Samples()[random() % Samples().size()].gbnf;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      const size_t at = random() % gbnf.size();
      if (random() % 2 == 0) gbnf.erase(at, 1 + random() % 4);
      if (random() % 2 == 0) gbnf.insert(at, 1, pieces[random() % pieces.size()]);
    }
    const auto start = Compile(gbnf);
    ++(start.ok() ? compiled : refused);
    if (start.ok()) continue;
    ASSERT_EQ(start.status().code(), absl::StatusCode::kInvalidArgument) << gbnf;
    const std::string message(start.status().message());
    ASSERT_THAT(message, Not(HasSubstr("\n"))) << gbnf;
    ASSERT_TRUE(tokenizer::IsUtf8(message)) << gbnf;
    ASSERT_LT(message.size(), 600u) << gbnf;
  }
  EXPECT_GT(refused, 300);
  EXPECT_GT(compiled, 300);
}

}  // namespace
}  // namespace specfabric::gateway
