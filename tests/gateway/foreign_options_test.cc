#include "gateway/foreign_options.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gateway/openai_parse.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  bool accepted = false;
  ApiError error = {};
  std::vector<std::string> ignored = {};
};

template <typename T>
Outcome Read(Parsed<T> parsed) {
  if (const auto* error = std::get_if<ApiError>(&parsed)) return {false, *error, {}};
  return {true, {}, std::get<T>(parsed).ignored_fields};
}

constexpr RequestKind kEndpoints[] = {kCompletions, kChat, kTokenize, kDetokenize};

// The result of a minimal request of the endpoint with `field` set.
Outcome Try(RequestKind endpoint, std::string_view field, const Json& value) {
  static const std::map<RequestKind, const char*> bodies = {
      {kCompletions, R"({"prompt": "a"})"},
      {kChat, R"({"messages": [{"role": "user", "content": "a"}]})"},
      {kTokenize, R"({"prompt": "a"})"},
      {kDetokenize, R"({"tokens": [1]})"}};
  Json body = Json::parse(bodies.at(endpoint));
  // Some fields are read only if there are messages.
  const bool of_chats = field == "add_generation_prompt" || field == "chat_template_kwargs" ||
                        field == "documents" || field == "reasoning_effort" ||
                        field == "continue_final_message";
  if (endpoint == kTokenize && of_chats) body = Json::parse(bodies.at(kChat));
  body[std::string(field)] = value;
  const std::string text = body.dump();
  switch (endpoint) {
    case kCompletions:
      return Read(ParseCompletion(text));
    case kChat:
      return Read(ParseChat(text));
    case kTokenize:
      return Read(ParseTokenize(text));
    default:
      return Read(ParseDetokenize(text));
  }
}

// For every option, at least one of these is invalid and one is neutral.
const std::vector<Json>& Values() {
  static const auto* values = new std::vector<Json>{"x",
                                                    7,
                                                    2.5,
                                                    true,
                                                    false,
                                                    0,
                                                    1,
                                                    -1,
                                                    "",
                                                    Json::array(),
                                                    "none",
                                                    "auto",
                                                    "medium",
                                                    "left",
                                                    Json::object(),
                                                    Json::array({"text"}),
                                                    Json::object({{"type", "text"}}),
                                                    Json::array({Json::array({Json::object()})}),
                                                    Json::object({{"a", Json::array({"b"})}})};
  return *values;
}

TEST(ForeignOptionsTest, HonouredFieldsAreReadAndChecked) {
  for (const RequestOption& option : RequestOptions()) {
    if (option.support != Support::kHonoured) continue;
    for (const RequestKind endpoint : kEndpoints) {
      if ((option.endpoints & endpoint) == 0) continue;
      const bool refuses = std::any_of(Values().begin(), Values().end(), [&](const Json& value) {
        const Outcome outcome = Try(endpoint, option.name, value);
        return !outcome.accepted && outcome.error.param == option.name;
      });
      EXPECT_TRUE(refuses) << option.name << " takes anything at endpoint " << endpoint;
    }
  }
}

TEST(ForeignOptionsTest, RefusedFieldsAreNamedUnlessNeutral) {
  for (const RequestOption& option : RequestOptions()) {
    if (option.support != Support::kRefused) continue;
    for (const RequestKind endpoint : kEndpoints) {
      if ((option.endpoints & endpoint) == 0) continue;
      int neutral = 0, refused = 0;
      for (const Json& value : Values()) {
        const Outcome outcome = Try(endpoint, option.name, value);
        if (option.neutral(value)) {
          ++neutral;
          EXPECT_TRUE(outcome.accepted) << option.name << " " << value << outcome.error.message;
          EXPECT_TRUE(outcome.ignored.empty()) << option.name;
          continue;
        }
        ++refused;
        EXPECT_FALSE(outcome.accepted) << option.name << " " << value;
        EXPECT_EQ(outcome.error.status, 400);
        EXPECT_EQ(outcome.error.param, option.name);
        EXPECT_THAT(outcome.error.message, HasSubstr("'" + std::string(option.name) + "'"));
        EXPECT_THAT(outcome.error.message, HasSubstr(option.allowed));
        EXPECT_THAT(outcome.error.message, HasSubstr(option.instead));
      }
      EXPECT_GT(refused, 0) << option.name;
      EXPECT_EQ(neutral > 0, *option.allowed != '\0') << option.name;
      EXPECT_TRUE(Try(endpoint, option.name, nullptr).accepted) << option.name;
      if (*option.instead == '\0') continue;
      const RequestOption* instead = FindOption(option.instead, endpoint);
      ASSERT_NE(instead, nullptr) << option.instead;
      EXPECT_EQ(instead->support, Support::kHonoured) << option.instead;
    }
  }
}

