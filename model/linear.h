#ifndef SPECFABRIC_MODEL_LINEAR_H_
#define SPECFABRIC_MODEL_LINEAR_H_

// y = W x, the one matrix product of a transformer. Two implementations: packed panels with
// kernels of our own (cpu/packed_linear.h) and libtorch's (reference/linear.h).
//
// How sums are formed. A layer whose inputs are split over ranks (row-parallel: o_proj, down_proj)
// cuts the inputs of the whole model into `parts` equal runs, a power of two. Each part is summed
// input by input; parts are then added pairwise as a binary tree, (0+1)+(2+3)... A rank that holds
// some of the parts returns its own subtree, and Communicator::AllReduceSum adds the rest of the
// same tree. So the bits do not depend on the number of ranks.

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace specfabric::model {

constexpr int kMaxParts = 8;

struct LinearShape {
  int32_t outputs = 0;
  int32_t inputs = 0;
  int32_t parts = 1;   // held here; divides inputs
  bool gated = false;  // the outputs are gates, then as many ups
};

// Fills `weights`, [inputs], with the weights of one output.
using WeightReader = std::function<void(int32_t output, float* weights)>;

class Linear {
 public:
  virtual ~Linear() = default;
  // x: [rows][inputs], out: [rows][outputs], both float32. In bfloat16 the inputs are rounded to it
  // first; sums are float32.
  virtual absl::Status Forward(const float* x, int rows, float* out) = 0;

  // out = W (silu(gate) * up), of the gates and ups that `gate_up`, a gated layer, makes of x,
  // [rows][its inputs]. The same bits as after gate_up->Forward, which writes and reads all of
  // them. Only where FusesGates(*gate_up).
  virtual absl::Status ForwardGated(Linear* /*gate_up*/, const float* /*x*/, int /*rows*/,
                                    float* /*out*/) {
    return absl::UnimplementedError("this linear layer does not fuse gates");
  }
  virtual bool FusesGates(const Linear& /*gate_up*/) const { return false; }
};

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_LINEAR_H_
