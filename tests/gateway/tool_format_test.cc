#include "gateway/tool_format.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/tokenizer/fixture.h"
#include "tokenizer/grammar.h"

namespace specfabric::gateway {
namespace {

// Whether the grammar of calls allows the text, as the beginning of one or as a whole.
class ToolFormatTest : public ::testing::TestWithParam<ToolFormat> {
 protected:
  void SetUp() override {
    tokenizer_ = tokenizer::LoadFixture("byte_level_words");
    auto grammars = tokenizer::Grammars::Create(*tokenizer_);
    ASSERT_TRUE(grammars.ok()) << grammars.status();
    const Tool tool = {"f", R"({"type": "object", "properties": {"a": {"type": "integer"}}})"};
    auto matcher = (*grammars)->Compile(CallsOf(GetParam(), {tool}, /*parallel=*/false,
                                                /*open=*/std::nullopt, /*close=*/std::nullopt));
    ASSERT_TRUE(matcher.ok()) << matcher.status();
    matcher_ = std::make_unique<tokenizer::GrammarMatcher>(*std::move(matcher));
  }
  bool Allows(const std::string& text) const {
    return matcher_->Clone().Consume(*tokenizer_->Encode(text, false)).ok();
  }
  // A call that is begun, up to its arguments.
  std::string Begun() const {
    const std::string open = MarksOf(GetParam()).open;
    switch (GetParam()) {
      case ToolFormat::kHermes:
        return absl::StrCat(open, "\n{\"name\": \"f\", \"arguments\":");
      case ToolFormat::kLlama3:
        return "{\"name\": \"f\", \"parameters\":";
      case ToolFormat::kMistral:
      case ToolFormat::kJson:
        break;
    }
    return absl::StrCat(open, "[{\"name\": \"f\", \"arguments\":");
  }

  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  std::unique_ptr<tokenizer::GrammarMatcher> matcher_;
};

TEST_P(ToolFormatTest, WhiteSpaceInACallIsBounded) {
  for (const char* space : {"", " ", "\n", "\n    "}) {
    EXPECT_TRUE(Allows(absl::StrCat(Begun(), space, "{\"a\"", space, ": 1"))) << space;
  }
  for (const char* space : {"  ", "\n\n", " \n"}) {
    EXPECT_FALSE(Allows(Begun() + space)) << space;
    EXPECT_FALSE(Allows(absl::StrCat(Begun(), " {\"a\"", space))) << space;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, ToolFormatTest,
                         ::testing::Values(ToolFormat::kHermes, ToolFormat::kLlama3,
                                           ToolFormat::kMistral, ToolFormat::kJson),
                         [](const auto& format) { return std::string(Name(format.param)); });

}  // namespace
}  // namespace specfabric::gateway
