// A group that spans processes, here a leader and rank services in one process that are connected
// by the fabric, compared with a group of threads.

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "link/link.h"
#include "target/group_leader.h"
#include "target/rank_service.h"
#include "target/step_parts.h"
#include "tests/model/checkpoint_writer.h"
#include "tests/transport/network.h"

namespace specfabric::target {
namespace {

using scheduler::PlanSequence;
using scheduler::RowsKind;
using scheduler::StepPlan;
using ::testing::HasSubstr;

constexpr int kRanks = 4;
constexpr int kBlocks = 64, kBlockSize = 4;

model::ModelConfig SmallConfig() {
  model::ModelConfig config = model::OddConfig();
  config.heads = config.kv_heads = kRanks;
  config.intermediate = kRanks * 19;
  return config;
}

RankGroupOptions GroupOf(const std::string& dir, int stages = 1) {
  RankGroupOptions options;
  options.model_dir = dir;
  options.tensor_parallel = kRanks / stages;
  options.rank.pipeline_stages = stages;
  options.rank.dtype = model::DataType::kFloat32;
  options.rank.kv_blocks = kBlocks;
  options.rank.block_size = kBlockSize;
  return options;
}

schemas::GroupPart PartFor(const RankGroupOptions& options) {
  schemas::GroupPart part;
  part.pipeline_stages = options.rank.pipeline_stages;
  part.bfloat16 = false;
  part.kv_blocks = kBlocks;
  part.block_size = kBlockSize;
  part.typical_epsilon = options.typical.epsilon;
  part.typical_delta = options.typical.delta;
  return part;
}

// An address that a rank process can be given before the leader listens.
std::string FreeAddress() {
  auto fabric = transport::Fabric::Create(transport::LoopbackOptions(), {});
  return *(*fabric)->Listen(transport::AnyPort());
}

// A leader, and a rank process for each checkpoint folder of `rank_dirs`.
class Cluster {
 public:
  Cluster(const std::string& dir, const std::vector<std::string>& rank_dirs,
          base::Nanos timeout = 20 * base::kSecond, int stages = 1) {
    GroupOptions options;
    options.processes = static_cast<int>(rank_dirs.size()) + 1;
    options.listen = FreeAddress();
    options.timeout = timeout;
    leader_ =
        std::make_unique<GroupLeader>(options, kRanks, [this](const absl::Status&) { ++lost_; });
    RankGroupOptions here = GroupOf(dir, stages);
    here.exchange = leader_.get();
    here.rank_count = leader_->rank_count();
    for (const std::string& rank_dir : rank_dirs) {
      RankServiceOptions joining;
      joining.model_dir = rank_dir;
      joining.join = options.listen;
      joining.fabric = transport::LoopbackOptions();
      registries_.push_back(std::make_unique<metrics::Registry>());
      auto service = RankService::Start(joining, registries_.back().get());
      EXPECT_TRUE(service.ok()) << service.status();
      services_.push_back(*std::move(service));
    }
    schemas::Hello hello;
    hello.role = schemas::Role::kTarget;
    hello.vocabulary = model::LoadModelConfig(dir)->vocabulary;
    gathered_ = leader_->Gather(transport::LoopbackOptions(), hello, PartFor(here));
    if (!gathered_.ok()) return;
    auto ranks = RankGroup::Start(here);
    gathered_ = leader_->FinishLoading(ranks);
    if (ranks.ok()) ranks_ = *std::move(ranks);
  }
  ~Cluster() {
    ranks_.reset();
    leader_.reset();
  }

  absl::StatusOr<scheduler::StepResult> Run(
      const StepPlan& plan, const std::vector<const speculation::DraftProbs*>& draft_probs) {
    StepTimes times;
    scheduler::StepResult result;
    absl::Status done =
        leader_->Run(ranks_.get(), plan, {.draft_probs = draft_probs}, &times, &result);
    if (!done.ok()) return done;
    return result;
  }
  const absl::Status& gathered() const { return gathered_; }
  int lost() const { return lost_; }
  const GroupLeader& leader() const { return *leader_; }
  std::string Metrics(int service) const { return registries_[service]->Render(); }
  RankService& service(int i) { return *services_[i]; }
  void EndService(int i) { services_[i].reset(); }
  void EndLeader() {
    ranks_.reset();
    leader_.reset();
  }

