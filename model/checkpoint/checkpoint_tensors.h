#ifndef SPECFABRIC_MODEL_CHECKPOINT_CHECKPOINT_TENSORS_H_
#define SPECFABRIC_MODEL_CHECKPOINT_CHECKPOINT_TENSORS_H_

// Which of a checkpoint's tensors a transformer reads, and what those mean that it does not read.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/safetensors.h"

namespace specfabric::model {

constexpr char kEmbeddingName[] = "model.embed_tokens.weight";
constexpr char kHeadName[] = "lm_head.weight";
constexpr char kNormName[] = "model.norm.weight";  // the last, before the head

// A checkpoint that is safe to run as `config` says.
struct OpenedCheckpoint {
  Checkpoint checkpoint;
  // The embedding is the output head too. config.json alone does not say so: a head of its own that
  // differs from the embedding is used, as in transformers.
  bool tied_embeddings = false;
  // What the operator should know, for the log: tensors that are ignored, files, the head.
  std::vector<std::string> notes;
};

// How the tensors of a model are named: those above all layers, and how each layer's begin.
struct TensorNames {
  const char* embedding;
  const char* head;
  const char* norm;  // the last, before the head
  const char* layers;
};
constexpr TensorNames kModelNames = {kEmbeddingName, kHeadName, kNormName, "model.layers."};
constexpr TensorNames kDrafterNames = {"embed_tokens.weight", kHeadName, "norm.weight", "layers."};
// The first of an MTP checkpoint's layers, whose last norm is among its tensors.
constexpr TensorNames kMtpNames = {kDrafterNames.embedding, kHeadName,
                                   "mtp_layers.0.final_layernorm.weight", "mtp_layers."};
constexpr TensorNames kTargetMtpNames = {
    kEmbeddingName, kHeadName, "model.mtp_layers.0.final_layernorm.weight", "model.mtp_layers."};
inline const TensorNames& NamesOf(const ModelConfig& config) {
  if (!config.states) return kModelNames;
  if (!config.states->mtp) return kDrafterNames;
  return config.states->mtp->in_target ? kTargetMtpNames : kMtpNames;
}

// Whether the first layer reads pairs of an embedding and a fused state.
inline bool JoinsStates(const ModelConfig& config) {
  return config.states && config.states->kind == DrafterKind::kEagle3;
}

// What only drafters that read hidden states have (config.h).
constexpr char kFuseName[] = "fc.weight";
constexpr char kFuseBiasName[] = "fc.bias";
constexpr char kFuseNormName[] = "input_norm.weight";    // over all of fc's inputs
std::string FuseNormName(int32_t layer);                 // over one layer's
constexpr char kStateNormName[] = "hidden_norm.weight";  // in the first layer; of blocks, above all
constexpr char kDraftIdsName[] = "d2t";
// Of an MTP drafter's layer.
constexpr char kMtpTokenNormName[] = "token_layernorm.weight";
constexpr char kMtpStateNormName[] = "hidden_layernorm.weight";
constexpr char kMtpInputName[] = "input_proj.weight";  // [hidden][2 * hidden]
// Of block drafters' heads.
constexpr char kMarkovTokensName[] = "markov_head.markov_w1.weight";  // [vocabulary][rank]
constexpr char kMarkovScoresName[] = "markov_head.markov_w2.weight";  // [draft vocabulary][rank]
constexpr char kMarkovGateName[] = "markov_head.gate_proj.";          // kGated; weight and bias
constexpr char kMarkovJointName[] = "markov_head.joint_proj.";        // kRecurrent; likewise
constexpr char kConfidenceName[] = "confidence_head.proj.";           // likewise

// What the names of a layer's tensors begin with.
std::string LayerPrefix(const Checkpoint& checkpoint, const ModelConfig& config, int32_t layer);

// The tensor of the embedding: the head's, where a tied checkpoint stores that alone.
inline const char* EmbeddingName(const Checkpoint& checkpoint, bool tied) {
  const bool head_alone = !checkpoint.Contains(kEmbeddingName) && checkpoint.Contains(kHeadName);
  return tied && head_alone ? kHeadName : kEmbeddingName;
}

// Opens the checkpoint of a folder. Errors are Checkpoint::Open's; NotFound: it has no head, and no
// target either that has one; Unimplemented: it holds tensors that are not read although they would
// change the result: others of the model's own layers, or scales of quantized weights.
absl::StatusOr<OpenedCheckpoint> OpenCheckpoint(const std::string& model_dir,
                                                const ModelConfig& config);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CHECKPOINT_CHECKPOINT_TENSORS_H_
