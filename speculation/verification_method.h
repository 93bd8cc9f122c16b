#ifndef SPECFABRIC_SPECULATION_VERIFICATION_METHOD_H_
#define SPECFABRIC_SPECULATION_VERIFICATION_METHOD_H_

// How a target decides which draft tokens to accept, and how the draft drew them. Both are fields
// of messages: the values never change.

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace specfabric::speculation {

enum class VerificationMethod : uint8_t {
  kCoupled = 0,    // draft and target share the noise; lossless for any tree
  kRejection = 1,  // root to leaf, by target and draft probabilities; lossless
  kTraversal = 2,  // leaf to root; block verification is its chain case; lossless
  kTypical = 3,    // accepts tokens whose target probability is high enough; lossy
};
constexpr int kVerificationMethods = 4;

// How the siblings under one node were drawn from the draft's distribution: selects the rule of
// rejection and traversal.
enum class SiblingDraw : uint8_t {
  kCoupledTopK = 0,         // the best perturbed scores, noise shared by a position's nodes
  kWithReplacement = 1,     // independently; a token may repeat
  kWithoutReplacement = 2,  // each from what the siblings before it left, renormalised
  kDeterministic = 3,       // not at random: top-k, arg-max, n-gram lookup
};
constexpr int kSiblingDraws = 4;

// "coupled", "rejection", "traversal", "typical".
const char* Name(VerificationMethod verification);
// "coupled_top_k", "with_replacement", "without_replacement", "deterministic".
const char* Name(SiblingDraw draw);

// The value of a name; InvalidArgument says what was given and what is allowed.
absl::StatusOr<VerificationMethod> ParseVerificationMethod(std::string_view name);
absl::StatusOr<SiblingDraw> ParseSiblingDraw(std::string_view name);

// The methods that read draft probabilities, as a set of bits 1 << VerificationMethod.
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

// One method for all that accept alike what the n-gram lookup proposes: the lossless ones, as often
// as the target would have sampled it.
constexpr VerificationMethod OfNgramLookup(VerificationMethod verification) {
  return Lossless(verification) ? VerificationMethod::kCoupled : verification;
}

// Whether the verification method reads draft probabilities for siblings drawn like this, so that
// they must come with the reply. For deterministic siblings none are needed.
constexpr bool NeedsDraftRows(VerificationMethod verification, SiblingDraw draw) {
  return UsesDraftProbs(verification) && draw != SiblingDraw::kDeterministic;
}

// Whether the verification method may verify siblings drawn like this. Methods that read draft
// probabilities refuse kCoupledTopK: its branches share their noise and are not independent. The
// others take any tree.
constexpr bool Allows(VerificationMethod verification, SiblingDraw draw) {
  return !UsesDraftProbs(verification) || draw != SiblingDraw::kCoupledTopK;
}

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_VERIFICATION_METHOD_H_
