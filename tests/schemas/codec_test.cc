// Round trips of every message, and the limits of every field.

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schemas/messages.h"
#include "schemas/wire.h"
#include "tests/schemas/random_messages.h"

namespace specfabric::schemas {
namespace {

using ::testing::HasSubstr;

template <typename M>
class RoundTripTest : public ::testing::Test {};

using AllMessages =
    ::testing::Types<Hello, Drain, DraftRequest, DraftReply, EndSession, Submit, TokensBatch,
                     Cancel, GroupPart, GroupReady, Step, StepDone, Collective, HiddenStates>;
TYPED_TEST_SUITE(RoundTripTest, AllMessages);

TYPED_TEST(RoundTripTest, RandomMessagesSurviveUnchanged) {
  Rng rng(1);
  for (int i = 0; i < 500; ++i) {
    const TypeParam message = RandomMessage<TypeParam>(rng);
    const auto decoded = Decode<TypeParam>(Encode(message));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    ASSERT_EQ(Fields(message), Fields(*decoded)) << "message " << i;
  }
}

TYPED_TEST(RoundTripTest, DefaultMessageSurvives) {
  const TypeParam message;
  const auto decoded = Decode<TypeParam>(Encode(message));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(Fields(message), Fields(*decoded));
}

TYPED_TEST(RoundTripTest, EveryTruncationIsRefusedOrStillValid) {
  Rng rng(2);
  const std::vector<uint8_t> payload = Encode(RandomMessage<TypeParam>(rng));
  for (size_t size = 0; size < payload.size(); ++size) {
    const std::vector<uint8_t> cut(payload.begin(), payload.begin() + size);
    const auto decoded = Decode<TypeParam>(cut);
    if (size < 8) {
      EXPECT_FALSE(decoded.ok()) << size;
    }
  }
}

TYPED_TEST(RoundTripTest, AnyAlignmentIsRead) {
  Rng rng(3);
  const TypeParam message = RandomMessage<TypeParam>(rng);
  const std::vector<uint8_t> payload = Encode(message);
  for (size_t shift = 0; shift < 8; ++shift) {
    std::vector<uint8_t> shifted(shift);
    shifted.insert(shifted.end(), payload.begin(), payload.end());
    const auto decoded = Decode<TypeParam>(absl::MakeSpan(shifted).subspan(shift));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(Fields(message), Fields(*decoded));
  }
}

// A field outside its range is refused with one line that names it.
template <typename M, typename Change>
void ExpectRefused(const char* field, Change change) {
  Rng rng(4);
  M message = RandomMessage<M>(rng);
  ASSERT_TRUE(Decode<M>(Encode(message)).ok());
  change(message);
  const auto decoded = Decode<M>(Encode(message));
  ASSERT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument) << field;
  const std::string text(decoded.status().message());
  EXPECT_THAT(text, HasSubstr(field));
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(LimitsTest, Hello) {
  ExpectRefused<Hello>("role", [](Hello& m) { m.role = static_cast<Role>(5); });
  ExpectRefused<Hello>("model", [](Hello& m) { m.model = std::string(kMaxNameBytes + 1, 'a'); });
  ExpectRefused<Hello>("model", [](Hello& m) { m.model = "two\nlines"; });
  ExpectRefused<Hello>("build", [](Hello& m) { m.build = std::string("nul\0", 4); });
  ExpectRefused<Hello>("vocabulary", [](Hello& m) { m.vocabulary = -1; });
  ExpectRefused<Hello>("context", [](Hello& m) { m.context = -1; });
  ExpectRefused<Hello>("capacity", [](Hello& m) { m.capacity = -1; });
  ExpectRefused<Hello>("state_layers",
                       [](Hello& m) { m.state_layers.assign(kMaxStateLayers + 1, 2); });
  ExpectRefused<Hello>("state_layers", [](Hello& m) { m.state_layers = {3, -1}; });
  ExpectRefused<Hello>("state_rows", [](Hello& m) {
    m.state_layers = {2};
    m.state_rows = 0;
  });
}

TEST(CheckPairTest, OneTokenizerMayBePaddedInTwoWays) {
  Hello target, draft;
  target.vocabulary = 152064;
  draft.vocabulary = 151936;
  EXPECT_FALSE(CheckPair(target, draft).ok());
  target.tokenizer_fingerprint = draft.tokenizer_fingerprint = 7;
  EXPECT_TRUE(CheckPair(target, draft).ok());
  draft.tokenizer_fingerprint = 8;
  EXPECT_THAT(CheckPair(target, draft).message(), HasSubstr("tokenizer.json differs"));
  draft.tokenizer_fingerprint = 0;  // a drafter's folder often has none
  EXPECT_THAT(CheckPair(target, draft).message(), HasSubstr("151936"));
  draft.vocabulary = 152064;
  EXPECT_TRUE(CheckPair(target, draft).ok());
}

TEST(LimitsTest, HiddenStates) {
  using M = HiddenStates;
  ExpectRefused<M>("runs", [](M& m) { m.runs.assign(kMaxStateRuns + 1, {1, 0, 1}); });
  ExpectRefused<M>("first_position", [](M& m) { m.runs = {{1, -1, 1}}; });
  ExpectRefused<M>("count", [](M& m) { m.runs = {{1, 0, 0}}; });
  ExpectRefused<M>("first_position + count", [](M& m) { m.runs = {{1, INT32_MAX, 1}}; });
}

TEST(LimitsTest, DraftRequest) {
  using M = DraftRequest;
  ExpectRefused<M>("base_length", [](M& m) { m.base_length = -1; });
  ExpectRefused<M>("base_length + append_tokens", [](M& m) {
    m.base_length = std::numeric_limits<int32_t>::max();
    m.append_tokens = {1};
  });
  ExpectRefused<M>("append_tokens", [](M& m) { m.append_tokens = {3, -1}; });
  ExpectRefused<M>("append_tokens",
                   [](M& m) { m.append_tokens.assign(kMaxTokensPerMessage + 1, 7); });
  ExpectRefused<M>("max_nodes", [](M& m) { m.max_nodes = kMaxTreeNodes + 1; });
  ExpectRefused<M>("max_nodes", [](M& m) { m.max_nodes = -1; });
  ExpectRefused<M>("max_depth", [](M& m) { m.max_depth = -1; });
  for (const float cost :
       {-1.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    ExpectRefused<M>("cost_per_second", [&](M& m) { m.cost_per_second = cost; });
    ExpectRefused<M>("cost_per_row", [&](M& m) { m.cost_per_row = cost; });
  }
  ExpectRefused<M>("time_budget", [](M& m) { m.time_budget = -1; });
  ExpectRefused<M>("verification",
                   [](M& m) { m.verification = static_cast<VerificationMethod>(4); });
  ExpectRefused<M>("prompt_length", [](M& m) { m.prompt_length = -1; });
}

base::SamplingParams& SamplingOf(DraftRequest& m) { return m.sampling; }
base::SamplingParams& SamplingOf(Submit& m) { return m.sequence.sampling; }

template <typename M>
void ExpectSamplingChecked() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (float bad : {-0.1f, nan, infinity}) {
    ExpectRefused<M>("temperature", [bad](M& m) { SamplingOf(m).temperature = bad; });
  }
  ExpectRefused<M>("top_k", [](M& m) { SamplingOf(m).top_k = -1; });
  for (float bad : {0.0f, 1.5f, nan}) {
    ExpectRefused<M>("top_p", [bad](M& m) { SamplingOf(m).top_p = bad; });
  }
  for (float bad : {-0.5f, 1.0f, nan}) {
    ExpectRefused<M>("min_p", [bad](M& m) { SamplingOf(m).min_p = bad; });
  }
}

TEST(LimitsTest, Sampling) {
  ExpectSamplingChecked<DraftRequest>();
  ExpectSamplingChecked<Submit>();
}

void SetChain(DraftReply& m, int nodes) {
  m.tree = speculation::TokenTree::Root(base::kNoToken);
  for (int i = 0; i < nodes; ++i) m.tree.Add(i, 5, -1.0f);
}

TEST(LimitsTest, DraftReply) {
  using M = DraftReply;
  ExpectRefused<M>("status", [](M& m) { m.status = static_cast<DraftStatus>(6); });
  ExpectRefused<M>("draw", [](M& m) { m.draw = static_cast<SiblingDraw>(4); });
  ExpectRefused<M>("draft_time", [](M& m) { m.draft_time = -1; });
  ExpectRefused<M>("free_sessions", [](M& m) { m.free_sessions = -1; });
  ExpectRefused<M>("draft_probs_rows", [](M& m) { m.draft_probs_rows = -1; });
  ExpectRefused<M>("draft_probs_rows", [](M& m) { m.draft_probs_rows = kMaxTreeNodes + 1; });
  ExpectRefused<M>("draft_probs_entries", [](M& m) { m.draft_probs_entries = -1; });
  ExpectRefused<M>("parents", [](M& m) { SetChain(m, kMaxTreeNodes + 1); });
  ExpectRefused<M>("tokens", [](M& m) {
    SetChain(m, 3);
    m.tree.tokens.pop_back();
  });
  ExpectRefused<M>("scores", [](M& m) {
    SetChain(m, 3);
    m.tree.scores.push_back(0.0f);
  });
  ExpectRefused<M>("parents", [](M& m) {
    SetChain(m, 3);
    m.tree.parents[2] = 2;  // itself
  });
  ExpectRefused<M>("parents", [](M& m) {
    SetChain(m, 3);
    m.tree.parents[3] = -1;
  });
  ExpectRefused<M>("tokens", [](M& m) {
    SetChain(m, 3);
    m.tree.tokens[1] = -1;
  });
  ExpectRefused<M>("scores", [](M& m) {
    SetChain(m, 3);
    m.tree.scores[3] = -std::numeric_limits<float>::infinity();
  });
  ExpectRefused<M>("known", [](M& m) { m.known = {{32, 1}, {32, 2}}; });
  ExpectRefused<M>("known", [](M& m) { m.known = {{-16, 1}}; });
  ExpectRefused<M>("known", [](M& m) {
    m.known.clear();
    for (int i = 0; i <= kMaxPrefixPoints; ++i) m.known.push_back({kMaxPrefixPoints - i, 1});
  });
}

TEST(LimitsTest, LargestTreeIsAccepted) {
  DraftReply reply;
  SetChain(reply, kMaxTreeNodes);
  EXPECT_TRUE(Decode<DraftReply>(Encode(reply)).ok());
}

TEST(DraftReplyTest, TheTreeIsWholeButForTheTokenOfItsRoot) {
  DraftReply reply;
  reply.tree = speculation::TokenTree::Root(17);
  reply.tree.Add(0, 3, -0.5f);
  reply.tree.Add(1, 4, -0.25f);
  reply.tree.Add(0, 5, -1.5f);
  const auto decoded = Decode<DraftReply>(Encode(reply));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->tree.parents, (std::vector<int32_t>{-1, 0, 1, 0}));
  EXPECT_EQ(decoded->tree.tokens, (std::vector<base::TokenId>{base::kNoToken, 3, 4, 5}));
  EXPECT_EQ(decoded->tree.scores, (std::vector<float>{0.0f, -0.5f, -0.25f, -1.5f}));
  EXPECT_TRUE(speculation::CheckStructure(decoded->tree).ok());
  const auto empty = Decode<DraftReply>(Encode(DraftReply{}));
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_EQ(empty->tree.size(), 1);
}

TEST(LimitsTest, Submit) {
  using M = Submit;
  ExpectRefused<M>("prompt", [](M& m) { m.sequence.prompt = {-1}; });
  ExpectRefused<M>("prompt", [](M& m) { m.sequence.prompt.assign(kMaxTokensPerMessage + 1, 1); });
  ExpectRefused<M>("generated", [](M& m) { m.sequence.generated = {0, -7}; });
  ExpectRefused<M>("stop_ids", [](M& m) { m.sequence.stop_ids.assign(kMaxStopIds + 1, 1); });
  ExpectRefused<M>("stop_ids", [](M& m) { m.sequence.stop_ids = {-2}; });
  ExpectRefused<M>("max_tokens", [](M& m) { m.sequence.max_tokens = -1; });
  ExpectRefused<M>("logprobs", [](M& m) { m.sequence.logprobs = -2; });
  ExpectRefused<M>("logprobs", [](M& m) { m.sequence.logprobs = kMaxTopLogprobs + 1; });
  ExpectRefused<M>("priority", [](M& m) { m.sequence.priority = kMaxPriority + 1; });
  ExpectRefused<M>("priority", [](M& m) { m.sequence.priority = -kMaxPriority - 1; });
  ExpectRefused<M>("tpot_slo", [](M& m) { m.sequence.tpot_slo = -1; });
  ExpectRefused<M>("max_draft_tokens", [](M& m) { m.sequence.max_draft_tokens = -1; });
  ExpectRefused<M>("max_draft_tokens",
                   [](M& m) { m.sequence.max_draft_tokens = kMaxDraftTokens + 1; });
  ExpectRefused<M>("drafter", [](M& m) { m.sequence.drafter.assign(kMaxNameBytes + 1, 'x'); });
  for (const char* lines : {"a\nb", "\x1b[2J", "\x7f"}) {
    ExpectRefused<M>("drafter", [&](M& m) { m.sequence.drafter = lines; });
  }
}

TEST(TraceTest, ASpanOfNoTraceIsNone) {
  const wire::TraceContext spanless = wire::ToWire({.trace_high = 0, .trace_low = 0, .span = 5});
  EXPECT_EQ(wire::FromWire(&spanless), base::TraceContext{});
  const wire::TraceContext traced = wire::ToWire({.trace_high = 0, .trace_low = 1, .span = 5});
  EXPECT_EQ(wire::FromWire(&traced), (base::TraceContext{0, 1, 5}));
}

// In whatever entry of the batch it is.
template <typename Change>
void ExpectSequenceRefused(const char* field, Change change) {
  ExpectRefused<TokensBatch>(field, [&](TokensBatch& m) { change(m.sequences.front()); });
  ExpectRefused<TokensBatch>(field, [&](TokensBatch& m) { change(m.sequences.back()); });
}

TEST(LimitsTest, TokensBatch) {
  using M = Tokens;
  ExpectSequenceRefused("first_index", [](M& m) { m.first_index = -1; });
  ExpectSequenceRefused("tokens", [](M& m) { m.tokens = {-1}; });
  ExpectSequenceRefused("finish", [](M& m) { m.finish = static_cast<Finish>(8); });
  ExpectSequenceRefused("error", [](M& m) { m.error = std::string(kMaxErrorBytes + 1, 'e'); });
  ExpectSequenceRefused("error", [](M& m) { m.error = "a\tb"; });
  ExpectSequenceRefused("rounds", [](M& m) { m.speculation.rounds = -1; });
  ExpectSequenceRefused("drafted", [](M& m) { m.speculation.drafted = -1; });
  ExpectSequenceRefused("accepted", [](M& m) { m.speculation.accepted = -1; });
  ExpectSequenceRefused("accepted_at", [](M& m) { m.speculation.accepted_at = {3, -1}; });
  ExpectSequenceRefused("accepted_at",
                        [](M& m) { m.speculation.accepted_at.resize(kMaxTreeNodes + 1); });
  ExpectSequenceRefused("cached_tokens", [](M& m) { m.cached_tokens = -1; });
  ExpectSequenceRefused("verification",
                        [](M& m) { m.speculation.verification = VerificationMethod{4}; });
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ExpectSequenceRefused("logprobs", [](M& m) { m.logprobs = {{-1, 0.0f, {}}}; });
  ExpectSequenceRefused("logprobs", [nan](M& m) { m.logprobs = {{1, nan, {}}}; });
  ExpectSequenceRefused("logprobs", [nan](M& m) { m.logprobs = {{1, 0.0f, {{1, nan}}}}; });
  ExpectSequenceRefused("prompt_logprobs", [](M& m) {
    m.prompt_logprobs = {{1, 0.0f, {{-1, 0.0f}}}};
  });
  ExpectSequenceRefused("prompt_logprobs", [](M& m) {
    m.prompt_logprobs = {{1, 0.0f, {}}};
    m.prompt_logprobs[0].top.assign(kMaxTopLogprobs + 1, {1, 0.0f});
  });
  ExpectRefused<TokensBatch>("sequences",
                             [](TokensBatch& m) { m.sequences.resize(kMaxBatchSequences + 1); });
  using Change = std::function<void(TargetLoad&)>;
  const auto load_refused = [](const char* field, const Change& change) {
    ExpectRefused<TokensBatch>(field, [&](TokensBatch& m) { change(m.load.emplace()); });
  };
  load_refused("running", [](TargetLoad& load) { load.running = -1; });
  load_refused("waiting", [](TargetLoad& load) { load.waiting = -1; });
  load_refused("kv_blocks", [](TargetLoad& load) { load.kv_blocks = -1; });
  load_refused("kv_blocks_used", [](TargetLoad& load) { load.kv_blocks_used = 1; });
  load_refused("block_size", [](TargetLoad& load) { load.block_size = -1; });
  load_refused("drafts", [](TargetLoad& load) { load.drafts = -1; });
  load_refused("drafted", [](TargetLoad& load) { load.drafted = -1; });
  load_refused("accepted", [](TargetLoad& load) { load.accepted = -1; });
  load_refused("accepted_at", [](TargetLoad& load) { load.accepted_at = {1, -1}; });
  load_refused("accepted_at",
               [](TargetLoad& load) { load.accepted_at.assign(kMaxTreeNodes + 1, 0); });
}

// A small message may not grow large: here 4,000 entries that are one.
TEST(LimitsTest, SequencesThatShareTheirLists) {
  flatbuffers::FlatBufferBuilder builder;
  const std::vector<base::TokenId> tokens(1000, 5);
  const auto list = builder.CreateVector(tokens);
  wire::TokensBuilder entry(builder);
  entry.add_tokens(list);
  const std::vector<flatbuffers::Offset<wire::Tokens>> sequences(4000, entry.Finish());
  const auto payload = wire::Finish(builder, wire::CreateTokensBatchDirect(builder, &sequences));
  const auto decoded = Decode<TokensBatch>(payload);
  ASSERT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(decoded.status().message()), HasSubstr("share"));
}

