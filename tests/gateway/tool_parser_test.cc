#include "gateway/tool_parser.h"

#include <random>
#include <string>
#include <vector>

#include "gateway/json_parse.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::gateway {
namespace {

struct Call {
  std::string name, arguments;
  bool operator==(const Call&) const = default;
};

void PrintTo(const Call& call, std::ostream* out) { *out << call.name << call.arguments; }

struct Found {
  std::string content;
  std::vector<Call> calls;
};

void Add(const ToolText& text, Found* found) {
  found->content += text.content;
  for (const ToolCallPart& part : text.calls) {
    ASSERT_LE(part.index, static_cast<int>(found->calls.size()));
    if (part.index == static_cast<int>(found->calls.size())) {
      ASSERT_FALSE(part.name.empty());
      found->calls.push_back({part.name, ""});
    } else {
      ASSERT_EQ(part.index + 1, static_cast<int>(found->calls.size()));
      ASSERT_TRUE(part.name.empty());
    }
    found->calls.back().arguments += part.arguments;
  }
}

// The text in pieces of random sizes, the same whatever they are.
Found Parse(ToolFormat format, const std::string& text) {
  Found first;
  for (int seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    ToolParser parser(format);
    Found found;
    for (size_t at = 0; at < text.size();) {
      const size_t size = seed == 0 ? text.size() : 1 + random() % (seed < 5 ? 1 : 9);
      Add(parser.Push(text.substr(at, size)), &found);
      at += size;
    }
    Add(parser.Finish(), &found);
    EXPECT_EQ(parser.calls(), static_cast<int>(found.calls.size()));
    if (seed == 0) first = found;
    EXPECT_EQ(found.content, first.content);
    EXPECT_EQ(found.calls, first.calls);
  }
  return first;
}

constexpr ToolFormat kFormats[] = {ToolFormat::kHermes, ToolFormat::kLlama3, ToolFormat::kMistral,
                                   ToolFormat::kJson};

TEST(ToolParserTest, CallsInEachFormat) {
  const std::vector<Call> calls = {{"get_weather", R"({"city": "Paris", "days": [1, {"a": "}"}]})"},
                                   {"f", "{}"}};
  const std::pair<ToolFormat, std::string> texts[] = {
      {ToolFormat::kHermes,
       "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " + calls[0].arguments +
           "}\n</tool_call>\n<tool_call>\n{\"arguments\": {}, \"name\": \"f\"}\n</tool_call>"},
      {ToolFormat::kLlama3, R"({"name": "get_weather", "parameters": )" + calls[0].arguments +
                                R"(}; {"name": "f", "parameters": {}})"},
      {ToolFormat::kLlama3, R"(<|python_tag|>{"type": "function", "name": "get_weather",
                                "parameters": )" +
                                calls[0].arguments + R"(};{"name": "f", "parameters": null})"},
      {ToolFormat::kMistral, R"([TOOL_CALLS] [{"name": "get_weather", "arguments": )" +
                                 calls[0].arguments + R"(, "id": "x1"}, {"name": "f"}])"},
      {ToolFormat::kJson, R"([{"name": "get_weather", "arguments": )" + calls[0].arguments +
                              R"(}, {"name": "f", "arguments": "{}"}])"},
  };
  for (const auto& [format, text] : texts) {
    const Found found = Parse(format, text);
    EXPECT_EQ(found.calls, calls) << text;
    EXPECT_EQ(found.content, "") << text;
  }
}

TEST(ToolParserTest, ContentAroundCallsIsKept) {
  const Found found = Parse(ToolFormat::kHermes,
                            "I look < it up. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
                            "\"<tool_call>\"}}\n</tool_call>\nDone.");
  EXPECT_EQ(found.content, "I look < it up. Done.");
  EXPECT_EQ(found.calls, std::vector<Call>({{"f", R"({"a": "<tool_call>"})"}}));
}

TEST(ToolParserTest, OtherTextIsContent) {
  for (const ToolFormat format : kFormats) {
    for (const std::string text :
         {"", "Hello { there }.", " \n a <tool <tool_cal", "[1, 2]", "{\"a\": 1}", "{}", "[",
          "{\"name\": 5}", "{\"name\": \"\"}", "{\"name\"", "[{\"arguments\": {}}]", "\n\n"}) {
      const Found found = Parse(format, text);
      EXPECT_EQ(found.content, text) << Name(format);
      EXPECT_TRUE(found.calls.empty());
    }
  }
  EXPECT_EQ(Parse(ToolFormat::kHermes, "<tool_call> no call").content, "<tool_call> no call");
  EXPECT_EQ(Parse(ToolFormat::kMistral, "[TOOL_CALLS]x").content, "[TOOL_CALLS]x");
}

TEST(ToolParserTest, ACallThatIsCutKeepsWhatWasTold) {
  const std::string whole = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, \"x\"]}}";
  for (size_t size = 0; size <= whole.size(); ++size) {
    const Found found = Parse(ToolFormat::kHermes, whole.substr(0, size));
    if (found.calls.empty()) {
      EXPECT_EQ(found.content, whole.substr(0, size));
    } else {
      EXPECT_EQ(found.content, "");
      EXPECT_TRUE(std::string(R"({"a": [1, "x"]})").starts_with(found.calls[0].arguments));
    }
  }
  EXPECT_EQ(Parse(ToolFormat::kHermes, whole).calls[0].arguments, R"({"a": [1, "x"]})");
}

TEST(ToolParserTest, StringsAndEscapes) {
  const std::string arguments = R"({"a\"b": "\\", "c": "{[\"", "d": "é\u00e9"})";
  EXPECT_EQ(Parse(ToolFormat::kJson, R"({"name": "f\n", "arguments": )" + arguments + "}").calls,
            std::vector<Call>({{"f\n", arguments}}));
  // Some models write the arguments as a string.
  EXPECT_EQ(Parse(ToolFormat::kJson, R"({"name": "f", "arguments": "{\"a\": 1}"})").calls,
            std::vector<Call>({{"f", R"({"a": 1})"}}));
}

TEST(ToolParserTest, RandomTextNeverLosesContentOutsideCalls) {
  const std::vector<std::string> parts = {"<tool_call>",
                                          "</tool_call>",
                                          "{\"name\": \"f\"",
                                          ", \"arguments\": {}",
                                          "}",
                                          "[",
                                          "]",
                                          "text",
                                          " ",
                                          "[TOOL_CALLS]",
                                          ";",
                                          "\""};
  for (int seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::string text;
    for (int i = 0; i < 12; ++i) text += parts[random() % parts.size()];
    for (const ToolFormat format : kFormats) {
      const Found found = Parse(format, text);
      if (!found.calls.empty()) continue;
      EXPECT_EQ(found.content, text) << Name(format);
    }
  }
}

TEST(ToolFormatTest, TemplatesTell) {
  EXPECT_EQ(FormatOfTemplate("{{ '<tool_call>' }}"), ToolFormat::kHermes);
  EXPECT_EQ(FormatOfTemplate("[TOOL_CALLS]"), ToolFormat::kMistral);
  EXPECT_EQ(FormatOfTemplate("<|python_tag|>"), ToolFormat::kLlama3);
  EXPECT_EQ(FormatOfTemplate("{{ messages }}"), ToolFormat::kJson);
  for (const ToolFormat format : kFormats) EXPECT_EQ(ParseToolFormat(Name(format)), format);
  EXPECT_EQ(ParseToolFormat("other"), std::nullopt);
}

}  // namespace
}  // namespace specfabric::gateway
