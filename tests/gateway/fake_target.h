#ifndef SPECFABRIC_TESTS_GATEWAY_FAKE_TARGET_H_
#define SPECFABRIC_TESTS_GATEWAY_FAKE_TARGET_H_

// A target without a model: a real link that answers Submit with tokens known beforehand.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "link/link.h"
#include "schemas/messages.h"

namespace specfabric::gateway {

struct FakeTargetOptions {
  std::vector<base::TokenId> corpus;  // what it says, over and over
  int32_t vocabulary = 0;
  int32_t context = 500;
  uint64_t tokenizer_fingerprint = 0;
  uint64_t numerics_fingerprint = 1;
  std::string listen = "127.0.0.1:0";
  int32_t cached_tokens = 0;  // of every prompt
  // Tokens of a first attempt after which it says nothing more; -1 goes on to the end.
  int32_t stall_after = -1;
  // Answers every Submit with this instead.
  std::optional<schemas::Finish> refusal;
};

class FakeTarget {
 public:
  explicit FakeTarget(FakeTargetOptions options);

  const std::string& address() const { return address_; }
  void Die() { link_.reset(); }  // as a crash looks from outside
  size_t peers() const;          // connected, as this side knows; the gateway may know sooner
  void SendDrain();

  // The output token at `index` of a sequence with this seed; every fake target with the same
  // corpus says the same.
  base::TokenId TokenAt(uint64_t seed, int32_t index) const;
  std::vector<base::TokenId> Output(uint64_t seed, int32_t count) const;

  std::vector<schemas::Submit> submits() const;
  std::vector<schemas::Cancel> cancels() const;

 private:
  void OnMessage(link::PeerId peer, link::Message message);
  void Answer(link::PeerId peer, const schemas::Submit& submit);
  base::TokenLogprobs Scored(base::TokenId token) const;

  const FakeTargetOptions options_;
  std::string address_;
  mutable std::mutex mutex_;
  std::vector<schemas::Submit> submits_;
  std::vector<schemas::Cancel> cancels_;
  std::vector<link::PeerId> peers_;
  // What callbacks use: they may still run while the link is being destroyed.
  link::Link* sender_ = nullptr;
  std::unique_ptr<link::Link> link_;  // last: its callbacks use the rest
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_TESTS_GATEWAY_FAKE_TARGET_H_
