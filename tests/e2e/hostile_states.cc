// A target that sends a draft worker hidden states in every wrong way, and then drafts with it:
//
//   hostile_states DRAFT_ADDRESS MODEL_VOCABULARY VALUES_OF_A_POSITION
//
// Exits with 0 if the worker takes the sound states among them and answers with a tree.

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "schemas/messages.h"
#include "tests/e2e/played_target.h"
#include "transport/slot_pool.h"

namespace specfabric {
namespace {

using schemas::HiddenStates;
using schemas::StateRun;

constexpr uint64_t kIncarnation = 11;
constexpr uint16_t kOne = 0x3F80, kInfinite = 0x7F80, kNotANumber = 0x7FC0;
constexpr size_t kSlotBytes = 2 * schemas::kStateSlotBytes;  // more than a worker's slots have

class StatesTarget {
 public:
  StatesTarget(const char* draft, int32_t vocabulary, size_t width)
      : played_(kIncarnation, draft, vocabulary),
        width_(width),
        slots_(played_.AddSlots(kSlotBytes, 32)) {
    Expect(!played_.hello().state_layers.empty(), "the draft reads no states");
  }

  void Describe(uint32_t number, std::vector<StateRun> runs, uint64_t incarnation = kIncarnation) {
    played_.Send(HiddenStates{incarnation, number, std::move(runs)});
  }
  void SendTensor(uint32_t number, size_t bytes, uint16_t value, uint8_t pool,
                  uint64_t incarnation = kIncarnation) {
    auto lease = slots_->Acquire({incarnation, number});
    Expect(lease.ok(), "no slot");
    for (size_t i = 0; i < bytes; ++i) {
      lease->data()[i] = static_cast<uint8_t>(i % 2 == 0 ? value & 0xFF : value >> 8);
    }
    const transport::TensorFields fields = {{incarnation, number}, pool, number};
    played_.SendTensor(schemas::TensorType::kHiddenStates, fields, *std::move(lease), bytes);
  }
  void SendStates(uint32_t number, const std::vector<StateRun>& runs, size_t positions,
                  uint16_t value = kOne) {
    SendTensor(number, positions * width_ * sizeof(uint16_t), value, pool());
    Describe(number, runs);
  }
  PlayedTarget& played() { return played_; }
  uint8_t pool() const { return played_.hello().state_pool; }
  size_t row_bytes() const { return width_ * sizeof(uint16_t); }

 private:
  PlayedTarget played_;
  const size_t width_;
  const std::shared_ptr<transport::SlotPool> slots_;
};

// All but the last number sent is wrong; returns that.
uint32_t SendWrongStates(StatesTarget* target) {
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
  StatesTarget target(argv[1], std::atoi(argv[2]), std::strtoul(argv[3], nullptr, 10));
  uint32_t number = SendWrongStates(&target);
  target.played().Send(AskFor(kIncarnation, 1, {1, 2, 3}));
  // Sound ones, so many times that what is missing before them is not waited for.
  for (int i = 0; i < 8; ++i) target.SendStates(++number, {{kSequence, 0, 2}}, 2);
  const std::vector<schemas::DraftReply> replies = target.played().Replies();
  Expect(replies.size() == 1 && replies[0].status == schemas::DraftStatus::kOk, "no tree came");
  Expect(replies[0].tree.size() >= 2, "the tree is empty");
  return 0;
}

}  // namespace
}  // namespace specfabric

int main(int argc, char** argv) { return specfabric::Main(argc, argv); }
