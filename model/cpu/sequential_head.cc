#include "model/cpu/sequential_head.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/load_weights.h"

namespace specfabric::model::cpu {
namespace {

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

}  // namespace

absl::StatusOr<SequentialHead> SequentialHead::Load(
    const OpenedDrafter& drafter, const ModelConfig& config,
    const MatrixFactory<std::unique_ptr<Linear>>& make_matrix) {
  absl::StatusOr<SequentialWeightsOf<std::unique_ptr<Linear>>> weights =
      LoadSequentialWeights(drafter.own.checkpoint, config, make_matrix);
  if (!weights.ok()) return weights.status();
  return SequentialHead(config, *std::move(weights));
}

absl::StatusOr<const float*> SequentialHead::Continue(absl::Span<const BlockNode> nodes,
                                                      absl::Span<const float> states,
                                                      const float* outputs, const float* logits) {
  const size_t count = draft_vocabulary_;
  corrected_.resize(nodes.size() * count);
  if (block_.markov == MarkovKind::kNone) {
    std::fill(corrected_.begin(), corrected_.end(), 0.0f);
  } else {
    const absl::StatusOr<const float*> features = Features(nodes, states, outputs);
    if (!features.ok()) return features.status();
    absl::Status status =
        weights_.scores->Forward(*features, static_cast<int>(nodes.size()), corrected_.data());
    if (!status.ok()) return status;
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    const float* base = logits + nodes[i].row * count;
    for (size_t j = 0; j < count; ++j) corrected_[i * count + j] += base[j];
  }
  EstimateAcceptance(nodes, outputs);
  return corrected_.data();
}

absl::StatusOr<const float*> SequentialHead::Features(absl::Span<const BlockNode> nodes,
                                                      absl::Span<const float> states,
                                                      const float* outputs) {
  const size_t rank = block_.markov_rank;
  embeddings_.resize(nodes.size() * rank);
  for (size_t i = 0; i < nodes.size(); ++i) tokens_.Get(nodes[i].before, &embeddings_[i * rank]);
  absl::Status status;
  if (block_.markov == MarkovKind::kVanilla) return embeddings_.data();
  status =
      block_.markov == MarkovKind::kGated ? Gate(nodes, outputs) : Recur(nodes, states, outputs);
  if (!status.ok()) return status;
  return features_.data();
}

// features = sigmoid(W [output; embedding] + b) * embedding
absl::Status SequentialHead::Gate(absl::Span<const BlockNode> nodes, const float* outputs) {
  const size_t rank = block_.markov_rank, hidden = hidden_;
  joined_.resize(nodes.size() * (hidden + rank));
  float* to = joined_.data();
  for (size_t i = 0; i < nodes.size(); ++i) {
    to = std::copy_n(outputs + nodes[i].row * hidden, hidden, to);
    to = std::copy_n(&embeddings_[i * rank], rank, to);
  }
  features_.resize(nodes.size() * rank);
  absl::Status status =
      weights_.joint->Forward(joined_.data(), static_cast<int>(nodes.size()), features_.data());
  if (!status.ok()) return status;
  for (size_t i = 0; i < features_.size(); ++i) {
    features_[i] = Sigmoid(features_[i] + weights_.joint_bias[i % rank]) * embeddings_[i];
  }
  return status;
}

// (g, c, o) = W [state; embedding; output] + b;
// state' = sigmoid(g) * state + (1 - sigmoid(g)) * tanh(c); features = tanh(o)
absl::Status SequentialHead::Recur(absl::Span<const BlockNode> nodes,
                                   absl::Span<const float> states, const float* outputs) {
  const size_t rank = block_.markov_rank, hidden = hidden_;
  if (states.size() != nodes.size() * rank) {
    return absl::InvalidArgumentError(absl::StrCat("states of ", states.size(), " values for ",
                                                   nodes.size(), " nodes; allowed: ", rank,
                                                   " a node"));
  }
  joined_.resize(nodes.size() * (2 * rank + hidden));
  float* to = joined_.data();
  for (size_t i = 0; i < nodes.size(); ++i) {
    to = std::copy_n(&states[i * rank], rank, to);
    to = std::copy_n(&embeddings_[i * rank], rank, to);
    to = std::copy_n(outputs + nodes[i].row * hidden, hidden, to);
  }
  projected_.resize(nodes.size() * 3 * rank);
  absl::Status status =
      weights_.joint->Forward(joined_.data(), static_cast<int>(nodes.size()), projected_.data());
  if (!status.ok()) return status;
  features_.resize(nodes.size() * rank);
  states_.resize(nodes.size() * rank);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const float* z = &projected_[i * 3 * rank];
    for (size_t j = 0; j < rank; ++j) {
      const float gate = Sigmoid(z[j] + weights_.joint_bias[j]);
      const float candidate = std::tanh(z[rank + j] + weights_.joint_bias[rank + j]);
      states_[i * rank + j] = gate * states[i * rank + j] + (1 - gate) * candidate;
      features_[i * rank + j] = std::tanh(z[2 * rank + j] + weights_.joint_bias[2 * rank + j]);
    }
  }
  return status;
}

void SequentialHead::EstimateAcceptance(absl::Span<const BlockNode> nodes, const float* outputs) {
  if (!block_.confidence) return;
  const size_t hidden = hidden_, rank = block_.markov_rank;
  confidences_.resize(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    const float* output = outputs + nodes[i].row * hidden;
    float sum = weights_.confidence.back();
    for (size_t j = 0; j < hidden; ++j) sum += weights_.confidence[j] * output[j];
    for (size_t j = 0; block_.confidence_reads_markov && j < rank; ++j) {
      sum += weights_.confidence[hidden + j] * embeddings_[i * rank + j];
    }
    confidences_[i] = Sigmoid(sum);
  }
}

}  // namespace specfabric::model::cpu
