#include "tests/model/group.h"

#include <thread>
#include <utility>

#include "model/cpu/cpu_transformer.h"

namespace specfabric::model {
namespace {

BatchSequence* AddSequence(Batch* batch, const std::vector<int32_t>& tokens, int32_t kv_len,
                           const std::vector<int32_t>& blocks) {
  BatchSequence sequence;
  sequence.kv_len = kv_len;
  sequence.first_row = batch->rows();
  sequence.row_count = static_cast<int32_t>(tokens.size());
  sequence.first_block = static_cast<int32_t>(batch->blocks.size());
  sequence.block_count = static_cast<int32_t>(blocks.size());
  batch->blocks.insert(batch->blocks.end(), blocks.begin(), blocks.end());
  for (size_t i = 0; i < tokens.size(); ++i) {
    batch->logit_rows.push_back(batch->rows());
    batch->tokens.push_back(tokens[i]);
  }
  batch->sequences.push_back(sequence);
  return &batch->sequences.back();
}

}  // namespace

absl::StatusOr<TestGroup> TestGroup::Load(const std::string& model_dir, const RankOptions& options,
                                          int ranks, const RankLoader& load) {
  return Load(model_dir, options, MakeThreadCommunicators(ranks), load);
}

absl::StatusOr<TestGroup> TestGroup::Load(const std::string& model_dir, const RankOptions& options,
                                          std::vector<std::unique_ptr<Communicator>> communicators,
                                          const RankLoader& load) {
  TestGroup group;
  group.communicators_ = std::move(communicators);
  const int ranks = static_cast<int>(group.communicators_.size());
  group.models_.resize(ranks);
  std::vector<absl::Status> statuses(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Communicator* const communicator = group.communicators_[rank].get();
      absl::StatusOr<std::unique_ptr<RankModel>> model =
          load ? load(model_dir, options, communicator)
               : CpuTransformer::Load(model_dir, options, communicator);
      statuses[rank] = model.status();
      if (model.ok()) group.models_[rank] = *std::move(model);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return group;
}

absl::StatusOr<LogitRows> TestGroup::Forward(const Batch& batch) {
  std::vector<absl::StatusOr<LogitShard>> shards(models_.size(), absl::UnknownError("not run"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < models_.size(); ++i) {
    threads.emplace_back([&, i] { shards[i] = models_[i]->Forward(batch); });
  }
  for (std::thread& thread : threads) thread.join();
  LogitRows rows(batch.logit_rows.size());
  for (absl::StatusOr<LogitShard>& shard : shards) {
    if (!shard.ok()) return shard.status();
    if (absl::Status fetched = FetchRows(&*shard); !fetched.ok()) return fetched;
    for (size_t r = 0; r < rows.size(); ++r) {
      const absl::Span<const float> part = shard->row(static_cast<int>(r));
      rows[r].insert(rows[r].end(), part.begin(), part.end());
    }
  }
  return rows;
}

void TestGroup::MoveKv(const std::vector<KvMove>& moves) {
  for (auto& model : models_) model->MoveKv(moves);
}

void AddChain(Batch* batch, const std::vector<int32_t>& tokens, int32_t kv_len,
              const std::vector<int32_t>& blocks) {
  AddSequence(batch, tokens, kv_len, blocks);
  for (size_t i = 0; i < tokens.size(); ++i) {
    batch->positions.push_back(kv_len + static_cast<int32_t>(i));
  }
  if (!batch->ancestors.empty()) {
    batch->ancestors.resize(batch->tokens.size() * batch->mask_words, 0);
  }
}

void AddTree(Batch* batch, const std::vector<int32_t>& tokens, const std::vector<int32_t>& parents,
             int32_t kv_len, const std::vector<int32_t>& blocks) {
  const size_t words = batch->mask_words;
  const size_t first = batch->tokens.size();
  AddSequence(batch, tokens, kv_len, blocks)->causal = false;
  batch->ancestors.resize(batch->tokens.size() * words, 0);
  std::vector<int32_t> depths(tokens.size(), 0);
  for (size_t i = 0; i < tokens.size(); ++i) {
    uint64_t* mask = &batch->ancestors[(first + i) * words];
    if (parents[i] >= 0) {
      const uint64_t* parent = &batch->ancestors[(first + parents[i]) * words];
      for (size_t w = 0; w < words; ++w) mask[w] = parent[w];
      depths[i] = depths[parents[i]] + 1;
    }
    mask[i / 64] |= uint64_t{1} << (i % 64);
    batch->positions.push_back(kv_len + depths[i]);
  }
}

}  // namespace specfabric::model
