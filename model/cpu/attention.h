#ifndef SPECFABRIC_MODEL_CPU_ATTENTION_H_
#define SPECFABRIC_MODEL_CPU_ATTENTION_H_

#include "model/aligned_buffer.h"
#include "model/attention.h"
#include "model/cpu/kernels.h"
#include "model/thread_pool.h"

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
  AlignedBuffer scores_;  // [threads][query heads of a KV head][visible slots]
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_ATTENTION_H_
