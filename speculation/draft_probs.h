#ifndef SPECFABRIC_SPECULATION_DRAFT_PROBS_H_
#define SPECFABRIC_SPECULATION_DRAFT_PROBS_H_

// The tensor that goes with a DraftReply where the verification method weighs the draft's
// distributions (sampling/draft_row.h): one row of draft_probs for each node that has children, in
// ascending order of these nodes. The siblings under a node were drawn from its row. Little-endian,
// either
//   whole rows:  uint16 prob[rows][vocabulary], bfloat16
//   or, where the draft keeps its `entries` heaviest tokens of a row only, for each row:
//                int32 id[entries], ascending; then uint16 prob[entries]; then zeros up to a
//                multiple of 4 bytes
// Nothing is copied: the draft writes to the slot that it sends, the target reads the slot that it
// received.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/types.h"
#include "sampling/draft_row.h"

namespace specfabric::speculation {

struct DraftProbsShape {
  int32_t rows = 0;
  int32_t vocabulary = 0;
  int32_t entries = 0;  // a row; `vocabulary`: whole rows

  bool whole() const { return entries == vocabulary; }
  size_t row_bytes() const {
    const size_t draft_probs = static_cast<size_t>(entries) * sizeof(uint16_t);
    if (whole()) return draft_probs;
    return entries * sizeof(base::TokenId) + (draft_probs + 3) / 4 * 4;
  }
  size_t bytes() const { return static_cast<size_t>(rows) * row_bytes(); }
  bool operator==(const DraftProbsShape&) const = default;
};

// The shape in which a draft sends rows cut to its `top_n` heaviest tokens (0: not cut). Rows that
// would be no smaller than whole ones are whole.
DraftProbsShape ShapeFor(int32_t rows, int32_t vocabulary, int32_t top_n);

// Puts rows of [vocabulary] draft_probs into a slot. `slot` is 8-byte aligned and of shape.bytes().
// In rows that are not whole, tokens without prob fill up where fewer than `entries` have one.
class DraftProbsWriter {
 public:
  DraftProbsWriter(const DraftProbsShape& shape, uint8_t* slot) : shape_(shape), slot_(slot) {}
  // Where a whole row lies, so that it can be made in place.
  absl::Span<uint16_t> WholeRow(int32_t row);
  void Write(int32_t row, absl::Span<const uint16_t> draft_probs);

 private:
  const DraftProbsShape shape_;
  uint8_t* const slot_;
};

// InvalidArgument: nothing of that size is of this shape, or no tree has so many rows.
absl::Status CheckSize(const DraftProbsShape& shape, size_t bytes);

// Reads received rows. Spans are of the slot, which must outlive them.
class DraftProbs {
 public:
  // InvalidArgument: the bytes are not of this shape, a prob is negative, infinite or no number,
  // a row has no prob at all, or ids are out of the vocabulary or not ascending. One pass over
  // all.
  static absl::StatusOr<DraftProbs> Open(const DraftProbsShape& shape,
                                         absl::Span<const uint8_t> bytes);
  // Rows in a device's memory, which has looked at them. facts: [rows]. Errors are Open's. Of such
  // draft_probs only shape, bytes and totals may be asked for.
  static absl::StatusOr<DraftProbs> OpenOnDevice(const DraftProbsShape& shape,
                                                 absl::Span<const uint8_t> bytes,
                                                 absl::Span<const sampling::DraftRowFacts> facts);

  const DraftProbsShape& shape() const { return shape_; }
  bool on_device() const { return on_device_; }
  // All rows as they lie.
  absl::Span<const uint8_t> bytes() const { return {bytes_, shape_.bytes()}; }
  // [entries]; whole rows have no ids.
  absl::Span<const uint16_t> probs(int32_t row) const;
  absl::Span<const base::TokenId> ids(int32_t row) const;
  // The sum of the row's draft_probs, as sampling::TotalProb of the whole row has it.
  double total(int32_t row) const { return totals_[row]; }
  absl::Span<const double> totals() const { return totals_; }  // [rows]
  // 0 for tokens that the row does not name.
  float prob(int32_t row, base::TokenId token) const;

 private:
  DraftProbsShape shape_;
  const uint8_t* bytes_ = nullptr;
  bool on_device_ = false;
  std::vector<double> totals_;
};

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_DRAFT_PROBS_H_
