// Several draft models in one pool, against a scheduler and workers that answer at once.

#include "target/drafter_set.h"

#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

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

// Which token comes at a place of the only text there is.
TokenId Truth(int place) { return static_cast<TokenId>((place * 7 + place / 5) % 90); }

class DrafterSetTest : public testing::Test {
 protected:
  void Make(speculation::ChoiceOptions choice) {
    scheduler::SchedulerOptions options;
    options.kv_blocks = 4000;
    options.vocabulary = kVocabulary;
    options.max_context = 50'000;
    options.speculation = scheduler::SpeculationPolicy::kAlways;
    scheduler_ = std::make_unique<scheduler::Scheduler>(options);
    DraftClientOptions client;
    client.incarnation = kIncarnation;
    client.vocabulary = kVocabulary;
    set_ = std::make_unique<DrafterSet>(
        client, choice, scheduler_.get(),
        [this](PeerId peer, const DraftRequest& request) {
          inbox_.emplace_back(peer, request);
          ++asked_[peer];
          return absl::OkStatus();
        },
        [this](PeerId peer, const schemas::EndSession&) { ended_.push_back(peer); });
  }
  void Up(PeerId peer, const std::string& model, int right) {
    schemas::Hello hello;
    hello.role = schemas::Role::kDraft;
    hello.capacity = 8;
    hello.model = model;
    set_->PeerUp(peer, hello);
    right_[peer] = right;
  }
  void Start(base::SequenceId id, VerificationMethod verification = VerificationMethod::kCoupled) {
    scheduler::SequenceRequest request;
    request.id = id;
    for (int i = 0; i < 10; ++i) request.prompt.push_back(Truth(i));
    request.max_tokens = 45'000;
    request.verification = verification;
    ASSERT_TRUE(scheduler_->Add(std::move(request), now_).ok());
    DraftTerms terms;
    terms.prompt_length = 10;
    terms.verification = verification;
    set_->Open(id, terms);
    Round();
  }

