#ifndef SPECFABRIC_TRANSPORT_BLOCKED_QUEUE_DETECTOR_H_
#define SPECFABRIC_TRANSPORT_BLOCKED_QUEUE_DETECTOR_H_

// Detects that a lost peer has blocked the worker's shared-memory queue.
//
// UCX receives all messages of shared memory through one queue a worker. A peer that was killed
// while it wrote to the queue leaves an entry that is never completed, and nothing behind it is
// ever received. So once a peer that shared memory with this process was lost, each new connection
// is on probation: if it does not open within kProbation, and no pong of another peer came through
// shared memory meanwhile, the queue is blocked and only a new worker helps.
//
// Pure; private to transport/; on the engine's thread.

#include <deque>
#include <utility>

#include "absl/functional/function_ref.h"
#include "base/clock.h"
#include "transport/fabric.h"

namespace specfabric::transport {

class BlockedQueueDetector {
 public:
  // A peer was lost while it may have been writing to the queue.
  void Suspect() { suspect_ = true; }
  // A peer's message has come through the queue.
  void Clear() { suspect_ = false; }
  bool suspect() const { return suspect_; }

  void PutOnProbation(PeerId peer, base::Nanos now) {
    probation_.emplace_back(now + kProbation, peer);
  }
  void NotePong(base::Nanos now) { last_pong_ = now; }
  // is_opening: whether the connection is still waiting for its peer's first frame.
  bool Blocked(base::Nanos now, absl::FunctionRef<bool(PeerId)> is_opening);
  base::Nanos NextDeadline() const;
  // There is a new worker.
  void Reset();

 private:
  // How long a new peer's first frame may take after the control connection's handshake.
  static constexpr base::Nanos kProbation = 500 * base::kMillisecond;

  bool suspect_ = false;
  std::deque<std::pair<base::Nanos, PeerId>> probation_;  // by the end of each one's probation
  base::Nanos last_pong_ = 0;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_BLOCKED_QUEUE_DETECTOR_H_
