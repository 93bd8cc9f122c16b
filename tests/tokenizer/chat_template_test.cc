#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "tests/tokenizer/fixture.h"
#include "tokenizer/tokenizer.h"

namespace specfabric::tokenizer {
namespace {

using ::testing::HasSubstr;

std::string DumpOrEmpty(const Json& object, const char* key) {
  return object.contains(key) ? object[key].dump() : std::string();
}

absl::StatusOr<std::string> Apply(const Tokenizer& tokenizer, const Json& chat) {
  return tokenizer.ApplyChatTemplate(chat["messages"].dump(), chat.value("prompt", false),
                                     DumpOrEmpty(chat, "tools"), DumpOrEmpty(chat, "variables"));
}

class GoldenChatTest : public testing::TestWithParam<std::string> {};

TEST_P(GoldenChatTest, RendersLikeTheReference) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadFixture(GetParam());
  EXPECT_TRUE(tokenizer->has_chat_template());
  const Json golden = LoadGolden(GetParam());
  int rendered = 0;
  for (const Json& chat : golden["chats"]) {
    SCOPED_TRACE(chat["input"].dump());
    const absl::StatusOr<std::string> text = Apply(*tokenizer, chat["input"]);
    if (chat.contains("error")) {
      EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
    } else {
      ASSERT_TRUE(text.ok()) << text.status();
      EXPECT_EQ(*text, chat["text"].get<std::string>());
      ++rendered;
    }
  }
  EXPECT_GE(rendered, 4);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, GoldenChatTest,
                         testing::Values("byte_level_split", "byte_level_words"),
                         [](const auto& info) { return info.param; });

TEST(ChatTemplateTest, ReportsExceptionsOfTheTemplate) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadFixture("byte_level_split");
  const absl::Status status =
      tokenizer
          ->ApplyChatTemplate(R"([{"role":"user","content":"a"},{"role":"user","content":"b"}])",
                              true)
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "the chat template refused the messages: "
            "Roles must alternate: user, assistant, user, ...");
}

TEST(ChatTemplateTest, RefusesInvalidConversations) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadFixture("byte_level_split");
  for (const char* messages :
       {"", "{", "{}", "7", "\"hi\"", "null", "[1", "\xFF", "[]", "[7]", "[{}, []]"}) {
    const absl::Status status = tokenizer->ApplyChatTemplate(messages, true).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << messages;
    EXPECT_THAT(std::string(status.message()), HasSubstr("messages")) << messages;
  }
  const char* hello = R"([{"role":"user","content":"a"}])";
  EXPECT_EQ(tokenizer->ApplyChatTemplate(hello, true, "{}").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tokenizer->ApplyChatTemplate(hello, true, {}, "[]").status().code(),
            absl::StatusCode::kInvalidArgument);
  // Nested deeper than any conversation needs.
  EXPECT_EQ(tokenizer->ApplyChatTemplate(std::string(100000, '['), true).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ChatTemplateTest, ReportsAMissingTemplate) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadFixture("plain_words");
  EXPECT_FALSE(tokenizer->has_chat_template());
  const absl::Status status = tokenizer->ApplyChatTemplate("[{}]", true).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no chat template"));
}

TEST(ChatTemplateTest, ABrokenTemplateLeavesTheTokenizerUsable) {
  TempDir dir;
  dir.CopyTokenizer("plain_words");
  dir.Write("chat_template.jinja", "{% for message in messages %}");
  const std::unique_ptr<Tokenizer> tokenizer = LoadFrom(dir);
  EXPECT_TRUE(tokenizer->Encode("the dog", false).ok());
  const absl::Status status = tokenizer->ApplyChatTemplate("[{}]", true).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("does not compile"));
}

TEST(ChatTemplateTest, RenderingErrorsAreOneLine) {
  for (const char* source :
       {"{{ messages[0].content.nothing.at.all }}", "{{ messages | nofilter }}",
        "{{ missing | tojson }}", "{{ 1 / 0 }}", "{{ messages.nomethod() }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"}) {
    const absl::Status status = RenderTemplate(source, "[{}]").status();
    EXPECT_FALSE(status.ok()) << source;
    EXPECT_NE(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status;
  }
}

TEST(ChatTemplateTest, MessagesAreNotTemplates) {
  EXPECT_EQ(RenderTemplate("{{ messages[0].x }}", R"([{"x":"{{ 1 + 1 }}{% if %} <&>"}])").value(),
            "{{ 1 + 1 }}{% if %} <&>");
}

// A folder with a tokenizer, whose tokenizer_config.json has `chat_template`.
std::unique_ptr<TempDir> WithConfigTemplate(const Json& chat_template) {
  auto dir = std::make_unique<TempDir>();
  dir->CopyTokenizer("plain_words");
  dir->Write("tokenizer_config.json", Json{{"chat_template", chat_template}}.dump());
  return dir;
}

TEST(ChatTemplateTest, LineEndsAreTheSameInAllFiles) {
  constexpr char kMessages[] = R"([{"role":"user","content":"a\r\nb"}])";
  const std::string unix_lines =
      "{% for message in messages %}\n<{{ message.role }}>\n{{ message.content }}{{ '\n' }}"
      "{% endfor %}\n\n";
  for (const std::string end : {"\n", "\r\n", "\r"}) {
    SCOPED_TRACE(Json(end).dump());
    std::string source;
    for (const char c : unix_lines) source += c == '\n' ? end : std::string(1, c);
    // Only line ends of the template are changed, not those of the messages.
    const std::string text = "<user>\na\r\nb\n";
    EXPECT_EQ(RenderTemplate(source, kMessages).value(), text);
    EXPECT_EQ(LoadFrom(*WithConfigTemplate(source))->ApplyChatTemplate(kMessages, false).value(),
              text);
    const Json list = {{{"name", "default"}, {"template", source}},
                       {{"name", "tool_use"}, {"template", "tools " + source}}};
    const std::unique_ptr<TempDir> dir = WithConfigTemplate(list);
    EXPECT_EQ(LoadFrom(*dir)->ApplyChatTemplate(kMessages, false).value(), text);
    EXPECT_EQ(LoadFrom(*dir)->ApplyChatTemplate(kMessages, false, "[{}]").value(), "tools " + text);
  }
}

TEST(ChatTemplateTest, FilesReplaceTheConfigsTemplates) {
  const std::unique_ptr<TempDir> dir = WithConfigTemplate("config");
  dir->Write("additional_chat_templates/tool_use.jinja", "file for tools");
  dir->Write("additional_chat_templates/notes.txt", "{% not a template");
  EXPECT_EQ(LoadFrom(*dir)->ApplyChatTemplate("[{}]", false, "[{}]").value(), "file for tools");
  EXPECT_FALSE(LoadFrom(*dir)->has_chat_template());
  dir->Write("chat_template.jinja", "file");
  EXPECT_EQ(LoadFrom(*dir)->ApplyChatTemplate("[{}]", false).value(), "file");
  EXPECT_EQ(LoadFrom(*dir)->ApplyChatTemplate("[{}]", false, "[{}]").value(), "file for tools");
}

TEST(ChatTemplateTest, FormatsTheDate) {
  const auto year = [] {
    const std::time_t now = std::time(nullptr);
    std::tm fields;
    localtime_r(&now, &fields);
    return std::to_string(fields.tm_year + 1900);
  };
  const std::string before = year();
  const std::string text = RenderTemplate("{{ strftime_now('%Y|%%') }}", "[{}]").value();
  EXPECT_TRUE(text == before + "|%" || text == year() + "|%") << text;
}

}  // namespace
}  // namespace specfabric::tokenizer
