// Conversion of API messages to the form that templates expect.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tokenizer/fixture.h"

namespace specfabric::tokenizer {
namespace {

using ::testing::HasSubstr;

// The conversation of a client that called one tool with `arguments`, a JSON value.
std::string WithCall(const std::string& arguments) {
  return R"([{"role":"user","content":"weather?"},{"role":"assistant","content":null,"tool_calls":)"
         R"([{"id":"c","type":"function","function":{"name":"weather","arguments":)" +
         arguments + R"(}}]},{"role":"tool","content":"rain","tool_call_id":"c"}])";
}

// JSON text within JSON.
std::string Quoted(const std::string& json) { return Json(json).dump(); }

absl::StatusOr<std::string> Arguments(const std::string& source, const std::string& arguments) {
  return RenderTemplate("{% set a = messages[1].tool_calls[0].function.arguments %}" + source,
                        WithCall(arguments));
}

TEST(ConversationTest, ArgumentsOfToolCallsBecomeObjects) {
  constexpr char kArguments[] = R"({"city":"Köln","days":[1,2.5],"at":{"x":null}})";
  constexpr char kText[] = R"({"city": "Köln", "days": [1, 2.5], "at": {"x": null}})";
  EXPECT_EQ(Arguments("{{ a | tojson }}", Quoted(kArguments)).value(), kText);
  EXPECT_EQ(Arguments("{{ a | tojson }}", kArguments).value(), kText);
  EXPECT_EQ(Arguments("{% for k, v in a.items() %}{{ k }}={{ v }};{% endfor %}", Quoted(kArguments))
                .value(),
            "city=Köln;days=[1, 2.5];at={'x': None};");
  EXPECT_EQ(Arguments("{{ a is mapping }}{{ a is string }}", Quoted(kArguments)).value(),
            "TrueFalse");
}

TEST(ConversationTest, NoArgumentsAreAnEmptyObject) {
  for (const char* arguments : {"null", R"("")", R"("  ")", R"("null")", "{}", R"("{}")"}) {
    EXPECT_EQ(Arguments("{{ a | tojson }}", arguments).value(), "{}") << arguments;
  }
  constexpr char kAbsent[] = R"([{"role":"assistant","tool_calls":[{"function":{"name":"now"}}]}])";
  EXPECT_EQ(RenderTemplate("{{ messages[0].tool_calls[0].function.arguments }}", kAbsent).value(),
            "{}");
}

TEST(ConversationTest, InvalidArgumentsAreRefused) {
  for (const char* arguments : {R"("{\"city\": ")", R"("city")", R"("{} x")", R"("\u0000")"}) {
    const absl::Status status = Arguments("{{ a }}", arguments).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << arguments;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("messages[1].tool_calls[0].function.arguments: not valid JSON"));
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status;
  }
}

// Some templates expect arguments to be strings and would fail on objects.
TEST(ConversationTest, TemplatesThatConcatenateArgumentsGetText) {
  EXPECT_EQ(Arguments("{{ 'json: ' + a }}", Quoted(R"({"b":1})")).value(), R"(json: {"b":1})");
  EXPECT_EQ(Arguments("{{ 'json: ' + a }}", "null").value(), "json: {}");
  // If the template fails with strings as well, the error is the one with objects.
  EXPECT_THAT(Arguments("{{ a + 1 }}", Quoted("{}")).status().ToString(),
              HasSubstr("dict and int"));
}

TEST(ConversationTest, DeepArgumentsAreRefused) {
  const auto nested = [](int depth) {
    return Quoted(std::string(depth, '[') + std::string(depth, ']'));
  };
  EXPECT_TRUE(Arguments("{{ a | tojson }}", nested(64)).ok());
  for (const int depth : {65, 100000}) {
    const absl::Status status = Arguments("{{ a | tojson }}", nested(depth)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("deeper than 64 levels"));
  }
  // Brackets within strings do not count.
  EXPECT_TRUE(Arguments("{{ a }}", Quoted("{\"b\":\"" + std::string(100, '[') + "\"}")).ok());
  EXPECT_TRUE(Arguments("{{ a }}", Quoted("{\"b\\\"\":\"" + std::string(100, '{') + "\"}")).ok());
}

TEST(ConversationTest, AnAssistantWithoutContentHasEmptyText) {
  constexpr char kSource[] =
      "{% for m in messages %}[{{ m.content }}|{{ m['content'] is defined }}|"
      "{{ m.content is none }}|{{ m.content is string }}]{% endfor %}";
  EXPECT_EQ(RenderTemplate(kSource, WithCall("{}")).value(),
            "[weather?|True|False|True][|True|False|True][rain|True|False|True]");
  for (const char* message :
       {R"([{"role":"assistant","content":null}])", R"([{"role":"assistant"}])",
        R"([{"role":"assistant","content":""}])"}) {
    EXPECT_EQ(RenderTemplate(kSource, message).value(), "[|True|False|True]") << message;
  }
  // Other messages stay without content, as in Transformers.
  EXPECT_EQ(RenderTemplate(kSource, R"([{"role":"user","content":null}])").value(),
            "[|False|False|False]");
}

// Such templates have a branch for tool calls that an empty string would not take.
TEST(ConversationTest, TemplatesThatTestForNoneGetNone) {
  for (const char* condition :
       {"m['content'] is none", "m.role == 'assistant' and m.content is none",
        "not m.content is not none"}) {
    const std::string source = "{% for m in messages %}{% if " + std::string(condition) +
                               " %}calls {{ m.tool_calls | length }}{% else %}{{ m.content }} "
                               "{% endif %}{% endfor %}";
    EXPECT_EQ(RenderTemplate(source, WithCall("{}")).value(), "weather? calls 1rain ") << condition;
  }
}

TEST(ConversationTest, AnEmptyListOfCallsIsNone) {
  EXPECT_EQ(RenderTemplate("{{ messages[0].tool_calls is defined }}",
                           R"([{"role":"assistant","content":"a","tool_calls":[]}])")
                .value(),
            "False");
}

TEST(ConversationTest, MalformedCallsAreKept) {
  for (const char* calls : {"7", "{}", "[7]", "[{}]", "[{\"function\":7}]", "[[]]", "\"x\""}) {
    const std::string messages =
        R"([{"role":"assistant","tool_calls":)" + std::string(calls) + "}]";
    EXPECT_EQ(RenderTemplate("ok", messages).value(), "ok") << calls;
  }
}

// Properties that have the names of dict methods.
TEST(ConversationTest, MethodsAreNotHiddenByItemsOfTheirName) {
  constexpr char kMessages[] = R"([{"items":{"keys":1},"keys":2,"get":3,"values":4}])";
  EXPECT_EQ(
      RenderTemplate("{% set m = messages[0] %}{% for k, v in m.items() %}{{ k }};{% endfor %}"
                     "{{ m.get('get') }}{{ m['items'].keys() | list }}{{ m['items'] }}",
                     kMessages)
          .value(),
      "items;keys;get;values;3['keys']{'keys': 1}");
}

std::string Conversation(int messages, int bytes) {
  Json json = Json::array();
  for (int i = 0; i < messages; ++i) {
    json.push_back({{"role", i % 2 == 0 ? "user" : "assistant"},
                    {"content", std::string(bytes, 'a' + i % 26)}});
  }
  return json.dump();
}

// Each template visits at least 16,384 times 8,192 messages, or copies as much text.
TEST(LimitTest, QuadraticWorkEndsInAnError) {
  const std::string messages = Conversation(16384, 100);
  for (const char* work :
       {"{% set ns.text = ns.text + m.content %}", "{% set ns.text = ns.text ~ m.content %}",
        "{% set ns.list = ns.list + [m] %}", "{% set ns.rest = ns.rest[1:] %}",
        "{% set rest = messages[loop.index:] %}", "{% for other in messages %}{% endfor %}",
        "{% if messages | selectattr('role', 'equalto', 'system') | list %}{% endif %}",
        "{% if m not in messages[:-1] %}{% endif %}", "{{ messages | map(attribute='x') | first }}",
        "{% if 1 in messages %}{% endif %}", "{% set s = messages | sort(attribute='role') %}"}) {
    const absl::Status status = RenderTemplate(
                                    "{% set ns = namespace(text='', list=[], rest=messages) %}"
                                    "{% for m in messages %}" +
                                        std::string(work) + "{% endfor %}",
                                    messages)
                                    .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << work;
    EXPECT_THAT(std::string(status.message()), HasSubstr("more text and lists than it may"))
        << work;
  }
}

// A template that fails on arguments as objects is rendered a second time, within the same limit.
TEST(LimitTest, TheLimitHoldsForTheSecondRendering) {
  const absl::Status status =
      RenderTemplate(
          "{% if messages[0].tool_calls[0].function.arguments is mapping %}"
          "{% set ns = namespace(text='a' * 1000000) %}"
          "{% for i in range(100000) %}{% set ns.text = ns.text ~ 'a' %}{% endfor %}{% endif %}",
          R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}])")
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("more text and lists than it may"));
}

