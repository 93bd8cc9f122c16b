#ifndef SPECFABRIC_MODEL_NUMERICS_H_
#define SPECFABRIC_MODEL_NUMERICS_H_

// What a RankModel's NumericsFingerprint is made of.

#include <cstdint>
#include <string_view>

#include "model/checkpoint/config.h"
#include "model/checkpoint/drafter_tensors.h"
#include "model/checkpoint/safetensors.h"
#include "model/rope.h"

namespace specfabric::model {

// Weights, and everything of a configuration that decides bits but is in no tensor. Reads the whole
// checkpoint once, with ReadingThreads() threads.
uint64_t HashModel(const Checkpoint& checkpoint, const ModelConfig& config, const RopeTable& rope);

// The same of a drafter that reads hidden states, with what it has of its target.
uint64_t HashModel(const OpenedDrafter& drafter, const ModelConfig& config, const RopeTable& rope);

// What runs them: kernels by name, and their version, which changes whenever the same weights would
// give other bits: order of sums, rounding, layout.
uint64_t HashKernels(std::string_view name, uint64_t version, DataType dtype);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_NUMERICS_H_
