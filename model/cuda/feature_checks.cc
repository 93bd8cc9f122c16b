#include "model/cuda/feature_checks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bfloat16.h"
#include "base/cuda/memory.h"
#include "base/status.h"
#include "model/cuda/flash_attention.h"
#include "model/cuda/graph_cache.h"
#include "model/cuda/rank_exchange.h"
#include "model/cuda/some_values.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::Device;
using base::cuda::DeviceBuffer;
using base::cuda::PinnedBuffer;

enum Outcome : int32_t { kGone, kFailed, kFailedWithOthers, kWorks };

// What the ranks exchange about a feature.
struct Report {
  Outcome outcome;
  std::array<char, 252> why;  // ends with a 0
};

Report ReportOf(const absl::Status& status) {
  Report report = {kWorks, {}};
  if (status.ok()) return report;
  report.outcome = absl::IsAborted(status) ? kFailedWithOthers : kFailed;
  const std::string why = base::Message(status);
  std::memcpy(report.why.data(), why.data(), std::min(why.size(), report.why.size() - 1));
  return report;
}

}  // namespace

absl::StatusOr<FeatureState> AgreeOnFeature(Communicator* group, const absl::Status& mine) {
  const std::vector<Report> all = FromAllRanks(group, ReportOf(mine));
  const auto first = [&](Outcome outcome) {
    return std::find_if(all.begin(), all.end(),
                        [&](const Report& report) { return report.outcome == outcome; });
  };
  if (first(kGone) != all.end()) return absl::AbortedError("another rank of the group failed");
  auto failed = first(kFailed);
  if (failed == all.end()) failed = first(kFailedWithOthers);
  if (failed == all.end()) return FeatureState{.on = true, .why = ""};
  const std::string why(failed->why.data());
  if (group->size() == 1) return FeatureState{.on = false, .why = why};
  return FeatureState{.on = false, .why = absl::StrCat("rank ", failed - all.begin(), ": ", why)};
}

// A rank's place in its process is its place in the group where there is one process.
bool SpansProcesses(Communicator* group) {
  const std::vector<int32_t> all = FromAllRanks<int32_t>(group, group->local_rank());
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] != static_cast<int32_t>(r)) return true;
  }
  return false;
}

absl::Status CheckGraphs(const Device& device) {
  constexpr size_t kBytes = 256;
  absl::Status status = device.MakeCurrent();
  if (!status.ok()) return status;
  absl::StatusOr<DeviceBuffer> memory = DeviceBuffer::Create(kBytes);
  absl::StatusOr<PinnedBuffer> read = PinnedBuffer::Create(kBytes);
  status.Update(memory.status());
  status.Update(read.status());
  if (!status.ok()) return status;
  GraphCache graphs;
  const auto enqueue = [&] { return device.Clear(memory->As<void>(), kBytes); };
  const auto agree = [](const absl::Status& captured) { return captured; };
  constexpr int kPasses = 3;  // without a graph, captured, replayed
  for (int pass = 0; pass < kPasses && status.ok(); ++pass) {
    std::memset(read->As<void>(), 1, kBytes);
    status.Update(device.ToDevice(read->As<void>(), kBytes, memory->As<void>()));
    status.Update(graphs.Run(device, {1, 1}, 0, enqueue, agree));
    status.Update(device.ToHost(memory->As<void>(), kBytes, read->As<void>()));
    status.Update(device.Finish());
    status.Update(graphs.failure());
    const char* const bytes = read->As<char>();
    if (status.ok() && std::any_of(bytes, bytes + kBytes, [](char byte) { return byte != 0; })) {
      status = absl::InternalError("a graph did not run its work");
    }
  }
  return status;
}

namespace {

// A chain after a text of several tiles of slots, and a tree after few, where a wrong mask shows;
// the blocks of each do not follow each other.
Batch CheckedBatch(int32_t block_size) {
  constexpr int32_t kRows = 4;
  constexpr std::array<int32_t, 2> kContexts = {270, 5};
  constexpr std::array<int32_t, kRows> kDepths = {0, 1, 1, 2};
  Batch batch;
  for (const int32_t context : kContexts) {
    const int32_t blocks = (context + kRows + block_size - 1) / block_size;
    const bool tree = !batch.sequences.empty();
    batch.sequences.push_back({.kv_len = context,
                               .first_row = batch.rows(),
                               .row_count = kRows,
                               .first_block = static_cast<int32_t>(batch.blocks.size()),
                               .block_count = blocks,
                               .causal = !tree});
    const auto end = static_cast<int32_t>(batch.blocks.size()) + blocks;
    for (int32_t i = 1; i <= blocks; ++i) batch.blocks.push_back(end - i);
    for (int32_t row = 0; row < kRows; ++row) {
      batch.tokens.push_back(0);
      batch.positions.push_back(context + (tree ? kDepths[row] : row));
    }
  }
  batch.ancestors.assign(kRows, 0);  // of the chain, which needs none
  for (const uint64_t node : {0b0001, 0b0011, 0b0101, 0b1101}) batch.ancestors.push_back(node);
  return batch;
}

// Whether a row of `sequence` attends to a slot of it.
bool Attends(const Batch& batch, const BatchSequence& sequence, int32_t row, int32_t slot) {
  if (slot < sequence.kv_len) return true;
  const int32_t node = slot - sequence.kv_len;
  if (sequence.causal) return node <= row - sequence.first_row;
  return (batch.ancestors[row] >> node & 1) != 0;
}

// Pinned host arrays of bfloat16 and as many on the device.
struct Array {
  PinnedBuffer host;
  DeviceBuffer device;

