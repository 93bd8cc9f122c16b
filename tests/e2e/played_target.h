#ifndef SPECFABRIC_TESTS_E2E_PLAYED_TARGET_H_
#define SPECFABRIC_TESTS_E2E_PLAYED_TARGET_H_

// What programs share that play a target to one draft worker.

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/queue.h"
#include "link/link.h"
#include "schemas/messages.h"
#include "speculation/verification_method.h"
#include "transport/fabric.h"
#include "transport/slot_pool.h"

namespace specfabric {

constexpr base::Nanos kTestTimeout = 20 * base::kSecond;
constexpr base::SequenceId kSequence = 7;

// Ends the program.
[[noreturn]] inline void Fail(const char* what) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, what);
  std::exit(1);
}

inline void Expect(bool met, const char* what) {
  if (!met) Fail(what);
}

class PlayedTarget {
 public:
  // Returns once the worker at the address `draft` has said who it is.
  PlayedTarget(uint64_t incarnation, const char* draft, int32_t vocabulary) {
    link::LinkOptions options;
    options.connect = {draft};
    options.hello.role = schemas::Role::kTarget;
    options.hello.incarnation = incarnation;
    options.hello.model = "played";
    options.hello.vocabulary = vocabulary;
    options.hello.context = 256;
    options.hello.verification_methods =
        1u << static_cast<int>(speculation::VerificationMethod::kCoupled);
    link::LinkHandler handler;
    handler.on_up = [this](link::PeerId peer, const schemas::Hello& hello, const std::string&) {
      draft_ = peer;
      up_.PushAlways(hello);
    };
    handler.on_message = [this](link::PeerId, link::Message message) {
      auto* reply = std::get_if<schemas::DraftReply>(&message);
      if (reply != nullptr) replies_.PushAlways(std::move(*reply));
    };
    auto link = link::Link::Create(std::move(options), std::move(handler));
    Expect(link.ok(), "no link");
    link_ = *std::move(link);
    Expect(link_->Start().ok(), "no link");
    const auto up = up_.PopAll(base::Now() + kTestTimeout);
    Expect(!up.empty(), "the draft does not answer");
    hello_ = up.front();
  }

  const schemas::Hello& hello() const { return hello_; }  // the worker's

  template <typename M>
  void Send(const M& message) {
    Expect(link_->Send(draft_, message).ok(), "a message was not sent");
  }
  // Slots to send tensors from.
  std::shared_ptr<transport::SlotPool> AddSlots(size_t bytes, int32_t slots) {
    auto pool = link_->AddPool(0, {transport::MemoryKind::kHost, bytes, slots});
    Expect(pool.ok(), "no slots");
    return *std::move(pool);
  }
  void SendTensor(schemas::TensorType type, const transport::TensorFields& fields,
                  transport::Lease lease, size_t bytes) {
    const absl::Status sent =
        link_->SendTensor(draft_, type, fields, std::move(lease), static_cast<uint32_t>(bytes));
    Expect(sent.ok(), "a tensor was not sent");
  }
  // Those that have come; waits for one, but not longer than `timeout`.
  std::vector<schemas::DraftReply> Replies(base::Nanos timeout = kTestTimeout) {
    return replies_.PopAll(base::Now() + timeout);
  }

 private:
  base::BoundedQueue<schemas::Hello> up_{8};
  base::BoundedQueue<schemas::DraftReply> replies_{8};
  std::atomic<link::PeerId> draft_{0};
  schemas::Hello hello_;
  std::unique_ptr<link::Link> link_;
};

// Asks for a tree below `append`, the text of kSequence after the `base` tokens that hash to
// `hash`.
inline schemas::DraftRequest AskFor(uint64_t incarnation, uint32_t round,
                                    std::vector<base::TokenId> append, int32_t base = 0,
                                    uint64_t hash = base::kEmptyPrefixHash) {
  schemas::DraftRequest request;
  request.target_incarnation = incarnation;
  request.sequence = kSequence;
  request.round = request.request_id = round;
  request.base_length = base;
  request.base_hash = hash;
  request.append_tokens = std::move(append);
  request.max_nodes = 4;
  request.time_budget = base::kSecond;
  return request;
}

}  // namespace specfabric

#endif  // SPECFABRIC_TESTS_E2E_PLAYED_TARGET_H_
