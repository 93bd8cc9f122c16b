// A target that sends a draft worker hidden states in every wrong way, and then drafts with it:
//
//   hostile_states DRAFT_ADDRESS MODEL_VOCABULARY VALUES_OF_A_POSITION
//
// Exits with 0 if the worker takes the sound states among them and answers with a tree.

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/bfloat16.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/queue.h"
#include "link/link.h"
#include "schemas/messages.h"
#include "speculation/verification_method.h"

namespace specfabric {
namespace {

using schemas::DraftReply;
using schemas::HiddenStates;
using schemas::StateRun;

constexpr base::Nanos kTestTimeout = 20 * base::kSecond;
constexpr base::SequenceId kSequence = 7;
constexpr uint64_t kIncarnation = 11;
constexpr uint16_t kOne = 0x3F80, kInfinite = 0x7F80, kNotANumber = 0x7FC0;
constexpr size_t kSlotBytes = size_t{2} << 20;  // more than a worker's slots have

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "hostile_states: %s\n", what);
  std::exit(1);
}

class Target {
 public:
  Target(const char* draft, int32_t vocabulary, size_t width) : width_(width) {
    link::LinkOptions options;
    options.connect = {draft};
    options.hello.role = schemas::Role::kTarget;
    options.hello.incarnation = kIncarnation;
    options.hello.model = "hostile";
    options.hello.vocabulary = vocabulary;
    options.hello.context = 256;
    options.hello.verification_methods =
        1u << static_cast<int>(speculation::VerificationMethod::kCoupled);
    link::LinkHandler handler;
    handler.on_up = [this](link::PeerId peer, const schemas::Hello& hello, const std::string&) {
      draft_ = peer;
      pool_id_ = hello.state_pool;
      up_.PushAlways(!hello.state_layers.empty());
    };
    handler.on_message = [this](link::PeerId, link::Message message) {
      if (auto* reply = std::get_if<DraftReply>(&message)) replies_.PushAlways(std::move(*reply));
    };
    auto link = link::Link::Create(std::move(options), std::move(handler));
    if (!link.ok()) Fail("no link");
    link_ = *std::move(link);
    auto pool = link_->AddPool(0, {transport::MemoryKind::kHost, kSlotBytes, 32});
    if (!pool.ok()) Fail("no slots");
    pool_ = *std::move(pool);
    if (!link_->Start().ok()) Fail("no link");
    const auto up = up_.PopAll(base::Now() + kTestTimeout);
    if (up.empty() || !up.front()) Fail("the draft reads no states, or does not answer");
  }

  void Describe(uint32_t number, std::vector<StateRun> runs, uint64_t incarnation = kIncarnation) {
    Send(HiddenStates{incarnation, number, std::move(runs)});
  }
  void SendTensor(uint32_t number, size_t bytes, uint16_t value, uint8_t pool,
                  uint64_t incarnation = kIncarnation) {
    auto lease = pool_->Acquire({incarnation, number});
    if (!lease.ok()) Fail("no slot");
    for (size_t i = 0; i < bytes; ++i) {
      lease->data()[i] = static_cast<uint8_t>(i % 2 == 0 ? value & 0xFF : value >> 8);
    }
    const transport::TensorFields fields = {{incarnation, number}, pool, number};
    if (!link_
             ->SendTensor(draft_, schemas::TensorType::kHiddenStates, fields, *std::move(lease),
                          static_cast<uint32_t>(bytes))
             .ok()) {
      Fail("a tensor was not sent");
    }
  }
  void SendStates(uint32_t number, const std::vector<StateRun>& runs, size_t positions,
                  uint16_t value = kOne) {
    SendTensor(number, positions * width_ * sizeof(uint16_t), value, pool_id_);
    Describe(number, runs);
  }
  uint8_t pool() const { return pool_id_; }
  size_t row_bytes() const { return width_ * sizeof(uint16_t); }

  template <typename M>
  void Send(const M& message) {
    if (!link_->Send(draft_, message).ok()) Fail("a message was not sent");
  }
  std::vector<DraftReply> Replies() { return replies_.PopAll(base::Now() + kTestTimeout); }

 private:
  const size_t width_;
  base::BoundedQueue<bool> up_{8};
  base::BoundedQueue<DraftReply> replies_{8};
  std::atomic<link::PeerId> draft_{0};
  std::atomic<uint8_t> pool_id_{0};
  std::unique_ptr<link::Link> link_;
  std::shared_ptr<transport::SlotPool> pool_;
};

// All but the last number sent is wrong; returns that.
uint32_t SendWrongStates(Target* target) {
  constexpr int32_t kFar = 1 << 30;
  uint32_t number = 0;
  target->SendStates(++number, {{kSequence, 0, 2}}, 2, kInfinite);
  target->SendStates(++number, {{kSequence, 0, 2}}, 2, kNotANumber);
  target->SendStates(++number, {{kSequence, 0, 2}}, 1);     // a position too few
  target->SendStates(++number, {{kSequence, 0, kFar}}, 1);  // as many as a message can name
  target->SendStates(++number, {{kSequence, kFar, 1}}, 1);  // behind any text
  target->SendStates(++number, {}, 1);                      // of nothing
  target->SendStates(number, {{kSequence, 0, 1}}, 1);       // a number once more
  target->Describe(++number, {{kSequence, 0, 2}});          // no tensor comes
  target->SendTensor(++number, target->row_bytes(), kOne, target->pool());  // no message comes
  target->SendTensor(++number, kSlotBytes, kOne, target->pool());           // fits no slot
  target->Describe(number, {{kSequence, 0, 2}});
  target->SendTensor(++number, target->row_bytes(), kOne, 77);  // no such pool
  target->Describe(number, {{kSequence, 0, 1}});
  target->Describe(++number, {{kSequence, 0, 1}}, kIncarnation + 1);  // another's
  target->SendTensor(number, target->row_bytes(), kOne, target->pool(), kIncarnation + 1);
  for (base::SequenceId other = 100; other < 300; ++other) {  // sessions that nobody asks about
    target->SendStates(++number, {{other, 0, 1}}, 1);
    if (other % 16 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  target->Describe(UINT32_MAX, {{kSequence, 5, 1}});
  return number;
}

int Main(int argc, char** argv) {
  if (argc != 4) Fail("usage: hostile_states DRAFT_ADDRESS MODEL_VOCABULARY VALUES_OF_A_POSITION");
  Target target(argv[1], std::atoi(argv[2]), std::strtoul(argv[3], nullptr, 10));
  uint32_t number = SendWrongStates(&target);
  const std::vector<base::TokenId> text = {1, 2, 3};
  schemas::DraftRequest request;
  request.target_incarnation = kIncarnation;
  request.sequence = kSequence;
  request.round = request.request_id = 1;
  request.base_hash = base::kEmptyPrefixHash;
  request.append_tokens = text;
  request.max_nodes = 4;
  request.time_budget = base::kSecond;
  target.Send(request);
  // Sound ones, so many times that what is missing before them is not waited for.
  for (int i = 0; i < 8; ++i) target.SendStates(++number, {{kSequence, 0, 2}}, 2);
  const std::vector<DraftReply> replies = target.Replies();
  if (replies.size() != 1 || replies[0].status != schemas::DraftStatus::kOk) Fail("no tree came");
  if (replies[0].tree.size() < 2) Fail("the tree is empty");
  return 0;
}

}  // namespace
}  // namespace specfabric

int main(int argc, char** argv) { return specfabric::Main(argc, argv); }
