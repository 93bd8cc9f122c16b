#ifndef SPECFABRIC_GATEWAY_FOREIGN_OPTIONS_H_
#define SPECFABRIC_GATEWAY_FOREIGN_OPTIONS_H_

// All request fields of this server and of other servers whose clients it has to serve: OpenAI,
// vLLM, SGLang, llama.cpp, TGI, TensorRT-LLM, LMDeploy, LiteLLM. A field that would change the
// answer and is not supported is refused by name, unless it has the value that changes nothing.
// docs/api.md lists the fields; a test checks that list, this one and the parser against each
// other.

#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "gateway/json_fields.h"

namespace specfabric::gateway {

enum RequestKind : unsigned {
  kCompletions = 1,
  kChat = 2,
  kTokenize = 4,
  kDetokenize = 8,
};

enum class Support {
  kHonoured,  // read and checked by the parser
  kIgnored,   // accepted, whatever it holds: it does not change the text
  kRefused,   // refused unless it has its neutral value
};

struct RequestOption {
  std::string_view name;
  unsigned endpoints;  // set of RequestKind: where this row applies
  Support support;
  // With kRefused: whether a value changes nothing and is accepted, the description of such a value
  // ("": there is none), and the field of this server with the same effect ("": none).
  bool (*neutral)(const Json&) = nullptr;
  const char* allowed = "";
  const char* instead = "";
};

// Ascending by name; an option that differs by endpoint has several rows.
absl::Span<const RequestOption> RequestOptions();

// The row of a field; null for an unknown one.
const RequestOption* FindOption(std::string_view name, RequestKind endpoint);

// Refuses unsupported fields. Adds the names of unknown fields to `ignored`, in the order of the
// request.
void CheckOptions(const Json& request, RequestKind endpoint, Fields& fields,
                  std::vector<std::string>* ignored);

// Value of the response header kIgnoredFieldsHeader: the first few of `names`, shortened, in
// visible ASCII, separated by commas. Empty if there are none.
inline constexpr const char* kIgnoredFieldsHeader = "specfabric-ignored-fields";
std::string IgnoredFieldsValue(const std::vector<std::string>& names);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_FOREIGN_OPTIONS_H_
