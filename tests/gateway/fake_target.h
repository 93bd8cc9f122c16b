#ifndef SPECFABRIC_TESTS_GATEWAY_FAKE_TARGET_H_
#define SPECFABRIC_TESTS_GATEWAY_FAKE_TARGET_H_

// A target without a model: a real link that answers Submit with predetermined tokens.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "link/link.h"
#include "schemas/messages.h"

namespace specfabric::gateway {

struct FakeTargetOptions {
  std::vector<base::TokenId> corpus;  // its output, repeated
  int32_t vocabulary = 0;
  int32_t context = 500;
  uint64_t tokenizer_fingerprint = 0;
  uint64_t numerics_fingerprint = 1;
  std::string listen = "127.0.0.1:0";
  int32_t cached_tokens = 0;  // of every prompt
  // Tokens of a first attempt after which it sends nothing more; -1: no limit.
  int32_t stall_after = -1;
  // Time between two messages of a sequence; 0: sends all at once.
  base::Nanos pace = 0;
  // Answers every Submit with this refusal.
  std::optional<schemas::Finish> refusal;
};

class FakeTarget {
 public:
  explicit FakeTarget(FakeTargetOptions options);
  ~FakeTarget();

  const std::string& address() const { return address_; }
  void Die() { link_.reset(); }  // looks like a crash to its peers
  size_t peers() const;          // connected peers, as seen by this side
  void SendDrain();

  // The output token at `index` of a sequence with this seed: the same on all fake targets with the
  // same corpus.
  base::TokenId TokenAt(uint64_t seed, int32_t index) const;
  std::vector<base::TokenId> Output(uint64_t seed, int32_t count) const;

  std::vector<schemas::Submit> submits() const;
  std::vector<schemas::Cancel> cancels() const;

 private:
  // A sequence that is being answered.
  struct Sequence {
    link::PeerId peer = 0;
    schemas::Submit submit;
    schemas::Tokens message;  // the next one
    int32_t next = 0;         // token
  };

  void OnMessage(link::PeerId peer, link::Message message);
  void Answer(link::PeerId peer, const schemas::Submit& submit);
  // False after its last message.
  bool SendNext(Sequence& sequence);
  void SendInPace();
  // With `count` candidates, of which `token` is the first.
  base::TokenLogprobs Scored(base::TokenId token, int count) const;

  const FakeTargetOptions options_;
  std::string address_;
  mutable std::mutex mutex_;
  std::vector<schemas::Submit> submits_;
  std::vector<schemas::Cancel> cancels_;
  std::vector<link::PeerId> peers_;
  std::list<Sequence> running_;  // with pace
  std::condition_variable ending_;
  bool ended_ = false;
  std::thread pacer_;
  // For callbacks, which may still run while the link is being destroyed.
  link::Link* sender_ = nullptr;
  std::unique_ptr<link::Link> link_;  // last member: its callbacks use the others
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_TESTS_GATEWAY_FAKE_TARGET_H_
