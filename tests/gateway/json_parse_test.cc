#include "gateway/json_parse.h"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::gateway {
namespace {

Json Good(std::string_view text, const JsonLimits& limits = {}) {
  Parsed<Json> parsed = ParseJson(text, limits);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << error->message << ": " << text.substr(0, 200);
    return {};
  }
  return std::get<Json>(std::move(parsed));
}

std::string Bad(std::string_view text, const JsonLimits& limits = {}) {
  Parsed<Json> parsed = ParseJson(text, limits);
  if (std::holds_alternative<Json>(parsed)) {
    ADD_FAILURE() << "was accepted: " << text.substr(0, 200);
    return "";
  }
  EXPECT_EQ(std::get<ApiError>(parsed).status, 400);
  return std::get<ApiError>(std::move(parsed)).message;
}

TEST(JsonParseTest, AgreesWithNlohmannsParser) {
  for (const std::string text :
       {"null", "true", "0", "-1", "18446744073709551615", "1.5e3", "\"\\u00e9\\ud83d\\ude00\"",
        "[]", "{}", "[[],[{}],{\"a\":[1,{\"b\":null}]}]",
        R"( {"z": 1, "a": {"z": [], "y": "x"}, "m": [1, "two", 3.0, null, false]} )",
        R"({"a": 1, "b": 2, "a": {"c": 3}, "b": 4, "d": 5})", R"({"": {"": 1, "": 2}})"}) {
    EXPECT_EQ(Good(text).dump(), Json::parse(text).dump());
    EXPECT_EQ(Good(text), Json::parse(text));
  }
}

TEST(JsonParseTest, TheLastOfEqualKeysCounts) {
  EXPECT_EQ(Good(R"({"a": 1, "b": 2, "a": 3, "c": 4, "a": [5]})").dump(),
            R"({"a":[5],"b":2,"c":4})");
}

TEST(JsonParseTest, OnlyWhiteSpaceMayFollow) {
  EXPECT_EQ(Good("{} \r\n\t"), Json::object());
  for (const std::string& text :
       {std::string("{}x"), std::string("{}{}"), std::string("{}\0", 3), std::string("{} \0{", 5),
        std::string("{},"), std::string("{}]"), std::string("{}\xEF\xBB\xBF"),
        std::string("{\"a\0\": 1}", 9), std::string("\0{}", 3)}) {
    Bad(text);
  }
  EXPECT_EQ(Bad(std::string("{}\0", 3)), "the body is not valid JSON at byte 2");
}

TEST(JsonParseTest, AByteOrderMarkMayComeFirst) {
  EXPECT_EQ(Good("\xEF\xBB\xBF{\"a\": 1}"), Json({{"a", 1}}));
}

TEST(JsonParseTest, InvalidJson) {
  EXPECT_EQ(Bad(""), "the body is not valid JSON: it ends too early");
  EXPECT_EQ(Bad("{\"a\": 1"), "the body is not valid JSON: it ends too early");
  EXPECT_EQ(Bad("{\"a\": x}"), "the body is not valid JSON at byte 6");
  EXPECT_EQ(Bad("[1e999]"), "the body holds a number that is out of range, before byte 6");
  for (const char* text :
       {"NaN", "Infinity",  "-Infinity", "[01]",      "[+1]",        "[1.]",  "[.5]",
        "-",   "{a: 1}",    "{'a': 1}",  "[1,]",      "{\"a\": 1,}", "[1 2]", "tru",
        "nul", "\"\\x41\"", "\"a\nb\"",  "/* c */ 1", "// c\n1",     "[1]]"}) {
    Bad(text);
  }
}

// They are not characters: a tokenizer must never get them.
TEST(JsonParseTest, UnpairedSurrogates) {
  for (const char* text : {R"("\ud800")", R"("\udc00")", R"("\ud800\ud800")", R"("\ud800x")",
                           R"("\udc00\ud800")", R"({"\ud800": 1})", R"("\uD83D \uDE00")"}) {
    Bad(text);
  }
  EXPECT_EQ(Good(R"("\uD83D\uDE00")"), "\xF0\x9F\x98\x80");
}

TEST(JsonParseTest, ANulMayBeEscapedInAString) {
  EXPECT_EQ(Good(R"("a\u0000b")"), std::string("a\0b", 3));
}

TEST(JsonParseTest, DepthIsLimited) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(Good(nested(64)).is_array());
  EXPECT_EQ(Bad(nested(65)), "the body nests more than 64 levels deep; at most 64 are allowed");
  Bad(std::string(1 << 20, '['));
  std::string objects;
  for (int i = 0; i < 65; ++i) objects += "{\"a\":";
  Bad(objects + "1" + std::string(65, '}'));
}

TEST(JsonParseTest, KeysOfAnObjectAreLimited) {
  const auto object = [](int keys) {
    std::string text = "{";
    for (int i = 0; i < keys; ++i) {
      text += std::string(i == 0 ? "" : ",") + "\"" + std::to_string(i) + "\":0";
    }
    return text + "}";
  };
  EXPECT_EQ(Good(object(1024)).size(), 1024u);
  EXPECT_EQ(Bad(object(1025)),
            "the body has an object of more than 1024 keys; at most 1024 are allowed");
  Bad("{\"x\":" + object(40000) + "}");
  EXPECT_EQ(Good("[" + object(1024) + "," + object(1024) + "]").size(), 2u);  // each for itself
}

TEST(JsonParseTest, ValuesAreLimited) {
  const JsonLimits limits = {.values = 4};
  EXPECT_EQ(Good("[1,[2]]", limits).size(), 2u);
  EXPECT_EQ(Good(R"({"a":{"b":1},"c":2})", limits).size(), 2u);
  EXPECT_EQ(Bad("[1,[2],3]", limits), "the body has more than 4 values; at most 4 are allowed");
}

// An ordered map would copy the values at each level when it grows.
TEST(JsonParseTest, LargeValuesInManyNestedObjects) {
  std::string text = "[0";
  for (int i = 0; i < 100000; ++i) text += ",0";
  text += ']';
  for (int i = 0; i < 60; ++i) text = "{\"a\":" + text + ",\"b\":1,\"c\":2}";
  Json value = Good(text);
  for (int i = 0; i < 60; ++i) {
    ASSERT_EQ(value.size(), 3u);
    Json inner = std::move(value["a"]);
    value = std::move(inner);
  }
  EXPECT_EQ(value.size(), 100001u);
}

}  // namespace
}  // namespace specfabric::gateway
