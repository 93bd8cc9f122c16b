#include "model/cpu/sequential_head.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/load_weights.h"

namespace specfabric::model::cpu {
namespace {

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// A layer with a bias, whole.
absl::Status LoadBiased(const loading::Loader<std::unique_ptr<Linear>>& loader, const char* name,
                        int32_t outputs, int32_t inputs, std::unique_ptr<Linear>* weights,
                        std::vector<float>* bias) {
  absl::Status status =
      loader.Layer({loading::RowShard(absl::StrCat(name, "weight"), outputs, inputs, 0, outputs)},
                   /*parts=*/1, weights);
  status.Update(loader.Vector(absl::StrCat(name, "bias"), outputs, bias));
  return status;
}

// [1][inputs] and its bias, as floats.
absl::Status LoadConfidence(const Checkpoint& checkpoint, int32_t inputs,
                            std::vector<float>* weights) {
  weights->resize(inputs + 1);
  for (const auto& [name, shape, at] : {std::tuple{"weight", std::vector<int64_t>{1, inputs}, 0},
                                        std::tuple{"bias", std::vector<int64_t>{1}, inputs}}) {
    const absl::StatusOr<const StoredTensor*> tensor =
        checkpoint.Find(absl::StrCat(kConfidenceName, name), shape);
    if (!tensor.ok()) return tensor.status();
    ReadFloats(**tensor, 0, shape.back(), weights->data() + at);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SequentialHead> SequentialHead::Load(
    const OpenedDrafter& drafter, const ModelConfig& config,
    const MatrixFactory<std::unique_ptr<Linear>>& make_matrix) {
  SequentialHead head(config);
  const BlockDrafter& block = head.block_;
  const Checkpoint& checkpoint = drafter.own.checkpoint;
  const int32_t rank = block.markov_rank;
  const loading::Loader<std::unique_ptr<Linear>> loader(checkpoint, make_matrix);
  absl::Status status;
  if (block.markov != MarkovKind::kNone) {
    const absl::StatusOr<const StoredTensor*> tokens =
        checkpoint.Find(kMarkovTokensName, {config.vocabulary, rank});
    if (!tokens.ok()) return tokens.status();
    StoredRows rows(rank);
    rows.Add({.tensor = *tokens, .columns = rank, .row_count = config.vocabulary});
    head.tokens_ = EmbeddingTable(rows, DataType::kFloat32);
    const int32_t count = head.draft_vocabulary_;
    status = loader.Layer({loading::RowShard(kMarkovScoresName, count, rank, 0, count)},
                          /*parts=*/1, &head.scores_);
  }
  if (block.markov == MarkovKind::kGated) {
    status.Update(LoadBiased(loader, kMarkovGateName, rank, config.hidden + rank, &head.joint_,
                             &head.joint_bias_));
  } else if (block.markov == MarkovKind::kRecurrent) {
    status.Update(LoadBiased(loader, kMarkovJointName, 3 * rank, config.hidden + 2 * rank,
                             &head.joint_, &head.joint_bias_));
  }
  if (block.confidence) {
    status.Update(LoadConfidence(
        checkpoint, config.hidden + (block.confidence_reads_markov ? rank : 0), &head.confidence_));
  }
  if (!status.ok()) return status;
  return head;
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
        scores_->Forward(*features, static_cast<int>(nodes.size()), corrected_.data());
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
      joint_->Forward(joined_.data(), static_cast<int>(nodes.size()), features_.data());
  if (!status.ok()) return status;
  for (size_t i = 0; i < features_.size(); ++i) {
    features_[i] = Sigmoid(features_[i] + joint_bias_[i % rank]) * embeddings_[i];
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
      joint_->Forward(joined_.data(), static_cast<int>(nodes.size()), projected_.data());
  if (!status.ok()) return status;
  features_.resize(nodes.size() * rank);
  states_.resize(nodes.size() * rank);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const float* z = &projected_[i * 3 * rank];
    for (size_t j = 0; j < rank; ++j) {
      const float gate = Sigmoid(z[j] + joint_bias_[j]);
      const float candidate = std::tanh(z[rank + j] + joint_bias_[rank + j]);
      states_[i * rank + j] = gate * states[i * rank + j] + (1 - gate) * candidate;
      features_[i * rank + j] = std::tanh(z[2 * rank + j] + joint_bias_[2 * rank + j]);
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
    float sum = confidence_.back();
    for (size_t j = 0; j < hidden; ++j) sum += confidence_[j] * output[j];
    for (size_t j = 0; block_.confidence_reads_markov && j < rank; ++j) {
      sum += confidence_[hidden + j] * embeddings_[i * rank + j];
    }
    confidences_[i] = Sigmoid(sum);
  }
}

}  // namespace specfabric::model::cpu
