#include "model/cpu/packed_inputs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"

namespace specfabric::model::cpu {
namespace {

constexpr int kTurnSteps = 64;  // of all rows of a block: they stay in L1
static_assert(kTurnSteps % kTileSteps == 0);
constexpr size_t kWordsToShare = 1 << 15;  // with the other threads; fewer are soon done

int StepsOf(DataType dtype, int inputs, bool tiles) {
  if (dtype == DataType::kFloat32) return inputs;
  const int pairs = (inputs + 1) / 2;
  return tiles ? (pairs + kTileSteps - 1) / kTileSteps * kTileSteps : pairs;
}

}  // namespace

PackedInputs::PackedInputs(DataType dtype, int parts, int part_inputs, const Kernels& kernels,
                           ThreadPool* pool)
    : dtype_(dtype),
      kernels_(kernels),
      pool_(pool),
      tiles_(dtype == DataType::kBFloat16 && kernels.tiles),
      block_rows_(dtype == DataType::kFloat32 ? kernels.block_rows_float32
                                              : kernels.block_rows_bfloat16),
      parts_(parts),
      part_inputs_(part_inputs),
      steps_(StepsOf(dtype, part_inputs, tiles_)) {}

int PackedInputs::PartTurns() const { return (steps_ + kTurnSteps - 1) / kTurnSteps; }

absl::Status PackedInputs::Pack(const float* x, int rows) {
  if (rows == 1 && dtype_ == DataType::kFloat32) {
    words_ = reinterpret_cast<const uint32_t*>(x);
    return absl::OkStatus();
  }
  if (absl::Status status = Reserve(rows); !status.ok()) return status;
  blocks_.clear();
  for (int row = 0; row < rows; row += kMaxPanelRows) {
    const int of_call = std::min(kMaxPanelRows, rows - row);
    for (int b = 0; b < Blocks(of_call); ++b) {
      const auto [first, count] = RowsOfBlock(of_call, b);
      blocks_.push_back({x + size_t(row + first) * parts_ * part_inputs_, count,
                         Step(row + first, count, /*step=*/0)});
    }
  }
  const int turns = parts_ * PartTurns();
  const auto pack = [&](int, int begin, int end) {
    for (int i = begin; i < end; ++i) PackTurn(blocks_[i / turns], i % turns);
  };
  const int items = static_cast<int>(blocks_.size()) * turns;
  if (rows * RowWords() < kWordsToShare) {
    pack(0, 0, items);
  } else {
    pool_->Run(items, pack);
  }
  return absl::OkStatus();
}

absl::Status PackedInputs::Reserve(int rows) {
  const size_t bytes = Bytes(rows);
  if (packed_.bytes() < bytes) {
    absl::StatusOr<AlignedBuffer> larger =
        AlignedBuffer::Create(std::max(bytes, 2 * packed_.bytes()));
    if (!larger.ok()) return larger.status();
    packed_ = *std::move(larger);
  }
  words_ = Room();
  return absl::OkStatus();
}

void PackedInputs::PackTurn(const Block& block, int turn) const {
  const int part = turn / PartTurns(), step = turn % PartTurns() * kTurnSteps;
  const int steps = std::min(kTurnSteps, steps_ - step);
  const bool pairs = dtype_ == DataType::kBFloat16;
  const int inputs = pairs ? std::min(2 * steps, part_inputs_ - 2 * step) : steps;
  uint32_t words[kMaxBlockRows][kTurnSteps];
  for (int r = 0; r < block.rows; ++r) {
    const float* from = block.x + (size_t{1} * r * parts_ + part) * part_inputs_ +
                        size_t{1} * step * (pairs ? 2 : 1);
    if (pairs) {
      std::fill(words[r] + inputs / 2, words[r] + steps, 0);
      kernels_.round_bfloat16(from, inputs, reinterpret_cast<uint16_t*>(words[r]));
    } else {
      std::memcpy(words[r], from, inputs * sizeof(float));
    }
  }
  uint32_t* out = block.out + (size_t{1} * part * steps_ + step) * block.rows;
  const int together = tiles_ ? kTileSteps : 1;  // steps of a row
  for (int s = 0; s < steps; s += together) {
    for (int r = 0; r < block.rows; ++r) out = std::copy_n(words[r] + s, together, out);
  }
}

}  // namespace specfabric::model::cpu
