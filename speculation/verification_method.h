#ifndef SPECFABRIC_SPECULATION_VERIFICATION_METHOD_H_
#define SPECFABRIC_SPECULATION_VERIFICATION_METHOD_H_

// How a target decides which of a draft's guesses to accept, and how the draft drew them. Both are
// fields of messages: the values never change.

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace specfabric::speculation {

enum class VerificationMethod : uint8_t {
  kCoupled = 0,    // draft and target share the noise; lossless for any tree
  kRejection = 1,  // root to leaf, weighs p against q; lossless
  kTraversal = 2,  // leaf to root; block verification is its chain case; lossless
  kTypical = 3,    // accepts what is likely enough under p; lossy
};
constexpr int kVerificationMethods = 4;

// How the siblings under one node were drawn from the draft's distribution: selects the rule of
// rejection and traversal.
enum class SiblingDraw : uint8_t {
  kCoupledTopK = 0,         // the best perturbed scores, noise shared by a position's nodes
  kWithReplacement = 1,     // independently; a token may repeat
  kWithoutReplacement = 2,  // each from what the siblings before it left, renormalised
  kDeterministic = 3,       // chosen without chance: top-k, arg-max, n-gram
};
constexpr int kSiblingDraws = 4;

// "coupled", "rejection", "traversal", "typical".
const char* Name(VerificationMethod verification);
// "coupled_top_k", "with_replacement", "without_replacement", "deterministic".
const char* Name(SiblingDraw draw);

// The other way; InvalidArgument names what was given and what is allowed.
absl::StatusOr<VerificationMethod> ParseVerificationMethod(std::string_view name);
absl::StatusOr<SiblingDraw> ParseSiblingDraw(std::string_view name);

// Those that weigh the draft's distribution, as a set of bits 1 << VerificationMethod.
constexpr uint32_t kMethodsUsingDraftProbs =
    1u << static_cast<int>(VerificationMethod::kRejection) |
    1u << static_cast<int>(VerificationMethod::kTraversal);
constexpr bool UsesDraftProbs(VerificationMethod verification) {
  return (kMethodsUsingDraftProbs >> static_cast<int>(verification) & 1) != 0;
}

// Whether emitted tokens have exactly the distribution of plain sampling.
constexpr bool Lossless(VerificationMethod verification) {
  return verification != VerificationMethod::kTypical;
}

// Whether the verification method reads the draft's probabilities of siblings drawn like this, so
// that a reply must carry them. Deterministic siblings are their own distribution.
constexpr bool NeedsDraftRows(VerificationMethod verification, SiblingDraw draw) {
  return UsesDraftProbs(verification) && draw != SiblingDraw::kDeterministic;
}

// Whether the verification method may verify siblings drawn like this. Those that weigh q refuse
// the noise shared by a position's nodes, whose branches are not independent; the others take
// anything.
constexpr bool Allows(VerificationMethod verification, SiblingDraw draw) {
  return !UsesDraftProbs(verification) || draw != SiblingDraw::kCoupledTopK;
}

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_VERIFICATION_METHOD_H_
