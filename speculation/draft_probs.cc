#include "speculation/draft_probs.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "base/bfloat16.h"
#include "base/check.h"
#include "speculation/tree.h"

namespace specfabric::speculation {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint16_t kInfinity = 0x7F80;  // bfloat16 bits; finite, non-negative numbers are below

size_t IdsOffset(const DraftProbsShape& shape, int32_t row) {
  return static_cast<size_t>(row) * shape.row_bytes();
}

size_t ProbsOffset(const DraftProbsShape& shape, int32_t row) {
  const size_t ids = shape.whole() ? 0 : shape.entries * sizeof(base::TokenId);
  return IdsOffset(shape, row) + ids;
}

absl::Status CheckRow(int32_t row, int32_t vocabulary, const sampling::DraftRowFacts& facts) {
  const auto refuse = [row](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat("draft_probs: row ", row, ": ", why...));
  };
  if (facts.misplaced >= 0) {
    return refuse("id ", facts.id, " after ", facts.previous,
                  ", must ascend and be below the vocabulary's size, ", vocabulary);
  }
  if (facts.highest >= kInfinity) return refuse("has one that is not finite and at least 0");
  return facts.total > 0 ? absl::OkStatus() : refuse("has none above 0");
}

}  // namespace

DraftProbsShape ShapeFor(int32_t rows, int32_t vocabulary, int32_t top_n) {
  const DraftProbsShape cut = {rows, vocabulary, top_n};
  const DraftProbsShape whole = {rows, vocabulary, vocabulary};
  return top_n > 0 && cut.row_bytes() < whole.row_bytes() ? cut : whole;
}

absl::Span<uint16_t> DraftProbsWriter::WholeRow(int32_t row) {
  SPECFABRIC_CHECK(shape_.whole() && row < shape_.rows);
  return {reinterpret_cast<uint16_t*>(slot_ + ProbsOffset(shape_, row)),
          static_cast<size_t>(shape_.vocabulary)};
}

void DraftProbsWriter::Write(int32_t row, absl::Span<const uint16_t> draft_probs) {
  SPECFABRIC_CHECK(static_cast<int32_t>(draft_probs.size()) == shape_.vocabulary &&
                   row < shape_.rows);
  uint16_t* const out = reinterpret_cast<uint16_t*>(slot_ + ProbsOffset(shape_, row));
  if (shape_.whole()) {
    std::copy(draft_probs.begin(), draft_probs.end(), out);
    return;
  }
  base::TokenId* const ids = reinterpret_cast<base::TokenId*>(slot_ + IdsOffset(shape_, row));
  int32_t non_zero = 0;
  for (uint16_t prob : draft_probs) non_zero += prob != 0;
  SPECFABRIC_CHECK(non_zero <= shape_.entries);
  int32_t spare = shape_.entries - non_zero, count = 0;
  for (base::TokenId token = 0; count < shape_.entries; ++token) {
    if (draft_probs[token] == 0 && spare-- <= 0) continue;
    ids[count] = token;
    out[count++] = draft_probs[token];
  }
  uint8_t* const rest = reinterpret_cast<uint8_t*>(out + count);
  std::fill(rest, slot_ + IdsOffset(shape_, row + 1), uint8_t{0});
}

absl::Status CheckSize(const DraftProbsShape& shape, size_t bytes) {
  // With no more rows than a tree has nodes, shape.bytes() cannot overflow.
  if (shape.rows >= 0 && shape.rows <= kMaxDraftNodes && shape.vocabulary >= 1 &&
      shape.entries >= 1 && shape.entries <= shape.vocabulary && bytes == shape.bytes()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("draft_probs: ", bytes, " bytes for ", shape.rows, " rows of ", shape.entries,
                   " entries out of ", shape.vocabulary, " tokens, which take ", shape.bytes()));
}

absl::StatusOr<DraftProbs> DraftProbs::Open(const DraftProbsShape& shape,
                                            absl::Span<const uint8_t> bytes) {
  if (absl::Status size = CheckSize(shape, bytes.size()); !size.ok()) return size;
  DraftProbs opened;
  opened.shape_ = shape;
  opened.bytes_ = bytes.data();
  for (int32_t row = 0; row < shape.rows; ++row) {
    const auto facts = sampling::FactsOf(opened.probs(row), opened.ids(row), shape.vocabulary);
    if (absl::Status sound = CheckRow(row, shape.vocabulary, facts); !sound.ok()) return sound;
    opened.totals_.push_back(facts.total);
  }
  return opened;
}

absl::StatusOr<DraftProbs> DraftProbs::OpenOnDevice(
    const DraftProbsShape& shape, absl::Span<const uint8_t> bytes,
    absl::Span<const sampling::DraftRowFacts> facts) {
  if (absl::Status size = CheckSize(shape, bytes.size()); !size.ok()) return size;
  SPECFABRIC_CHECK(static_cast<int32_t>(facts.size()) == shape.rows);
  DraftProbs opened;
  opened.shape_ = shape;
  opened.bytes_ = bytes.data();
  opened.on_device_ = true;
  for (int32_t row = 0; row < shape.rows; ++row) {
    absl::Status sound = CheckRow(row, shape.vocabulary, facts[row]);
    if (!sound.ok()) return sound;
    opened.totals_.push_back(facts[row].total);
  }
  return opened;
}

absl::Span<const uint16_t> DraftProbs::probs(int32_t row) const {
  SPECFABRIC_CHECK(!on_device_);
  return {reinterpret_cast<const uint16_t*>(bytes_ + ProbsOffset(shape_, row)),
          static_cast<size_t>(shape_.entries)};
}

absl::Span<const base::TokenId> DraftProbs::ids(int32_t row) const {
  SPECFABRIC_CHECK(!on_device_);
  if (shape_.whole()) return {};
  return {reinterpret_cast<const base::TokenId*>(bytes_ + IdsOffset(shape_, row)),
          static_cast<size_t>(shape_.entries)};
}

float DraftProbs::prob(int32_t row, base::TokenId token) const {
  if (shape_.whole()) return base::WidenBFloat16(probs(row)[token]);
  const absl::Span<const base::TokenId> named = ids(row);
  const auto found = std::lower_bound(named.begin(), named.end(), token);
  if (found == named.end() || *found != token) return 0.0f;
  return base::WidenBFloat16(probs(row)[found - named.begin()]);
}

}  // namespace specfabric::speculation
