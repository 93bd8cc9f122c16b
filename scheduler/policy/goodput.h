#ifndef SPECFABRIC_SCHEDULER_POLICY_GOODPUT_H_
#define SPECFABRIC_SCHEDULER_POLICY_GOODPUT_H_

// Goodput control: what speculation costs and gains in this group at this load, learned from the
// rounds so far, and what follows from it: how large a tree pays, and what each draft token is
// expected to gain. Every decision is one comparison, of expected tokens a second. Owned by the
// scheduler; DraftOrders asks it for orders, DraftSelection for expected gains, DraftRounds reports
// replies, Pacing and StepPlanner read the step times, StepInFlight reports steps and accepted
// paths. One thread; time is an argument.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "scheduler/policy/acceptance_estimate.h"
#include "scheduler/policy/average_gains.h"
#include "scheduler/policy/draft_modes.h"
#include "scheduler/policy/reply_time.h"
#include "scheduler/policy/step_time.h"
#include "scheduler/policy/tree_budget.h"
#include "speculation/tree.h"
#include "speculation/verification_method.h"

namespace specfabric::scheduler {

// Sequences whose rounds teach about each other's: those of one verification method, and apart from
// them those whose request limits what is drafted, whose trees gain less.
struct RoundKind {
  speculation::VerificationMethod verification;
  bool limited = false;

  // Implicit: a method alone is the usual kind. NOLINTNEXTLINE(google-explicit-constructor)
  constexpr RoundKind(speculation::VerificationMethod method, bool is_limited = false)
      : verification(method), limited(is_limited) {}
  constexpr size_t index() const {
    return static_cast<size_t>(verification) + (limited ? speculation::kVerificationMethods : 0);
  }
};
constexpr size_t kRoundKinds = 2 * speculation::kVerificationMethods;

// The tree that a sequence asks for in a round.
struct DraftOrder {
  static constexpr double kUnknown = 1e9;
  bool ask = false;
  int32_t max_nodes = 0;  // below the root
  int32_t max_depth = 0;  // levels
  // If cost_limited, the drafter grows the tree as far as it pays at these costs: the output tokens
  // that a second of growing costs a sequence of this group, and those that verifying one draft
  // token costs at least.
  bool cost_limited = false;
  double cost_per_second = 0, cost_per_row = 0;
  int32_t askers = 1;             // sequences that ask in this round
  base::Nanos latency = 0;        // until its reply is expected, deviation included
  base::Nanos reply_timeout = 0;  // after which the reply counts as a miss; set by DraftOrders
  double gain = 0;                // expected draft tokens accepted, if the reply comes in time
  double rows = 0;                // expected draft tokens verified
  double rate = 0;                // expected tokens a nanosecond, of all sequences
  double accepted = kUnknown;     // expected draft tokens accepted of the drafter's tree alone
  int32_t explorer = -1;    // which of the askers, from 0, asks for one level more (Deeper), to
                            // learn what that gains; -1: none. Nobody where fewer use this order
  bool ahead = true;        // the drafter may draft ahead after its reply
  bool must_wait = false;   // a step waits for the reply, see Pacing
  bool catches_up = false;  // the drafter, perhaps, still: no reply is no miss
  bool reading = false;     // drafters read prompts in this round
};

// A planned step.
struct StepShape {
  // Of the sequences that decode:
  int32_t rows = 0;
  int64_t context = 0;
  double share = 1;  // of all that run, in (0, 1]; 1 where none decodes
  // With the prefill:
  int32_t all_rows = 0;
  int64_t all_context = 0;
};

// What drafters did as a step began.
struct BesideStep {
  bool read_prompts = false;  // as in ModeStep
  bool draft = false;         // had yet to reply
};

class GoodputControl {
 public:
  // profile: steps that were measured before.
  explicit GoodputControl(absl::Span<const StepSample> profile = {});

  // A step that ran, see StepTime::Observe, beside such drafters.
  void OnStep(int32_t rows, int64_t context, base::Nanos time, BesideStep drafters);
  const StepTime& step_time() const { return step_time_; }
  // Steps wait for their drafts, as last ordered.
  bool waits() const { return use_.must_wait; }

