// A pool with several draft models, against a scheduler and workers that answer at once.

#include "target/draft_pool.h"

#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/target/deliver.h"

namespace specfabric::target {
namespace {

using base::TokenId;
using schemas::DraftReply;
using schemas::DraftRequest;
using schemas::DraftStatus;
using speculation::ChoicePolicy;
using speculation::VerificationMethod;

constexpr uint64_t kIncarnation = 77;
constexpr int32_t kVocabulary = 100;

// The token at a place of the only text there is.
TokenId Truth(int place) { return static_cast<TokenId>((place * 7 + place / 5) % 90); }

class DraftPoolChoiceTest : public testing::Test {
 protected:
  void Make(speculation::ChoiceOptions choice) {
    scheduler::SchedulerOptions options;
    options.kv_blocks = 4000;
    options.vocabulary = kVocabulary;
    options.max_context = 50'000;
    options.speculation = scheduler::SpeculationPolicy::kAlways;
    scheduler_ = std::make_unique<scheduler::Scheduler>(options);
    DraftPoolOptions pool;
    pool.sessions.incarnation = kIncarnation;
    pool.sessions.vocabulary = kVocabulary;
    pool.choice = choice;
    pool_ = std::make_unique<DraftPool>(
        pool,
        DraftOutbox{.request =
                        [this](PeerId peer, const DraftRequest& request) {
                          inbox_.emplace_back(peer, request);
                          ++asked_[peer];
                          return absl::OkStatus();
                        },
                    .end_session = [this](PeerId peer,
                                          const schemas::EndSession&) { ended_.push_back(peer); }});
  }
  void Reply(PeerId peer, DraftReply reply) {
    const std::vector<TokenId>& text = *scheduler_->Committed(reply.sequence);
    Deliver(pool_->OnReply(peer, std::move(reply), text, now_), now_, scheduler_.get());
  }
  void Down(PeerId peer) {
    for (const NoDraft& none : pool_->PeerDown(peer)) Deliver(none, scheduler_.get());
  }
  void Up(PeerId peer, const std::string& model, int right) {
    schemas::Hello hello;
    hello.role = schemas::Role::kDraft;
    hello.capacity = 8;
    hello.model = model;
    hello.state_layers = state_layers_;
    pool_->PeerUp(peer, hello);
    right_[peer] = right;
  }
  // drafter: the one source that drafts, by name; empty: any.
  void Start(base::SequenceId id, VerificationMethod verification = VerificationMethod::kCoupled,
             const std::string& drafter = "") {
    scheduler::SequenceRequest request;
    request.id = id;
    for (int i = 0; i < 10; ++i) request.prompt.push_back(Truth(i));
    request.max_tokens = 45'000;
    request.verification = verification;
    request.drafter = drafter;
    request.sources = pool_->SourcesOf(drafter);
    const uint32_t drafters = request.sources.drafters;
    scheduler_->SetDrafters(pool_->connected());
    ASSERT_TRUE(scheduler_->Add(std::move(request), now_).ok());
    DraftTerms terms;
    terms.prompt_length = 10;
    terms.verification = verification;
    if (drafters != 0) pool_->Open(id, terms, drafters, /*teaches=*/drafter.empty());
    Round();
  }

  // A worker proposes a chain of four tokens, of which the first right_[peer] are right.
  DraftReply Answer(PeerId peer, const DraftRequest& request) {
    DraftReply reply;
    reply.target_incarnation = request.target_incarnation;
    reply.sequence = request.sequence;
    reply.round = request.round;
    reply.request_id = request.request_id;
    reply.sampling_tag = schemas::SamplingTag(request.verification, request.sampling);
    reply.free_sessions = 4;
    if (request.verification == VerificationMethod::kRejection) {
      reply.draw = speculation::SiblingDraw::kDeterministic;
    }
    std::vector<TokenId>& held = held_[{peer, request.sequence}];
    EXPECT_LE(request.base_length, static_cast<int32_t>(held.size()))
        << "the worker never got these";
    held.resize(request.base_length);
    held.insert(held.end(), request.append_tokens.begin(), request.append_tokens.end());
    const int place = static_cast<int>(held.size());
    for (int i = 0; i < 4; ++i) {
      reply.tree.Add(i, i < right_[peer] ? Truth(place + i) : 95, -0.2f);
    }
    return reply;
  }
  void AnswerAll() {
    for (auto& [peer, request] : std::exchange(inbox_, {})) {
      if (!silent_.contains(peer)) Reply(peer, Answer(peer, request));
    }
  }

