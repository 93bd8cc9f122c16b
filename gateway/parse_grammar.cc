#include "gateway/parse_grammar.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "gateway/gbnf.h"
#include "gateway/grammar_rules.h"

namespace specfabric::gateway {
namespace {

using base::Grammar;
using base::GrammarLanguage;

const Json& AnyObject() {
  static const Json schema = {{"type", "object"}};
  return schema;
}

class GrammarReader {
 public:
  GrammarReader(Fields& fields, GenerationRequest& request) : fields_(fields), request_(request) {}

  void Read() {
    ReadResponseFormat();
    ReadStructuredOutputs();
    for (const char* name : {"guided_json", "json_schema"}) {
      if (const Json* schema = fields_.Find(name)) TakeSchema(name, *schema);
    }
    for (const char* name : {"guided_regex", "regex"}) {
      if (const Json* regex = fields_.Find(name)) {
        TakeText(name, GrammarLanguage::kRegex, *regex);
      }
    }
    if (const Json* choice = fields_.Find("guided_choice")) TakeChoice("guided_choice", *choice);
    if (const Json* words = fields_.Find("bad_words")) TakeBadWords("bad_words", *words);
    if (const Json* grammar = fields_.Find("guided_grammar")) {
      TakeGrammar("guided_grammar", *grammar);
    }
    if (const Json* gbnf = fields_.Find("ebnf")) TakeGbnf("ebnf", *gbnf);
    // llama.cpp's clients send an empty one where they mean none.
    if (const Json* gbnf = fields_.Find("grammar"); gbnf != nullptr && !IsEmptyString(*gbnf)) {
      TakeGbnf("grammar", *gbnf);
    }
  }

 private:
  void Take(const char* field, GrammarLanguage language, std::string source) {
    if (!request_.grammar.empty()) {
      return fields_.Fail(
          BadRequest(field, absl::StrCat("'", request_.grammar_field, "' and '", field,
                                         "' both describe the form of the answer; one may")));
    }
    request_.grammar = {language, std::move(source)};
    request_.grammar_field = field;
    CheckSize("has ");
  }

  void CheckSize(const char* has) {
    const size_t bytes = request_.grammar.source.size();
    if (bytes <= base::kMaxGrammarBytes) return;
    fields_.Fail(
        BadRequest(request_.grammar_field,
                   absl::StrCat("'", request_.grammar_field, "' ", has, bytes, " bytes; at most ",
                                base::kMaxGrammarBytes, " are allowed")));
  }

  // A schema, or the text of one.
  void TakeSchema(const char* field, const Json& schema) {
    if (schema.is_string()) {
      return TakeText(field, GrammarLanguage::kJsonSchema, schema);
    }
    if (!schema.is_object() && !schema.is_boolean()) {
      return fields_.Fail(field, "must be a JSON schema, or its text");
    }
    Take(field, GrammarLanguage::kJsonSchema, schema.dump());
  }

  void TakeText(const char* field, GrammarLanguage language, const Json& text) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty()) {
      return fields_.Fail(field, "must be a string that is not empty");
    }
    Take(field, language, text.get<std::string>());
  }

  void TakeGbnf(const char* field, const Json& text) {
    TakeText(field, GrammarLanguage::kLark, text);
    if (!fields_.ok()) return;
    absl::StatusOr<std::string> lark = LarkOfGbnf(request_.grammar.source);
    if (!lark.ok()) {
      return fields_.Fail(
          BadRequest(field, absl::StrCat("'", field, "': ", base::Message(lark.status()))));
    }
    request_.grammar.source = *std::move(lark);
    CheckSize("becomes a grammar of ");
  }

  // vLLM's, which may be either.
  void TakeGrammar(const char* field, const Json& text) {
    if (text.is_string() && IsGbnf(text.get_ref<const std::string&>())) {
      return TakeGbnf(field, text);
    }
    TakeText(field, GrammarLanguage::kLark, text);
  }

