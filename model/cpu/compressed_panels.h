#ifndef SPECFABRIC_MODEL_CPU_COMPRESSED_PANELS_H_
#define SPECFABRIC_MODEL_CPU_COMPRESSED_PANELS_H_

// Panels of bfloat16 weights in three quarters of their bytes, bit for bit: what a pass of few rows
// takes is the time to read the weights. The low byte of a weight, the mantissa and the exponent's
// last bit, is noise and stays as it is; but of the 256 high bytes, sign and exponent, a trained
// matrix uses few (DFloat11, arXiv 2504.11651, finds 2.6 bits of information in the exponents). So
// each panel has a table of the sixteen that are most frequent, and four bits choose among them. A
// step with any other weight, which is one far smaller than the rest, is kept apart as it is and
// read in its place. All weights have the same size, so decoding is a permutation, not a search.
//
// Immutable once made.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "model/cpu/aligned_buffer.h"
#include "model/cpu/kernels.h"
#include "model/cpu/thread_pool.h"

namespace specfabric::model::cpu {

class CompressedPanels {
 public:
  // raw: `panels` panels of [parts][steps][32][2] bfloat16, one behind the other. Nothing if so
  // many steps would have to be kept as they are that it does not pay. ResourceExhausted if the
  // machine has no memory.
  static absl::StatusOr<std::optional<CompressedPanels>> Compress(const uint16_t* raw, int panels,
                                                                  int parts, int steps,
                                                                  ThreadPool* pool);
  // Where Kernels::panels_compressed finds panel `panel`.
  void Fill(int panel, PanelArgs* args) const;

  size_t bytes() const { return groups_.bytes() + verbatim_.bytes(); }
  // Steps that are kept as they are, of all panels.
  int64_t verbatim_steps() const { return verbatim_steps_; }

 private:
  CompressedPanels() = default;

  size_t panel_bytes_ = 0;
  AlignedBuffer groups_;    // tables and codes
  AlignedBuffer verbatim_;  // [.][32][2], panel after panel
  int64_t verbatim_steps_ = 0;
  std::vector<int32_t> steps_;  // of verbatim_, panel after panel, each ended by kNoStep
  std::vector<size_t> first_;   // of a panel in steps_
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_COMPRESSED_PANELS_H_
