#include "gateway/prepare_chat.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gateway/prepare.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/parsed.h"
#include "tests/tokenizer/fixture.h"
#include "tokenizer/grammar.h"

namespace specfabric::gateway {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr char kTemplate[] =
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>\n{% endfor %}"
    "{% if tools %}call as <tool_call>{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% if enable_thinking is defined %}"
    "{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
    "{% endif %}";

class PrepareChatTest : public ::testing::Test {
 protected:
  PrepareChatTest() {
    dir_.CopyTokenizer("byte_level_words");
    dir_.Write("chat_template.jinja", kTemplate);
    dir_.Write("generation_config.json", R"({"eos_token_id": 0})");
    tokenizer_ = tokenizer::LoadFrom(dir_);
    auto grammars = tokenizer::Grammars::Create(*tokenizer_);
    EXPECT_TRUE(grammars.ok()) << grammars.status();
    if (grammars.ok()) grammars_ = *std::move(grammars);
  }

  Parsed<Prepared> Try(const std::string& fields,
                       const std::string& messages = R"([{"role": "user", "content": "a"}])") {
    auto request = ParseChat("{\"messages\": " + messages + fields + "}");
    if (auto* error = std::get_if<ApiError>(&request)) return std::move(*error);
    return Prepare(std::get<GenerationRequest>(std::move(request)), *tokenizer_,
                   ChatFormatOf(*tokenizer_), {"m", 4000, tokenizer_->vocab_size()},
                   [] { return 1; });
  }
  GenerationRequest Request(const std::string& fields) { return Good(Try(fields)).request; }
  std::string Prompt(const std::string& fields, const std::string& messages) {
    return tokenizer_->Decode(Good(Try(fields, messages)).prompts.at(0).ids, false).value();
  }

  // Whether the request's grammar describes the text.
  bool Takes(const GenerationRequest& request, const std::string& text) const {
    if (grammars_ == nullptr) return false;
    auto matcher = grammars_->Compile(request.grammar);
    EXPECT_TRUE(matcher.ok()) << matcher.status() << "\n" << request.grammar.source;
    if (!matcher.ok()) return false;
    const auto ids = tokenizer_->Encode(text, false).value();
    return matcher->Consume(ids).ok() && matcher->Accepts();
  }

  tokenizer::TempDir dir_;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  std::unique_ptr<tokenizer::Grammars> grammars_;
};

TEST_F(PrepareChatTest, ThePromptSaysWhereReasoningBegins) {
  const auto maybe = Request("");
  ASSERT_TRUE(maybe.reasoning);
  EXPECT_EQ(maybe.reasoning->start, ReasoningStart::kMaybe);
  const auto open = Request(R"(, "chat_template_kwargs": {"enable_thinking": true})");
  ASSERT_TRUE(open.reasoning);
  EXPECT_EQ(open.reasoning->start, ReasoningStart::kOpen);
  EXPECT_FALSE(Request(R"(, "chat_template_kwargs": {"enable_thinking": false})").reasoning);
  EXPECT_FALSE(Request(R"(, "separate_reasoning": false)").reasoning);
  EXPECT_FALSE(Request(R"(, "reasoning_format": "none")").reasoning);
}

TEST_F(PrepareChatTest, AFormIsOfWhatFollowsTheReasoning) {
  const std::string schema =
      R"(, "response_format": {"type": "json_schema", "json_schema": {"schema":
          {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
           "additionalProperties": false}}})";
  const auto maybe = Request(schema);
  EXPECT_TRUE(Takes(maybe, "{\"a\": 1}"));
  EXPECT_TRUE(Takes(maybe, "<think>\nIt is {}.\n</think>\n\n{\"a\": 1}"));
  EXPECT_FALSE(Takes(maybe, "<think>\nIt is {}.\n</think>\n\nno"));
  EXPECT_FALSE(Takes(maybe, "<think>{\"a\": 1}"));
  const auto open = Request(schema + R"(, "chat_template_kwargs": {"enable_thinking": true})");
  EXPECT_TRUE(Takes(open, "It is.</think>{\"a\": 12}"));
  EXPECT_TRUE(Takes(open, "</think>\n\n{\"a\": 12}"));
  EXPECT_FALSE(Takes(open, "{\"a\": 12}"));
  const auto closed = Request(schema + R"(, "chat_template_kwargs": {"enable_thinking": false})");
  EXPECT_TRUE(Takes(closed, "{\"a\": 1}"));
  EXPECT_FALSE(Takes(closed, "<think></think>{\"a\": 1}"));
}

