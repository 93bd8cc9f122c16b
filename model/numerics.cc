#include "model/numerics.h"

#include <bit>

#include "base/hash.h"
#include "model/checkpoint/stored_rows.h"

namespace specfabric::model {
namespace {

uint64_t HashDouble(uint64_t hash, double value) {
  return base::Mix64(hash ^ std::bit_cast<uint64_t>(value));
}

uint64_t HashBlock(uint64_t hash, const BlockDrafter& block) {
  for (bool causal : block.causal) hash = HashDouble(hash, double(causal));
  for (double value :
       {double(block.rows), double(block.from_anchor), double(static_cast<int>(block.markov))}) {
    hash = HashDouble(hash, value);
  }
  return hash;
}

uint64_t HashStates(uint64_t hash, const StateDrafter& states) {
  for (bool flag : {states.norm_before_fc, states.fc_norm, states.fc_bias,
                    states.norm_before_residual, states.norm_output}) {
    hash = HashDouble(hash, double(flag));
  }
  for (int32_t layer : states.layers) hash = HashDouble(hash, double(layer));
  for (int32_t window : states.windows) hash = HashDouble(hash, double(window));
  if (states.mtp) {
    hash = HashDouble(hash, double(states.mtp->in_target));
    hash = HashDouble(hash, double(states.mtp->state_first));
  }
  return states.block ? HashBlock(hash, *states.block) : hash;
}

uint64_t HashConfig(const ModelConfig& config, const RopeTable& rope) {
  uint64_t hash = base::Fnv1a(config.architecture);
  for (double value : {double(config.heads), double(config.kv_heads), double(config.head_dim),
                       double(config.layers), double(config.rms_epsilon),
                       double(config.tied_embeddings), double(rope.attention_factor)}) {
    hash = HashDouble(hash, value);
  }
  for (float frequency : rope.inverse_frequencies) hash = HashDouble(hash, frequency);
  return config.states ? HashStates(hash, *config.states) : hash;
}

}  // namespace

uint64_t HashModel(const Checkpoint& checkpoint, const ModelConfig& config, const RopeTable& rope) {
  return base::Mix64(checkpoint.ContentHash(ReadingThreads()) ^ HashConfig(config, rope));
}

uint64_t HashModel(const OpenedDrafter& drafter, const ModelConfig& config, const RopeTable& rope) {
  uint64_t hash = HashModel(drafter.own.checkpoint, config, rope);
  if (!drafter.target) return hash;
  if (drafter.target_norm != nullptr) {
    hash = base::Mix64(hash ^ ContentHash(*drafter.target_norm));
  }
  hash = base::Mix64(hash ^ ContentHash(*drafter.embedding));
  return base::Mix64(hash ^ ContentHash(*drafter.head));
}

uint64_t HashKernels(std::string_view name, uint64_t version, DataType dtype) {
  uint64_t hash = base::Mix64(version);
  hash = base::Mix64(hash ^ static_cast<uint64_t>(dtype));
  return base::Mix64(hash ^ base::Fnv1a(name));
}

}  // namespace specfabric::model
