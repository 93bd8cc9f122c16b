#ifndef SPECFABRIC_DRAFT_STATE_INBOX_H_
#define SPECFABRIC_DRAFT_STATE_INBOX_H_

// Brings the hidden states that one target sends into order. A tensor and the message that says
// what it holds may come in either order, and so may the numbers of several; what is lost is not
// waited for longer than a few others take. Pure; engine thread only.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "schemas/messages.h"
#include "transport/fabric.h"
#include "transport/kept_tensor.h"

namespace specfabric::draft {

struct ArrivedStates {
  std::vector<schemas::StateRun> runs;
  transport::KeptTensor tensor;
};

class StateInbox {
 public:
  // A number that is missing while more later ones than these are complete is lost. Trees wait
  // meanwhile, and a target takes a worker that misses a few in a row out of service.
  static constexpr size_t kMostAhead = 2;
  // Of numbers of which one part has come, at most; the oldest is given up.
  static constexpr size_t kMostWaiting = 64;

  void Add(schemas::HiddenStates described);
  void Add(uint32_t number, transport::KeptTensor tensor);
  // The fabric did not receive it.
  void Lost(uint32_t number);
  // The next in order that is complete; none: not yet.
  std::optional<ArrivedStates> Next();

  uint64_t lost() const { return lost_; }    // numbers that were passed over
  uint64_t stale() const { return stale_; }  // parts of numbers that are over, or came twice

 private:
  struct Parts {
    std::optional<std::vector<schemas::StateRun>> runs;
    std::optional<transport::KeptTensor> tensor;
    bool lost = false;
    bool complete() const { return runs.has_value() && tensor.has_value(); }
  };
  // Null: it is over.
  Parts* Find(uint32_t number);
  void PassOver();

  uint32_t next_ = 1;
  std::map<uint32_t, Parts> waiting_;
  uint64_t lost_ = 0, stale_ = 0;
};

// Of all targets.
class StateInboxes {
 public:
  using Deliver = std::function<absl::Status(uint64_t target_incarnation, const ArrivedStates&)>;
  explicit StateInboxes(Deliver deliver) : deliver_(std::move(deliver)) {}

  // What these complete is delivered, in order. Errors are the delivery's.
  absl::Status Add(schemas::HiddenStates described);
  // None: the fabric did not receive it.
  absl::Status Add(const transport::Fence& fence, std::optional<transport::KeptTensor> tensor);
  void TargetGone(uint64_t target_incarnation);
  uint64_t lost() const;  // tensors

 private:
  absl::Status DeliverNext(uint64_t target_incarnation);

  const Deliver deliver_;
  std::map<uint64_t, StateInbox> inboxes_;
  uint64_t lost_ = 0;  // of targets that are gone
};

}  // namespace specfabric::draft

#endif  // SPECFABRIC_DRAFT_STATE_INBOX_H_
