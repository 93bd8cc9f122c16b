#ifndef SPECFABRIC_VERIFICATION_REFERENCE_ACCEPTANCE_H_
#define SPECFABRIC_VERIFICATION_REFERENCE_ACCEPTANCE_H_

// The reference implementation of every verification method, in double precision and short enough
// to read beside its paper. The faster implementations are tested against it, and the proof by
// enumeration runs it (docs/verification.md).
//
// p is the target's distribution at a node, q the draft's, both after all filters. Every function
// takes input that ValidateInput accepts and emits at least one token.

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sampling/distribution.h"
#include "speculation/tree.h"
#include "speculation/verification_method.h"
#include "verification/randomness.h"

namespace specfabric::verification {

// The input of one round's verification.
struct VerifyInput {
  speculation::TokenTree tree;  // siblings in draw order
  speculation::SiblingDraw draw = speculation::SiblingDraw::kCoupledTopK;
  int vocabulary = 0;
  std::vector<double> p;       // [nodes][vocabulary]: of the token after each node
  std::vector<double> q;       // [rows][vocabulary]; empty where NeedsDraftRows says so
  std::vector<int32_t> q_row;  // [nodes]: the row that the node's token was drawn from, which only
                               // siblings share; q_row[0] is not read. Empty if q is

  sampling::Distribution TargetDistribution(int node) const;

  // The distribution that the draft drew `node` from, given the siblings before it: the node's row;
  // with kWithoutReplacement without the tokens of earlier siblings of the same row; with
  // kDeterministic probability 1 for the node's token. All zero if nothing is left. The ways of
  // drawing siblings differ in nothing else.
  sampling::Distribution DraftDistribution(int node) const;
};

// OK if the tree is valid, the verification method allows the draw, sizes and row numbers agree,
// and every row of p and q is finite, not negative and sums to 1 within 1e-3 (rows are normalised
// where read).
absl::Status ValidateInput(speculation::VerificationMethod verification, const VerifyInput& input);

// Children of `node` in draw order.
std::vector<int32_t> Children(const speculation::TokenTree& tree, int node);

// kCoupled: the target's choice at a node is the arg-max of log p(x) + g(x), ties to the lowest
// id; then WalkCoupled. noise: [depth][vocabulary], Gumbel noise of the positions that nodes of
// depth 0, 1, ... choose for, through the deepest.
speculation::Accepted AcceptCoupled(const VerifyInput& input, absl::Span<const double> noise);

// kRejection, from root to leaf. Leviathan et al. 2023 (arXiv 2211.17192), Algorithm 1, on a chain;
// with siblings SpecInfer's multi-step sampling (arXiv 2305.09781) and its relatives, by draw:
//   accept x_i with min(1, p_i(x_i) / q_i(x_i)); else p_{i+1} = norm((p_i - q_i)+), next sibling.
// After a sibling that its q_i cannot have produced, no further sibling is considered.
speculation::Accepted AcceptByRejection(const VerifyInput& input, Randomness& random);

// kTraversal, from leaf to root. Weng et al. 2025 (arXiv 2505.12398): a path is accepted with the
// probability of the whole path, and a node whose children are all rejected can still be accepted
// itself.
speculation::Accepted AcceptByTraversal(const VerifyInput& input, Randomness& random);

// Block verification, Sun et al. 2024 (arXiv 2403.10444), for a chain: equivalent to
// AcceptByTraversal there, written as in its own paper.
speculation::Accepted AcceptByBlock(const VerifyInput& input, Randomness& random);

// kTypical. Medusa (arXiv 2401.10774): accepts x if p(x) > min(epsilon, delta exp(-H(p))), H the
// entropy in nats; takes the longest accepted path, the first drawn of equally long ones, and
// samples the bonus token from p. Lossy.
struct TypicalOptions {
  double epsilon = 0.09;
  double delta = 0.3;
};
speculation::Accepted AcceptTypical(const VerifyInput& input, const TypicalOptions& options,
                                    Randomness& random);

}  // namespace specfabric::verification

#endif  // SPECFABRIC_VERIFICATION_REFERENCE_ACCEPTANCE_H_
