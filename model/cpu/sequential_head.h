#ifndef SPECFABRIC_MODEL_CPU_SEQUENTIAL_HEAD_H_
#define SPECFABRIC_MODEL_CPU_SEQUENTIAL_HEAD_H_

// What a DSpark drafter (arXiv 2607.05147) makes of a block's rows token by token: scores corrected
// for the token before, by a matrix of low rank, and how likely each draft token is accepted. Used
// by the rank's thread.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/checkpoint/drafter_tensors.h"
#include "model/cpu/weights.h"
#include "model/rank_model.h"

namespace specfabric::model::cpu {

class SequentialHead {
 public:
  // Errors are those of Checkpoint::Find and of the factory.
  static absl::StatusOr<SequentialHead> Load(
      const OpenedDrafter& drafter, const ModelConfig& config,
      const MatrixFactory<std::unique_ptr<Linear>>& make_matrix);

  // As RankModel::ContinueBlock. Of the pass: outputs, [logit rows][hidden], after the last norm,
  // and logits, [logit rows][draft vocabulary]. Returns [nodes][draft vocabulary]. Everything is
  // valid until the next call.
  absl::StatusOr<const float*> Continue(absl::Span<const BlockNode> nodes,
                                        absl::Span<const float> states, const float* outputs,
                                        const float* logits);
  absl::Span<const float> states() const { return states_; }            // [nodes][rank], or empty
  absl::Span<const float> confidences() const { return confidences_; }  // [nodes], or empty

 private:
  SequentialHead(const ModelConfig& config, SequentialWeightsOf<std::unique_ptr<Linear>> weights)
      : block_(*config.states->block),
        hidden_(config.hidden),
        draft_vocabulary_(config.states->draft_vocabulary),
        weights_(std::move(weights)) {
    if (block_.markov != MarkovKind::kNone) {
      tokens_ = EmbeddingTable(weights_.tokens, DataType::kFloat32);
      weights_.tokens = StoredRows(0);  // of the checkpoint, which is closed
    }
  }

  // What the correction is a projection of, [nodes][rank], from the embeddings of the tokens
  // before.
  absl::StatusOr<const float*> Features(absl::Span<const BlockNode> nodes,
                                        absl::Span<const float> states, const float* outputs);
  absl::Status Gate(absl::Span<const BlockNode> nodes, const float* outputs);
  absl::Status Recur(absl::Span<const BlockNode> nodes, absl::Span<const float> states,
                     const float* outputs);
  void EstimateAcceptance(absl::Span<const BlockNode> nodes, const float* outputs);

  BlockDrafter block_;
  int32_t hidden_, draft_vocabulary_;
  SequentialWeightsOf<std::unique_ptr<Linear>> weights_;
  EmbeddingTable tokens_;  // [vocabulary][rank]

  // Of a call, kept so that steady calls allocate nothing.
  std::vector<float> embeddings_, features_;  // [nodes][rank]
  std::vector<float> joined_, projected_;
  std::vector<float> corrected_;  // [nodes][draft vocabulary]
  std::vector<float> states_, confidences_;
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_SEQUENTIAL_HEAD_H_
