#include "scheduler/simulation/modelled_draft.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::scheduler {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

constexpr uint64_t kSequence = 1, kTarget = 0;
constexpr int32_t kCommitted = 10, kLevels = 3;

DraftCost Cost(int32_t ahead) {
  DraftCost cost;
  cost.weights = base::kMillisecond;
  cost.tree = speculation::GrowthPolicy::Parse("1,1,1").value();
  cost.ahead.nodes = ahead;
  return cost;
}

ModelledText Text(double first) { return ModelledText({.first = first, .spread = 0}, 1); }

DraftWanted Want(int32_t committed) {
  return {.id = kSequence,
          .round = 1,
          .committed = committed,
          .max_nodes = kLevels,
          .max_depth = kLevels};
}

// Runs passes until no tree needs one, and counts them.
int RunOut(ModelledDraft* draft) {
  int passes = 0;
  for (; draft->wants_pass() && passes < 1000; ++passes) {
    draft->StartPass(passes);
    draft->EndPass();
  }
  return passes;
}

// The first draft token of every node is right.
bool Follows(const ModelledText& text, int32_t from, int32_t to) {
  for (; from < to; ++from) {
    if (text.Token(kSequence, from) != ModelledText::DraftToken(0)) return false;
  }
  return true;
}

TEST(ModelledDraftTest, NodesRunAheadNeedNoPass) {
  const ModelledText text = Text(0.99);
  const DraftCost cost = Cost(200);
  ModelledDraft draft(cost, text);
  draft.Ask(Want(kCommitted), kTarget);
  EXPECT_THAT(draft.Answer(), IsEmpty());
  EXPECT_GT(RunOut(&draft), kLevels);
  const base::Nanos busy = draft.busy();
  EXPECT_EQ(busy, kLevels * base::kMillisecond);  // the others were ahead
  const int32_t committed = kCommitted + kLevels + 1;
  ASSERT_TRUE(Follows(text, kCommitted, committed));
  draft.Ask(Want(committed), kTarget);
  const std::vector<ModelledDraft::Reply> replies = draft.Answer();
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_EQ(replies[0].tree.size(), 1 + kLevels);
  EXPECT_EQ(replies[0].want.committed, committed);
  EXPECT_EQ(draft.busy(), busy);
}

TEST(ModelledDraftTest, NodesNotRunAheadNeedAPass) {
  const ModelledText text = Text(0.01);
  const DraftCost cost = Cost(200);
  ModelledDraft draft(cost, text);
  draft.Ask(Want(kCommitted), kTarget);
  RunOut(&draft);
  ASSERT_FALSE(Follows(text, kCommitted, kCommitted + 1));
  draft.Ask(Want(kCommitted + 1), kTarget);
  EXPECT_THAT(draft.Answer(), IsEmpty());
  EXPECT_FALSE(draft.idle());
}

TEST(ModelledDraftTest, DraftsNothingAheadWhenOff) {
  const ModelledText text = Text(0.99);
  const DraftCost cost = Cost(0);
  ModelledDraft draft(cost, text);
  draft.Ask(Want(kCommitted), kTarget);
  EXPECT_EQ(RunOut(&draft), kLevels);
  draft.Ask(Want(kCommitted + kLevels + 1), kTarget);
  EXPECT_THAT(draft.Answer(), IsEmpty());
}

TEST(ModelledDraftTest, DraftsAheadWithinTheNodeLimit) {
  const ModelledText text = Text(0.99);
  DraftCost cost = Cost(7);
  cost.ahead.rows = 1;
  ModelledDraft draft(cost, text);
  draft.Ask(Want(kCommitted), kTarget);
  EXPECT_EQ(RunOut(&draft), kLevels + 7);
  draft.Forget(kSequence);
  EXPECT_FALSE(draft.wants_pass());
}

// A next root takes the rows of the levels that are asked for, not of the largest tree.
TEST(ModelledDraftTest, APassAheadIsAsLargeAsWhatIsAskedFor) {
  const ModelledText text = Text(0.7);
  DraftCost cost = Cost(200);
  cost.kind = DrafterKind::kPard;
  cost.tree = speculation::GrowthPolicy::Parse("best:32:4:12").value();
  cost.weights = 1;
  cost.row_ns = 1;
  cost.ahead.rows = 4;
  ModelledDraft draft(cost, text);
  draft.Ask(Want(kCommitted), kTarget);
  draft.StartPass(0);
  EXPECT_THAT(draft.EndPass(), SizeIs(1));
  draft.StartPass(0);
  EXPECT_EQ(draft.ends(), cost.ahead.rows * (1 + kLevels));
}

}  // namespace
}  // namespace specfabric::scheduler
