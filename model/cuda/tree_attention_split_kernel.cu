#include "model/cuda/tree_attention_split_kernel.h"

#include <type_traits>

#include "base/cuda/error.h"
#include "base/cuda/launch.h"
#include "base/cuda/tensor_core.h"
#include "model/cuda/tree_attention_split_item.cuh"
#include "model/cuda/tree_attention_split_part.cuh"
#include "model/cuda/tree_attention_split_shared.cuh"
#include "model/cuda/tree_attention_split_totals.cuh"

namespace specfabric::model::cuda {
namespace {

using base::cuda::AwaitCopies;
using base::cuda::AwaitInputs;
using base::cuda::CommitCopies;
using base::cuda::DynamicShared;
using base::cuda::kAllLanes;
using base::cuda::kWarp;
using base::cuda::LastToArrive;
using base::cuda::Launch;
using base::cuda::LetNextBegin;
using base::cuda::MultiplyAdd;
using base::cuda::StartCopy16;
using base::cuda::Stream;
using base::cuda::TensorType;
using base::cuda::Thread;

constexpr int kWarps = kSplitWarps;
constexpr int kThreads = kSplitThreads;

// What a block does for an item and a KV head.
template <TensorType kType, int kHeadDim, int kTiles>
class Walk {
 public:
  __device__ Walk(const SplitCall& call, const SplitHeader& header, const SplitItem& item,
                  int32_t kv_head)
      : call_(call),
        view_(call, header, item, kv_head, kTiles * kTileLines),
        shared_(*static_cast<Shared*>(DynamicShared())),
        kv_head_(kv_head),
        warp_(Thread() / kWarp),
        lane_(Thread() % kWarp),
        g_(lane_ / 4),
        q_(lane_ % 4),
        tiles_(view_.TilesOf(view_.rows(), kTiles)),
        totals_(&shared_) {}

  __device__ void Run() {
    if (view_.item().row == kSharedLeavesAndTails) {
      WalkLeaves<true>();
    } else {
      WalkLeaves<false>();
    }
  }

 private:
  using Shared = SharedMemory<kHeadDim, kTiles>;
  static constexpr int kPieces = Shared::kPieces;

  struct Parts {
    Part<kHeadDim> of[kTiles];
  };

  // kTails: leaves are also those of single rows; what is done for these is kept out of the other
  // walks.
  template <bool kTails>
  __device__ void WalkLeaves() {
    __syncthreads();  // the item before may still read shared memory
    for (int i = Thread(); i < (kSlotLeaves - 1) * kLeafSlots; i += kThreads) {
      shared_.slots[i / kLeafSlots][i % kLeafSlots] = view_.SlotOf<kTails>(i);
    }
    int32_t ahead = view_.SlotOf<kTails>((kSlotLeaves - 1) * kLeafSlots + Thread() % kLeafSlots);
    for (int i = 0; i < kSlotLeaves - 1; ++i) KeepLeaf<kTails>(i);
    __syncthreads();
    AwaitInputs();
    StartQueries();
    for (int unit = 0; unit < Shared::kBuffers - 1; ++unit) StartUnit(unit);

    Parts chunk;
    const int32_t leaves = view_.item().leaves;
    for (int32_t leaf = 0; leaf < leaves; ++leaf) {
      const ItemView::Leaf at = LeafAt<kTails>(leaf);
      if (leaf > 0 && at.index % kChunkLeaves == 0) {
        if (!kTails || at.row < 0) {
          EndChunk(&chunk);
        } else if (at.index > view_.item().shared_leaves) {
          EndChunkOf(at.row, &chunk);
        } else if (at.row == 0) {  // all rows' at once
          EndChunk(&chunk);
        }
      }
      Scores scores;
      AwaitCopies<Shared::kBuffers - 2>();
      __syncthreads();
      Multiply(leaf, &scores);
      Mask(at, &scores);
      ShowHighest(&scores);
      __syncthreads();  // the keys have been read, and the values of the leaf before
      StartUnit(2 * leaf - 1 + Shared::kBuffers);
      StartUnit(2 * leaf + Shared::kBuffers);
      if (Thread() < kLeafSlots) {
        shared_.slots[(leaf + kSlotLeaves - 1) % kSlotLeaves][Thread()] = ahead;
        ahead = view_.SlotOf<kTails>((leaf + kSlotLeaves) * kLeafSlots + Thread());
      }
      KeepLeaf<kTails>(leaf + kSlotLeaves - 1);
      Parts next;
      Exponentiate(&scores, &next);
      AwaitCopies<Shared::kBuffers - 1>();
      __syncthreads();
      AddValues(leaf, &next);
      ForTiles(
          [&](int t) { Fold(next.of[t], &chunk.of[t], kTails ? LinesOf(t, at.row) : Lines{}); });
    }
    LetNextBegin();
    Finish(chunk);
  }

