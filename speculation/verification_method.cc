#include "speculation/verification_method.h"

#include <array>
#include <string>

#include "absl/strings/str_cat.h"

namespace specfabric::speculation {
namespace {

constexpr std::array<const char*, kVerificationMethods> kVerificationMethodNames = {
    "coupled", "rejection", "traversal", "typical"};
constexpr std::array<const char*, kSiblingDraws> kDrawNames = {
    "coupled_top_k", "with_replacement", "without_replacement", "deterministic"};

template <typename Enum, size_t kSize>
const char* NameOf(const std::array<const char*, kSize>& names, Enum value) {
  const size_t index = static_cast<size_t>(value);
  return index < kSize ? names[index] : "unknown";
}

template <typename Enum, size_t kSize>
absl::StatusOr<Enum> Parse(const std::array<const char*, kSize>& names, const char* what,
                           std::string_view given) {
  std::string allowed;
  for (size_t i = 0; i < kSize; ++i) {
    if (given == names[i]) return static_cast<Enum>(i);
    absl::StrAppend(&allowed, i == 0 ? "" : ", ", names[i]);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is '", std::string(given), "': allowed are ", allowed));
}

}  // namespace

const char* Name(VerificationMethod verification) {
  return NameOf(kVerificationMethodNames, verification);
}
const char* Name(SiblingDraw draw) { return NameOf(kDrawNames, draw); }

absl::StatusOr<VerificationMethod> ParseVerificationMethod(std::string_view name) {
  return Parse<VerificationMethod>(kVerificationMethodNames, "verification", name);
}
absl::StatusOr<SiblingDraw> ParseSiblingDraw(std::string_view name) {
  return Parse<SiblingDraw>(kDrawNames, "sibling draw", name);
}

}  // namespace specfabric::speculation