TEST(LimitsTest, GroupPart) {
  using M = GroupPart;
  ExpectRefused<M>("ranks", [](M& m) { m.ranks = kMaxRanks + 1; });
  ExpectRefused<M>("pipeline_stages", [](M& m) { m.pipeline_stages = 0; });
  ExpectRefused<M>("pipeline_stages", [](M& m) { m.pipeline_stages = m.ranks + 1; });
  ExpectRefused<M>("first_rank", [](M& m) { m.first_rank = -1; });
  ExpectRefused<M>("first_rank + rank_count", [](M& m) { m.first_rank = m.ranks; });
  ExpectRefused<M>("rank_count", [](M& m) { m.rank_count = 0; });
  ExpectRefused<M>("join_timeout", [](M& m) { m.join_timeout = 0; });
  ExpectRefused<M>("join_timeout", [](M& m) { m.join_timeout = INT64_MAX; });
  ExpectRefused<M>("max_rows", [](M& m) { m.max_rows = -1; });
  ExpectRefused<M>("max_rows", [](M& m) { m.max_rows = (1 << 16) + 1; });
  ExpectRefused<M>("kv_blocks", [](M& m) {
    m.cuda = false;
    m.kv_blocks = 0;
  });
  ExpectRefused<M>("kv_blocks", [](M& m) { m.kv_blocks = -1; });
  ExpectRefused<M>("block_size", [](M& m) { m.block_size = 257; });
  ExpectRefused<M>("typical", [](M& m) { m.typical_delta = 1.5; });
}

