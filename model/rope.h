#ifndef SPECFABRIC_MODEL_ROPE_H_
#define SPECFABRIC_MODEL_ROPE_H_

// Rotary position embedding (Su et al., 2104.09864) with the context extensions that checkpoints
// name: linear interpolation, Llama 3's by-frequency interpolation, and YaRN (2309.00071). The
// numbers are those of transformers' modeling_rope_utils, which fixes what a checkpoint means.

#include <vector>

#include "absl/types/span.h"
#include "model/checkpoint/config.h"

namespace specfabric::model {

struct RopeTable {
  std::vector<float> inverse_frequencies;  // [head_dim / 2]
  float attention_factor = 1.0f;           // multiplies every cosine and sine
};

RopeTable MakeRopeTable(const RopeConfig& rope, int head_dim);

// cosines and sines: [positions][head_dim / 2], attention factor included. The angle is rounded to
// float32 as in transformers, which shows at large positions.
void RopeAngles(const RopeTable& table, absl::Span<const int32_t> positions,
                std::vector<float>* cosines, std::vector<float>* sines);

// Rotates one head in place: element i turns with element i + head_dim / 2.
void Rotate(const float* cosines, const float* sines, int head_dim, float* head);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_ROPE_H_
