#include "gateway/reasoning.h"

#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const ReasoningMarks kThink = {"<think>", "</think>"};

// The text in pieces of random sizes, the same whatever they are.
ReasonedText Split(ReasoningStart start, const std::string& text) {
  ReasonedText first;
  for (int seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    ReasoningSplitter splitter({kThink, start});
    ReasonedText all;
    const auto add = [&](const ReasonedText& more) {
      all.reasoning += more.reasoning;
      all.content += more.content;
    };
    for (size_t at = 0; at < text.size();) {
      const size_t size = seed == 0 ? text.size() : 1 + random() % (seed < 5 ? 1 : 9);
      add(splitter.Push(text.substr(at, size)));
      at += size;
    }
    add(splitter.Finish());
    if (seed == 0) first = all;
    EXPECT_EQ(all.reasoning, first.reasoning);
    EXPECT_EQ(all.content, first.content);
  }
  return first;
}

void ExpectSplit(ReasoningStart start, const std::string& text, const std::string& reasoning,
                 const std::string& content) {
  SCOPED_TRACE(text);
  const ReasonedText split = Split(start, text);
  EXPECT_EQ(split.reasoning, reasoning);
  EXPECT_EQ(split.content, content);
}

TEST(ReasoningTest, SplitsAtTheMarks) {
  const auto maybe = ReasoningStart::kMaybe, open = ReasoningStart::kOpen,
             closed = ReasoningStart::kClosed;
  ExpectSplit(maybe, "\n<think>\nA  <b> c.\n</think>\n\nThe answer.\n", "A  <b> c.",
              "The answer.\n");
  ExpectSplit(open, "A </thin c </think>d", "A </thin c", "d");
  ExpectSplit(maybe, " <thin", "", " <thin");
  ExpectSplit(maybe, " no <think>a</think>", "", " no <think>a</think>");
  ExpectSplit(closed, "<think>a</think>", "", "<think>a</think>");
  ExpectSplit(maybe, "<think></think> x <think>y</think>", "", "x <think>y</think>");
}

TEST(ReasoningTest, OutputsThatEndEarly) {
  ExpectSplit(ReasoningStart::kOpen, "A b  </th", "A b  </th", "");
  ExpectSplit(ReasoningStart::kOpen, "A b \n", "A b", "");
  ExpectSplit(ReasoningStart::kMaybe, "<think>A", "A", "");
  ExpectSplit(ReasoningStart::kMaybe, "", "", "");
  ExpectSplit(ReasoningStart::kOpen, "A</think>\n", "A", "");
}

TEST(ReasoningTest, TellsWhetherItReasons) {
  ReasoningSplitter splitter({kThink, ReasoningStart::kMaybe});
  EXPECT_FALSE(splitter.reasons());
  splitter.Push("<think>a");
  EXPECT_TRUE(splitter.reasons());
  splitter.Push("</think>");
  EXPECT_FALSE(splitter.reasons());
}

TEST(ReasoningTest, TheTemplateSaysTheMarks) {
  EXPECT_EQ(ReasoningMarksOf("{{ x.split('</think>')[-1] }}")->open, "<think>");
  EXPECT_EQ(ReasoningMarksOf("[THINK]{{ x }}[/THINK]")->close, "[/THINK]");
  EXPECT_FALSE(ReasoningMarksOf("{{ message.content }}"));
}

TEST(ReasoningTest, ThePromptSaysWhereTheOutputBegins) {
  EXPECT_EQ(ReasoningStartOf("<|assistant|><think>\n", kThink), ReasoningStart::kOpen);
  EXPECT_EQ(ReasoningStartOf("<think>\n\n</think>\n\n", kThink), ReasoningStart::kClosed);
  EXPECT_EQ(ReasoningStartOf("<|assistant|>\n", kThink), ReasoningStart::kMaybe);
  EXPECT_EQ(ReasoningStartOf(" \n", kThink), ReasoningStart::kMaybe);
}

TEST(ReasoningTest, AGrammarIsOfWhatFollows) {
  const base::Grammar grammar = {base::GrammarLanguage::kRegex, "a/b\n"};
  const auto after = [&](ReasoningStart start, std::optional<base::TokenId> token) {
    return AfterReasoning(grammar, {kThink, start}, token, token);
  };
  EXPECT_EQ(after(ReasoningStart::kClosed, {}), grammar);
  const base::Grammar maybe = after(ReasoningStart::kMaybe, {});
  EXPECT_EQ(maybe.language, base::GrammarLanguage::kLark);
  EXPECT_THAT(maybe.source, HasSubstr("start: (open thought)? answer"));
  EXPECT_THAT(maybe.source, HasSubstr("answer: /a\\/b\\n/"));
  const base::Grammar open = after(ReasoningStart::kOpen, 7);
  EXPECT_THAT(open.source, HasSubstr("start: thought answer"));
  EXPECT_THAT(open.source, HasSubstr("<[7]>"));
  EXPECT_THAT(open.source, Not(HasSubstr("think>\"")));
}

}  // namespace
}  // namespace specfabric::gateway
