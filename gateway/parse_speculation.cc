#include "gateway/parse_speculation.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "schemas/messages.h"

namespace specfabric::gateway {
namespace {

constexpr const char* kEnabled = "speculation.enabled";
constexpr const char* kMaxTokens = "speculation.max_tokens";
constexpr const char* kMethod = "speculation.method";
constexpr const char* kDrafter = "speculation.drafter";
constexpr std::array kMembers = {kEnabled, kMaxTokens, kMethod, kDrafter};

// The members of `speculation` by their whole names, as errors name them: there is a max_tokens
// besides. An unknown one is refused: it would be taken for a setting that holds.
Json WholeNames(const Json& speculation, Fields& fields) {
  Json members = Json::object();
  for (const auto& [name, value] : speculation.items()) {
    std::string whole = absl::StrCat("speculation.", name);
    if (std::find(kMembers.begin(), kMembers.end(), whole) == kMembers.end()) {
      fields.Fail(BadRequest(
          "speculation", absl::StrCat("'speculation' has the member ", Shown(Json(name)),
                                      "; allowed are enabled, max_tokens, method and drafter")));
      break;
    }
    members[std::move(whole)] = value;
  }
  return members;
}

bool IsDrafterName(const std::string& name) {
  return !name.empty() && name.size() <= schemas::kMaxNameBytes &&
         std::none_of(name.begin(), name.end(),
                      [](unsigned char c) { return c < 0x20 || c == 0x7F; });
}

void ReadMembers(Fields& members, GenerationRequest& request) {
  request.max_draft_tokens =
      static_cast<int>(members.Integer(kMaxTokens, kMaxDraftTokens, 0, kMaxDraftTokens));
  request.speculate = members.Bool(kEnabled, true) && request.max_draft_tokens > 0;
  request.drafter = members.String(kDrafter, "");
  if (members.Find(kDrafter) != nullptr && !IsDrafterName(request.drafter)) {
    members.Fail(kDrafter,
                 absl::StrCat("must be ngram_lookup or a draft model's name, one line of 1 to ",
                              schemas::kMaxNameBytes, " bytes"));
  }
  const std::string method = members.String(kMethod, "");
  if (method.empty()) return;
  if (!request.verification.empty() && request.verification != method) {
    members.Fail(BadRequest(
        kMethod, absl::StrCat("'", kMethod, "' is ", Shown(Json(method)), " and 'verification' is ",
                              Shown(Json(request.verification)),
                              "; they are the same setting, and one is enough")));
  }
  request.verification = method;
  request.verification_field = kMethod;
}

}  // namespace

void ReadSpeculation(Fields& fields, GenerationRequest& request) {
  request.verification = fields.String("verification", "");
  request.verification_field = "verification";
  const Json* speculation = fields.Find("speculation");
  if (speculation == nullptr) return;
  if (!speculation->is_object()) return fields.Fail("speculation", "must be an object");
  const Json whole_names = WholeNames(*speculation, fields);
  Fields members(whole_names);
  ReadMembers(members, request);
  if (!members.ok()) fields.Fail(*members.error());
}

}  // namespace specfabric::gateway
