#ifndef SPECFABRIC_MODEL_CPU_ATTENTION_H_
#define SPECFABRIC_MODEL_CPU_ATTENTION_H_

#include <vector>

#include "absl/status/status.h"
#include "model/attention.h"
#include "model/cpu/aligned_buffer.h"
#include "model/cpu/kernels.h"
#include "model/cpu/thread_pool.h"

namespace specfabric::model::cpu {

// The fast attention. The result of a row depends only on its query and on the keys and values of
// its visible slots in their order: not on where those slots lie, on the other rows, nor on
// threads.
class Attention {
 public:
  // Both must outlive this object.
  Attention(const Kernels& kernels, ThreadPool* pool) : kernels_(kernels), pool_(pool) {}

  // out: [rows][heads][head_dim]. ResourceExhausted: no memory for scores.
  absl::Status Forward(const AttentionInputs& inputs, float* out);

 private:
  const Kernels& kernels_;
  ThreadPool* const pool_;
  // Rows of one sequence that follow each other and are taken together.
  struct RowBlock {
    int32_t first_row, row_count;
  };
  void MakeRowBlocks(const AttentionPlan& plan, int rows_of_block);
  void AttendBlock(const AttentionInputs& inputs, const RowBlock& block, int kv_head, float* scores,
                   float* out) const;

  std::vector<RowBlock> blocks_;
  AlignedBuffer scores_;  // [threads][kMaxQueries][visible slots]
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_ATTENTION_H_
