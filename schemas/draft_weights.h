#ifndef SPECFABRIC_SCHEMAS_DRAFT_WEIGHTS_H_
#define SPECFABRIC_SCHEMAS_DRAFT_WEIGHTS_H_

// The tensor that goes with a DraftReply where the coupling weighs the draft's distributions
// (speculation/proposal.h): one row of weights for each node that has children, in ascending order
// of these nodes. The siblings under a node were drawn from its row. Little-endian, either
//   whole rows:  uint16 weight[rows][vocabulary], bfloat16
//   or, where the draft keeps its `entries` heaviest tokens of a row only, for each row:
//                int32 id[entries], ascending; then uint16 weight[entries]; then zeros up to a
//                multiple of 4 bytes
// Nothing is copied: the draft writes to the slot that it sends, the target reads the slot that it
// received.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/types.h"
#include "speculation/proposal.h"

namespace specfabric::schemas {

struct DraftWeightsShape {
  int32_t rows = 0;
  int32_t vocabulary = 0;
  int32_t entries = 0;  // a row; `vocabulary`: whole rows

  bool whole() const { return entries == vocabulary; }
  size_t row_bytes() const {
    const size_t weights = static_cast<size_t>(entries) * sizeof(uint16_t);
    if (whole()) return weights;
    return entries * sizeof(base::TokenId) + (weights + 3) / 4 * 4;
  }
  size_t bytes() const { return static_cast<size_t>(rows) * row_bytes(); }
  bool operator==(const DraftWeightsShape&) const = default;
};

// The shape in which a draft sends rows cut to its `top_n` heaviest tokens (0: not cut). Rows that
// would be no smaller than whole ones are whole.
DraftWeightsShape ShapeFor(int32_t rows, int32_t vocabulary, int32_t top_n);

// Puts rows of [vocabulary] weights into a slot. `slot` is 8-byte aligned and of shape.bytes(). In
// rows that are not whole, tokens without weight fill up where fewer than `entries` have one.
class DraftWeightsWriter {
 public:
  DraftWeightsWriter(const DraftWeightsShape& shape, uint8_t* slot) : shape_(shape), slot_(slot) {}
  // Where a whole row lies, so that it can be made in place.
  absl::Span<uint16_t> WholeRow(int32_t row);
  void Write(int32_t row, absl::Span<const uint16_t> weights);

 private:
  const DraftWeightsShape shape_;
  uint8_t* const slot_;
};

// InvalidArgument: nothing of that size is of this shape, or no tree has so many rows.
absl::Status CheckSize(const DraftWeightsShape& shape, size_t bytes);

// Reads received rows. Spans are of the slot, which must outlive them.
class DraftWeights {
 public:
  // InvalidArgument: the bytes are not of this shape, a weight is negative, infinite or no number,
  // a row has no weight at all, or ids are out of the vocabulary or not ascending. One pass over
  // all.
  static absl::StatusOr<DraftWeights> Open(const DraftWeightsShape& shape,
                                           absl::Span<const uint8_t> bytes);
  // Rows in a device's memory, which has looked at them. facts: [rows]. Errors are Open's. Of such
  // weights only shape, bytes and totals may be asked for.
  static absl::StatusOr<DraftWeights> OpenOnDevice(
      const DraftWeightsShape& shape, absl::Span<const uint8_t> bytes,
      absl::Span<const speculation::WeightRowFacts> facts);

  const DraftWeightsShape& shape() const { return shape_; }
  bool on_device() const { return on_device_; }
  // All rows as they lie.
  absl::Span<const uint8_t> bytes() const { return {bytes_, shape_.bytes()}; }
  // [entries]; whole rows have no ids.
  absl::Span<const uint16_t> weights(int32_t row) const;
  absl::Span<const base::TokenId> ids(int32_t row) const;
  // The sum of the row's weights, as TotalWeight of the whole row has it.
  double total(int32_t row) const { return totals_[row]; }
  absl::Span<const double> totals() const { return totals_; }  // [rows]
  // 0 for tokens that the row does not name.
  float weight(int32_t row, base::TokenId token) const;

 private:
  DraftWeightsShape shape_;
  const uint8_t* bytes_ = nullptr;
  bool on_device_ = false;
  std::vector<double> totals_;
};

}  // namespace specfabric::schemas

#endif  // SPECFABRIC_SCHEMAS_DRAFT_WEIGHTS_H_
