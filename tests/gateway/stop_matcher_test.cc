#include "gateway/stop_matcher.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace specfabric::gateway {
namespace {

StopMatcher Matcher(const std::vector<std::string>& stops, bool include = false) {
  return StopMatcher(std::make_shared<const StopPatterns>(stops), include);
}

struct Cut {
  std::string text;
  bool matched;
  bool operator==(const Cut&) const = default;
};

TEST(StopMatcherTest, IgnoresMatchesThatEndTooEarly) {
  StopMatcher matcher = Matcher({"aa", "b"});
  std::string text = matcher.Push("caab", /*may_match=*/false);
  EXPECT_FALSE(matcher.matched());
  EXPECT_EQ(text, "caab");
  text += matcher.Push("aaa", /*may_match=*/false);
  EXPECT_EQ(text + matcher.Push("ad", /*may_match=*/true), "caabaa") << "begins before, ends after";
  EXPECT_TRUE(matcher.matched());
}

Cut CutOf(const std::vector<std::string>& stops, const std::vector<std::string>& pieces,
          bool include = false) {
  StopMatcher matcher = Matcher(stops, include);
  std::string text;
  for (const auto& piece : pieces) text += matcher.Push(piece);
  text += matcher.Finish();
  return {text, matcher.matched()};
}

// The definition: of all occurrences the one that ends first, of those the one that starts first.
Cut Reference(const std::vector<std::string>& stops, const std::string& text,
              bool include = false) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const auto& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return {text.substr(0, include ? end : end - longest), true};
  }
  return {text, false};
}

TEST(StopMatcherTest, SaysWhichStopItWas) {
  for (const bool include : {false, true}) {
    StopMatcher matcher = Matcher({"abc", "bc", "x", "abcd"}, include);
    EXPECT_EQ(matcher.match(), "");
    for (const char* piece : {"za", "b", "c", "x"}) matcher.Push(piece);
    EXPECT_EQ(matcher.match(), "abc");
  }
  StopMatcher within = Matcher({"abcd", "bc"});
  within.Push("abc");
  EXPECT_EQ(within.match(), "bc") << "the state is that of a longer string";
}

TEST(StopMatcherTest, WithoutStopsAllTextPasses) {
  StopMatcher matcher = Matcher({});
  EXPECT_EQ(matcher.Push("abc"), "abc");
  EXPECT_EQ(matcher.Push(""), "");
  EXPECT_EQ(matcher.Finish(), "");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcherTest, HoldsBackOnlyPossibleStops) {
  StopMatcher matcher = Matcher({"END"});
  EXPECT_EQ(matcher.Push("aE"), "a");
  EXPECT_EQ(matcher.Push(""), "");
  EXPECT_EQ(matcher.Push("N"), "");
  EXPECT_EQ(matcher.Push("E"), "EN");  // "ENE": the last E may begin another
  EXPECT_EQ(matcher.Push("x"), "Ex");
  EXPECT_EQ(matcher.Push("EN"), "");
  EXPECT_EQ(matcher.Finish(), "EN");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcherTest, ReturnsNothingAfterAMatch) {
  StopMatcher matcher = Matcher({"END"});
  EXPECT_EQ(matcher.Push("text EN"), "text ");
  EXPECT_EQ(matcher.Push("D and more"), "");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.Push("more"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcherTest, IncludedStopsHoldNothingBack) {
  StopMatcher matcher = Matcher({"END"}, /*include=*/true);
  EXPECT_EQ(matcher.Push("text E"), "text E");
  EXPECT_EQ(matcher.Push("N"), "N");
  EXPECT_EQ(matcher.Push("D and more"), "D");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.Push("more") + matcher.Finish(), "");
}

TEST(StopMatcherTest, TheMatchThatEndsFirstWins) {
  EXPECT_EQ(CutOf({"abcd", "c"}, {"xabcd"}), (Cut{"xab", true}));
  EXPECT_EQ(CutOf({"abc", "c"}, {"xabc"}), (Cut{"x", true}));
}

TEST(StopMatcherTest, FollowsTheBorderOfAStop) {
  EXPECT_EQ(CutOf({"aab"}, {"a", "a", "a", "b"}), (Cut{"a", true}));
  EXPECT_EQ(CutOf({"abcabd"}, {"abcabcabd"}), (Cut{"abc", true}));
}

TEST(StopMatcherTest, CharactersStayWhole) {
  StopMatcher matcher = Matcher({"\xE6\xBC\xA2\xE5\xAD\x97"});          // two characters
  EXPECT_EQ(matcher.Push("x\xE6\xBC\xA2"), "x");                        // the first of them
  EXPECT_EQ(matcher.Push("\xE6\xBC\xA3"), "\xE6\xBC\xA2\xE6\xBC\xA3");  // shares two bytes with it
}

TEST(StopMatcherTest, RandomTextsAgreeWithTheDefinition) {
  std::mt19937 random(7);
  const auto word = [&](int longest) {
    std::string text(1 + random() % longest, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  int matches = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::vector<std::string> stops;
    for (size_t count = 1 + random() % 4; count > 0; --count) stops.push_back(word(6));
    const std::string text = word(24);
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t size = random() % 4;
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    const Cut expected = Reference(stops, text);
    ASSERT_EQ(CutOf(stops, pieces), expected) << text;
    ASSERT_EQ(CutOf(stops, pieces, /*include=*/true), Reference(stops, text, true)) << text;
    matches += expected.matched;
  }
  EXPECT_GT(matches, 1000);
  EXPECT_LT(matches, 19900);
}

}  // namespace
}  // namespace specfabric::gateway