  // Plans and commits one step; every sequence's text is the truth.
  void Round() {
    now_ += base::kMillisecond;
    AnswerAll();
    auto planned = scheduler_->Plan(now_);
    if (auto* wait = std::get_if<scheduler::WaitUntil>(&planned)) {
      now_ = wait->time;
      pool_->Expire(now_);
      planned = scheduler_->Plan(now_);
    }
    ASSERT_TRUE(std::holds_alternative<scheduler::StepPlan>(planned));
    const auto plan = std::get<scheduler::StepPlan>(std::move(planned));
    scheduler::StepResult result = {.step = plan.step, .sequences = {}};
    for (const scheduler::PlanSequence& part : plan.sequences) {
      const int place = static_cast<int>(scheduler_->Committed(part.id)->size());
      speculation::Accepted accepted;
      int node = 0;
      while (node >= 0) {
        accepted.tokens.push_back(Truth(place + static_cast<int>(accepted.path.size())));
        int next = -1;
        for (int row = node + 1; row < part.row_count && next < 0; ++row) {
          const bool child = plan.parents[part.first_row + row] == node;
          if (child && plan.tokens[part.first_row + row] == accepted.tokens.back()) next = row;
        }
        if (part.kind == scheduler::RowsKind::kPrefill) next = -1;
        if (next > 0) accepted.path.push_back(next);
        node = next;
      }
      result.sequences.push_back({part.id, std::move(accepted), {}, {}});
    }
    pool_->OnStep(base::kMillisecond);
    now_ += base::kMillisecond;
    for (const scheduler::Event& event : scheduler_->Commit(&result, now_)) {
      if (const auto* want = std::get_if<scheduler::DraftWanted>(&event)) {
        Deliver(pool_->Want(*want, *scheduler_->Committed(want->id), now_), scheduler_.get());
      }
      if (const auto* tokens = std::get_if<scheduler::TokensEvent>(&event)) {
        accepted_ += tokens->accepted;
        widest_ = std::max(widest_, tokens->drafted);
      }
    }
  }
  void Rounds(int count) {
    for (int i = 0; i < count; ++i) Round();
  }

