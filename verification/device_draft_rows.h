#ifndef SPECFABRIC_VERIFICATION_DEVICE_DRAFT_ROWS_H_
#define SPECFABRIC_VERIFICATION_DEVICE_DRAFT_ROWS_H_

// Rows of draft probabilities (speculation/draft_probs.h) in a device's memory: the draft makes
// them there from the logits of a pass and draws from them, the target validates them there and
// verifies with them, so that neither side brings them to its host. They lie in memory of
// transport::MemoryKind::kCuda.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/cuda/device.h"
#include "base/cuda/logit_matrix.h"
#include "base/types.h"
#include "sampling/draft_row.h"
#include "speculation/tree.h"
#include "speculation/verification_method.h"

namespace specfabric::verification {

// One row to be made, and the siblings that are to be drawn from it.
struct RowDraw {
  int32_t logit = 0;  // row of the pass's logits
  base::SamplingParams sampling = {};
  int32_t top_n = 0;  // as sampling::MakeDraftProbs has it
  // Where the row goes, in device memory, and how many tokens it names: all of them, or top_n.
  uint8_t* row = nullptr;
  int32_t entries = 0;
  // kWithReplacement or kWithoutReplacement, so many, 1 to speculation::kMaxDraftNodes - 1.
  speculation::SiblingDraw draw = speculation::SiblingDraw::kWithoutReplacement;
  int32_t siblings = 0;
  sampling::DrawSite site = {};
};

struct DrawnSibling {
  base::TokenId token = base::kNoToken;
  uint16_t prob = 0;  // in its row
};
struct DrawnRow {
  double total = 0;  // sampling::TotalProb
  int32_t count = 0;
  DrawnSibling siblings[speculation::kMaxDraftNodes] = {};  // [count], in the order of the draw
};

// Of one rank, which has the whole vocabulary; on its thread. Each call waits for the device once.
// ResourceExhausted or Internal: the device failed.
class DeviceDraftRows {
 public:
  // On the device that a rank's model names (model::RankModel::device), which must outlive it;
  // null: there is none.
  static std::unique_ptr<DeviceDraftRows> Create(const base::cuda::Device* device);
  virtual ~DeviceDraftRows() = default;
  // Takes the memory for so many draws at once, from rows of so many tokens; otherwise the first
  // calls of Draw that need it take it.
  virtual absl::Status Reserve(int32_t vocabulary, int32_t draws) = 0;
  // drawn[i] becomes what is drawn from draws[i], and its row is written: the bits of
  // sampling::MakeDraftProbs and Draw..., except top-p, as verification/cuda/row_distribution.h
  // says. Where nothing is drawn the row is not one to send.
  virtual absl::Status Draw(const base::cuda::LogitMatrix& logits, absl::Span<const RowDraw> draws,
                            absl::Span<DrawnRow> drawn) = 0;
  // facts[i] = sampling::FactsOf row i of these, in device memory, aligned to 4 bytes, which a
  // peer has sent; nothing in them is trusted. facts: [rows].
  virtual absl::Status Validate(const uint8_t* rows, int32_t vocabulary, int32_t entries,
                                absl::Span<sampling::DraftRowFacts> facts) = 0;
  // Copies device memory to the host's.
  virtual absl::Status Fetch(absl::Span<const uint8_t> device, uint8_t* host) = 0;
};

}  // namespace specfabric::verification

#endif  // SPECFABRIC_VERIFICATION_DEVICE_DRAFT_ROWS_H_
