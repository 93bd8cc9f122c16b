#ifndef SPECFABRIC_TESTS_VERIFICATION_RANDOM_ROUNDS_H_
#define SPECFABRIC_TESTS_VERIFICATION_RANDOM_ROUNDS_H_

// Random rounds of every rule, for tests of the verifiers.

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "sampling/draft_row.h"
#include "speculation/draft_probs.h"
#include "speculation/tree.h"
#include "verification/cpu/tree_verifier.h"
#include "verification/randomness.h"
#include "verification/reference/acceptance.h"

namespace specfabric::verification {

using Logits = std::vector<float>;
using ProbRow = std::vector<uint16_t>;

inline Logits RandomLogits(std::mt19937* random, int vocabulary, float spread) {
  std::normal_distribution<float> normal(0.0f, spread);
  Logits logits(vocabulary);
  for (float& logit : logits) logit = normal(*random);
  return logits;
}

// The logits with noise: a draft that half agrees.
inline Logits Blurred(std::mt19937* random, const Logits& logits, float spread) {
  std::normal_distribution<float> normal(0.0f, spread);
  Logits blurred = logits;
  for (float& logit : blurred) logit += normal(*random);
  return blurred;
}

// One round.
struct Case {
  speculation::TokenTree tree = speculation::TokenTree::Root(0);
  speculation::VerificationMethod verification = speculation::VerificationMethod::kRejection;
  speculation::SiblingDraw draw = speculation::SiblingDraw::kDeterministic;
  base::SamplingParams sampling = {};
  TypicalOptions typical = {};
  std::vector<Logits> logits = {};   // [nodes]
  std::vector<ProbRow> rows = {};    // of the draft
  std::vector<int32_t> row_of = {};  // [nodes]
  int top_n = 0;                     // 0: whole rows go over the wire

  int vocabulary() const { return static_cast<int>(logits[0].size()); }
};

// The rows as a slot holds them.
class Slot {
 public:
  explicit Slot(const Case& round) {
    const int entries = round.top_n == 0 ? round.vocabulary() : round.top_n;
    const speculation::DraftProbsShape shape{.rows = static_cast<int32_t>(round.rows.size()),
                                             .vocabulary = round.vocabulary(),
                                             .entries = entries};
    bytes_.resize((shape.bytes() + 7) / 8);
    uint8_t* const slot = reinterpret_cast<uint8_t*>(bytes_.data());
    speculation::DraftProbsWriter writer(shape, slot);
    for (int32_t row = 0; row < shape.rows; ++row) writer.Write(row, round.rows[row]);
    absl::StatusOr<speculation::DraftProbs> opened =
        speculation::DraftProbs::Open(shape, {slot, shape.bytes()});
    EXPECT_TRUE(opened.ok()) << opened.status();
    draft_probs_ = *std::move(opened);
  }
  const speculation::DraftProbs& draft_probs() const { return draft_probs_; }
  // Multiples of 8 bytes.
  const std::vector<uint64_t>& words() const { return bytes_; }
  // As its sender reaches them.
  absl::Span<uint32_t> half_words() {
    return {reinterpret_cast<uint32_t*>(bytes_.data()), 2 * bytes_.size()};
  }

