#include "target/state_stream.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/bfloat16.h"
#include "gtest/gtest.h"

namespace specfabric::target {
namespace {

constexpr int32_t kHidden = 3;
constexpr uint64_t kIncarnation = 5;

struct Sent {
  PeerId peer = 0;
  schemas::HiddenStates described;
  std::vector<float> values;
};

class StateStreamTest : public ::testing::Test {
 protected:
  StateStreamTest()
      : stream_(kIncarnation, kHidden,
                {.slot = [this](const transport::Fence& fence) { return pool_->Acquire(fence); },
                 .send =
                     [this](PeerId peer, const schemas::HiddenStates& described, uint8_t pool,
                            transport::Lease lease, uint32_t bytes) {
                       return Take(peer, described, pool, lease, bytes);
                     }}) {}

  absl::Status Take(PeerId peer, const schemas::HiddenStates& described, uint8_t pool,
                    const transport::Lease& lease, uint32_t bytes) {
    EXPECT_EQ(pool, peer + 10);
    EXPECT_EQ(lease.fence(), (transport::Fence{kIncarnation, described.number}));
    if (refuses_) return absl::ResourceExhaustedError("too many sends outstanding");
    Sent sent = {peer, described, {}};
    for (uint32_t i = 0; i < bytes; i += 2) {
      const auto bits = static_cast<uint16_t>(lease.data()[i] | lease.data()[i + 1] << 8);
      sent.values.push_back(base::WidenBFloat16(bits));
    }
    sent_.push_back(std::move(sent));
    return absl::OkStatus();
  }

  void Up(PeerId peer, std::vector<int32_t> layers, int32_t slot_rows = 256) {
    schemas::Hello hello;
    hello.state_layers = std::move(layers);
    hello.state_rows = slot_rows;
    hello.state_pool = static_cast<uint8_t>(peer + 10);
    stream_.PeerUp(peer, hello);
  }

  // A prompt's chunk of positions [first, first + count), or a tree below the token at `first`, of
  // whose nodes `path` are accepted; its depths are positions.
  void AddPrompt(base::SequenceId id, int32_t first, int32_t count) {
    Add(id, scheduler::RowsKind::kPrefill);
    for (int32_t i = 0; i < count; ++i) plan_.positions.push_back(first + i);
    Close({});
  }
  void AddTree(base::SequenceId id, const std::vector<int32_t>& positions,
               std::vector<int32_t> path) {
    Add(id, scheduler::RowsKind::kTree);
    plan_.positions.insert(plan_.positions.end(), positions.begin(), positions.end());
    Close(std::move(path));
  }
  void Add(base::SequenceId id, scheduler::RowsKind kind) {
    plan_.sequences.emplace_back();
    plan_.sequences.back().id = id;
    plan_.sequences.back().kind = kind;
    plan_.sequences.back().first_row = static_cast<int32_t>(plan_.positions.size());
  }
  void Close(std::vector<int32_t> path) {
    scheduler::PlanSequence& sequence = plan_.sequences.back();
    sequence.row_count = static_cast<int32_t>(plan_.positions.size()) - sequence.first_row;
    result_.sequences.Resize(plan_.sequences.size());
    result_.sequences[plan_.sequences.size() - 1].accepted.path = std::move(path);
  }
  // Of row `row` of the plan, at boundary v; whole numbers that bfloat16 has.
  static float Value(int32_t row, int32_t boundary, int32_t i) {
    return static_cast<float>(16 * row + 4 * boundary + i);
  }
  // What a model would copy.
  absl::Status Copy(absl::Span<const model::StateCopy> copies) {
    ++copied_;
    if (!kept_.ok()) return kept_;
    for (const model::StateCopy& copy : copies) {
      EXPECT_EQ(copy.on_device, kind_ == transport::MemoryKind::kCuda);
      uint16_t* to = copy.to;
      for (const int32_t row : copy.rows) {
        for (const int32_t column : copy.columns) {
          for (int32_t i = 0; i < kHidden; ++i) {
            *to++ = base::RoundToBFloat16(Value(row, stream_.layers()[column], i));
          }
        }
      }
    }
    return absl::OkStatus();
  }
  void Send() {
    stream_.Send(plan_, result_, [this](auto copies) { return Copy(copies); },
                 {.of = [this](base::SequenceId id) { return readers_[id]; },
                  .left_out =
                      [this](PeerId peer, base::SequenceId id) {
                        left_out_.insert({peer, id});
                      }});
    plan_ = {};
    result_.sequences.Resize(0);
  }
  static std::vector<float> Values(const std::vector<int32_t>& rows,
                                   const std::vector<int32_t>& boundaries) {
    std::vector<float> values;
    for (const int32_t row : rows) {
      for (const int32_t boundary : boundaries) {
        for (int32_t i = 0; i < kHidden; ++i) values.push_back(Value(row, boundary, i));
      }
    }
    return values;
  }