  // of[t][n]: of sixteen lines t and the warp's n-th eight slots, as MultiplyAdd leaves them: value
  // e of a lane is line g + e / 2 * 8 and slot 2 q + e % 2.
  struct Scores {
    __device__ float& At(int t, int half, int i) { return of[t][i / 2][2 * half + i % 2]; }
    float of[kTiles][2][4] = {};
  };

  // For all sixteens of lines that have a row. The loop is unrolled, so that they are in registers.
  template <typename Function>
  __device__ void ForTiles(const Function& run) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (t < tiles_) run(t);
    }
  }
  __device__ int LineOf(int t, int half) const { return t * kTileLines + 8 * half + g_; }
  // The lane's lines that are the row's; -1: all.
  __device__ Lines LinesOf(int t, int32_t row) const {
    Lines lines;
    if (row < 0) return lines;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      lines.of[half] = view_.IsOf(LineOf(t, half), row);
    }
    return lines;
  }

  // Of the item, those near the one that is walked; to find one among tails takes a while.
  template <bool kTails>
  __device__ void KeepLeaf(int32_t leaf) {
    if (!kTails || Thread() != kLeafSlots || leaf >= view_.item().leaves) return;
    shared_.leaves[leaf % kSlotLeaves] = view_.LeafAt<kTails>(leaf);
  }
  template <bool kTails>
  __device__ ItemView::Leaf LeafAt(int32_t leaf) const {
    return kTails ? shared_.leaves[leaf % kSlotLeaves] : view_.LeafAt<false>(leaf);
  }

  // The copies of the queries belong to the group of the first keys.
  __device__ void StartQueries() {
    const uint4* const queries = static_cast<const uint4*>(call_.queries);
    for (int i = Thread(); i < tiles_ * kTileLines * kPieces; i += kThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      const ItemView::Line line = view_.LineAt(row, view_.rows());
      const int64_t from = int64_t{view_.item().first_row} + view_.first_row() + line.row;
      StartCopy16(&shared_.queries[row * kPieces + KeyPiece(row, piece)],
                  queries + (line.valid ? (from * call_.heads + line.head) * kPieces + piece : 0),
                  line.valid);
    }
  }

  // Units are the keys and the values of the leaves in turn. Makes a group of copies also where
  // there are no more, so that they can be counted.
  __device__ void StartUnit(int32_t unit) {
    const int32_t leaf = unit / 2;
    const bool values = unit % 2 != 0;
    if (leaf < view_.item().leaves) {
      // A thread copies the same piece of every kRows-th slot, to the same place of its row.
      constexpr int kRows = kThreads / kPieces;
      static_assert(kRows % 8 == 0);
      const int first = Thread() / kPieces, piece = Thread() % kPieces;
      uint4* const to = shared_.ring[unit % Shared::kBuffers] + first * kPieces +
                        (values ? ValuePiece(first, piece) : KeyPiece(first, piece));
      const auto* const from = reinterpret_cast<const char*>(
          static_cast<const uint4*>(values ? call_.values : call_.keys) + kv_head_ * kPieces +
          piece);
      const uint32_t stride = static_cast<uint32_t>(call_.kv_heads) * kPieces * sizeof(uint4);
#pragma unroll
      for (int i = 0; i < kLeafSlots / kRows; ++i) {
        const int32_t slot = shared_.slots[leaf % kSlotLeaves][first + i * kRows];
        const uint64_t offset = uint64_t{stride} * static_cast<uint32_t>(max(slot, 0));
        StartCopy16(to + i * kRows * kPieces, from + offset, slot >= 0);
      }
    }
    CommitCopies();
  }

  // Queries times the keys of the warp's slots. Within 32 values of a head the products take them
  // in another order, such that 16 bytes that a lane reads are its operands of two.
  __device__ void Multiply(int32_t leaf, Scores* scores) const {
    const uint4* const keys = shared_.ring[2 * leaf % Shared::kBuffers];
    // Row g and those at multiples of 8 from it have their pieces at the same places.
    const int places[2] = {g_ * kPieces + KeyPiece(g_, q_), g_ * kPieces + KeyPiece(g_, 4 + q_)};
    const auto piece_at = [&](const uint4* rows, int first_row, int i) {
      return rows[first_row * kPieces + places[i % 2] + i / 2 * 8];
    };
#pragma unroll
    for (int i = 0; i < kHeadDim / 32; ++i) {
      const uint4 key[2] = {piece_at(keys, warp_ * kWarpSlots, i),
                            piece_at(keys, warp_ * kWarpSlots + 8, i)};
      ForTiles([&](int t) {
        const uint4 low = piece_at(shared_.queries, t * kTileLines, i);
        const uint4 high = piece_at(shared_.queries, t * kTileLines + 8, i);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          float(&sums)[4] = scores->of[t][n];
          MultiplyAdd<kType>({low.x, high.x, low.y, high.y}, {key[n].x, key[n].y}, sums);
          MultiplyAdd<kType>({low.z, high.z, low.w, high.w}, {key[n].z, key[n].w}, sums);
        }
      });
    }
  }

  // Takes out the scores of slots that are behind a row's list. Those of other rows than the leaf's
  // are not used.
  __device__ void Mask(ItemView::Leaf leaf, Scores* scores) const {
    const int32_t first = leaf.index * kLeafSlots;
    const int32_t shortest = leaf.row < 0 ? view_.shortest() : view_.Visible(leaf.row);
    if (first + kLeafSlots <= shortest) return;
    ForTiles([&](int t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int32_t seen = shortest;
        if (view_.causal()) seen += view_.LineAt(LineOf(t, half), view_.rows()).row;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int32_t slot = first + warp_ * kWarpSlots + i / 2 * 8 + 2 * q_ + i % 2;
          if (slot >= seen) scores->At(t, half, i) = -INFINITY;
        }
      }
    });
  }

  // Writes the highest score of the warp's slots for all warps to read.
  __device__ void ShowHighest(Scores* scores) {
    ForTiles([&](int t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float highest = scores->At(t, half, 0);
#pragma unroll
        for (int i = 1; i < 4; ++i) highest = fmaxf(highest, scores->At(t, half, i));
        highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 2));
        if (q_ == 0) reinterpret_cast<float*>(&shared_.highest[LineOf(t, half)])[warp_] = highest;
      }
    });
  }

  // Writes the exponentials of the warp's scores, and their sums, for all warps to read. From here
  // on scores are in units of log2(e).
  __device__ void Exponentiate(Scores* scores, Parts* next) {
    ForTiles([&](int t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 of_warps = shared_.highest[LineOf(t, half)];
        const float highest =
            fmaxf(fmaxf(of_warps.x, of_warps.y), fmaxf(of_warps.z, of_warps.w)) * call_.scale_log2;
        next->of[t].highest[half] = highest;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& score = scores->At(t, half, i);
          score = Exp2(fmaf(score, call_.scale_log2, -Reference(highest)));
          sum += score;
        }
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
        if (q_ == 0) reinterpret_cast<float*>(&shared_.sums[LineOf(t, half)])[warp_] = sum;
      }
      const auto& s = scores->of[t];
      shared_.weights[t][warp_][lane_] = {
          RoundPair<kType>(s[0][0], s[0][1]), RoundPair<kType>(s[0][2], s[0][3]),
          RoundPair<kType>(s[1][0], s[1][1]), RoundPair<kType>(s[1][2], s[1][3])};
    });
  }

  // A lane's consecutive values of a slot, kColumns of them.
  using Values = std::conditional_t<kHeadDim == 64, uint32_t, uint2>;
  static constexpr int kRowValues = kPieces * static_cast<int>(sizeof(uint4) / sizeof(Values));

  // The sums of the leaf, and its values with the weights. Column g of eight j is value j of the
  // lanes with that g.
  __device__ void AddValues(int32_t leaf, Parts* next) const {
    // Slots 2 q and 2 q + 1, and those at multiples of 8 from them, have their pieces at the same
    // places.
    constexpr int kInPiece = kRowValues / kPieces;
    const int mine = warp_ * 8 + g_;
    const Values* const values =
        reinterpret_cast<const Values*>(shared_.ring[(2 * leaf + 1) % Shared::kBuffers]) +
        2 * q_ * kRowValues + ValuePiece(2 * q_, mine / kInPiece) * kInPiece + mine % kInPiece;
#pragma unroll
    for (int k = 0; k < kWarps; ++k) {
      const Values* const row = values + k * kWarpSlots * kRowValues;
      const Values of[4] = {row[0], row[kRowValues], row[8 * kRowValues], row[9 * kRowValues]};
      ForTiles([&](int t) {
        const uint4 weights = shared_.weights[t][k][lane_];
#pragma unroll
        for (int j = 0; j < kColumns<kHeadDim>; ++j) {
          MultiplyAdd<kType>({weights.x, weights.y, weights.z, weights.w},
                             {PairOf(of[0], of[1], j), PairOf(of[2], of[3], j)},
                             next->of[t].out[j]);
        }
      });
    }
    ForTiles([&](int t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 of_warps = shared_.sums[LineOf(t, half)];
        next->of[t].sum[half] = of_warps.x + of_warps.y + of_warps.z + of_warps.w;
      }
    });
  }

  __device__ void EndChunk(Parts* chunk) {
    ForTiles([&](int t) { totals_.End(t, &chunk->of[t]); });
    totals_.HaveAny();
  }
  __device__ void EndChunkOf(int32_t row, Parts* chunk) {
    ForTiles([&](int t) { totals_.EndOf(t, LinesOf(t, row), &chunk->of[t]); });
    totals_.HaveAny();
  }

  // Where a lane's values of a line begin, of those of all heads of row `row`.
  __device__ int64_t PlaceOf(int64_t row, int32_t head) const {
    return (row * call_.heads + head) * kHeadDim + warp_ * (kHeadDim / kWarps) +
           q_ * Part<kHeadDim>::kRun;
  }

  __device__ void Finish(const Parts& last) {
    if (view_.item().items == 1) {
      ForTiles([&](int t) { WriteOut(t, totals_.With(t, last.of[t])); });
      return;
    }
    ForTiles([&](int t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const ItemView::Line line = view_.LineAt(LineOf(t, half), view_.rows());
        if (!line.valid) continue;
        const int64_t row = view_.PartialRow(view_.item().piece, view_.first_row() + line.row);
        StorePart(last.of[t], half, /*leads=*/warp_ == 0 && q_ == 0,
                  call_.partials + PlaceOf(row, line.head),
                  call_.stats + 2 * (row * call_.heads + line.head));
      }
    });
    const auto items = static_cast<unsigned>(view_.item().items);
    if (LastToArrive(view_.Counter(), items)) FoldPieces();
  }

  // For an item, or a fold, of all rows of the tile.
  __device__ void WriteOut(int t, const Part<kHeadDim>& part) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const ItemView::Line line = view_.LineAt(LineOf(t, half), view_.item().rows);
      if (!line.valid) continue;
      StoreOut<kType>(part, half,
                      static_cast<uint16_t*>(call_.out) +
                          PlaceOf(view_.item().first_row + line.row, line.head));
    }
  }

  // Folds the tile's pieces in the order of the plan's header, and writes the output.
  __device__ void FoldPieces() const {
    const int32_t tiles = view_.TilesOf(view_.item().rows, kTiles);
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
      ItemView::Line lines[2];
      int32_t pieces[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        lines[half] = view_.LineAt(LineOf(t, half), view_.item().rows);
        pieces[half] = lines[half].valid ? view_.PiecesOf(lines[half].row) : 0;
      }
      Part<kHeadDim> whole, chunk;
      constexpr int kAhead = 4;  // pieces that are read at a time
      for (int32_t begin = 0; begin < max(pieces[0], pieces[1]); begin += kAhead) {
        Part<kHeadDim> next[kAhead];
#pragma unroll
        for (int i = 0; i < 2 * kAhead; ++i) {
          const int32_t piece = begin + i / 2, half = i % 2;
          if (piece >= pieces[half]) continue;
          const int64_t row = view_.PartialRow(piece, lines[half].row);
          LoadPart(call_.partials + PlaceOf(row, lines[half].head),
                   call_.stats + 2 * (row * call_.heads + lines[half].head), half, &next[i / 2]);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (begin + i > 0 && view_.FirstLeaf(begin + i) % kChunkLeaves == 0) {
            Fold(chunk, &whole);
            chunk = {};
          }
          Fold(next[i], &chunk);
        }
      }
      Fold(chunk, &whole);
      WriteOut(t, whole);
    }
  }

  const SplitCall& call_;
  const ItemView view_;
  Shared& shared_;
  const int32_t kv_head_;
  const int32_t warp_, lane_, g_, q_;
  const int32_t tiles_;  // sixteens of lines with a row
  ChunkTotals<kHeadDim, kTiles> totals_;
};

