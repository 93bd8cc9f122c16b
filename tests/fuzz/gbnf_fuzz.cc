// Grammars in GBNF. What is refused is refused in one line that says where; what is accepted
// becomes a grammar whose names are all defined, once, and which has only such bytes and levels of
// parentheses as llguidance's Lark reads.

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "gateway/gbnf.h"
#include "gateway/json_fields.h"
#include "tests/fuzz/target.h"

namespace specfabric {
namespace {

void CheckRefused(const absl::Status& status) {
  const std::string message(status.message());
  SPECFABRIC_CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  SPECFABRIC_CHECK(message.starts_with("line ") || message.starts_with("rules "));
  SPECFABRIC_CHECK(message.size() < 500 && !gateway::FirstInvalidUtf8(message));
  for (const char c : message) SPECFABRIC_CHECK(static_cast<unsigned char>(c) >= 0x20);
}

bool IsName(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// One line of Lark, NAME: SYMBOLS.
void CheckLine(std::string_view line, std::set<std::string>* defined, std::set<std::string>* used) {
  const size_t colon = line.find(": ");
  SPECFABRIC_CHECK(colon != std::string_view::npos && colon > 0);
  SPECFABRIC_CHECK(defined->insert(std::string(line.substr(0, colon))).second);
  for (size_t at = colon + 2; at < line.size(); ++at) {
    const char c = line[at];
    if (c == '"' || c == '/' || c == '<') {
      const char end = c == '<' ? '>' : c;
      for (++at; at < line.size() && line[at] != end; ++at) {
        SPECFABRIC_CHECK(static_cast<unsigned char>(line[at]) >= 0x20);
        if (line[at] == '\\' && c != '<') ++at;
      }
      SPECFABRIC_CHECK(at < line.size());
    } else if (c == '{') {
      at = line.find('}', at);
      SPECFABRIC_CHECK(at != std::string_view::npos);
    } else if (IsName(c)) {
      const size_t begin = at;
      while (at < line.size() && IsName(line[at])) ++at;
      used->insert(std::string(line.substr(begin, at - begin)));
      --at;
    } else {
      SPECFABRIC_CHECK(std::string_view(" |*+").find(c) != std::string_view::npos);
    }
  }
}

}  // namespace

std::vector<fuzz::Bytes> fuzz::Seeds() {
  constexpr const char* kObject =
      "root ::= object\nobject ::= \"{\" (pair (\",\" pair)*)? \"}\" ws\n"
      "pair ::= \"\\\"\" ([^\"\\\\] | \"\\\\\" [\"\\\\nu])* \"\\\"\" \":\" (object | num)\n"
      "num ::= \"-\"? ([0-9] | [1-9] [0-9]{0,15}) (\".\" [0-9]+)? ws\nws ::= | \" \" ws";
  std::vector<Bytes> seeds;
  for (const char* gbnf :
       {"# a list\nroot ::= (\"- \" item)+ # of items\nitem ::= [^\\n]+ \"\\n\"\n", kObject,
        "root::=sum\nsum::=sum[-+]atom|atom\natom::=[0-9]+|\"(\"sum\")\"",
        "root ::= <think> !<[7]>* <[7]> .{2} \"\\x41\\u00e9\\U0001F600\"",
        "root ::= \"é漢\" [à-ü漢-語]{1,}\r\n  | A-b{3}\nA-b ::= (((\"x\")))?"}) {
    seeds.push_back(ToBytes(gbnf));
  }
  return seeds;
}

}  // namespace specfabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string gbnf(reinterpret_cast<const char*>(data), size);
  specfabric::fuzz::Use(specfabric::gateway::IsGbnf(gbnf));
  const absl::StatusOr<std::string> lark = specfabric::gateway::LarkOfGbnf(gbnf);
  if (!lark.ok()) {
    specfabric::CheckRefused(lark.status());
    return 0;
  }
  SPECFABRIC_CHECK(!specfabric::gateway::FirstInvalidUtf8(*lark));
  std::set<std::string> defined, used = {"start"};
  std::string_view rest = *lark;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    SPECFABRIC_CHECK(end != std::string_view::npos);
    specfabric::CheckLine(rest.substr(0, end), &defined, &used);
    rest.remove_prefix(end + 1);
  }
  SPECFABRIC_CHECK(defined == used);
  return 0;
}