  void TakeChoice(const char* field, const Json& choice) {
    if (!choice.is_array() || choice.empty()) {
      return fields_.Fail(field, "must be a list of at least one string");
    }
    for (const Json& one : choice) {
      if (one.is_string() && !one.get_ref<const std::string&>().empty()) continue;
      return fields_.Fail(field, "must hold strings that are not empty");
    }
    Take(field, GrammarLanguage::kChoice, choice.dump());
  }

  // A text that has none of them.
  void TakeBadWords(const char* field, const Json& words) {
    constexpr const char* kRule =
        "must be a list of strings that are not empty, up to 64 of 8192 bytes together";
    if (!words.is_array() || words.size() > kMaxStops) return fields_.Fail(field, kRule);
    size_t bytes = 0;
    std::vector<std::string> listed;
    for (const Json& word : words) {
      if (!word.is_string() || word.get_ref<const std::string&>().empty()) {
        return fields_.Fail(field, kRule);
      }
      listed.push_back(word.get<std::string>());
      bytes += listed.back().size();
    }
    if (bytes > kMaxStopBytes) return fields_.Fail(field, kRule);
    if (listed.empty()) return;
    Take(field, GrammarLanguage::kLark, TextWithout(listed));
    request_.grammar_of_reasoning = true;
  }

  void ReadResponseFormat() {
    constexpr const char* kField = "response_format";
    constexpr const char* kRule =
        "must be an object of type 'text', 'json_object' or 'json_schema'";
    const Json* format = fields_.Find(kField);
    if (format == nullptr) return;
    const auto type = format->is_object() ? format->find("type") : format->end();
    if (!format->is_object() || type == format->end()) return fields_.Fail(kField, kRule);
    if (*type == "text") return;
    const auto schema = format->find("schema");  // llama.cpp's place for it
    if (*type == "json_object") {
      return TakeSchema(kField, schema == format->end() ? AnyObject() : *schema);
    }
    if (*type != "json_schema") return fields_.Fail(kField, kRule);
    const auto named = format->find("json_schema");
    if (named != format->end() && named->is_object() && named->contains("schema")) {
      return TakeSchema(kField, (*named)["schema"]);
    }
    if (schema != format->end()) return TakeSchema(kField, *schema);
    fields_.Fail(kField, "of type 'json_schema' must have the schema as 'json_schema.schema'");
  }

  // vLLM's: one of several keys, and options of its implementations, which change nothing here.
  void ReadStructuredOutputs() {
    constexpr const char* kField = "structured_outputs";
    const Json* outputs = fields_.Find(kField);
    if (outputs == nullptr) return;
    if (!outputs->is_object()) return fields_.Fail(kField, "must be an object");
    for (const auto& [key, value] : outputs->items()) {
      if (value.is_null() || value == false) continue;
      if (key == "json") {
        TakeSchema(kField, value);
      } else if (key == "json_object") {
        TakeSchema(kField, AnyObject());
      } else if (key == "regex") {
        TakeText(kField, GrammarLanguage::kRegex, value);
      } else if (key == "choice") {
        TakeChoice(kField, value);
      } else if (key == "grammar") {
        TakeGrammar(kField, value);
      } else if (key != "disable_fallback" && key != "disable_any_whitespace") {
        return fields_.Fail(kField,
                            "may have one of 'json', 'json_object', 'regex', 'choice' and "
                            "'grammar'");
      }
    }
    if (request_.grammar.empty()) {
      fields_.Fail(kField,
                   "must have one of 'json', 'json_object', 'regex', 'choice' and 'grammar'");
    }
  }

  Fields& fields_;
  GenerationRequest& request_;
};

}  // namespace

void ReadGrammar(Fields& fields, GenerationRequest& request) {
  GrammarReader(fields, request).Read();
  request.rules.masked = !request.grammar.empty();
}

}  // namespace specfabric::gateway