// One sequence of two rows, a tree or a prefill of which both rows are wanted.
Step TwoRows(scheduler::RowsKind kind) {
  Step step;
  scheduler::StepPlan& plan = step.plan;
  plan.tokens = {5, 6};
  plan.positions = {3, 4};
  plan.parents = {-1, 0};
  plan.ancestors = {1, 3};
  plan.blocks = {2, 7};
  plan.logit_rows = {0, 1};
  plan.score_tokens = {-1, -1};
  plan.sequences.resize(1);
  scheduler::PlanSequence& s = plan.sequences[0];
  s.kind = kind;
  s.row_count = s.block_count = s.logit_count = 2;
  return step;
}

template <typename Change>
void ExpectStepRefused(const char* field, Change change,
                       scheduler::RowsKind kind = scheduler::RowsKind::kTree) {
  Step step = TwoRows(kind);
  ASSERT_TRUE(Decode<Step>(Encode(step)).ok());
  change(step.plan, step.plan.sequences[0]);
  const auto decoded = Decode<Step>(Encode(step));
  ASSERT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument) << field;
  EXPECT_THAT(std::string(decoded.status().message()), HasSubstr(field));
}

TEST(LimitsTest, StepRows) {
  using P = scheduler::StepPlan;
  using S = scheduler::PlanSequence;
  ExpectStepRefused("tokens", [](P& p, S&) { p.tokens[0] = -1; });
  ExpectStepRefused("positions", [](P& p, S&) { p.positions[1] = -1; });
  ExpectStepRefused("positions, parents or ancestors", [](P& p, S&) { p.ancestors.pop_back(); });
  ExpectStepRefused("blocks", [](P& p, S&) { p.blocks[0] = -1; });
  ExpectStepRefused("logit_rows", [](P& p, S&) { p.logit_rows = {1, 0}; });
  ExpectStepRefused("logit_rows", [](P& p, S&) { p.logit_rows = {0, 2}; });
  ExpectStepRefused("logit_rows", [](P& p, S&) { p.logit_rows = {INT32_MAX, 0}; });
  ExpectStepRefused("score_tokens", [](P& p, S&) { p.score_tokens.pop_back(); });
  ExpectStepRefused("score_tokens", [](P& p, S&) { p.score_tokens[0] = -2; });
  ExpectStepRefused("moves", [](P& p, S&) { p.moves = {{0, -1}}; });
  ExpectStepRefused("parents", [](P& p, S&) { p.parents[1] = 1; });
  ExpectStepRefused("parents", [](P& p, S&) { p.parents[0] = 0; });
}