  base::Nanos now_ = base::kSecond;
  std::vector<std::pair<PeerId, DraftRequest>> inbox_;
  std::map<PeerId, int> asked_, right_;
  std::map<PeerId, bool> silent_;
  std::map<std::pair<PeerId, base::SequenceId>, std::vector<TokenId>> held_;
  std::vector<PeerId> ended_;
  std::vector<int32_t> state_layers_;  // of the workers that come
  int accepted_ = 0, widest_ = 0;
  std::unique_ptr<scheduler::Scheduler> scheduler_;
  std::unique_ptr<DraftPool> pool_;
};

class EachChoiceTest : public DraftPoolChoiceTest,
                       public testing::WithParamInterface<ChoicePolicy> {};

TEST_P(EachChoiceTest, TheBetterModelIsChosenAndTheOtherOnceItIsBetter) {
  Make({.policy = GetParam(), .seed = 3});
  Up(5, "code", 4);
  Up(6, "prose", 1);
  Up(7, "code", 4);
  EXPECT_THAT(pool_->names(), testing::ElementsAre("code", "prose"));
  EXPECT_EQ(pool_->workers(), 3);
  Start(1);
  Rounds(400);
  EXPECT_GT(pool_->shares()[0], 0.7);
  right_ = {{5, 1}, {6, 4}, {7, 1}};
  Rounds(400);
  EXPECT_GT(pool_->shares()[1], 0.7);
  accepted_ = 0;
  Rounds(200);
  EXPECT_GT(accepted_, 0.85 * 200 * 4);
  EXPECT_EQ(pool_->stats().resyncs, 0u);
}

INSTANTIATE_TEST_SUITE_P(Policies, EachChoiceTest,
                         testing::Values(ChoicePolicy::kHedge, ChoicePolicy::kUcb1,
                                         ChoicePolicy::kThompson),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_F(DraftPoolChoiceTest, OneModelIsNeverScored) {
  Make({.score_every = 1});
  Up(5, "code", 2);
  Up(6, "code", 2);
  Start(1);
  Rounds(100);
  EXPECT_EQ(pool_->scored_rounds(), 0u);
  EXPECT_EQ(asked_[5] + asked_[6], 101);
}

TEST_F(DraftPoolChoiceTest, AScoredRoundVerifiesAllTreesTogether) {
  Make({.score_every = 1});
  Up(5, "code", 3);
  Up(6, "prose", 1);
  Start(1);
  Rounds(20);
  EXPECT_GT(pool_->scored_rounds(), 5u);
  // Both trees have the first token; below it they differ.
  EXPECT_EQ(widest_, 4 + 3);
}

TEST_F(DraftPoolChoiceTest, OnlyTheChosenDrafterIsVerifiedWhereDraftProbsAreUsed) {
  Make({.score_every = 1});
  Up(5, "code", 3);
  Up(6, "prose", 1);
  Start(1, VerificationMethod::kRejection);
  Rounds(300);
  EXPECT_GT(pool_->scored_rounds(), 50u);
  EXPECT_EQ(widest_, 4);
  EXPECT_GT(pool_->shares()[0], 0.7) << "scored rounds count all the same";
}

TEST_F(DraftPoolChoiceTest, ASilentModelLosesItsShare) {
  Make({.policy = ChoicePolicy::kHedge, .seed = 4});
  Up(5, "code", 4);
  Up(6, "prose", 3);
  Start(1);
  Rounds(200);
  silent_[5] = true;
  Rounds(400);
  EXPECT_GT(pool_->shares()[1], 0.7);
}

// By then the worker has been sent the text, and can only be right.
TEST_F(DraftPoolChoiceTest, ATreeThatComesTooLateEarnsNoReward) {
  Make({.policy = ChoicePolicy::kHedge, .score_every = 2, .seed = 4});
  Up(5, "late", 4);
  Up(6, "prose", 1);
  Start(1);
  silent_[5] = true;
  for (int i = 0; i < 300; ++i) {
    std::vector<std::pair<PeerId, DraftRequest>> asked = inbox_;
    Round();
    for (const auto& [peer, request] : asked) {
      if (peer == 5) Reply(peer, Answer(peer, request));
    }
  }
  EXPECT_GT(pool_->shares()[1], 0.7);
}

TEST_F(DraftPoolChoiceTest, AModelThatIsGoneIsNotChosen) {
  Make({.seed = 5});
  Up(5, "code", 4);
  Up(6, "prose", 1);
  Start(1);
  Rounds(50);
  Down(5);
  inbox_.clear();
  const int before = asked_[5];
  Rounds(50);
  EXPECT_EQ(asked_[5], before);
  EXPECT_GT(asked_[6], 40);
  Down(6);
  inbox_.clear();
  Rounds(5);
  EXPECT_EQ(pool_->workers(), 0);
  EXPECT_TRUE(pool_->routes().empty());
  Up(8, "code", 4);
  Rounds(50);
  EXPECT_GT(asked_[8], 40) << "the same model, another worker";
}

TEST_F(DraftPoolChoiceTest, AModelThatDrainsIsNotChosen) {
  Make({.seed = 5});
  Up(5, "code", 4);
  Up(6, "prose", 1);
  Start(1);
  Rounds(50);
  EXPECT_EQ(pool_->routes().size(), 2u);
  pool_->PeerDraining(5);
  inbox_.clear();
  const int before = asked_[5];
  Rounds(50);
  EXPECT_EQ(asked_[5], before);
  EXPECT_GT(asked_[6], 40);
}

TEST_F(DraftPoolChoiceTest, ASequenceStartsWithTheSharesThatOthersLearned) {
  Make({.seed = 6});
  Up(5, "code", 4);
  Up(6, "prose", 0);
  Start(1);
  Rounds(400);
  pool_->Ended(1);
  EXPECT_THAT(ended_, testing::IsSupersetOf({5, 6}));
  for (const scheduler::Event& event : scheduler_->Cancel(1)) (void)event;
  inbox_.clear();
  asked_.clear();
  Start(2);
  Rounds(30);
  EXPECT_GT(asked_[5], 25);
}

TEST_F(DraftPoolChoiceTest, SourcesByName) {
  Make({});
  const scheduler::DraftSources all, none = scheduler::kNoDraftSources;
  EXPECT_EQ(pool_->SourcesOf(""), all);
  EXPECT_EQ(pool_->SourcesOf("prose"), none);
  EXPECT_EQ(pool_->connected(), 0u);
  Up(5, "code", 4);
  Up(6, "prose", 1);
  EXPECT_EQ(pool_->connected(), 3u);
  EXPECT_EQ(pool_->SourcesOf("prose"),
            (scheduler::DraftSources{.grammar = false, .ngram_lookup = false, .drafters = 2}));
  EXPECT_EQ(pool_->SourcesOf("ngram_lookup"),
            (scheduler::DraftSources{.grammar = false, .ngram_lookup = true, .drafters = 0}));
  EXPECT_EQ(pool_->SourcesOf("pros"), none);
  Down(5);
  EXPECT_EQ(pool_->connected(), 2u);
}

TEST_F(DraftPoolChoiceTest, ANamedDrafterAloneIsAsked) {
  Make({.score_every = 2, .seed = 4});
  Up(5, "code", 4);
  Up(6, "prose", 1);
  Start(1, VerificationMethod::kCoupled, "prose");
  Rounds(50);
  EXPECT_EQ(asked_[5], 0);
  EXPECT_EQ(asked_[6], 51);
  EXPECT_EQ(accepted_, 50) << "one a round";
  EXPECT_EQ(pool_->scored_rounds(), 0u);
  EXPECT_THAT(pool_->shares(), testing::ElementsAre(0.5, 0.5)) << "nothing was chosen";
}

// One that always names the worse drafter does not make others begin with it.
TEST_F(DraftPoolChoiceTest, ASequenceThatNamesItsDrafterTeachesNoOther) {
  Make({.seed = 6});
  Up(5, "code", 4);
  Up(6, "prose", 0);
  Start(1);
  Rounds(400);
  pool_->Ended(1);
  for (const scheduler::Event& event : scheduler_->Cancel(1)) (void)event;
  inbox_.clear();
  Start(2, VerificationMethod::kCoupled, "prose");
  Rounds(400);
  pool_->Ended(2);
  for (const scheduler::Event& event : scheduler_->Cancel(2)) (void)event;
  inbox_.clear();
  asked_.clear();
  Start(3);
  Rounds(30);
  EXPECT_GT(asked_[5], 25);
}

TEST_F(DraftPoolChoiceTest, HiddenStatesGoToTheNamedDrafterAlone) {
  Make({});
  state_layers_ = {1};
  Up(5, "code", 4);
  Up(6, "prose", 4);
  const auto readers = [&](base::SequenceId id) { return pool_->StateReadersOf(id, 11, now_); };
  Start(1);
  EXPECT_THAT(readers(1), testing::UnorderedElementsAre(5, 6));
  Start(2, VerificationMethod::kCoupled, "prose");
  EXPECT_THAT(readers(2), testing::ElementsAre(6));
  Start(3, VerificationMethod::kCoupled, "ngram_lookup");
  EXPECT_THAT(readers(3), testing::IsEmpty());
}

TEST_F(DraftPoolChoiceTest, ModelsBeyondTheLimitAreNotUsed) {
  Make({});
  for (int i = 0; i < speculation::kMaxDrafters + 2; ++i) Up(10 + i, std::to_string(i), 1);
  EXPECT_EQ(pool_->workers(), speculation::kMaxDrafters);
  EXPECT_EQ(pool_->names().size(), static_cast<size_t>(speculation::kMaxDrafters));
}

}  // namespace
}  // namespace specfabric::target