TEST(ForeignOptionsTest, IgnoredFieldsMayHaveAnyValue) {
  for (const RequestOption& option : RequestOptions()) {
    if (option.support != Support::kIgnored) continue;
    for (const RequestKind endpoint : kEndpoints) {
      if ((option.endpoints & endpoint) == 0) continue;
      for (const Json& value : Values()) {
        const Outcome outcome = Try(endpoint, option.name, value);
        EXPECT_TRUE(outcome.accepted) << outcome.error.message;
        EXPECT_TRUE(outcome.ignored.empty()) << option.name;
      }
    }
  }
}

TEST(ForeignOptionsTest, UnknownFieldsAreNamed) {
  for (const RequestKind endpoint : kEndpoints) {
    const Outcome outcome = Try(endpoint, "no_such_option", 1);
    EXPECT_TRUE(outcome.accepted) << outcome.error.message;
    EXPECT_EQ(outcome.ignored, std::vector<std::string>({"no_such_option"}));
  }
}

// Fields that change the answer on other servers and were ignored here.
TEST(ForeignOptionsTest, FieldsThatChangeTheAnswerAreNotIgnored) {
  const std::vector<std::pair<std::string, Json>> cases = {
      {"allowed_token_ids", {1, 2}},
      {"grammar_lazy", true},
      {"function_call", {{"name", "f"}}},
      {"modalities", {"text", "audio"}},
      {"length_penalty", 0.5},
      {"logits_processors", {"a.b"}},
      {"spaces_between_special_tokens", false},
      {"early_stopping", true},
      {"grammar_triggers", {"a"}},
      {"no_stop_trim", true},
      {"repeat_penalty", 1.1},
      {"n_predict", 5},
      {"min_new_tokens", 5},
      {"enable_thinking", false},
      {"extra_body", {{"top_k", 1}}},
  };
  for (const auto& [field, value] : cases) {
    for (const RequestKind endpoint : {kCompletions, kChat}) {
      const Outcome outcome = Try(endpoint, field, value);
      EXPECT_FALSE(outcome.accepted) << field;
      EXPECT_EQ(outcome.error.param, field);
    }
  }
}

TEST(ForeignOptionsTest, TheErrorNamesAllowedValuesAndAlternatives) {
  EXPECT_EQ(Try(kChat, "repeat_penalty", 1.1).error.message,
            "'repeat_penalty' is not supported here; it may only be left out or 1 "
            "('repetition_penalty' is), got 1.1");
  EXPECT_EQ(Try(kChat, "structural_tag", "a").error.message,
            "'structural_tag' is not supported here; it may only be left out, got \"a\"");
}

TEST(IgnoredFieldsTest, TheHeaderIsShortAndVisibleAscii) {
  EXPECT_EQ(IgnoredFieldsValue({}), "");
  EXPECT_EQ(IgnoredFieldsValue({"a", "b"}), "a, b");
  EXPECT_EQ(IgnoredFieldsValue({"a\r\nSet-Cookie: x", "\xC3\xA9,\x7F", ""}),
            "a??Set-Cookie:?x, ????, ");
  const std::string value =
      IgnoredFieldsValue(std::vector<std::string>(1000, std::string(5000, 'x')));
  EXPECT_LT(value.size(), 16u * 72);
  EXPECT_THAT(value, ::testing::EndsWith("..., and 984 more"));
}

std::string Quoted(const RequestOption& option) {
  std::string text = "`" + std::string(option.name) + "`";
  if (*option.instead != '\0') text += " (use `" + std::string(option.instead) + "`)";
  return text;
}