TEST(LimitTest, ManyMessagesRender) {
  const std::string messages = Conversation(16384, 100);
  for (const char* source :
       {"{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}",
        "{% set ns = namespace(last='') %}{% for m in messages[1:] %}{% set ns.last = m.content %}"
        "{{ m.role ~ ns.last }}{% endfor %}",
        "{% set ns = namespace(rest=messages) %}{% for m in messages[:500] %}"
        "{% set ns.rest = ns.rest[1:] %}{% endfor %}{{ ns.rest | length }}",
        "{% set ns = namespace(all=[]) %}{% for m in messages[:500] %}"
        "{% set ns.all = ns.all + [m] %}{% endfor %}{{ ns.all | length }}"}) {
    EXPECT_TRUE(RenderTemplate(source, messages).ok()) << source;
  }
}

TEST(LimitTest, RecursionEndsInAnError) {
  for (const char* source :
       {"{% macro m(n) %}{{ n }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% macro m() %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}",
        "{% for x in [[]] recursive %}{{ loop([x]) }}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(300) %}{% set ns.x = [ns.x] %}{% endfor %}"
        "{{ ns.x }}",
        "{% set ns = namespace(x={}) %}{% for i in range(300) %}{% set ns.x = {'a': ns.x} %}"
        "{% endfor %}{{ ns.x | tojson }}"}) {
    const absl::Status status = RenderTemplate(source, "[{}]").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << source;
  }
  // As deep as a request's JSON may be, by a macro that calls itself for each level.
  const std::string deep = std::string(60, '[') + std::string(60, ']');
  EXPECT_EQ(RenderTemplate("{% macro m(x) %}({% for y in x %}{{ m(y) }}{% endfor %}){% endmacro %}"
                           "{{ m(messages[0].x) }}",
                           R"([{"x":)" + deep + "}]")
                .value(),
            std::string(60, '(') + std::string(60, ')'));
}

TEST(LimitTest, HugeResultsAreRefused) {
  for (const char* source :
       {"{{ 'a' * 1000000000000 }}", "{{ [1] * 1000000000000 }}", "{{ 'a'.ljust(1000000000000) }}",
        "{{ '%1000000000d' % 1 }}", "{{ '%.1000000000f' % 1 }}", "{{ '{:1000000000}'.format(1) }}",
        "{{ 'a'.zfill(9999999999999) }}", "{{ 'a\tb'.expandtabs(9999999999) }}",
        "{{ 'a' | center(9999999999) }}", "{{ 'a' | indent(9999999999, true) }}",
        "{{ range(9999999999999) | list }}", "{{ ('a' * 100000).replace('a', 'b' * 100000) }}"}) {
    EXPECT_EQ(RenderTemplate(source, "[{}]").status().code(), absl::StatusCode::kInvalidArgument)
        << source;
  }
}

}  // namespace
}  // namespace specfabric::tokenizer
