#ifndef SPECFABRIC_MODEL_PARALLEL_COMMUNICATOR_H_
#define SPECFABRIC_MODEL_PARALLEL_COMMUNICATOR_H_

// Collectives among the ranks of one tensor-parallel group. Each rank's thread owns one
// Communicator; all ranks must make the same calls in the same order. Buffers are this rank's own,
// in the host's memory: ranks on GPUs sum theirs by cuda/collectives.h, and meet here for the rest.
// Implementations: threads of one process (thread_communicator.cc), or of several
// (process_communicator.h).

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "sampling/sampling.h"

namespace specfabric::model {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Among those of this process, which are in rank order.
  virtual int local_rank() const = 0;

  // data[i] becomes the sum over ranks. Added pairwise, as a binary tree over the ranks in order,
  // so that the bits equal those of one rank that adds its parts in the same tree (see linear.h).
  virtual void AllReduceSum(absl::Span<float> data) = 0;

  // pairs[i] becomes the best of all ranks' pairs[i] by sampling::Better: one (score, id) pair a
  // row is all that the fast path of verification moves between ranks.
  virtual void AllReduceBest(absl::Span<sampling::ScoredToken> pairs) = 0;

  // Whole rows on their owner ranks: shard is [rows][width of this rank], row r belongs to
  // owners[r]; out on each rank receives, in row order, the whole rows [owned rows][total width] it
  // owns. Ranks' shards are joined in rank order.
  virtual void GatherRows(absl::Span<const float> shard, int width, absl::Span<const int> owners,
                          std::vector<float>* out) = 0;

  // Each rank's `out` becomes the `in` of the rank `distance` after it, which must have as many
  // elements; the last ranks' goes nowhere, and the first ones' `in`, empty, stays so.
  virtual void Shift(int distance, absl::Span<const float> out, absl::Span<float> in) = 0;

  // data becomes that of rank `root`, which must have as many elements.
  virtual void Broadcast(int root, absl::Span<float> data) = 0;

  virtual void Barrier() = 0;

  // The communicator of this rank among those of its part, where the ranks in order are cut into
  // `parts` of one size: those of a pipeline stage. `parts` must divide size(). Null: ranks of one
  // part are in several processes.
  virtual std::unique_ptr<Communicator> Split(int parts) = 0;
};

// Communicators of `size` threads of this process, one for each rank, in rank order. A rank that
// waits spins for a moment, then sleeps.
std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(int size);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_PARALLEL_COMMUNICATOR_H_
