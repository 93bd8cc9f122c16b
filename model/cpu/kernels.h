#ifndef SPECFABRIC_MODEL_CPU_KERNELS_H_
#define SPECFABRIC_MODEL_CPU_KERNELS_H_

// The inner loops of the CPU path, compiled once for each instruction set and chosen at run time.
//
// Every sum has one fixed order: 16 lanes, whatever the machine's vector width, each lane adding
// with fused multiply-add in the order of its index; lanes are then joined as a fixed tree. So the
// float32 results have the same bits on every instruction set, for any number of rows, at any place
// in a batch. In bfloat16 the products of a pair of inputs are added odd one first, as AVX512-BF16
// does; that instruction also takes denormals for zero, so the kernel's name is part of the
// numerics fingerprint. AMX has an order of its own (tiles.inc), which does not depend on the other
// rows either.
//
// This header is compiled under several instruction sets: plain types only, no inline functions.

#include <cstdint>

namespace specfabric::model::cpu {

constexpr int kLanes = 16;
constexpr int kPanelOutputs = 32;  // outputs that a panel of packed weights holds
constexpr int kTreeLevels = 4;     // of the tree that adds parts: at most 8 of them
constexpr int kMaxPanelRows = 64;  // of one call
constexpr int kMaxBlockRows = 16;  // of any Kernels
constexpr int kTileSteps = 16;     // of a tile of inputs or weights
constexpr int kMaxPanelsTogether = 4;

// Compressed panels (see compressed_panels.h): a table, then for each two steps of a part, the last
// one perhaps alone, a group: the low bytes of the one, of the other, and a byte for each place:
// the codes of both, the first one's in the low bits. A place is as unpacking bytes wants it: word
// w of a step, output w / 2 and input w % 2, is at w % 32 / 8 * 16 + w / 32 * 8 + w % 8.
constexpr int kTableBytes = 64;   // the high bytes of the 16 codes, four times
constexpr int kGroupBytes = 192;  // 3 x [64]
constexpr int32_t kNoStep = 0x7FFFFFFF;

// 32 outputs of a linear layer for `rows` rows, which are cut into `blocks` blocks: block b has
// rows rows * b / blocks to rows * (b + 1) / blocks, at most Kernels::block_rows_*.
struct PanelArgs {
  // float32: [parts][steps][32]. bfloat16: [parts][steps][32][2], a step being two inputs.
  // Compressed: a table, then [parts][groups].
  const void* weights;
  // Compressed: the steps that are not, ascending and counted over all parts, up to kNoStep; and
  // their weights, [.][32][2].
  const int32_t* verbatim_steps;
  const void* verbatim;
  // Block behind block, each, float32: [parts][steps][its rows]. bfloat16: the same of pairs, or in
  // tiles: [parts][steps / 16][its rows][16] of pairs.
  const void* x;
  int rows;  // at most kMaxPanelRows
  int blocks;
  int parts;   // a power of two, at most 8
  int steps;   // in tiles: a multiple of 16, the last ones perhaps zeros in x and weights
  float* out;  // [rows][out_stride], the first `outputs` of 32 are written
  int out_stride;
  int outputs;
  const void* next;  // what will be read after this panel: fetched towards its end
  bool fetches;      // weights before they are needed; several blocks always do
};

constexpr int kMaxQueries = 4;

// One query head of one row. Its visible slots, in order: the first run_count of the run that all
// queries of a call share, then extra.
struct AttentionQuery {
  const float* q;  // [stride], scaled; lanes above head_dim zero
  int run_count;
  const int32_t* extra;
  int extra_count;
  float* scores;  // scratch: [visible slots rounded up to 16]
  float* out;     // [head_dim]
};

// Queries of the same KV head and sequence: they read keys and values together as far as their runs
// go. Which queries share a call changes no bit.
struct AttentionArgs {
  const AttentionQuery* queries;
  int query_count;  // at most kMaxQueries
  int head_dim;
  int stride;          // head_dim rounded up to 16
  const void* keys;    // [slot][stride], float32 or bfloat16
  const void* values;  // [slot][stride]
  const int32_t* run;
};

struct Kernels {
  const char* name;
  bool (*supported)();
  // Whose sums for a whole panel the registers hold.
  int block_rows_float32, block_rows_bfloat16;
  bool tiles;  // is how bfloat16 inputs lie
  // Up to kMaxPanelsTogether panels of one layer, which differ in weights and outputs alone. Where
  // inputs lie in tiles, they share what they read of x.
  void (*panels_float32)(const PanelArgs* panels, int count);
  void (*panels_bfloat16)(const PanelArgs* panels, int count);
  void (*panels_compressed)(const PanelArgs* panels, int count);  // null where this set has none
  void (*attention_float32)(const AttentionArgs& args);
  void (*attention_bfloat16)(const AttentionArgs& args);
  // out = x / rms(x) * weight over `width` elements; in place is allowed.
  void (*rms_norm)(const float* x, const float* weight, float epsilon, int width, float* out);
  // out = silu(gate) * up
  void (*silu_multiply)(const float* gate, const float* up, int width, float* out);
  // The same of a panel's gates and ups, [rows][32], of the rows of one block, as steps of x.
  void (*gate_float32)(const float* gate, const float* up, int rows, uint32_t* out);
  void (*gate_bfloat16)(const float* gate, const float* up, int rows, uint32_t* out);
  // As base::RoundToBFloat16, which every instruction set agrees with.
  void (*round_bfloat16)(const float* x, int count, uint16_t* out);
};

#if defined(__x86_64__)
extern const Kernels kAmxKernels;
extern const Kernels kAvx512Bf16Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx2Kernels;
#endif
extern const Kernels kGenericKernels;

// The fastest set that this machine has.
const Kernels& BestKernels();

// All sets compiled in, fastest first, supported by this machine or not; ends with nullptr.
const Kernels* const* AllKernels();

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_KERNELS_H_
