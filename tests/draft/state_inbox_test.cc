#include "draft/state_inbox.h"

#include <algorithm>
#include <random>
#include <vector>

#include "draft/session_states.h"
#include "gtest/gtest.h"

namespace specfabric::draft {
namespace {

schemas::HiddenStates Described(uint32_t number) {
  return {.target_incarnation = 1, .number = number, .runs = {{7, static_cast<int>(number), 1}}};
}
transport::KeptTensor Tensor(uint32_t number) { return {.copy = {static_cast<uint8_t>(number)}}; }

// The numbers that come out, in order; each with the parts that belong together.
std::vector<uint32_t> Take(StateInbox* inbox) {
  std::vector<uint32_t> numbers;
  while (const auto arrived = inbox->Next()) {
    EXPECT_EQ(arrived->runs.size(), 1u);
    EXPECT_EQ(arrived->tensor.bytes()[0], arrived->runs[0].first_position);
    numbers.push_back(arrived->tensor.bytes()[0]);
  }
  return numbers;
}

TEST(StateInboxTest, PutsPartsInOrder) {
  std::mt19937 rng(1);
  for (int round = 0; round < 200; ++round) {
    StateInbox inbox;
    std::vector<uint32_t> parts;  // 2 n: the message of number n; 2 n + 1: its tensor
    for (uint32_t part = 2; part < 2 + 2 * StateInbox::kMostAhead; ++part) parts.push_back(part);
    std::shuffle(parts.begin(), parts.end(), rng);
    std::vector<uint32_t> taken;
    for (const uint32_t part : parts) {
      part % 2 == 0 ? inbox.Add(Described(part / 2)) : inbox.Add(part / 2, Tensor(part / 2));
      const auto now = Take(&inbox);
      taken.insert(taken.end(), now.begin(), now.end());
    }
    EXPECT_EQ(taken, (std::vector<uint32_t>{1, 2}));
    EXPECT_EQ(inbox.lost(), 0u);
    EXPECT_EQ(inbox.stale(), 0u);
  }
}

TEST(StateInboxTest, PassesOverWhatIsLost) {
  StateInbox inbox;
  inbox.Add(Described(1));
  inbox.Lost(1);
  inbox.Add(Described(2));
  inbox.Add(2, Tensor(2));
  EXPECT_EQ(Take(&inbox), (std::vector<uint32_t>{2}));
  EXPECT_EQ(inbox.lost(), 1u);
  inbox.Add(1, Tensor(1));  // too late
  EXPECT_EQ(Take(&inbox), std::vector<uint32_t>{});
  EXPECT_EQ(inbox.stale(), 1u);
}

TEST(StateInboxTest, WaitsNoLongerThanAFewOthersTake) {
  StateInbox inbox;
  inbox.Add(Described(3));  // of 1 and 2 nothing comes, nor 3's tensor
  for (uint32_t number = 4; number < 4 + StateInbox::kMostAhead; ++number) {
    inbox.Add(Described(number));
    inbox.Add(number, Tensor(number));
    EXPECT_EQ(Take(&inbox), std::vector<uint32_t>{}) << number;
  }
  inbox.Add(Described(6));
  inbox.Add(6, Tensor(6));
  EXPECT_EQ(Take(&inbox), (std::vector<uint32_t>{4, 5, 6}));
  EXPECT_EQ(inbox.lost(), 3u);
}

// A peer that only ever sends one part of each takes no more memory than so many parts.
TEST(StateInboxTest, HoldsAFewHalvesAlone) {
  StateInbox inbox;
  for (uint32_t number = 1; number <= 1000; ++number) {
    inbox.Add(Described(number));
    EXPECT_EQ(Take(&inbox), std::vector<uint32_t>{});
  }
  EXPECT_EQ(inbox.lost(), 1000 - StateInbox::kMostWaiting);
  inbox.Add(Described(5000));
  inbox.Add(5000, Tensor(1));
  inbox.Add(Described(UINT32_MAX));
  EXPECT_EQ(Take(&inbox), std::vector<uint32_t>{});
}

std::vector<float> Rows(int first, int count) {
  std::vector<float> rows;
  for (int i = first; i < first + count; ++i) rows.insert(rows.end(), {1.0f * i, -1.0f * i});
  return rows;
}
void ExpectHolds(const SessionStates& states, int first, int end) {
  EXPECT_EQ(states.first(), first);
  ASSERT_EQ(states.end(), end);
  for (int i = first; i < end; ++i) {
    EXPECT_EQ(states.at(i)[0], 1.0f * i);
    EXPECT_EQ(states.at(i)[1], -1.0f * i);
  }
}

TEST(SessionStatesTest, JoinsRunsAndBeginsAnewBehindAGap) {
  SessionStates states;
  states.Add(3, Rows(3, 4), 2);
  ExpectHolds(states, 3, 7);
  states.Add(5, Rows(5, 4), 2);  // two of them again
  ExpectHolds(states, 3, 9);
  states.Add(0, Rows(0, 6), 2);  // all of them earlier or held
  ExpectHolds(states, 3, 9);
  states.DropBefore(8);
  ExpectHolds(states, 8, 9);
  states.Add(12, Rows(12, 2), 2);
  ExpectHolds(states, 12, 14);
  states.Truncate(13);
  ExpectHolds(states, 12, 13);
  states.Add(13, Rows(13, 1), 2);
  ExpectHolds(states, 12, 14);
  states.DropBefore(20);
  ExpectHolds(states, 14, 14);
  states.Add(1, Rows(1, 2), 2);  // after a preemption
  ExpectHolds(states, 1, 3);
}

TEST(SessionStatesTest, GivesMemoryBack) {
  SessionStates states;
  for (int i = 0; i < 1000; ++i) {
    states.Add(i, Rows(i, 1), 2);
    states.DropBefore(i - 1);
    ExpectHolds(states, std::max(0, i - 1), i + 1);
    EXPECT_LT(states.bytes(), 200u);
  }
}

}  // namespace
}  // namespace specfabric::draft