  // The order of the sequences of this kind, of the `askers` of any kind that start a round
  // together. decode: a step of all running sequences, without draft tokens; step: the same with
  // the prefill beside it. most: nodes of the largest tree. reading: drafters read the prompt of
  // one of them, or are about to. first: of the kinds of this round.
  DraftOrder Order(RoundKind kind, int32_t askers, const StepBase& decode, const StepBase& step,
                   int32_t most, bool reading, bool first = true);
  // A sequence has asked. A reply has come, before its step was planned or later.
  void OnAsked() { modes_.OnAsked(); }
  void OnAnswered(bool in_time) { modes_.OnReply(in_time); }
  // No reply will come, or one has that tells nothing.
  void OnNoReply() { modes_.OnNoReply(); }
  // One of `running` sequences begins to decode.
  void OnNewText(RoundKind kind, int32_t running);
  // What is expected of a planned step, as last ordered.
  ModeStep Expect(const StepShape& step) const;
  // A step, also reported to OnStep, beside which some sequence speculated.
  void OnModeStep(const ModeStep& step) { modes_.OnStep(step); }
  // No drafter is left.
  void OnNoDrafters();
  DraftModeCounts mode_counts() const { return modes_.counts(); }
  // `order` for a tree of all levels.
  DraftOrder Deepest(RoundKind kind, DraftOrder order, int32_t most) const;

  // `order` for a tree of one level more, whatever that gains.
  DraftOrder Deeper(RoundKind kind, DraftOrder order, int32_t most) const;

  // The reply to an order.
  void OnReply(RoundKind kind, const DraftOrder& order, const speculation::TokenTree& tree,
               base::Nanos latency);
  // The reply to an order had not come after `waited`.
  void OnSkipped(RoundKind kind, const DraftOrder& order, base::Nanos waited);
  // How long a sequence waits for the reply before it counts as a miss.
  base::Nanos ReplyTimeout(RoundKind kind, const DraftOrder& order) const;

  // The expected gain of each node (1..) of a drafter's tree: the chance that its whole path is
  // accepted, [nodes - 1]. Also records what trees gain that come for such an order. Where the
  // verification method uses draft probabilities it is an expectation for each place in draw order
  // instead, [most], which does not depend on this tree.
  void Evaluate(RoundKind kind, const speculation::Draft& draft, const DraftOrder& order,
                int32_t most, std::vector<float>* expected_gain);
  // The same for the n-gram lookup's tree as a round begins, which may be the root alone. It costs
  // no waiting. Drafters are asked for what they add to it: where both trees are verified together
  // (Merges), the tokens that the n-gram lookup does not propose.
  void EvaluateNgramLookup(RoundKind kind, const speculation::Draft& ngram_lookup,
                           std::vector<float>* expected_gain);
  // The same for a tree that no order asked for, where any subtree may be verified.
  void EvaluateExtra(RoundKind kind, const speculation::Draft& draft,
                     std::vector<float>* expected_gain) const {
    acceptance_.PathChances(kind.verification, draft, expected_gain);
  }
  // The accepted path of a tree that was verified, as speculation::Accepted::path.
  void OnVerified(RoundKind kind, const speculation::Draft& draft, absl::Span<const int32_t> path);

 private:
  static constexpr int kDepths = 16;
  static constexpr int32_t kAveragedTrees = 32;
  // More than kAveragedTrees: in most rounds the n-gram lookup proposes nothing, in some much.
  static constexpr int32_t kNgramLookupRounds = 128;
  struct Replies {
    ReplyTime time;
    // Levels of recent trees that were asked for all levels: the average and the maximum.
    double deepest = kDepths, most_levels = kDepths;
  };
  struct PerKind {
    std::array<Replies, 2> reply;  // by Beside
    Replies reply_reading;         // while drafters read prompts
    // Of all nodes of such trees, by Beside: a drafter that drafts ahead grows less of them.
    std::array<AverageGains, 2> cost_limited = {AverageGains(kAveragedTrees),
                                                AverageGains(kAveragedTrees)};
    // Of a tree's nodes by depth - 1, of the trees that were asked for that depth.
    std::vector<AverageGains> by_depth = {kDepths, AverageGains(kAveragedTrees)};
    // Where draft probabilities are used: average chance of the path by place in draw order.
    std::array<float, speculation::kMaxVerifyNodes> by_place = {};
    int32_t placed = 0;          // trees in that average
    int32_t until_explored = 0;  // trees
    int32_t explored = 0;
  };