// Grid: x the KV head, so that blocks beside each other read what lies together; y the items that
// are taken at once.
template <TensorType kType, int kHeadDim, int kTiles>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce<kHeadDim, kTiles>)
    SplitAttend(SplitCall call) {
  const SplitHeader header = *reinterpret_cast<const SplitHeader*>(call.plan);
  const auto* const items = reinterpret_cast<const SplitItem*>(call.plan + sizeof(SplitHeader));
  for (auto i = static_cast<int32_t>(blockIdx.y); i < header.items;
       i += static_cast<int32_t>(gridDim.y)) {
    Walk<kType, kHeadDim, kTiles>(call, header, items[i], static_cast<int32_t>(blockIdx.x)).Run();
  }
}

template <TensorType kType, int kHeadDim, int kTiles>
absl::Status PrepareForm() {
  return base::cuda::AllowShared(SplitAttend<kType, kHeadDim, kTiles>,
                                 sizeof(SharedMemory<kHeadDim, kTiles>),
                                 "kernel of split-KV attention");
}

template <TensorType kType, int kHeadDim, int kTiles>
absl::Status EnqueueForm(const SplitCall& call, int32_t items, Stream stream) {
  constexpr size_t kShared = sizeof(SharedMemory<kHeadDim, kTiles>);
  static_assert(kBlocksAtOnce<kHeadDim, kTiles> >= 2);
  return Launch("split-KV attention", SplitAttend<kType, kHeadDim, kTiles>,
                dim3(call.kv_heads, items), dim3(kThreads),
                {.shared_bytes = kShared, .overlaps = true}, stream, call);
}