TEST(LimitsTest, StepSequences) {
  using P = scheduler::StepPlan;
  using S = scheduler::PlanSequence;
  ExpectStepRefused("kind", [](P&, S& s) { s.kind = static_cast<scheduler::RowsKind>(2); });
  ExpectStepRefused("kv_len", [](P&, S& s) { s.kv_len = -1; });
  ExpectStepRefused("first_row", [](P&, S& s) { s.first_row = INT32_MAX; });
  ExpectStepRefused("first_row", [](P&, S& s) { s.row_count = 3; });
  ExpectStepRefused("first_block", [](P&, S& s) { s.first_block = 1; });
  ExpectStepRefused("first_logit", [](P&, S& s) { s.first_logit = -1; });
  ExpectStepRefused("logit_count", [](P&, S& s) { s.logit_count = 1; });
  ExpectStepRefused("logprobs", [](P&, S& s) { s.logprobs = kMaxTopLogprobs + 1; });
  ExpectStepRefused("verification",
                    [](P&, S& s) { s.verification = static_cast<VerificationMethod>(4); });
  ExpectStepRefused("draw", [](P&, S& s) { s.draw = static_cast<SiblingDraw>(4); });
  ExpectStepRefused("temperature", [](P&, S& s) { s.sampling.temperature = -1; });
  ExpectStepRefused("presence_penalty", [](P&, S& s) { s.rules.presence_penalty = 3; });
  ExpectStepRefused("draft_row", [](P&, S& s) { s.draft_row = {0}; });
  ExpectStepRefused("draft_row", [](P&, S& s) { s.draft_row = {0, kMaxTreeNodes}; });
  ExpectStepRefused("counts", [](P&, S& s) { s.counts = {{-1, 1}}; });
  ExpectStepRefused(
      "logit_rows", [](P&, S& s) { s.row_count = 1; }, scheduler::RowsKind::kPrefill);
  ExpectStepRefused("sequences", [](P& p, S&) { p.sequences.resize(kMaxBatchSequences + 1); });
}