  std::shared_ptr<transport::SlotPool> MakePool(int32_t slots) {
    const transport::SlotPoolOptions options = {kind_, schemas::kStateSlotBytes, slots};
    const size_t bytes = transport::SlotPool::Stride(options) * slots;
    return std::make_shared<transport::SlotPool>(
        options, transport::Slab{kind_, static_cast<uint8_t*>(std::malloc(bytes)), bytes},
        [](const transport::Slab& slab) { std::free(slab.data); });
  }

  transport::MemoryKind kind_ = transport::MemoryKind::kHost;
  std::shared_ptr<transport::SlotPool> pool_ = MakePool(2);
  absl::Status kept_;
  int copied_ = 0;  // how often
  std::vector<Sent> sent_;
  bool refuses_ = false;
  std::map<base::SequenceId, std::vector<PeerId>> readers_;
  std::set<std::pair<PeerId, base::SequenceId>> left_out_;
  scheduler::StepPlan plan_;
  scheduler::StepResult result_;
  StateStream stream_;
};

using Runs = std::vector<schemas::StateRun>;

TEST_F(StateStreamTest, SendsPromptsAndAcceptedPaths) {
  Up(1, {4, 2});
  readers_ = {{7, {1}}, {8, {1}}, {9, {}}};
  AddPrompt(7, 10, 3);                           // rows 0 to 2
  AddTree(9, {5, 6}, {1});                       // rows 3, 4: nobody reads it
  AddTree(8, {20, 21, 21, 22, 22, 23}, {2, 4});  // rows 5 to 10
  Send();
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].described.target_incarnation, kIncarnation);
  EXPECT_EQ(sent_[0].described.number, 1u);
  EXPECT_EQ(sent_[0].described.runs, (Runs{{7, 10, 3}, {8, 20, 3}}));
  EXPECT_EQ(sent_[0].values, Values({0, 1, 2, 5, 7, 9}, {4, 2}));
  EXPECT_EQ(stream_.stats().sent, 6u);
  EXPECT_EQ(stream_.stats().bytes, 6u * 2 * kHidden * 2);
}

TEST_F(StateStreamTest, EachWorkerGetsTheLayersItReads) {
  Up(1, {4, 2});
  Up(2, {0, 2, 6});
  EXPECT_EQ(stream_.layers(), (std::vector<int32_t>{0, 2, 4, 6}));
  readers_ = {{7, {1, 2}}, {8, {2}}};
  AddPrompt(7, 0, 2);
  AddTree(8, {3}, {});
  Send();
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[0].peer, 1u);
  EXPECT_EQ(sent_[0].described.runs, (Runs{{7, 0, 2}}));
  EXPECT_EQ(sent_[0].values, Values({0, 1}, {4, 2}));
  EXPECT_EQ(sent_[1].peer, 2u);
  EXPECT_EQ(sent_[1].described.runs, (Runs{{7, 0, 2}, {8, 3, 1}}));
  EXPECT_EQ(sent_[1].values, Values({0, 1, 2}, {0, 2, 6}));
}