  // Whether drafters are at work beside the steps.
  static size_t Beside(DraftMode mode) { return mode == DraftMode::kAhead ? 1 : 0; }
  // What is known of this mode, or else of the other; while drafters read prompts, what is known of
  // such rounds.
  static const Replies& RepliesIn(DraftMode mode, bool reading, const PerKind& c) {
    if (c.reply_reading.time.any() && (reading || !KnowsReplies(c))) return c.reply_reading;
    const Replies& own = c.reply[Beside(mode)];
    return own.time.any() ? own : c.reply[1 - Beside(mode)];
  }
  static const ReplyTime& ReplyIn(DraftMode mode, bool reading, const PerKind& c) {
    return RepliesIn(mode, reading, c).time;
  }
  static bool KnowsReplies(const PerKind& c) {
    return c.reply[0].time.any() || c.reply[1].time.any();
  }
  // Of such trees in this mode; of one that is not in use as the text at hand lets expect by what
  // it gains in the other.
  GainHistogram CostLimitedGains(DraftMode mode, const PerKind& c) const;
  // Which replies the one to this order tells of.
  static Replies& RepliesLike(const DraftOrder& order, PerKind* c) {
    return order.reading ? c->reply_reading : c->reply[Beside(ModeOf(order))];
  }
  static DraftMode ModeOf(const DraftOrder& order) {
    return order.ahead ? DraftMode::kAhead : DraftMode::kJustInTime;
  }
  // What is learned of drafters' gains from now on counts more than what was learned before.
  void Doubt();
  bool CostLimited(RoundKind kind, int32_t askers, DraftMode mode) const;
  // Nothing has been learned of what trees gain.
  bool Unknown(const PerKind& c, bool cost_limited) const;
  // Expected in each mode, in tokens a nanosecond.
  ByMode<double> Rates(RoundKind kind, int32_t askers, const StepBase& step, int32_t most) const;
  DraftOrder OrderOf(RoundKind kind, int32_t askers, const StepBase& step, int32_t most);
  // The best order in a mode.
  DraftOrder BestIn(DraftMode mode, RoundKind kind, int32_t askers, const StepBase& step,
                    int32_t most) const;
  static size_t OfNgramLookup(RoundKind kind) {
    return RoundKind(speculation::OfNgramLookup(kind.verification), kind.limited).index();
  }
  GainHistogram NgramLookupGains(RoundKind kind, int32_t askers) const;
  // The best order by depth.
  DraftOrder BestByDepth(DraftMode mode, RoundKind kind, int32_t askers, const StepBase& step,
                         int32_t most) const;
  // The order of trees that grow as far as they pay, for few askers where any subtree may be
  // verified: what pays then depends on the text at hand. The trees of many askers are alike on
  // average, and it matters more that all come at the same time.
  DraftOrder BestCostLimited(DraftMode mode, RoundKind kind, int32_t askers, const StepBase& step,
                             int32_t most) const;
  void SetCosts(double rate, const StepBase& step, int32_t most, DraftOrder* order) const;
  void RecordGains(const speculation::Draft& draft, const DraftOrder& order, PerKind* c) const;

  StepTime step_time_;
  DraftModes modes_;
  // As last ordered:
  DraftModes::Use use_;
  bool reading_ = false;  // drafters read prompts, which is an exception
  // Of the round's kinds, the largest: a step waits for all of them.
  base::Nanos delay_ = 0;  // until replies are expected
  double gain_ = 0;        // expected, a sequence that decodes
  AcceptanceEstimate acceptance_;
  std::array<PerKind, kRoundKinds> by_kind_;
  // By OfNgramLookup.
  std::vector<AverageGains> ngram_lookup_ = {kRoundKinds, AverageGains(kNgramLookupRounds)};
  std::vector<float> chances_;  // scratch
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_GOODPUT_H_
