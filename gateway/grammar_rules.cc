#include "gateway/grammar_rules.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace specfabric::gateway {
namespace {

// A regular expression between slashes, which must not be in it as such; nor a new line.
std::string Slashed(std::string_view regex) {
  std::string out = "/";
  for (size_t i = 0; i < regex.size(); ++i) {
    if (regex[i] == '\\' && i + 1 < regex.size()) {
      out += regex[i++];
      out += regex[i];
    } else if (regex[i] == '/') {
      out += "\\/";
    } else if (regex[i] == '\n') {
      out += "\\n";
    } else {
      out += regex[i];
    }
  }
  return out + "/";
}

// JSON's strings are Lark's.
std::string OneOf(const std::string& choices) {
  std::vector<std::string> texts;
  for (const Json& choice : Json::parse(choices)) texts.push_back(choice.dump());
  return absl::StrJoin(texts, " | ");
}

// A text that is no JSON is left to llguidance to refuse.
std::string SchemaRule(const std::string& source) {
  Json schema = Json::parse(source, nullptr, /*allow_exceptions=*/false);
  return schema.is_discarded() ? absl::StrCat("%json ", source) : JsonRule(std::move(schema));
}

// A regular expression of the word itself.
std::string Escaped(std::string_view word) {
  constexpr std::string_view kSpecial = "\\/.+*?()|[]{}^$#&-~";
  std::string out;
  for (const char c : word) {
    if (kSpecial.find(c) != std::string_view::npos) out += '\\';
    c == '\n' ? out += "\\n" : out += c;
  }
  return out;
}

}  // namespace

std::string TextWithout(const std::vector<std::string>& words) {
  std::vector<std::string> escaped;
  for (const std::string& word : words) escaped.push_back(Escaped(word));
  return absl::StrCat("start: TEXT\nTEXT: /(?s:.*)/ & ~/(?s:.*)(", absl::StrJoin(escaped, "|"),
                      ")(?s:.*)/\n");
}

std::string JsonRule(Json schema) {
  constexpr const char* kOptions = "x-guidance";
  if (schema.is_object() && !schema.contains(kOptions)) {
    schema[kOptions] = {{"whitespace_pattern", R"([ \t]|\r?\n[ \t]{0,40})"}};
  }
  return absl::StrCat("%json ", schema.dump());
}

std::string RuleOf(const base::Grammar& grammar) {
  switch (grammar.language) {
    case base::GrammarLanguage::kJsonSchema:
      return SchemaRule(grammar.source);
    case base::GrammarLanguage::kRegex:
      return Slashed(grammar.source);
    case base::GrammarLanguage::kChoice:
      return OneOf(grammar.source);
    case base::GrammarLanguage::kLark:
      break;
  }
  return absl::StrCat("%lark {\n", grammar.source, "\n}");
}

std::string MarkRule(std::string_view text, std::optional<base::TokenId> token) {
  return token ? absl::StrCat("<[", *token, "]>") : Json(text).dump();
}

}  // namespace specfabric::gateway