TEST_F(StateStreamTest, AWorkerThatIsGoneGetsNone) {
  Up(1, {4, 2});
  Up(2, {0, 2, 6});
  readers_ = {{7, {1, 2}}};
  AddPrompt(7, 0, 2);
  Send();
  ASSERT_EQ(sent_.size(), 2u);
  stream_.PeerDown(2);
  EXPECT_EQ(stream_.layers(), (std::vector<int32_t>{2, 4}));
  AddPrompt(7, 2, 1);  // the pool has not been told yet that worker 2 is gone
  Send();
  ASSERT_EQ(sent_.size(), 3u);
  EXPECT_EQ(sent_[2].peer, 1u);
  EXPECT_EQ(sent_[2].described.number, 2u);
  EXPECT_EQ(sent_[2].values, Values({0}, {4, 2}));
  EXPECT_EQ(stream_.stats().dropped, 0u);
  stream_.PeerDown(1);
  EXPECT_TRUE(stream_.layers().empty());
  // Another connection counts from the start, and gets nothing that was meant for the one before.
  Up(2, {2});
  AddPrompt(8, 0, 1);
  AddPrompt(7, 3, 1);
  Send();
  ASSERT_EQ(sent_.size(), 4u);
  EXPECT_EQ(sent_[3].peer, 2u);
  EXPECT_EQ(sent_[3].described.number, 1u);
  EXPECT_EQ(sent_[3].described.runs, (Runs{{7, 3, 1}}));
  EXPECT_EQ(sent_[3].values, Values({1}, {2}));
}

TEST_F(StateStreamTest, CutsWhatASlotDoesNotTake) {
  pool_ = MakePool(3);
  Up(1, {1}, /*slot_rows=*/4);
  readers_ = {{7, {1}}, {8, {1}}};
  AddPrompt(7, 0, 6);
  AddPrompt(8, 30, 4);
  Send();
  ASSERT_EQ(sent_.size(), 3u);
  EXPECT_EQ(sent_[0].described.runs, (Runs{{7, 0, 4}}));
  EXPECT_EQ(sent_[1].described.runs, (Runs{{7, 4, 2}, {8, 30, 2}}));
  EXPECT_EQ(sent_[2].described.runs, (Runs{{8, 32, 2}}));
  EXPECT_EQ(sent_[2].values, Values({8, 9}, {1}));
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(sent_[i].described.number, i + 1);
}

TEST_F(StateStreamTest, LeavesOutWhatCannotBeSentNow) {
  Up(1, {1});
  readers_ = {{7, {1}}};
  {
    const auto first = *pool_->Acquire({}), second = *pool_->Acquire({});
    AddPrompt(7, 0, 2);
    Send();
    EXPECT_TRUE(sent_.empty());
    EXPECT_EQ(stream_.stats().dropped, 2u);
    EXPECT_EQ(std::exchange(left_out_, {}),
              (std::set<std::pair<PeerId, base::SequenceId>>{{1, 7}}));
  }
  refuses_ = true;
  AddPrompt(7, 2, 3);
  Send();
  EXPECT_EQ(stream_.stats().dropped, 5u);
  EXPECT_EQ(std::exchange(left_out_, {}), (std::set<std::pair<PeerId, base::SequenceId>>{{1, 7}}));
  refuses_ = false;
  AddPrompt(7, 5, 1);
  Send();
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].described.runs, (Runs{{7, 5, 1}}));
  // A part of what was refused may have been sent: its number is not used again.
  EXPECT_EQ(sent_[0].described.number, 2u);
  EXPECT_EQ(stream_.stats().sent, 1u);
  EXPECT_TRUE(left_out_.empty());
}

TEST_F(StateStreamTest, CopiesOnceAStep) {
  for (const auto kind : {transport::MemoryKind::kHost, transport::MemoryKind::kCuda}) {
    kind_ = kind;
    pool_ = MakePool(2);
    copied_ = 0;
    Up(1, {4, 2});
    Up(2, {0, 2, 6});
    readers_ = {{7, {1, 2}}};
    AddPrompt(7, 0, 2);
    Send();
    EXPECT_EQ(copied_, 1);
    AddPrompt(8, 0, 2);  // nobody reads it
    Send();
    EXPECT_EQ(copied_, 1);
  }
  EXPECT_EQ(sent_.size(), 4u);
  kept_ = absl::InternalError("lost");
  AddPrompt(7, 2, 3);
  Send();
  EXPECT_EQ(sent_.size(), 4u);
  EXPECT_EQ(stream_.stats().dropped, 6u);
  EXPECT_EQ(pool_->CountStates()[static_cast<size_t>(transport::SlotState::kFree)], 2);
}

TEST_F(StateStreamTest, AWorkerWhosePositionsFitNoSlotGetsNone) {
  Up(1, std::vector<int32_t>(schemas::kStateSlotBytes / (2 * kHidden) + 1, 3));
  EXPECT_TRUE(stream_.layers().empty());
}

}  // namespace
}  // namespace specfabric::target