std::string WhereText(unsigned endpoints) {
  if (endpoints == (kCompletions | kChat)) return "completions, chats";
  std::string text;
  for (const auto& [endpoint, name] :
       std::vector<std::pair<RequestKind, const char*>>{{kCompletions, "completions"},
                                                        {kChat, "chats"},
                                                        {kTokenize, "`/tokenize`"},
                                                        {kDetokenize, "`/detokenize`"}}) {
    if ((endpoints & endpoint) == 0) continue;
    text += std::string(text.empty() ? "" : ", ") + name;
  }
  return text;
}

// The part of docs/api.md that is generated from the table.
std::string Reference() {
  // [endpoints, what is allowed] -> names
  std::map<std::pair<unsigned, std::string>, std::string> refused;
  std::map<unsigned, std::string> ignored;
  const auto add = [](std::string& list, const std::string& name) {
    list += (list.empty() ? "" : ", ") + name;
  };
  for (const RequestOption& option : RequestOptions()) {
    if (option.support == Support::kRefused) {
      add(refused[{option.endpoints, option.allowed}], Quoted(option));
    } else if (option.support == Support::kIgnored) {
      add(ignored[option.endpoints], Quoted(option));
    }
  }
  std::ostringstream text;
  text << "Refused with 400 unless left out, null, or:\n\n| in | | |\n|---|---|---|\n";
  for (const auto& [key, names] : refused) {
    std::string allowed = key.second.empty() ? "nothing else" : key.second;
    if (allowed.find_first_of("{[") != std::string::npos) allowed = "`" + allowed + "`";
    text << "| " << WhereText(key.first) << " | " << allowed << " | " << names << " |\n";
  }
  text << "\nAccepted and ignored, whatever they hold:\n\n| in | |\n|---|---|\n";
  for (const auto& [endpoints, names] : ignored) {
    text << "| " << WhereText(endpoints) << " | " << names << " |\n";
  }
  return text.str();
}

constexpr const char* kPage = "docs/api.md";
constexpr const char* kBegin = "<!-- made by scripts/update_docs: begin -->\n";
constexpr const char* kEnd = "<!-- end -->\n";

std::string Page() {
  std::ifstream file(kPage);
  EXPECT_TRUE(file) << "run from the repository's root";
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// SPECFABRIC_UPDATE_DOCS=1 writes it instead.
TEST(ApiPageTest, TheReferenceIsUpToDate) {
  std::string page = Page();
  const size_t begin = page.find(kBegin), end = page.find(kEnd);
  ASSERT_NE(begin, std::string::npos);
  ASSERT_LT(begin, end);
  const size_t at = begin + std::string(kBegin).size();
  if (std::getenv("SPECFABRIC_UPDATE_DOCS") != nullptr) {
    page.replace(at, end - at, Reference());
    ASSERT_TRUE(std::ofstream(kPage) << page);
    return;
  }
  EXPECT_EQ(page.substr(at, end - at), Reference()) << "run scripts/update_docs";
}

TEST(ApiPageTest, TheTableOfOptionsIsComplete) {
  const std::string page = Page();
  const size_t begin = page.find("\n## Options\n");
  ASSERT_NE(begin, std::string::npos);
  std::istringstream section(page.substr(begin + 1, page.find("\n## ", begin + 2) - begin));
  std::set<std::string> documented;
  for (std::string line; std::getline(section, line);) {
    if (!line.starts_with("| `")) continue;
    const std::string cell = line.substr(2, line.find(" | ") - 2);
    for (size_t open = cell.find('`'); open != std::string::npos; open = cell.find('`', open)) {
      const size_t close = cell.find('`', open + 1);
      ASSERT_NE(close, std::string::npos) << line;
      const std::string name = cell.substr(open + 1, close - open - 1);
      documented.insert(name.substr(0, name.find('.')));
      open = close + 1;
    }
  }
  std::set<std::string> honoured;
  for (const RequestOption& option : RequestOptions()) {
    if (option.support == Support::kHonoured) honoured.insert(std::string(option.name));
  }
  EXPECT_EQ(documented, honoured);
}

}  // namespace
}  // namespace specfabric::gateway