// Calls `run` with a type and a head size that are known when this is compiled.
template <typename Function>
absl::Status ForShape(AttentionType type, int32_t head_dim, const Function& run) {
  const auto for_type = [&](auto tensor_type) {
    return head_dim == 64 ? run(tensor_type, std::integral_constant<int, 64>{})
                          : run(tensor_type, std::integral_constant<int, 128>{});
  };
  return type == AttentionType::kFloat16
             ? for_type(std::integral_constant<TensorType, TensorType::kFloat16>{})
             : for_type(std::integral_constant<TensorType, TensorType::kBFloat16>{});
}

}  // namespace

absl::Status PrepareSplitAttention(AttentionType type, int32_t head_dim) {
  return ForShape(type, head_dim, [](auto tensor_type, auto dim) {
    absl::Status status = PrepareForm<tensor_type(), dim(), 1>();
    status.Update(PrepareForm<tensor_type(), dim(), 2>());
    status.Update(PrepareForm<tensor_type(), dim(), 4>());
    return status;
  });
}

absl::Status EnqueueSplitAttention(const SplitForm& form, const SplitCall& call, int32_t items,
                                   Stream stream) {
  return ForShape(form.type, form.head_dim, [&](auto tensor_type, auto dim) {
    switch (form.tiles) {
      case 1:
        return EnqueueForm<tensor_type(), dim(), 1>(call, items, stream);
      case 2:
        return EnqueueForm<tensor_type(), dim(), 2>(call, items, stream);
      default:
        return EnqueueForm<tensor_type(), dim(), 4>(call, items, stream);
    }
  });
}

}  // namespace specfabric::model::cuda