  absl::Status Create(size_t elements) {
    absl::Status status = host.Reserve(elements * sizeof(uint16_t));
    status.Update(device.Reserve(elements * sizeof(uint16_t)));
    return status;
  }
  // Values in [-scale, scale] that are always the same.
  void Fill(uint64_t seed, float scale) {
    uint16_t* const out = host.As<uint16_t>();
    for (size_t i = 0; i < host.bytes() / sizeof(uint16_t); ++i) {
      out[i] = SomeValue(seed + i, scale);
    }
  }
  float at(size_t i) const { return base::WidenBFloat16(host.As<uint16_t>()[i]); }
};

struct CheckedAttention {
  Array queries, keys, values, out;

  // What a head of a row should be, [head_dim].
  std::vector<double> Expected(const TreeAttentionRules& rules, const Batch& batch,
                               const BatchSequence& sequence, int32_t row, int32_t head,
                               double scale) const {
    const int32_t d = rules.head_dim, kv_head = head / (rules.heads / rules.kv_heads);
    std::vector<double> sums(d, 0.0);
    double total = 0;
    for (int32_t slot = 0; slot < sequence.kv_len + sequence.row_count; ++slot) {
      if (!Attends(batch, sequence, row, slot)) continue;
      const int32_t block = batch.blocks[sequence.first_block + slot / rules.block_size];
      const int64_t place = int64_t{block} * rules.block_size + slot % rules.block_size;
      const size_t key = (place * rules.kv_heads + kv_head) * d;
      double score = 0;
      for (int32_t e = 0; e < d; ++e) {
        score += queries.at((int64_t{row} * rules.heads + head) * d + e) * keys.at(key + e);
      }
      const double weight = std::exp(score * scale);
      total += weight;
      for (int32_t e = 0; e < d; ++e) sums[e] += weight * values.at(key + e);
    }
    for (double& sum : sums) sum /= total;
    return sums;
  }
};

// Of values of at most 1. Rounding probabilities and the result to bfloat16 leaves errors of a few
// thousandths.
constexpr double kTolerance = 0.03;

absl::Status Compare(const CheckedAttention& arrays, const TreeAttentionRules& rules,
                     const Batch& batch, double scale) {
  for (const BatchSequence& sequence : batch.sequences) {
    for (int32_t row = sequence.first_row; row < sequence.first_row + sequence.row_count; ++row) {
      for (int32_t head = 0; head < rules.heads; ++head) {
        const std::vector<double> expected =
            arrays.Expected(rules, batch, sequence, row, head, scale);
        for (int32_t e = 0; e < rules.head_dim; ++e) {
          const double found =
              arrays.out.at((int64_t{row} * rules.heads + head) * rules.head_dim + e);
          if (std::abs(found - expected[e]) <= kTolerance) continue;
          return absl::InternalError(absl::StrCat("its attention gives ", found, " where ",
                                                  expected[e], " is right (row ", row, ", head ",
                                                  head, ")"));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFlashAttention(const Device& device, const TreeAttentionConfig& config) {
  absl::Status status = device.MakeCurrent();
  if (!status.ok()) return status;
  TreeAttentionConfig checked = config;
  TreeAttentionRules& rules = checked.rules;
  const Batch batch = CheckedBatch(rules.block_size);
  rules.blocks = static_cast<int32_t>(batch.blocks.size());
  absl::StatusOr<FlashAttention> attention = FlashAttention::Create(checked);
  if (!attention.ok()) return attention.status();
  const size_t slots = size_t(rules.blocks) * rules.block_size;
  const size_t cached = slots * rules.kv_heads * rules.head_dim;
  const size_t asked = size_t(batch.rows()) * rules.heads * rules.head_dim;
  CheckedAttention arrays;
  for (auto& [array, elements] : {std::pair{&arrays.queries, asked},
                                  {&arrays.keys, cached},
                                  {&arrays.values, cached},
                                  {&arrays.out, asked}}) {
    status.Update(array->Create(elements));
  }
  if (!status.ok()) return status;
  // Scores of some units, so that few slots decide and a wrong one shows.
  arrays.queries.Fill(1, 6);
  arrays.keys.Fill(uint64_t{1} << 32, 1);
  arrays.values.Fill(uint64_t{2} << 32, 1);
  for (Array* array : {&arrays.queries, &arrays.keys, &arrays.values}) {
    status.Update(
        device.ToDevice(array->host.As<void>(), array->host.bytes(), array->device.As<void>()));
  }
  status.Update(attention->Plan(device, batch));
  if (status.ok()) {
    status = attention->Run({.queries = arrays.queries.device.As<void>(),
                             .keys = arrays.keys.device.As<void>(),
                             .values = arrays.values.device.As<void>(),
                             .out = arrays.out.device.As<void>()},
                            device.stream());
  }
  if (status.ok()) {
    status = device.ToHost(arrays.out.device.As<void>(), arrays.out.host.bytes(),
                           arrays.out.host.As<void>());
  }
  status.Update(device.Finish());  // whatever was enqueued uses the arrays
  if (!status.ok()) return status;
  return Compare(arrays, rules, batch, config.scale);
}

}  // namespace specfabric::model::cuda
