#include "model/cuda/sequential_head.h"

#include "absl/strings/str_cat.h"
#include "model/checkpoint/load_weights.h"
#include "model/cuda/device_weights.h"
#include "model/cuda/sequential_rows.h"

namespace specfabric::model::cuda {

SequentialHead::SequentialHead(const ModelConfig& config, DataType dtype, const int32_t* places,
                               const base::cuda::Device* device, const MatrixProducts* products)
    : block_(*config.states->block),
      hidden_(config.hidden),
      vocabulary_(config.vocabulary),
      draft_vocabulary_(config.states->draft_vocabulary),
      dtype_(dtype),
      places_(places),
      device_(device),
      products_(products) {}

absl::StatusOr<SequentialHead> SequentialHead::Load(
    const OpenedDrafter& drafter, const ModelConfig& config, DataType dtype, const int32_t* places,
    const base::cuda::Device* device, const MatrixProducts* products, WeightUpload* upload) {
  const MatrixFactory<Matrix> make = [upload](const LinearShape& shape, const StoredRows& rows) {
    return upload->Add(shape, rows);
  };
  absl::StatusOr<SequentialWeightsOf<Matrix>> host =
      LoadSequentialWeights(drafter.own.checkpoint, config, make);
  if (!host.ok()) return host.status();
  SequentialHead head(config, dtype, places, device, products);
  if (host->tokens.rows() > 0) {
    absl::StatusOr<Matrix> tokens = upload->Add(
        {.outputs = host->tokens.rows(), .inputs = host->tokens.inputs()}, host->tokens);
    if (!tokens.ok()) return tokens.status();
    head.tokens_ = *std::move(tokens);
  }
  head.scores_ = std::move(host->scores);
  head.joint_ = std::move(host->joint);
  absl::Status status = UploadFloats(*device, host->joint_bias, &head.joint_bias_);
  status.Update(UploadFloats(*device, host->confidence, &head.confidence_));
  if (!status.ok()) return status;
  return head;
}

void SequentialHead::AddMatrices(std::vector<const Matrix*>* matrices) const {
  for (const Matrix* matrix : {&scores_, &joint_}) {
    if (matrix->weights != nullptr) matrices->push_back(matrix);
  }
}

// Of what the product `joint` reads, or else the scores'.
int32_t SequentialHead::JoinedWidth() const {
  return joint_.weights != nullptr ? joint_.inputs : block_.markov_rank;
}

// Of a call, with the bytes that they need.
std::array<std::pair<base::cuda::DeviceBuffer*, size_t>, 7> SequentialHead::Buffers(size_t nodes) {
  const size_t rank = block_.markov_rank, elements = base::Bytes(dtype_), floats = sizeof(float);
  const bool corrects = scores_.weights != nullptr;
  const size_t own = recurs() ? rank : 0;
  return {{{&embeddings_, nodes * rank * floats},
           {&joined_, nodes * JoinedWidth() * elements},
           {&projected_, nodes * joint_.outputs * floats},
           {&features_, joint_.weights == nullptr ? 0 : nodes * rank * elements},
           {&corrections_, corrects ? nodes * draft_vocabulary_ * floats : 0},
           {&logits_, in_place() ? 0 : nodes * vocabulary_ * floats},
           {&said_, nodes * (own + 1) * floats}}};
}

bool SequentialHead::Fits(size_t nodes) {
  for (const auto& [buffer, bytes] : Buffers(nodes)) {
    if (bytes > buffer->bytes()) return false;
  }
  return true;
}

absl::Status SequentialHead::Reserve(size_t nodes) {
  absl::Status status;
  for (const auto& [buffer, bytes] : Buffers(nodes)) status.Update(buffer->Reserve(bytes));
  return status;
}

// corrections_, and the states that nodes hand on.
absl::Status SequentialHead::EnqueueCorrections(int32_t nodes, const void* outputs) {
  const int32_t rank = block_.markov_rank;
  NodeInputsArgs inputs = {.type = dtype_,
                           .nodes = nodes,
                           .hidden = hidden_,
                           .rank = rank,
                           .before = before_,
                           .table = tokens_.weights->memory.As<void>(),
                           .rows = rows_,
                           .outputs = outputs,
                           .width = JoinedWidth(),
                           .embeddings = embeddings_.As<float>(),
                           .joined = joined_.As<void>()};
  if (block_.markov == MarkovKind::kGated) {
    inputs.output_at = 0;
    inputs.embedding_at = hidden_;
  } else if (recurs()) {
    inputs.states = given_states_;
    inputs.embedding_at = rank;
    inputs.output_at = 2 * rank;
  }
  absl::Status status = EnqueueNodeInputs(inputs, device_->stream());
  const void* features = joined_.As<void>();
  if (joint_.weights != nullptr) {
    features = features_.As<void>();
    status.Update(
        products_->Multiply(dtype_, joint_, joined_.As<void>(), nodes, projected_.As<float>()));
    status.Update(EnqueueNodeFeatures({.type = dtype_,
                                       .markov = block_.markov,
                                       .nodes = nodes,
                                       .rank = rank,
                                       .products = projected_.As<float>(),
                                       .bias = joint_bias_.As<float>(),
                                       .embeddings = embeddings_.As<float>(),
                                       .states = given_states_,
                                       .next_states = said_.As<float>(),
                                       .features = features_.As<void>()},
                                      device_->stream()));
  }
  status.Update(products_->Multiply(dtype_, scores_, features, nodes, corrections_.As<float>()));
  return status;
}

absl::Status SequentialHead::EnqueueNodes(int32_t nodes, const Pass& pass) {
  absl::Status status;
  if (scores_.weights != nullptr) status.Update(EnqueueCorrections(nodes, pass.outputs));
  status.Update(EnqueueCorrectLogits({.nodes = nodes,
                                      .scored = draft_vocabulary_,
                                      .vocabulary = vocabulary_,
                                      .rows = rows_,
                                      .logits = pass.logits,
                                      .corrections = corrections_.As<float>(),
                                      .places = places_,
                                      .out = Logits()},
                                     device_->stream()));
  if (block_.confidence) {
    status.Update(
        EnqueueConfidences({.type = dtype_,
                            .nodes = nodes,
                            .hidden = hidden_,
                            .rank = block_.confidence_reads_markov ? block_.markov_rank : 0,
                            .rows = rows_,
                            .outputs = pass.outputs,
                            .embeddings = embeddings_.As<float>(),
                            .weights = confidence_.As<float>(),
                            .out = said_.As<float>() + state_values_},
                           device_->stream()));
  }
  return status;
}

absl::StatusOr<float*> SequentialHead::Continue(absl::Span<const BlockNode> nodes,
                                                absl::Span<const float> states, const Pass& pass) {
  const size_t wanted = recurs() ? nodes.size() * block_.markov_rank : 0;
  if (states.size() != wanted) {
    return absl::InvalidArgumentError(absl::StrCat("states of ", states.size(), " values for ",
                                                   nodes.size(), " nodes; allowed: ", wanted));
  }
  state_values_ = wanted;
  confidence_values_ = block_.confidence ? nodes.size() : 0;
  const auto count = static_cast<int32_t>(nodes.size());
  if (count == 0) return Logits();
  const size_t bytes = (state_values_ + confidence_values_) * sizeof(float);
  absl::Status status = device_->MakeCurrent();
  status.Update(Reserve(PaddedRows(count)));
  status.Update(fetched_.Reserve(bytes));
  if (!status.ok()) return status;
  host_rows_.clear();
  host_before_.clear();
  for (const BlockNode& node : nodes) {
    host_rows_.push_back(node.row);
    host_before_.push_back(node.before);
  }
  upload_.Add(absl::MakeConstSpan(host_rows_), &rows_);
  upload_.Add(absl::MakeConstSpan(host_before_), &before_);
  upload_.Add(states, &given_states_);
  status = upload_.Copy(*device_);
  if (status.ok()) status = EnqueueNodes(count, pass);
  if (status.ok() && bytes > 0) {
    status = device_->ToHost(said_.As<void>(), bytes, fetched_.As<void>());
  }
  // Even after an error: enqueued work still reads the staging buffer.
  status.Update(device_->Finish());
  if (!status.ok()) return status;
  return Logits();
}

}  // namespace specfabric::model::cuda
