#include "verification/cuda/cuda_verifier.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "speculation/tree.h"
#include "speculation/verification_method.h"
#include "verification/cuda/tree_verify.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::LogitMatrix;
using base::cuda::Stream;

using speculation::VerificationMethod;

TreeRound RoundOf(const DeviceTree& tree) {
  return {.site = {.seed = tree.sampling.seed, .position = tree.position, .draw = tree.draw_number},
          .verification = tree.verification,
          .draw = tree.draw,
          .sampling = tree.sampling,
          .typical = tree.typical,
          .first_logit = tree.first_logit,
          .entries = tree.entries};
}

absl::Status CheckSizes(absl::Span<const DeviceTree> trees) {
  for (const DeviceTree& tree : trees) {
    const size_t nodes = tree.tokens.size();
    if (nodes >= 1 && nodes <= speculation::kMaxVerifyNodes) continue;
    return absl::InvalidArgumentError(absl::StrCat("a tree of ", nodes, " nodes: allowed are 1 to ",
                                                   speculation::kMaxVerifyNodes));
  }
  return absl::OkStatus();
}

void Append(absl::Span<const int32_t> values, std::vector<int32_t>* to) {
  to->insert(to->end(), values.begin(), values.end());
}

template <typename Is>
bool AnyOf(absl::Span<const TreeRound> rounds, Is is) {
  return std::any_of(rounds.begin(), rounds.end(), is);
}

void Read(const Walked& walked, const DeviceTree& tree, speculation::Accepted* accepted) {
  *accepted = {};
  constexpr uint64_t kRoot = 1;
  for (uint64_t path = walked.path & ~kRoot; path != 0; path &= path - 1) {
    const int node = std::countr_zero(path);
    accepted->path.push_back(node);
    accepted->tokens.push_back(tree.tokens[node]);
  }
  accepted->finite = walked.bonus != base::kNoToken;
  if (accepted->finite) accepted->tokens.push_back(walked.bonus);
}

}  // namespace

void CudaVerifier::Group::Clear() {
  index.clear();
  begin = {0};
  parents.clear();
  tokens.clear();
  draft_row.clear();
  ancestors.clear();
  choices.clear();
  rounds.clear();
}

void CudaVerifier::Group::Add(int32_t tree_index, const DeviceTree& tree) {
  const size_t nodes = tree.tokens.size(), first = tokens.size();
  index.push_back(tree_index);
  Append(tree.parents, &parents);
  Append(tree.tokens, &tokens);
  Append(tree.draft_row, &draft_row);
  begin.push_back(static_cast<int32_t>(tokens.size()));
  draft_row.resize(tokens.size());
  rounds.push_back(RoundOf(tree));
  for (size_t node = 0; node < nodes; ++node) {
    const uint64_t above = node == 0 ? 0 : ancestors[first + tree.parents[node]];
    ancestors.push_back(above | uint64_t{1} << node);
    const auto depth = static_cast<uint32_t>(std::popcount(above));
    choices.push_back({.row = tree.first_logit + static_cast<int32_t>(node),
                       .seed = tree.sampling.seed,
                       .position = tree.position + depth,
                       .temperature = tree.sampling.temperature});
  }
}

void CudaVerifier::Collect(const LogitMatrix& logits, absl::Span<const DeviceTree> trees) {
  for (Group* group : {&plain_, &filtered_, &by_probs_}) group->Clear();
  for (size_t i = 0; i < trees.size(); ++i) {
    const base::SamplingParams& sampling = trees[i].sampling;
    const bool filters = sampling.filtered() && !sampling.greedy();
    Group& group = trees[i].verification != VerificationMethod::kCoupled ? by_probs_
                   : filters                                             ? filtered_
                                                                         : plain_;
    group.Add(static_cast<int32_t>(i), trees[i]);
  }
  for (Group* group : {&plain_, &filtered_, &by_probs_}) {
    group->batch = {
        .trees = {.sequences = group->size()},
        .nodes = group->begin.back(),
        .logits = static_cast<const float*>(logits.logits),
        .stride = logits.stride,
        .vocabulary = logits.size,
        .filtered =
            AnyOf(group->rounds, [](const TreeRound& round) { return round.sampling.filtered(); }),
        .whole_rows = AnyOf(group->rounds,
                            [&](const TreeRound& round) { return round.entries == logits.size; })};
  }
}

void CudaVerifier::Stage(absl::Span<const DeviceTree> trees, Group* group) {
  TreeBatch& batch = group->batch.trees;
  upload_.Add(absl::MakeConstSpan(group->begin), &batch.begin);
  upload_.Add(absl::MakeConstSpan(group->parents), &batch.parents);
  upload_.Add(absl::MakeConstSpan(group->tokens), &batch.tokens);
  upload_.Add(absl::MakeConstSpan(group->ancestors), &batch.ancestors);
  upload_.Add(absl::MakeConstSpan(group->choices), &group->device_choices);
  upload_.Add(absl::MakeConstSpan(group->draft_row), &group->batch.draft_row);
  for (int32_t i = 0; i < group->size(); ++i) {
    const DeviceTree& tree = trees[group->index[i]];
    if (tree.draft_probs_on_device) {
      group->rounds[i].draft_probs = tree.draft_probs.data();
    } else {
      upload_.Add(tree.draft_probs, &group->rounds[i].draft_probs);
    }
    upload_.Add(tree.totals, &group->rounds[i].totals);
  }
  upload_.Add(absl::MakeConstSpan(group->rounds), &group->batch.rounds);
}