TEST(LimitsTest, StepDraftProbs) {
  const auto refused = [](std::vector<StepDraftProbs> draft_probs) {
    Step step = TwoRows(scheduler::RowsKind::kTree);
    step.draft_probs = std::move(draft_probs);
    return !Decode<Step>(Encode(step)).ok();
  };
  EXPECT_FALSE(refused({{0, 1, 1, {1, 2}}}));
  EXPECT_TRUE(refused({{1, 1, 1, {}}}));
  EXPECT_TRUE(refused({{0, 1, 1, {}}, {0, 1, 1, {}}}));
  EXPECT_TRUE(refused({{0, 0, 1, {}}}));
  EXPECT_TRUE(refused({{0, 1, 0, {}}}));
}

TEST(LimitsTest, StepDone) {
  using M = StepDone;
  ExpectRefused<M>("error", [](M& m) { m.error = "two\nlines"; });
  ExpectRefused<M>("chosen_logits", [](M& m) { m.chosen_logits = {2, 2}; });
  ExpectRefused<M>("chosen_logits", [](M& m) { m.chosen_logits = {INT32_MAX, 0}; });
  ExpectRefused<M>("tree_sequences", [](M& m) { m.trees = {{-1, {{1}, {1, 2}}}}; });
  ExpectRefused<M>("number of chosen", [](M& m) { m.chosen.push_back(1); });
  ExpectRefused<M>("number of logprobs", [](M& m) { m.scored_logits.push_back(1000); });
  ExpectRefused<M>("paths", [](M& m) { m.trees = {{0, {{0}, {1, 2}}}}; });
  ExpectRefused<M>("trees", [](M& m) { m.trees = {{0, {{1}, {1}}}}; });
  ExpectRefused<M>("trees", [](M& m) { m.trees = {{0, {{1}, {1, 2}, false}}}; });
  ExpectRefused<M>("not_finite_logits", [](M& m) { m.not_finite_logits = {2, 2}; });
  ExpectRefused<M>("tree_tokens", [](M& m) { m.trees = {{0, {{1}, {1, -1}}}}; });
}

TEST(LimitsTest, Collective) {
  ExpectRefused<Collective>("parts", [](Collective& m) { m.parts.resize(kMaxRanks + 1); });
}

TEST(NamesTest, EveryTypeHasItsOwn) {
  EXPECT_STREQ(Name(MessageType::kDraftReply), "DraftReply");
  EXPECT_STREQ(Name(static_cast<MessageType>(999)), "unknown");
  EXPECT_STREQ(Name(Role::kDraft), "draft");
  EXPECT_STREQ(Name(DraftStatus::kNeedResync), "need_resync");
  EXPECT_EQ(kTypeOf<Submit>, MessageType::kSubmit);
}

}  // namespace
}  // namespace specfabric::schemas