 private:
  std::atomic<int> lost_{0};
  std::unique_ptr<GroupLeader> leader_;
  std::unique_ptr<RankGroup> ranks_;
  std::vector<std::unique_ptr<metrics::Registry>> registries_;  // [services]
  std::vector<std::unique_ptr<RankService>> services_;
  absl::Status gathered_;
};

bool WaitUntil(const std::function<bool()>& condition) {
  const base::Nanos deadline = base::Now() + 20 * base::kSecond;
  while (!condition() && base::Now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return condition();
}

// One sequence for each way of verifying: on sharded logits, gathered rows, changed logits, with
// log-probabilities, with draft probabilities.
std::vector<PlanSequence> Kinds() {
  std::vector<PlanSequence> kinds(8);
  for (size_t i = 0; i < kinds.size(); ++i) {
    kinds[i].id = i;
    kinds[i].sampling.seed = 100 + i;
  }
  kinds[0].sampling.temperature = kinds[6].sampling.temperature = 0;
  kinds[1].sampling.top_k = 5;
  kinds[2].logprobs = 3;
  kinds[3].rules.frequency_penalty = 1.5f;
  kinds[3].counts = {{3, 2}};
  kinds[4].verification = kinds[7].verification = speculation::VerificationMethod::kRejection;
  kinds[5].verification = speculation::VerificationMethod::kTypical;
  kinds[6].logprobs = 0;
  for (PlanSequence& s : kinds) {
    if (s.verification == speculation::VerificationMethod::kRejection) {
      s.draw = speculation::SiblingDraw::kWithReplacement;
    }
  }
  return kinds;
}

// Rows for every sequence of Kinds(): a chain of the given length, or a tree of four nodes.
StepPlan MakePlan(uint64_t step, RowsKind kind, int kv_len, int chain) {
  const std::vector<int> parents = {-1, 0, 0, 1};
  const std::vector<uint64_t> ancestors = {1, 3, 5, 11};
  const std::vector<int> depths = {0, 1, 1, 2};
  StepPlan plan;
  plan.step = step;
  for (PlanSequence s : Kinds()) {
    const bool tree = kind == RowsKind::kTree;
    s.kind = kind;
    s.kv_len = kv_len;
    s.first_row = plan.rows();
    s.row_count = tree ? 4 : chain;
    s.first_block = static_cast<int>(plan.blocks.size());
    s.block_count = 5;
    s.first_logit = static_cast<int>(plan.logit_rows.size());
    s.logit_count = tree ? 4 : 1;
    s.samples = true;
    s.prompt_size = chain;
    for (int i = 0; i < s.row_count; ++i) {
      if (tree || i == s.row_count - 1) {
        plan.logit_rows.push_back(plan.rows());
        plan.score_tokens.push_back(base::kNoToken);
      }
      plan.tokens.push_back(static_cast<int>(7 * s.id + 3 * i + step) % 30);
      plan.positions.push_back(kv_len + (tree ? depths[i] : i));
      plan.parents.push_back(tree ? parents[i] : i - 1);
      plan.ancestors.push_back(tree ? ancestors[i] : 0);
    }
    for (int b = 0; b < s.block_count; ++b) plan.blocks.push_back(static_cast<int>(s.id) * 5 + b);
    if (tree && speculation::NeedsDraftRows(s.verification, s.draw)) s.draft_row = {-1, 0, 0, 1};
    plan.sequences.push_back(s);
  }
  return plan;
}

// Two rows in which every token has the same probability.
class TestDraftProbs {
 public:
  explicit TestDraftProbs(int32_t vocabulary) : shape_(speculation::ShapeFor(2, vocabulary, 0)) {
    bytes_.resize(shape_.bytes() / sizeof(uint16_t), 0x3F80);
    auto opened = speculation::DraftProbs::Open(
        shape_, {reinterpret_cast<const uint8_t*>(bytes_.data()), shape_.bytes()});
    EXPECT_TRUE(opened.ok()) << opened.status();
    draft_probs_ = *std::move(opened);
  }
  std::vector<const speculation::DraftProbs*> For(const StepPlan& plan) const {
    std::vector<const speculation::DraftProbs*> all;
    for (const PlanSequence& s : plan.sequences) {
      all.push_back(ReadsDraftProbs(s) ? &draft_probs_ : nullptr);
    }
    return all;
  }

 private:
  const speculation::DraftProbsShape shape_;
  std::vector<uint16_t> bytes_;
  speculation::DraftProbs draft_probs_;
};

void ExpectSame(const scheduler::StepResult& got, const scheduler::StepResult& want) {
  ASSERT_EQ(got.sequences.size(), want.sequences.size());
  for (size_t s = 0; s < want.sequences.size(); ++s) {
    EXPECT_EQ(got.sequences[s].accepted.tokens, want.sequences[s].accepted.tokens) << s;
    EXPECT_EQ(got.sequences[s].accepted.path, want.sequences[s].accepted.path) << s;
    ASSERT_EQ(got.sequences[s].logprobs.size(), want.sequences[s].logprobs.size()) << s;
    for (size_t i = 0; i < want.sequences[s].logprobs.size(); ++i) {
      EXPECT_EQ(got.sequences[s].logprobs[i].logprob, want.sequences[s].logprobs[i].logprob);
      EXPECT_EQ(got.sequences[s].logprobs[i].top, want.sequences[s].logprobs[i].top);
    }
  }
}

absl::StatusOr<scheduler::StepResult> RunOn(RankGroup* ranks, const StepPlan& plan,
                                            const TestDraftProbs& draft_probs) {
  StepTimes times;
  scheduler::StepResult result;
  const auto for_plan = draft_probs.For(plan);
  absl::Status done = ranks->Run(plan, {.draft_probs = for_plan}, &times, &result);
  if (!done.ok()) return done;
  return result;
}

class GroupTest : public ::testing::Test {
 protected:
  GroupTest() { model::WriteCheckpoint(dir_.path(), SmallConfig(), 1); }
  const model::TempDir dir_;
};

// Ranks in one process, spread over two to four, and in pipeline stages (in one process and in a
// process each) give the same results.
TEST_F(GroupTest, SameResultsAsThreads) {
  auto threads = RankGroup::Start(GroupOf(dir_.path()));
  ASSERT_TRUE(threads.ok()) << threads.status();
  const TestDraftProbs draft_probs((*threads)->config().vocabulary);
  StepPlan moved = MakePlan(3, RowsKind::kTree, 10, 9);
  moved.moves = {{10, 9}, {30, 29}};
  const std::vector<StepPlan> plans = {MakePlan(1, RowsKind::kPrefill, 0, 9),
                                       MakePlan(2, RowsKind::kTree, 9, 9), moved};
  std::vector<scheduler::StepResult> want;
  for (const StepPlan& plan : plans) {
    auto result = RunOn(threads->get(), plan, draft_probs);
    ASSERT_TRUE(result.ok()) << result.status();
    want.push_back(*std::move(result));
  }
  for (const auto& [joining, stages] : {std::pair{1, 1}, {2, 1}, {3, 1}, {1, 2}}) {
    Cluster cluster(dir_.path(), std::vector<std::string>(joining, dir_.path()), 20 * base::kSecond,
                    stages);
    ASSERT_TRUE(cluster.gathered().ok()) << cluster.gathered();
    for (size_t i = 0; i < plans.size(); ++i) {
      const auto got = cluster.Run(plans[i], draft_probs.For(plans[i]));
      ASSERT_TRUE(got.ok()) << got.status();
      ExpectSame(*got, want[i]);
    }
    EXPECT_EQ(cluster.lost(), 0);
    EXPECT_EQ(cluster.leader().counters().peers.size(), static_cast<size_t>(joining));
    EXPECT_GT(cluster.leader().counters().frames_received, 0u);
    EXPECT_THAT(cluster.Metrics(0), HasSubstr("specfabric_fabric_connections{wire="));
  }
  auto staged = RankGroup::Start(GroupOf(dir_.path(), 2));
  ASSERT_TRUE(staged.ok()) << staged.status();
  for (size_t i = 0; i < plans.size(); ++i) {
    const auto got = RunOn(staged->get(), plans[i], draft_probs);
    ASSERT_TRUE(got.ok()) << got.status();
    ExpectSame(*got, want[i]);
  }
}

TEST_F(GroupTest, BatchOutOfRangeFailsOnEveryRank) {
  Cluster cluster(dir_.path(), {dir_.path()});
  ASSERT_TRUE(cluster.gathered().ok()) << cluster.gathered();
  const TestDraftProbs draft_probs(SmallConfig().vocabulary);
  StepPlan plan = MakePlan(1, RowsKind::kPrefill, 0, 9);
  plan.blocks[0] = kBlocks;
  EXPECT_EQ(cluster.Run(plan, draft_probs.For(plan)).status().code(),
            absl::StatusCode::kInvalidArgument);
  plan.blocks[0] = 0;
  EXPECT_TRUE(cluster.Run(plan, draft_probs.For(plan)).ok());
  EXPECT_EQ(cluster.lost(), 0);
}

TEST_F(GroupTest, IsLostWithARankProcess) {
  Cluster cluster(dir_.path(), {dir_.path(), dir_.path()});
  ASSERT_TRUE(cluster.gathered().ok()) << cluster.gathered();
  cluster.EndService(1);
  EXPECT_TRUE(WaitUntil([&] { return cluster.lost() == 1; }));
  const TestDraftProbs draft_probs(SmallConfig().vocabulary);
  const StepPlan plan = MakePlan(1, RowsKind::kPrefill, 0, 9);
  EXPECT_FALSE(cluster.Run(plan, draft_probs.For(plan)).ok());
  EXPECT_EQ(cluster.lost(), 1);
}

TEST_F(GroupTest, StoppedProcessEndsWithoutErrorAndIsLost) {
  Cluster cluster(dir_.path(), {dir_.path()});
  ASSERT_TRUE(cluster.gathered().ok()) << cluster.gathered();
  cluster.service(0).Stop();
  ASSERT_TRUE(WaitUntil([&] { return cluster.service(0).finished(); }));
  EXPECT_TRUE(cluster.service(0).result().ok()) << cluster.service(0).result();
  EXPECT_TRUE(WaitUntil([&] { return cluster.lost() == 1; }));
}

TEST_F(GroupTest, ProcessesEndWithoutErrorWhenTheLeaderEnds) {
  Cluster cluster(dir_.path(), {dir_.path()});
  ASSERT_TRUE(cluster.gathered().ok()) << cluster.gathered();
  EXPECT_TRUE(WaitUntil([&] { return cluster.service(0).ready(); }));
  cluster.EndLeader();
  ASSERT_TRUE(WaitUntil([&] { return cluster.service(0).finished(); }));
  EXPECT_TRUE(cluster.service(0).result().ok()) << cluster.service(0).result();
}

TEST_F(GroupTest, RefusesOtherWeights) {
  const model::TempDir other;
  model::WriteCheckpoint(other.path(), SmallConfig(), 2);
  Cluster cluster(dir_.path(), {other.path()});
  EXPECT_FALSE(cluster.gathered().ok());
  ASSERT_TRUE(WaitUntil([&] { return cluster.service(0).finished(); }));
  const absl::Status why = cluster.service(0).result();
  EXPECT_EQ(why.code(), absl::StatusCode::kInvalidArgument) << why;
  EXPECT_THAT(std::string(why.message()), HasSubstr("other weights"));
  EXPECT_THAT(std::string(cluster.gathered().message()), HasSubstr("other weights"));
  EXPECT_EQ(cluster.lost(), 0) << "the group has never served";
}

TEST_F(GroupTest, RefusesAnotherVocabulary) {
  model::ModelConfig config = SmallConfig();
  config.vocabulary += 1;
  const model::TempDir other;
  model::WriteCheckpoint(other.path(), config, 1);
  Cluster cluster(dir_.path(), {other.path()}, 2 * base::kSecond);
  EXPECT_FALSE(cluster.gathered().ok());
  ASSERT_TRUE(WaitUntil([&] { return cluster.service(0).finished(); }));
  EXPECT_THAT(std::string(cluster.service(0).result().message()), HasSubstr("another model"));
}

// A process that has joined and then sends nothing: ranks here that wait for its part of a
// collective while loading, as GPUs do, time out.
TEST_F(GroupTest, LoadingTimesOutWhenAProcessStalls) {
  GroupOptions options;
  options.processes = 2;
  options.timeout = 2 * base::kSecond;
  options.listen = FreeAddress();
  int lost = 0;
  GroupLeader leader(options, 2, [&](const absl::Status&) { ++lost; });
  link::LinkOptions silent;
  silent.fabric = transport::LoopbackOptions();
  silent.connect = {options.listen};
  silent.hello.role = schemas::Role::kRank;
  silent.hello.vocabulary = SmallConfig().vocabulary;
  auto link = link::Link::Create(std::move(silent), {});
  ASSERT_TRUE(link.ok()) << link.status();
  ASSERT_TRUE((*link)->Start().ok());
  schemas::Hello hello;
  hello.role = schemas::Role::kTarget;
  hello.vocabulary = SmallConfig().vocabulary;
  ASSERT_TRUE(
      leader.Gather(transport::LoopbackOptions(), hello, PartFor(GroupOf(dir_.path()))).ok());
  std::vector<std::vector<uint8_t>> all;
  EXPECT_FALSE(leader.Exchange({{}}, &all));
  const absl::Status met = leader.FinishLoading(absl::AbortedError("another rank failed"));
  EXPECT_EQ(met.code(), absl::StatusCode::kDeadlineExceeded) << met;
  EXPECT_THAT(std::string(met.message()), HasSubstr("not all have loaded"));
  EXPECT_EQ(lost, 0) << "the group has never served";
}

// The checks of a step that the decoder cannot make.
TEST(StepPartsTest, OpenStepChecksAgainstTheModel) {
  const auto refused = [](const std::function<void(schemas::Step&)>& change) {
    schemas::Step step;
    step.plan = MakePlan(1, RowsKind::kPrefill, 0, 3);
    change(step);
    return !OpenStep(step, 61, kBlocks * kBlockSize, {4, 2, 2}).ok();
  };
  EXPECT_FALSE(refused([](schemas::Step&) {}));
  EXPECT_TRUE(refused([](schemas::Step& s) { s.plan.score_tokens[0] = 61; }));
  EXPECT_TRUE(refused([](schemas::Step& s) { s.plan.moves = {{0, kBlocks * kBlockSize}}; }));
  EXPECT_TRUE(refused([](schemas::Step& s) { s.plan.sequences[0].rules.bias = {{61, 1}}; }));
  EXPECT_TRUE(
      refused([](schemas::Step& s) { s.plan.sequences[0].rules.suppressed_token_ids = {61}; }));
  EXPECT_TRUE(refused([](schemas::Step& s) { s.plan.sequences[0].counts = {{61, 1}}; }));
  // A sequence that rank 3 of 4 verifies, and one that another process verifies.
  const auto with_draft_probs = [&](size_t sequence) {
    return refused([sequence](schemas::Step& s) {
      s.plan = MakePlan(1, RowsKind::kTree, 0, 3);
      s.plan.sequences.assign(1, s.plan.sequences[sequence]);
    });
  };
  EXPECT_TRUE(with_draft_probs(7));
  EXPECT_FALSE(with_draft_probs(4));
}

// The draft has changed them after the leader validated them: the group must go on without them.
TEST(StepPartsTest, OpenStepLeavesOutInvalidDraftProbs) {
  schemas::Step step;
  step.plan = MakePlan(1, RowsKind::kTree, 0, 3);
  PlanSequence& sequence = step.plan.sequences[7];
  ASSERT_TRUE(ReadsDraftProbs(sequence));
  sequence.draft_row = {-1, 0, 0, 0};
  schemas::StepDraftProbs draft_probs = {7, 1, 3, std::vector<uint8_t>(3 * 4 + 8)};
  const speculation::DraftProbsShape shape = {1, 61, 3};
  ASSERT_EQ(draft_probs.bytes.size(), shape.bytes());
  std::vector<uint16_t> row(61);
  row[5] = row[6] = row[60] = 0x3F80;
  speculation::DraftProbsWriter(shape, draft_probs.bytes.data()).Write(0, row);
  step.draft_probs = {draft_probs};
  const RankRange here = {4, 2, 2};
  auto opened = OpenStep(step, 61, kBlocks * kBlockSize, here);
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_NE(opened->by_sequence[7], nullptr);
  for (int32_t id : {61, -1, 6, INT32_MAX}) {
    std::memcpy(step.draft_probs[0].bytes.data(), &id, sizeof(id));
    opened = OpenStep(step, 61, kBlocks * kBlockSize, here);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ(opened->by_sequence[7], nullptr);
  }
  // A wrong size is the leader's error, and refused.
  step.draft_probs[0].bytes.pop_back();
  EXPECT_FALSE(OpenStep(step, 61, kBlocks * kBlockSize, here).ok());
}

TEST(StepPartsTest, ResultsThatAreNotFiniteAreSent) {
  const StepPlan plan = MakePlan(5, RowsKind::kTree, 0, 3);
  VerifyResult found, merged;
  found.Reset(plan);
  merged.Reset(plan);
  found.chosen[0] = 3;
  found.chosen[1] = VerifyResult::kNotFinite;
  found.accepted[2] = {.path = {1}, .tokens = {7}, .finite = false};
  found.accepted[3] = {.path = {}, .tokens = {}, .finite = false};
  const auto bytes = schemas::Encode(MakeDone(plan, found));
  const auto done = schemas::Decode<schemas::StepDone>(bytes);
  ASSERT_TRUE(done.ok()) << done.status();
  ASSERT_TRUE(MergeDone(plan, *done, 61, &merged).ok());
  EXPECT_EQ(merged.chosen, found.chosen);
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    EXPECT_EQ(merged.accepted[s].path, found.accepted[s].path);
    EXPECT_EQ(merged.accepted[s].tokens, found.accepted[s].tokens);
    EXPECT_EQ(merged.accepted[s].finite, found.accepted[s].finite);
  }
  schemas::StepDone wrong = *done;
  wrong.not_finite_logits = {static_cast<int32_t>(plan.logit_rows.size())};
  EXPECT_FALSE(MergeDone(plan, wrong, 61, &merged).ok());
}

TEST(StepPartsTest, MergeDoneRefusesWhatDoesNotFitThePlan) {
  const StepPlan plan = MakePlan(5, RowsKind::kTree, 0, 3);
  const auto merged = [&](const std::function<void(schemas::StepDone&)>& change) {
    schemas::StepDone done;
    done.step = 5;
    change(done);
    VerifyResult verify_result;
    verify_result.Reset(plan);
    return MergeDone(plan, done, 61, &verify_result);
  };
  const auto logits = static_cast<int32_t>(plan.logit_rows.size());
  EXPECT_TRUE(merged([](schemas::StepDone&) {}).ok());
  EXPECT_FALSE(merged([](schemas::StepDone& d) { d.step = 6; }).ok());
  EXPECT_FALSE(merged([](schemas::StepDone& d) { d.error = "broken"; }).ok());
  EXPECT_FALSE(merged([&](schemas::StepDone& d) {
                 d.chosen_logits = {logits};
                 d.chosen = {1};
               }).ok());
  EXPECT_FALSE(merged([](schemas::StepDone& d) {
                 d.chosen_logits = {0};
                 d.chosen = {61};
               }).ok());
  EXPECT_FALSE(merged([&](schemas::StepDone& d) {
                 d.scored_logits = {logits};
                 d.logprobs.resize(1);
               }).ok());
  EXPECT_FALSE(merged([](schemas::StepDone& d) { d.trees = {{8, {{}, {1}}}}; }).ok());
  EXPECT_FALSE(merged([](schemas::StepDone& d) { d.trees = {{0, {{4}, {1, 2}}}}; }).ok());
  EXPECT_FALSE(merged([](schemas::StepDone& d) { d.trees = {{0, {{1}, {1, 61}}}}; }).ok());
}

}  // namespace
}  // namespace specfabric::target
