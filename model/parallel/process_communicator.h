#ifndef SPECFABRIC_MODEL_PARALLEL_PROCESS_COMMUNICATOR_H_
#define SPECFABRIC_MODEL_PARALLEL_PROCESS_COMMUNICATOR_H_

// Communicators of a group whose ranks are spread over processes. The threads of one process meet
// first; one of them then exchanges all their parts for those of every rank, and each adds them by
// itself in the order of the ranks' tree: the bits are those of MakeThreadCommunicators. The
// simplest form that is right: every collective moves every rank's whole part to every process.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "model/parallel/communicator.h"

namespace specfabric::model {

// How the parts of this process's ranks become those of all ranks. Called by one thread at a time,
// once for each collective, in the same order in every process.
class ProcessExchange {
 public:
  virtual ~ProcessExchange() = default;
  // mine: a part for each rank of this process. all: [ranks] in rank order, as long as it was true.
  // False: the group has ended, and nothing that the ranks compute counts any more.
  virtual bool Exchange(const std::vector<absl::Span<const uint8_t>>& mine,
                        std::vector<std::vector<uint8_t>>* all) = 0;
  // The ranks have come to different collectives: ends the group.
  virtual void Diverged() = 0;
};

// Of ranks first_rank .. first_rank + rank_count of `ranks`, in rank order, one for each thread of
// this process. `exchange` must outlive them. Once it has returned false, collectives return at
// once and leave what they were given.
std::vector<std::unique_ptr<Communicator>> MakeProcessCommunicators(ProcessExchange* exchange,
                                                                    int ranks, int first_rank,
                                                                    int rank_count);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_PARALLEL_PROCESS_COMMUNICATOR_H_