 private:
  std::vector<uint64_t> bytes_;
  speculation::DraftProbs draft_probs_;
};

// What the verifier makes of a round whose rows of logits row(node) lends. slot: where the draft's
// rows are; null: none are needed.
template <typename RowOf>
speculation::Accepted Verify(const Case& round, const PhiloxRandomness& random, RowOf&& row,
                             const Slot* slot, TreeVerifier* verifier) {
  const TreeToVerify task = {.tree = round.tree,
                             .verification = round.verification,
                             .draw = round.draw,
                             .sampling = round.sampling,
                             .typical = round.typical,
                             .draft_probs = slot != nullptr ? &slot->draft_probs() : nullptr,
                             .draft_row = round.row_of};
  speculation::Accepted accepted;
  verifier->Verify(task, row, random, &accepted);
  return accepted;
}
template <typename RowOf>
speculation::Accepted Verify(const Case& round, const PhiloxRandomness& random, RowOf&& row,
                             TreeVerifier* verifier) {
  const bool needs_rows = speculation::NeedsDraftRows(round.verification, round.draw);
  std::optional<Slot> slot;
  if (needs_rows) slot.emplace(round);
  return Verify(round, random, row, needs_rows ? &*slot : nullptr, verifier);
}

struct Shape {
  int vocabulary = 0;
  int max_nodes = 0;
  int top_n = 0;
};

// The children of every node in random trees: chains, expansion configurations, anything.
inline std::vector<int> RandomParents(std::mt19937* random, int max_nodes) {
  const int nodes = 1 + static_cast<int>((*random)() % max_nodes);
  const int kind = static_cast<int>((*random)() % 3);
  const int width = 2 + static_cast<int>((*random)() % 3);
  std::vector<int> parents = {-1};
  for (int node = 1; node < nodes; ++node) {
    parents.push_back(kind == 0   ? node - 1
                      : kind == 1 ? (node - 1) / width
                                  : static_cast<int>((*random)() % node));
  }
  return parents;
}

// Draws the children of `node`, of which there are to be `count`, from one or two rows.
inline std::vector<base::TokenId> DrawChildren(std::mt19937* random, int node, int count,
                                               int drafters, Case* round,
                                               std::vector<int32_t>* rows) {
  std::vector<std::vector<base::TokenId>> drawn;
  const int first_row = static_cast<int>(round->rows.size());
  for (int drafter = 0; drafter < drafters; ++drafter) {
    const Logits blurred = Blurred(random, round->logits[node], 1.0f);
    ProbRow draft_probs(blurred.size());
    sampling::MakeDraftProbs(blurred, round->sampling, round->top_n, absl::MakeSpan(draft_probs));
    const sampling::DrawSite site{.purpose = sampling::Purpose::kDraft,
                                  .draw = static_cast<uint32_t>((*random)()),
                                  .node = static_cast<uint32_t>(node)};
    drawn.push_back(round->draw == speculation::SiblingDraw::kWithoutReplacement
                        ? sampling::DrawWithoutReplacement(draft_probs, count, 3, site)
                        : sampling::DrawWithReplacement(draft_probs, count, 3, site));
    round->rows.push_back(draft_probs);
  }
  std::vector<base::TokenId> tokens;
  for (int i = 0; i < count; ++i) {
    const int drafter = i % drafters;
    if (i / drafters >= static_cast<int>(drawn[drafter].size())) continue;
    tokens.push_back(drawn[drafter][i / drafters]);
    rows->push_back(first_row + drafter);
  }
  return tokens;
}

inline Case RandomCase(std::mt19937* random, speculation::VerificationMethod verification,
                       speculation::SiblingDraw draw, const Shape& shape,
                       const base::SamplingParams& sampling) {
  std::uniform_real_distribution<float> spread(0.2f, 4.0f);
  Case round{
      .verification = verification, .draw = draw, .sampling = sampling, .top_n = shape.top_n};
  if ((*random)() % 2 == 0) round.typical = {.epsilon = 0.4, .delta = 0.8};
  const std::vector<int> parents = RandomParents(random, shape.max_nodes);
  const int drafters = 1 + static_cast<int>((*random)() % 4 == 0);
  // Now and then a draft that lies about what it drew.
  const bool lies = (*random)() % 8 == 0;
  // A node whose parent could not draw it is left out with all that is below it.
  std::vector<int> placed(parents.size(), -1);
  placed[0] = 0;
  round.row_of = {0};
  round.logits.push_back(RandomLogits(random, shape.vocabulary, spread(*random)));
  for (size_t node = 0; node < parents.size(); ++node) {
    const int count = static_cast<int>(std::count(parents.begin(), parents.end(), node));
    if (count == 0 || placed[node] < 0) continue;
    std::vector<int32_t> rows;
    const std::vector<base::TokenId> tokens =
        DrawChildren(random, placed[node], count, drafters, &round, &rows);
    size_t next = 0;
    for (size_t child = node + 1; child < parents.size() && next < tokens.size(); ++child) {
      if (parents[child] != static_cast<int>(node)) continue;
      const base::TokenId token =
          lies ? static_cast<base::TokenId>((*random)() % shape.vocabulary) : tokens[next];
      placed[child] = round.tree.Add(placed[node], token, 0.0f);
      round.row_of.push_back(rows[next++]);
      round.logits.push_back(RandomLogits(random, shape.vocabulary, spread(*random)));
    }
  }
  return round;
}

// Puts something that is not finite into about a third of the rows of logits; returns which.
inline std::vector<bool> Spoil(std::mt19937* random, Case* round) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kValues[] = {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf};
  std::vector<bool> spoilt;
  for (Logits& row : round->logits) {
    spoilt.push_back((*random)() % 3 == 0);
    if (spoilt.back()) row[(*random)() % row.size()] = kValues[(*random)() % 3];
  }
  return spoilt;
}