absl::Status CudaVerifier::Reserve(int32_t vocabulary, size_t trees) {
  const size_t chosen = std::max(plain_.choices.size(), filtered_.choices.size());
  const size_t workspace =
      std::max(RowFilters::Bytes(filtered_.batch), TreeVerifyBytes(by_probs_.batch));
  const int32_t rows = std::max({plain_.batch.nodes, filtered_.batch.nodes, by_probs_.batch.nodes});
  absl::Status status = ReserveRowJoins(*device_, rows, vocabulary, &joins_);
  status.Update(chosen_.Reserve(chosen * sizeof(PackedChoice)));
  status.Update(workspace_.Reserve(workspace));
  status.Update(walked_.Reserve(trees * sizeof(Walked)));
  status.Update(host_walked_.Reserve(trees * sizeof(Walked)));
  return status;
}

absl::Status CudaVerifier::EnqueueCoupled(const Group& group, const RowFilter* filters,
                                          const LogitMatrix& logits, Walked* walked,
                                          Stream stream) {
  if (group.size() == 0) return absl::OkStatus();
  PackedChoice* const chosen = chosen_.As<PackedChoice>();
  absl::Status status = EnqueueArgMax(logits, group.device_choices, filters, group.batch.nodes,
                                      joins_.As<RowJoin>(), chosen, stream);
  if (!status.ok()) return status;
  TreeBatch trees = group.batch.trees;
  trees.choices = chosen;
  return EnqueueTreeWalk(trees, walked, stream);
}

absl::Status CudaVerifier::EnqueueFiltered(const LogitMatrix& logits, Walked* walked,
                                           Stream stream) {
  if (filtered_.size() == 0) return absl::OkStatus();
  absl::Status status = CheckRoundBatch(filtered_.batch);
  if (!status.ok()) return status;
  const RowFilters filters =
      RowFilters::In(filtered_.batch, workspace_.As<void>(), joins_.As<void>());
  status = EnqueueRowFilters(filtered_.batch, filters, /*only_filtered=*/false, stream);
  if (!status.ok()) return status;
  return EnqueueCoupled(filtered_, filters.of_node, logits, walked, stream);
}

absl::Status CudaVerifier::EnqueueVerify(Walked* walked, Stream stream) {
  if (by_probs_.size() == 0) return absl::OkStatus();
  return EnqueueTreeVerify(by_probs_.batch, workspace_.As<void>(), joins_.As<void>(), walked,
                           stream);
}

absl::Status CudaVerifier::Enqueue(const LogitMatrix& logits, Walked* walked, Stream stream) {
  absl::Status status = EnqueueCoupled(plain_, /*filters=*/nullptr, logits, walked, stream);
  if (!status.ok()) return status;
  walked += plain_.size();
  if (status = EnqueueFiltered(logits, walked, stream); !status.ok()) return status;
  return EnqueueVerify(walked + filtered_.size(), stream);
}

absl::Status CudaVerifier::Best(const LogitMatrix& logits, absl::Span<const RowChoice> choices,
                                absl::Span<sampling::ScoredToken> best) {
  if (choices.empty()) return absl::OkStatus();
  // [choices] RowChoice, then [choices] PackedChoice.
  const size_t how_bytes = choices.size() * sizeof(RowChoice);
  const size_t best_bytes = choices.size() * sizeof(PackedChoice);
  static_assert(sizeof(RowChoice) % alignof(PackedChoice) == 0);
  absl::Status status = device_->MakeCurrent();
  const auto count = static_cast<int32_t>(choices.size());
  status.Update(host_best_.Reserve(how_bytes + best_bytes));
  status.Update(ReserveRowJoins(*device_, count, logits.size, &joins_));
  status.Update(best_.Reserve(how_bytes + best_bytes));
  if (!status.ok()) return status;
  std::byte* const host = host_best_.As<std::byte>();
  std::byte* const there = best_.As<std::byte>();
  std::memcpy(host, choices.data(), how_bytes);
  status.Update(device_->ToDevice(host, how_bytes, there));
  status.Update(
      EnqueueArgMax(logits, best_.As<RowChoice>(), /*filters=*/nullptr, count, joins_.As<RowJoin>(),
                    reinterpret_cast<PackedChoice*>(there + how_bytes), device_->stream()));
  status.Update(device_->ToHost(there + how_bytes, best_bytes, host + how_bytes));
  status.Update(device_->Finish());
  if (!status.ok()) return status;
  const auto* packed = reinterpret_cast<const PackedChoice*>(host + how_bytes);
  for (size_t i = 0; i < choices.size(); ++i) best[i] = Unpack(packed[i]);
  return absl::OkStatus();
}

absl::Status CudaVerifier::Verify(const LogitMatrix& logits, absl::Span<const DeviceTree> trees,
                                  absl::Span<speculation::Accepted> accepted) {
  if (trees.empty()) return absl::OkStatus();
  absl::Status status = CheckSizes(trees);
  if (!status.ok()) return status;
  Collect(logits, trees);
  status.Update(device_->MakeCurrent());
  status.Update(Reserve(logits.size, trees.size()));
  if (!status.ok()) return status;
  for (Group* group : {&plain_, &filtered_, &by_probs_}) Stage(trees, group);
  if (status = upload_.Copy(*device_); !status.ok()) return status;
  Walked* const found = walked_.As<Walked>();
  status = Enqueue(logits, found, device_->stream());
  status.Update(device_->ToHost(found, trees.size() * sizeof(Walked), host_walked_.As<void>()));
  // Even after an error: enqueued work still reads the staging buffer.
  status.Update(device_->Finish());
  if (!status.ok()) return status;
  const Walked* walked = host_walked_.As<Walked>();
  for (const Group* group : {&plain_, &filtered_, &by_probs_}) {
    for (int32_t i : group->index) Read(*walked++, trees[i], &accepted[i]);
  }
  return absl::OkStatus();
}

}  // namespace specfabric::verification::cuda
