#ifndef SPECFABRIC_SPECULATION_DRAFT_PROBS_H_
#define SPECFABRIC_SPECULATION_DRAFT_PROBS_H_

// Draft probabilities (q): the tensor that a draft sends beside a DraftReply where the verification
// method reads them (sampling/draft_row.h). It has one row for each node with children, in
// ascending order of these nodes; the siblings under a node were drawn from its row. Little-endian,
// either
//   whole rows:  uint16 prob[rows][vocabulary], bfloat16
//   or, where the draft keeps only the `entries` likeliest tokens of a row, for each row:
//                int32 id[entries], ascending; then uint16 prob[entries]; then zeros up to a
//                multiple of 4 bytes
// Nothing is copied: the draft writes to the slot that it sends, and the target reads the slot that
// it received.

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
  int32_t entries = 0;  // per row; `vocabulary`: whole rows

  bool whole() const { return entries == vocabulary; }
  size_t row_bytes() const {
    const size_t draft_probs = static_cast<size_t>(entries) * sizeof(uint16_t);
    if (whole()) return draft_probs;
    return entries * sizeof(base::TokenId) + (draft_probs + 3) / 4 * 4;
  }
  size_t bytes() const { return static_cast<size_t>(rows) * row_bytes(); }
  bool operator==(const DraftProbsShape&) const = default;
};

// The shape of rows that a draft truncates to their `top_n` likeliest tokens (0: not truncated).
// Rows that would be no smaller than whole ones are whole.
DraftProbsShape ShapeFor(int32_t rows, int32_t vocabulary, int32_t top_n);

// Writes rows of [vocabulary] probabilities to a slot of shape.bytes(), 8-byte aligned. A truncated
// row in which fewer than `entries` tokens have a probability is filled up with tokens of 0.
class DraftProbsWriter {
 public:
  DraftProbsWriter(const DraftProbsShape& shape, uint8_t* slot) : shape_(shape), slot_(slot) {}
  // The memory of a whole row, for a caller that computes it in place.
  absl::Span<uint16_t> WholeRow(int32_t row);
  void Write(int32_t row, absl::Span<const uint16_t> draft_probs);

 private:
  const DraftProbsShape shape_;
  uint8_t* const slot_;
};

// InvalidArgument: a tensor of this shape has another size, or no tree has so many rows.
absl::Status CheckSize(const DraftProbsShape& shape, size_t bytes);

// Reads received rows. Spans are of the slot, which must outlive them.
class DraftProbs {
 public:
  // InvalidArgument: the size is not the shape's, a probability is negative, infinite or not a
  // number, all of a row are 0, or ids are outside the vocabulary or not ascending. Reads all bytes
  // once.
  static absl::StatusOr<DraftProbs> Open(const DraftProbsShape& shape,
                                         absl::Span<const uint8_t> bytes);
  // Rows in a device's memory, for which the device has computed `facts`, [rows]. Errors are
  // Open's. Only shape, bytes and totals may be read of such draft probabilities.
  static absl::StatusOr<DraftProbs> OpenOnDevice(const DraftProbsShape& shape,
                                                 absl::Span<const uint8_t> bytes,
                                                 absl::Span<const sampling::DraftRowFacts> facts);

  const DraftProbsShape& shape() const { return shape_; }
  bool on_device() const { return on_device_; }
  // All rows, as received.
  absl::Span<const uint8_t> bytes() const { return {bytes_, shape_.bytes()}; }
  // [entries]; whole rows have no ids.
  absl::Span<const uint16_t> probs(int32_t row) const;
  absl::Span<const base::TokenId> ids(int32_t row) const;
  // The sum of the row's probabilities, the same number as sampling::TotalProb of the whole row.
  double total(int32_t row) const { return totals_[row]; }
  absl::Span<const double> totals() const { return totals_; }  // [rows]
  // 0 for tokens that a truncated row leaves out.
  float prob(int32_t row, base::TokenId token) const;

 private:
  DraftProbsShape shape_;
  const uint8_t* bytes_ = nullptr;
  bool on_device_ = false;
  std::vector<double> totals_;
};

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_DRAFT_PROBS_H_
