#ifndef SPECFABRIC_VERIFICATION_DEVICE_DRAFT_ROWS_H_
#define SPECFABRIC_VERIFICATION_DEVICE_DRAFT_ROWS_H_

// Rows of draft probabilities (speculation/draft_probs.h) in device memory (of
// transport::MemoryKind::kCuda): the draft computes them there from the logits of a pass and draws
// tokens from them; the target validates them there and verifies with them. Neither side copies
// them to its host.

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

// A row to compute, and the siblings to draw from it.
struct RowDraw {
  int32_t logit = 0;  // the row of the pass's logits to compute it from
  base::SamplingParams sampling = {};
  int32_t top_n = 0;  // as in sampling::MakeDraftProbs
  // The row's address in device memory, and its number of tokens: the whole vocabulary or top_n.
  uint8_t* row = nullptr;
  int32_t entries = 0;
  // kWithReplacement or kWithoutReplacement; 1 to speculation::kMaxDraftNodes - 1 siblings.
  speculation::SiblingDraw draw = speculation::SiblingDraw::kWithoutReplacement;
  int32_t siblings = 0;
  sampling::DrawSite site = {};
};

struct DrawnSibling {
  base::TokenId token = base::kNoToken;
  uint16_t prob = 0;  // as in the row
};
struct DrawnRow {
  double total = 0;  // sampling::TotalProb
  int32_t count = 0;
  DrawnSibling siblings[speculation::kMaxDraftNodes] = {};  // [count], in draw order
};

// Draft rows of one rank, which has the whole vocabulary; used by its thread. Each call waits for
// the device once. ResourceExhausted or Internal: the device failed.
class DeviceDraftRows {
 public:
  // device: that of the rank's model (model::RankModel::device), which must outlive the result;
  // null where it is null, and in a build without CUDA.
  static std::unique_ptr<DeviceDraftRows> Create(const base::cuda::Device* device);
  virtual ~DeviceDraftRows() = default;
  // Allocates the memory for so many draws at once, so that Draw need not.
  virtual absl::Status Reserve(int32_t vocabulary, int32_t draws) = 0;
  // Writes the row of each draw and sets drawn[i] to the siblings drawn from it, with the bits of
  // sampling::MakeDraftProbs and Draw...; for top-p see verification/cuda/row_distribution.h. A row
  // from which nothing was drawn must not be sent.
  virtual absl::Status Draw(const base::cuda::LogitMatrix& logits, absl::Span<const RowDraw> draws,
                            absl::Span<DrawnRow> drawn) = 0;
  // facts[i] = sampling::FactsOf(row i). rows: in device memory, aligned to 4 bytes, as a peer sent
  // them: nothing in them is trusted. facts: [rows].
  virtual absl::Status Validate(const uint8_t* rows, int32_t vocabulary, int32_t entries,
                                absl::Span<sampling::DraftRowFacts> facts) = 0;
  // Copies device memory to host memory.
  virtual absl::Status Fetch(absl::Span<const uint8_t> device, uint8_t* host) = 0;
};

}  // namespace specfabric::verification

#endif  // SPECFABRIC_VERIFICATION_DEVICE_DRAFT_ROWS_H_