// The same round with one token more, which no draft has: in spoilt rows it has all of the mass, so
// that nothing below them is accepted, elsewhere none.
inline Case WithSpareToken(Case round, const std::vector<bool>& spoilt) {
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  for (size_t node = 0; node < round.logits.size(); ++node) {
    Logits& row = round.logits[node];
    if (spoilt[node]) row.assign(row.size(), kLowest);
    row.push_back(spoilt[node] ? 0 : kLowest);
  }
  for (ProbRow& draft_probs : round.rows) draft_probs.push_back(0);
  return round;
}
// What is accepted of the spoilt round, by what is accepted of the one with a spare token.
inline speculation::Accepted WithoutSpareToken(speculation::Accepted accepted, int vocabulary) {
  accepted.finite = accepted.tokens.back() != vocabulary;
  if (!accepted.finite) accepted.tokens.pop_back();
  return accepted;
}

struct Rule {
  speculation::VerificationMethod verification;
  speculation::SiblingDraw draw;
};
constexpr Rule kRules[] = {
    {speculation::VerificationMethod::kRejection, speculation::SiblingDraw::kWithReplacement},
    {speculation::VerificationMethod::kRejection, speculation::SiblingDraw::kWithoutReplacement},
    {speculation::VerificationMethod::kRejection, speculation::SiblingDraw::kDeterministic},
    {speculation::VerificationMethod::kTraversal, speculation::SiblingDraw::kWithReplacement},
    {speculation::VerificationMethod::kTraversal, speculation::SiblingDraw::kWithoutReplacement},
    {speculation::VerificationMethod::kTraversal, speculation::SiblingDraw::kDeterministic},
    {speculation::VerificationMethod::kTypical, speculation::SiblingDraw::kCoupledTopK},
    {speculation::VerificationMethod::kTypical, speculation::SiblingDraw::kWithReplacement}};

inline base::SamplingParams RandomSampling(std::mt19937* random) {
  constexpr float kTemperatures[] = {1.0f, 0.3f, 0.7f, 1.7f};
  base::SamplingParams sampling{.temperature = kTemperatures[(*random)() % 4]};
  if ((*random)() % 2 == 0) return sampling;
  if ((*random)() % 2 == 0) sampling.top_k = 1 + static_cast<int>((*random)() % 20);
  if ((*random)() % 2 == 0) sampling.top_p = 0.8f;
  if ((*random)() % 3 == 0) sampling.min_p = 0.05f;
  return sampling;
}

}  // namespace specfabric::verification

#endif  // SPECFABRIC_TESTS_VERIFICATION_RANDOM_ROUNDS_H_