  // A worker guesses four tokens of which the first right_[peer] are right.
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
    EXPECT_LE(request.base_length, static_cast<int32_t>(held.size())) << "it never got these";
    held.resize(request.base_length);
    held.insert(held.end(), request.append_tokens.begin(), request.append_tokens.end());
    const int place = static_cast<int>(held.size());
    for (int i = 0; i < 4; ++i) {
      reply.parents.push_back(i);
      reply.scores.push_back(-0.2f);
      reply.tokens.push_back(i < right_[peer] ? Truth(place + i) : 95);
    }
    return reply;
  }
  void AnswerAll() {
    for (auto& [peer, request] : std::exchange(inbox_, {})) {
      if (!silent_.contains(peer)) set_->OnReply(peer, Answer(peer, request), now_);
    }
  }

  // Plans and commits one step; every sequence's text is the truth.
  void Round() {
    now_ += base::kMillisecond;
    AnswerAll();
    auto planned = scheduler_->Plan(now_);
    if (auto* wait = std::get_if<scheduler::WaitUntil>(&planned)) {
      now_ = wait->time;
      set_->Expire(now_);
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
    set_->OnStep(base::kMillisecond);
    now_ += base::kMillisecond;
    for (const scheduler::Event& event : scheduler_->Commit(std::move(result), now_)) {
      if (const auto* want = std::get_if<scheduler::DraftWanted>(&event)) set_->Want(*want, now_);
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
  int accepted_ = 0, widest_ = 0;
  std::unique_ptr<scheduler::Scheduler> scheduler_;
  std::unique_ptr<DrafterSet> set_;
};

class EachChoiceTest : public DrafterSetTest, public testing::WithParamInterface<ChoicePolicy> {};

TEST_P(EachChoiceTest, TheBetterModelIsAskedAndTheOtherOnceItIsBetter) {
  Make({.policy = GetParam(), .seed = 3});
  Up(5, "code", 4);
  Up(6, "prose", 1);
  Up(7, "code", 4);
  EXPECT_THAT(set_->names(), testing::ElementsAre("code", "prose"));
  EXPECT_EQ(set_->workers(), 3);
  Start(1);
  Rounds(400);
  EXPECT_GT(set_->shares()[0], 0.7);
  right_ = {{5, 1}, {6, 4}, {7, 1}};
  Rounds(400);
  EXPECT_GT(set_->shares()[1], 0.7);
  accepted_ = 0;
  Rounds(200);
  EXPECT_GT(accepted_, 0.85 * 200 * 4);
  EXPECT_EQ(set_->stats().resyncs, 0u);
}

INSTANTIATE_TEST_SUITE_P(Policies, EachChoiceTest,
                         testing::Values(ChoicePolicy::kHedge, ChoicePolicy::kUcb1,
                                         ChoicePolicy::kThompson),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_F(DrafterSetTest, OneModelIsNeverScored) {
  Make({.score_every = 1});
  Up(5, "code", 2);
  Up(6, "code", 2);
  Start(1);
  Rounds(100);
  EXPECT_EQ(set_->scored_rounds(), 0u);
  EXPECT_EQ(asked_[5] + asked_[6], 101);
}

TEST_F(DrafterSetTest, AScoredRoundVerifiesAllTreesTogether) {
  Make({.score_every = 1});
  Up(5, "code", 3);
  Up(6, "prose", 1);
  Start(1);
  Rounds(20);
  EXPECT_GT(set_->scored_rounds(), 5u);
  // Both right in the first place; then each goes on its own way.
  EXPECT_EQ(widest_, 4 + 3);
}

TEST_F(DrafterSetTest, OnlyTheChosenDrafterIsVerifiedWhereDraftProbsAreUsed) {
  Make({.score_every = 1});
  Up(5, "code", 3);
  Up(6, "prose", 1);
  Start(1, VerificationMethod::kRejection);
  Rounds(300);
  EXPECT_GT(set_->scored_rounds(), 50u);
  EXPECT_EQ(widest_, 4);
  EXPECT_GT(set_->shares()[0], 0.7) << "though the scores count";
}

TEST_F(DrafterSetTest, ASilentModelLosesItsShare) {
  Make({.policy = ChoicePolicy::kHedge, .seed = 4});
  Up(5, "code", 4);
  Up(6, "prose", 3);
  Start(1);
  Rounds(200);
  silent_[5] = true;
  Rounds(400);
  EXPECT_GT(set_->shares()[1], 0.7);
}

// It has been told the text by then, and could say nothing but what is right.
TEST_F(DrafterSetTest, ATreeThatComesTooLateCountsForNothing) {
  Make({.policy = ChoicePolicy::kHedge, .score_every = 2, .seed = 4});
  Up(5, "late", 4);
  Up(6, "prose", 1);
  Start(1);
  silent_[5] = true;
  for (int i = 0; i < 300; ++i) {
    std::vector<std::pair<PeerId, DraftRequest>> asked = inbox_;
    Round();
    for (const auto& [peer, request] : asked) {
      if (peer == 5) set_->OnReply(peer, Answer(peer, request), now_);
    }
  }
  EXPECT_GT(set_->shares()[1], 0.7);
}

TEST_F(DrafterSetTest, AModelThatIsGoneIsNotChosen) {
  Make({.seed = 5});
  Up(5, "code", 4);
  Up(6, "prose", 1);
  Start(1);
  Rounds(50);
  set_->PeerDown(5);
  inbox_.clear();
  const int before = asked_[5];
  Rounds(50);
  EXPECT_EQ(asked_[5], before);
  EXPECT_GT(asked_[6], 40);
  set_->PeerDown(6);
  inbox_.clear();
  Rounds(5);
  EXPECT_EQ(set_->workers(), 0);
  EXPECT_TRUE(set_->routes().empty());
  Up(8, "code", 4);
  Rounds(50);
  EXPECT_GT(asked_[8], 40) << "the same model, another worker";
}

TEST_F(DrafterSetTest, AModelThatDrainsIsNotChosen) {
  Make({.seed = 5});
  Up(5, "code", 4);
  Up(6, "prose", 1);
  Start(1);
  Rounds(50);
  EXPECT_EQ(set_->routes().size(), 2u);
  set_->PeerDraining(5);
  inbox_.clear();
  const int before = asked_[5];
  Rounds(50);
  EXPECT_EQ(asked_[5], before);
  EXPECT_GT(asked_[6], 40);
}

TEST_F(DrafterSetTest, ASequenceBeginsWithWhatOthersTaught) {
  Make({.seed = 6});
  Up(5, "code", 4);
  Up(6, "prose", 0);
  Start(1);
  Rounds(400);
  set_->Ended(1);
  EXPECT_THAT(ended_, testing::IsSupersetOf({5, 6}));
  for (const scheduler::Event& event : scheduler_->Cancel(1)) (void)event;
  inbox_.clear();
  asked_.clear();
  Start(2);
  Rounds(30);
  EXPECT_GT(asked_[5], 25);
}

TEST_F(DrafterSetTest, MoreModelsThanCanBeToldApartAreNotUsed) {
  Make({});
  for (int i = 0; i < speculation::kMaxDrafters + 2; ++i) Up(10 + i, std::to_string(i), 1);
  EXPECT_EQ(set_->workers(), speculation::kMaxDrafters);
  EXPECT_EQ(set_->names().size(), static_cast<size_t>(speculation::kMaxDrafters));
}

}  // namespace
}  // namespace specfabric::target
