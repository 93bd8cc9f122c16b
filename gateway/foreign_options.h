#ifndef SPECFABRIC_GATEWAY_FOREIGN_OPTIONS_H_
#define SPECFABRIC_GATEWAY_FOREIGN_OPTIONS_H_

// Every request field of this server and of the servers whose clients it meets: OpenAI, vLLM,
// SGLang, llama.cpp, TGI, TensorRT-LLM, LMDeploy, LiteLLM. A field that would change the answer and
// that this server does not have is refused by name, unless it holds the value that changes
// nothing; docs/api.md lists them, and a test holds that list, this one and the parser together.

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
  kRefused,   // refused unless it holds its neutral value
};

struct RequestOption {
  std::string_view name;
  unsigned endpoints;  // of RequestKind: where this row holds
  Support support;
  // kRefused: whether a value changes nothing, what such a value is ("" where only absence is one),
  // and the field that does the same here ("" for none).
  bool (*neutral)(const Json&) = nullptr;
  const char* allowed = "";
  const char* instead = "";
};

// Ascending by name; an option that differs by endpoint has several rows.
absl::Span<const RequestOption> RequestOptions();

// The row of a field; null if nobody has heard of it.
const RequestOption* FindOption(std::string_view name, RequestKind endpoint);

// Refuses what is not supported. The names of unknown fields are added to `ignored`, in the order
// of the request.
void CheckOptions(const Json& request, RequestKind endpoint, Fields& fields,
                  std::vector<std::string>* ignored);

// The value of the response header of that name: the first few of `names`, cut and in visible
// ASCII, comma-separated. Empty if there are none.
inline constexpr const char* kIgnoredFieldsHeader = "specfabric-ignored-fields";
std::string IgnoredFieldsValue(const std::vector<std::string>& names);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_FOREIGN_OPTIONS_H_