TEST_F(PrepareChatTest, EveryLanguageMayFollow) {
  const std::pair<std::string, std::string> forms[] = {
      {R"("guided_regex": "[a-c]+/\\d")", "ab/3"},
      {R"("guided_choice": ["yes \"sir\"", "no"])", "yes \"sir\""},
      {R"("guided_grammar": "start: WORD \"}\"\nWORD: /[a-z]+/")", "word}"},
      {R"("guided_json": {"type": "integer"})", "17"}};
  for (const auto& [form, text] : forms) {
    SCOPED_TRACE(form);
    const auto request = Request(", " + form);
    EXPECT_TRUE(Takes(request, text));
    EXPECT_TRUE(Takes(request, "<think>a b</think>\n" + text));
    EXPECT_FALSE(Takes(request, "<think>a b</think>\n" + text + " and more"));
  }
}

TEST_F(PrepareChatTest, BadWordsDoNotOccur) {
  const auto request = Request(R"(, "bad_words": ["a.b", "said/", "x\n"])");
  EXPECT_TRUE(Takes(request, "he said that aab x is right\n"));
  EXPECT_TRUE(Takes(request, ""));
  EXPECT_FALSE(Takes(request, "that a.b is"));
  EXPECT_FALSE(Takes(request, "he said/"));
  EXPECT_FALSE(Takes(request, "x\n"));
  EXPECT_TRUE(Takes(request, "<think>a</think>\nthat"));
  EXPECT_FALSE(Takes(request, "<think>a.b</think>\nthat")) << "nor in reasoning";
  EXPECT_TRUE(Request(R"(, "bad_words": [])").grammar.empty());
}

TEST_F(PrepareChatTest, AnAnswerMayCallToolsOrHaveItsForm) {
  const std::string tools =
      R"(, "tools": [{"type": "function", "function": {"name": "f", "parameters":
          {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
           "additionalProperties": false}}}], "guided_regex": "[a-c]+")";
  const auto request = Request(tools + R"(, "separate_reasoning": false)");
  const std::string call =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  EXPECT_EQ(request.grammar_field, "guided_regex");
  EXPECT_TRUE(Takes(request, call));
  EXPECT_TRUE(Takes(request, call + "\n" + call));
  EXPECT_TRUE(Takes(request, "abc"));
  EXPECT_FALSE(Takes(request, "abc" + call));
  EXPECT_FALSE(Takes(request, "other"));
  EXPECT_TRUE(Takes(request, "<think>a</think>\n" + call));
}

TEST_F(PrepareChatTest, TheLastMessageGoesOn) {
  const std::string messages =
      R"([{"role": "user", "content": "no"}, {"role": "assistant", "content": " The light is "}])";
  EXPECT_THAT(Prompt(R"(, "continue_final_message": true)", messages),
              EndsWith("<assistant>The light is"));
  EXPECT_THAT(Prompt("", messages), EndsWith("</assistant>\n<assistant>"));
  EXPECT_FALSE(Good(Try(R"(, "continue_final_message": true)", messages)).request.reasoning);
  const ApiError none = Bad(
      Try(R"(, "continue_final_message": true)", R"([{"role": "assistant", "content": "  "}])"));
  EXPECT_EQ(none.param, "continue_final_message");
  const ApiError both =
      Bad(Try(R"(, "continue_final_message": true, "add_generation_prompt": true)"));
  EXPECT_THAT(both.message, HasSubstr("'continue_final_message' may only be true"));
}

}  // namespace
}  // namespace specfabric::gateway
