#include "scheduler/policy/goodput.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "speculation/merge.h"

namespace specfabric::scheduler {
namespace {

using speculation::VerificationMethod;

// One in so many trees is asked for one level more, to learn what that gains by now; at most one in
// sixteen rounds. The first follow each other sooner, twice as many apart each time: what the very
// first tree promised at each depth came before scores were calibrated.
constexpr int32_t kExploreInterval = 64, kFirstInterval = 4;
constexpr int32_t kRememberedTrees = 8;  // of late, when drafters are tried again
// A tree is larger than what is expected to be verified of it: which nodes are best is only known
// when it is there.
constexpr double kRequestHeadroom = 1.5;
constexpr int32_t kFewAskers = 4;
constexpr int32_t kFewTexts = 4;  // where a new one may change what pays
// Of what was learned of acceptance, when they are tried again.
constexpr double kForgotten = 25;

// Whether a tree of some levels takes little longer than one level, so that it matters little that
// the trees of those who ask together are of unequal depth.
bool LevelsComeTogether(const ReplyTime& reply, int32_t askers) {
  return reply.Expect(askers, 4) < 2 * reply.Expect(askers, 1);
}

}  // namespace

GainHistogram GoodputControl::NgramLookupGains(RoundKind kind, int32_t askers) const {
  GainHistogram gains;
  gains.Add(ngram_lookup_[OfNgramLookup(kind)].of_late(), askers);
  return gains;
}

GoodputControl::GoodputControl(absl::Span<const StepSample> profile) {
  for (const StepSample& step : profile) {
    // Twice: of what StepTime has seen, the very first step counts little.
    for (int i = 0; i < 2; ++i) step_time_.Observe(step.rows, step.context, step.time);
  }
}

void GoodputControl::OnStep(int32_t rows, int64_t context, base::Nanos time, BesideStep drafters) {
  acceptance_.DecayNgramLookup();
  // Beside drafters that are only tried, at work or reading prompts, steps may be slower, which is
  // part of their pace. Else other modes would seem as slow.
  bool differs = use_.trial || use_.catches_up || modes_.Exceptional(drafters.read_prompts);
  differs &= step_time_.known();
  differs |= (drafters.draft || use_.mode == DraftMode::kAhead) && step_time_.Known(rows) >= 1;
  if (time > 0 && !differs) step_time_.Observe(rows, context, time);
}

// A step of some sequences leaves the others behind: what it yields is their share of a step of
// all.
ModeStep GoodputControl::Expect(const StepShape& step) const {
  const auto of_all = [&](auto amount) { return std::lround(amount / step.share); };
  const int64_t rows = of_all(step.rows), context = of_all(step.context);
  const base::Nanos decode = step_time_.Predict(static_cast<int32_t>(rows), context);
  const base::Nanos all = step_time_.Predict(static_cast<int32_t>(rows + step.all_rows - step.rows),
                                             context + step.all_context - step.context);
  const auto shared = [&](base::Nanos time) {
    return static_cast<base::Nanos>(step.share * static_cast<double>(time));
  };
  return {.time = all - decode + shared(decode), .delay = shared(delay_), .gain = gain_};
}

void GoodputControl::OnNoDrafters() {
  modes_.Restart();
  use_ = {};
  delay_ = 0;
  gain_ = 0;
}

void GoodputControl::Doubt() {
  for (int v = 0; v < speculation::kVerificationMethods; ++v) {
    acceptance_.Decay(static_cast<VerificationMethod>(v), kForgotten);
  }
  for (PerKind& c : by_kind_) {
    for (AverageGains& gains : c.by_depth) gains.Doubt(kRememberedTrees);
    for (AverageGains& gains : c.cost_limited) gains.Doubt(kRememberedTrees);
    c.placed = std::min(c.placed, kRememberedTrees);
  }
}

void GoodputControl::OnNewText(RoundKind kind, int32_t running) {
  PerKind& c = by_kind_[kind.index()];
  const double share = 1.0 / std::max(1, running);
  for (AverageGains& gains : c.by_depth) gains.OnNewTexts(share);
  for (AverageGains& gains : c.cost_limited) gains.OnNewTexts(share);
  ngram_lookup_[OfNgramLookup(kind)].OnNewTexts(share);
  if (running <= kFewTexts) modes_.Reconsider();
}

bool GoodputControl::CostLimited(RoundKind kind, int32_t askers, DraftMode mode) const {
  if (speculation::UsesDraftProbs(kind.verification)) return false;
  const PerKind& c = by_kind_[kind.index()];
  return askers == 1 ||
         (askers <= kFewAskers && LevelsComeTogether(ReplyIn(mode, reading_, c), askers));
}

bool GoodputControl::Unknown(const PerKind& c, bool cost_limited) const {
  const bool known =
      cost_limited ? c.cost_limited[0].known() || c.cost_limited[1].known() : c.by_depth[1].known();
  return !known || !step_time_.known();
}

GainHistogram GoodputControl::CostLimitedGains(DraftMode mode, const PerKind& c) const {
  const AverageGains& own = c.cost_limited[Beside(mode)];
  const AverageGains& other = c.cost_limited[1 - Beside(mode)];
  const bool in_use = own.known() && Beside(mode) == Beside(use_.mode);
  return in_use || !other.known() ? own.of_late() : own.LikeThose(other);
}

DraftOrder GoodputControl::BestByDepth(DraftMode mode, RoundKind kind, int32_t askers,
                                       const StepBase& step, int32_t most) const {
  DraftOrder best;
  const PerKind& c = by_kind_[kind.index()];
  const ReplyTime& reply = ReplyIn(mode, reading_, c);
  GainHistogram offered = NgramLookupGains(kind, askers);
  const RowAllocation plain = AllocateRows(offered, step, step_time_);
  double accepted = 0;
  best.rate = 0;
  // One tree is verified, the drafter's or the n-gram lookup's.
  if (!speculation::Merges(kind.verification)) offered = {};
  for (int depth = 1; depth <= kDepths && c.by_depth[depth - 1].known(); ++depth) {
    const GainHistogram& gains = c.by_depth[depth - 1].of_late();
    if (gains.all == 0) break;  // no tree was that deep
    offered.Add(gains, askers);
    accepted += gains.Sum();
    StepBase later = step;
    later.delay += reply.Expect(askers, depth);
    const RowAllocation allocation = AllocateRows(offered, later, step_time_);
    if (allocation.draft_tokens == 0 || allocation.rate <= best.rate) continue;
    const double rows = allocation.draft_tokens / askers;
    best = {
        .ask = true,
        .max_nodes = std::min(most, static_cast<int32_t>(std::ceil(kRequestHeadroom * rows)) + 1),
        .max_depth = depth,
        .latency = later.delay - step.delay + reply.Deviation(askers),
        .gain = std::max(0.0, allocation.tokens - plain.tokens) / askers,
        .rows = std::max(0.0, allocation.draft_tokens - plain.draft_tokens) / askers,
        .rate = allocation.rate,
        .accepted = accepted};
  }
  return best;
}

// cost_per_row is the least average cost of a draft token over all tree sizes: the drafter must not
// leave out a node that the step might verify.
void GoodputControl::SetCosts(double rate, const StepBase& step, int32_t most,
                              DraftOrder* order) const {
  const auto base_rows = static_cast<int32_t>(step.rows);
  const auto base = static_cast<double>(step_time_.Predict(base_rows, step.context));
  double least = std::numeric_limits<double>::infinity();
  for (int32_t draft_tokens = 1; draft_tokens <= most; draft_tokens *= 2) {
    const int32_t rows = draft_tokens * order->askers;
    const auto with = static_cast<double>(step_time_.Predict(base_rows + rows, step.context));
    least = std::min(least, (with - base) / rows);
  }
  order->cost_per_second = rate * 1e9 / order->askers;
  order->cost_per_row = rate * least;
}

DraftOrder GoodputControl::BestCostLimited(DraftMode mode, RoundKind kind, int32_t askers,
                                           const StepBase& step, int32_t most) const {
  const PerKind& c = by_kind_[kind.index()];
  const Replies& replies = RepliesIn(mode, reading_, c);
  GainHistogram offered = NgramLookupGains(kind, askers);
  const RowAllocation plain = AllocateRows(offered, step, step_time_);
  const GainHistogram gains = CostLimitedGains(mode, c);
  offered.Add(gains, askers);
  StepBase later = step;
  later.delay += replies.time.Expect(askers, replies.deepest);
  const RowAllocation allocation = AllocateRows(offered, later, step_time_);
  DraftOrder order = {.ask = allocation.draft_tokens > 0,
                      .max_nodes = most,
                      .max_depth = kDepths,
                      .cost_limited = true,
                      .askers = askers,
                      .latency = later.delay - step.delay + replies.time.Deviation(askers),
                      .gain = std::max(0.0, allocation.tokens - plain.tokens) / askers,
                      .rows = std::max(0.0, allocation.draft_tokens - plain.draft_tokens) / askers,
                      .rate = allocation.rate,
                      .accepted = gains.Sum()};
  SetCosts(std::max(allocation.rate, plain.rate), step, most, &order);
  return order;
}

DraftOrder GoodputControl::BestIn(DraftMode mode, RoundKind kind, int32_t askers,
                                  const StepBase& step, int32_t most) const {
  if (CostLimited(kind, askers, mode)) return BestCostLimited(mode, kind, askers, step, most);
  return BestByDepth(mode, kind, askers, step, most);
}

ByMode<double> GoodputControl::Rates(RoundKind kind, int32_t askers, const StepBase& step,
                                     int32_t most) const {
  const PerKind& c = by_kind_[kind.index()];
  ByMode<double> rates;
  const double plain = AllocateRows(NgramLookupGains(kind, askers), step, step_time_).rate;
  rates[DraftMode::kNone] = plain;
  for (const DraftMode mode : {DraftMode::kJustInTime, DraftMode::kAhead}) {
    // Until more is known a tree is assumed to gain one token.
    rates[mode] = 2 * plain;
    if (askers == 0 || !KnowsReplies(c)) continue;
    if (Unknown(c, CostLimited(kind, askers, mode))) continue;
    const DraftOrder order = BestIn(mode, kind, askers, step, most);
    rates[mode] = order.ask ? order.rate : plain;
  }
  return rates;
}

DraftOrder GoodputControl::Order(RoundKind kind, int32_t askers, const StepBase& decode,
                                 const StepBase& step, int32_t most, bool reading, bool first) {
  const auto running = static_cast<int32_t>(decode.rows);
  reading_ = false;  // the choice of a mode is for longer
  if (modes_.Due(running)) {
    modes_.Choose(running, Rates(kind, askers, decode, most), reading);
  }
  const bool drafted = use_.mode != DraftMode::kNone;
  use_ = modes_.Current();
  if (use_.mode != DraftMode::kNone && !drafted) Doubt();
  reading_ = modes_.Exceptional(reading);
  if (first) {
    delay_ = 0;
    gain_ = 0;
  }
  if (use_.mode == DraftMode::kNone) return {.askers = askers};
  DraftOrder order = OrderOf(kind, askers, step, most);
  order.askers = askers;
  order.ahead = use_.mode == DraftMode::kAhead;
  order.must_wait = use_.must_wait;
  order.catches_up = use_.catches_up;
  order.reading = reading_;
  if (order.ask && !use_.one_level) {
    const PerKind& c = by_kind_[kind.index()];
    const base::Nanos delay = order.latency - ReplyIn(use_.mode, reading_, c).Deviation(askers);
    delay_ = std::max(delay_, delay);
    // Those that do not ask gain nothing.
    const double share = static_cast<double>(askers) / std::max(1, running);
    gain_ = std::max(gain_, order.gain * share);
  }
  return order;
}

DraftOrder GoodputControl::OrderOf(RoundKind kind, int32_t askers, const StepBase& step,
                                   int32_t most) {
  PerKind& c = by_kind_[kind.index()];
  const bool cost_limited = CostLimited(kind, askers, use_.mode);
  if (use_.one_level || Unknown(c, cost_limited)) {
    // Until more is known a tree is assumed to gain one token.
    DraftOrder order = Deepest(kind,
                               {.cost_limited = cost_limited && !use_.one_level,
                                .askers = askers,
                                .gain = 1,
                                .rows = static_cast<double>(most)},
                               most);
    if (use_.one_level) order.max_depth = 1;
    return order;
  }
  DraftOrder order = BestIn(use_.mode, kind, askers, step, most);
  if (!order.ask && !KnowsReplies(c)) {
    // As fast as they reply while they read prompts it would not pay.
    order = Deepest(kind, {.askers = askers, .gain = 1, .rows = 1}, most);
    order.max_depth = 1;
    return order;
  }
  if (cost_limited) return order;
  c.until_explored -= std::min(askers, kExploreInterval / 16);
  if (order.ask && c.until_explored <= 0) {
    c.until_explored = std::min(kExploreInterval, kFirstInterval << std::min(c.explored, 8));
    order.explorer = ++c.explored % askers;  // another sequence each time
  }
  return order;
}

DraftOrder GoodputControl::Deepest(RoundKind kind, DraftOrder order, int32_t most) const {
  const PerKind& c = by_kind_[kind.index()];
  order.ask = true;
  order.max_nodes = most;
  order.max_depth = kDepths;
  const Replies& replies = RepliesIn(use_.mode, reading_, c);
  order.latency =
      replies.time.Expect(order.askers, replies.deepest) + replies.time.Deviation(order.askers);
  return order;
}

DraftOrder GoodputControl::Deeper(RoundKind kind, DraftOrder order, int32_t most) const {
  const PerKind& c = by_kind_[kind.index()];
  order.max_nodes = most;
  order.max_depth = std::min(order.max_depth + 1, kDepths);
  const ReplyTime& reply = ReplyIn(use_.mode, reading_, c);
  order.latency = reply.Expect(order.askers, order.max_depth) + reply.Deviation(order.askers);
  return order;
}

void GoodputControl::OnReply(RoundKind kind, const DraftOrder& order,
                             const speculation::TokenTree& tree, base::Nanos latency) {
  const auto depths = speculation::DepthArray(tree);
  const int32_t depth = *std::max_element(depths.begin(), depths.begin() + tree.size());
  PerKind& c = by_kind_[kind.index()];
  Replies& replies = RepliesLike(order, &c);
  // Drafters that are catching up take longer than they will.
  if (!order.catches_up || !replies.time.known(order.askers)) {
    replies.time.Observe(order.askers, depth, latency);
  }
  if (order.max_depth < kDepths) return;
  const double levels = std::clamp(depth, 1, kDepths);
  replies.deepest += (levels - replies.deepest) / 4;
  replies.most_levels = std::max(levels, replies.most_levels + (levels - replies.most_levels) / 64);
}

void GoodputControl::OnSkipped(RoundKind kind, const DraftOrder& order, base::Nanos waited) {
  PerKind& c = by_kind_[kind.index()];
  Replies& replies = RepliesLike(order, &c);
  const double depth = std::min<double>(order.max_depth, replies.deepest);
  replies.time.ObserveAtLeast(order.askers, static_cast<int32_t>(std::lround(depth)), waited);
}

// As TCP's retransmission timer (RFC 6298): four deviations above the mean.
base::Nanos GoodputControl::ReplyTimeout(RoundKind kind, const DraftOrder& order) const {
  const PerKind& c = by_kind_[kind.index()];
  const Replies& replies = RepliesIn(ModeOf(order), order.reading, c);
  if (!replies.time.known(order.askers)) return base::kForever;
  // A tree may be some levels deeper than any before it.
  const double depth = std::min<double>(order.max_depth, replies.most_levels + 4);
  return 2 * replies.time.Expect(order.askers, depth) + 4 * replies.time.Deviation(order.askers);
}

void GoodputControl::OnVerified(RoundKind kind, const speculation::Draft& draft,
                                absl::Span<const int32_t> path) {
  acceptance_.Observe(kind.verification, draft, path);
}

void GoodputControl::RecordGains(const speculation::Draft& draft, const DraftOrder& order,
                                 PerKind* c) const {
  const speculation::TokenTree& tree = draft.tree;
  const int32_t levels = order.cost_limited ? 1 : std::min(order.max_depth, kDepths);
  std::array<GainHistogram, kDepths> now;
  std::fill_n(now.begin(), levels, GainHistogram{});
  const auto depths = speculation::DepthArray(tree);
  for (int node = 1; node < tree.size(); ++node) {
    const speculation::Source by = draft.source(node);
    if (by.proposed_by != speculation::ProposalSource::kDrafter || by.drafter != draft.drafter)
      continue;
    const int32_t level = order.cost_limited ? 0 : depths[node] - 1;
    if (level < levels) now[level].Add(chances_[node - 1]);
  }
  if (order.cost_limited) return c->cost_limited[Beside(ModeOf(order))].Add(now[0]);
  for (int d = 0; d < levels; ++d) c->by_depth[d].Add(now[d]);
}

void GoodputControl::EvaluateNgramLookup(RoundKind kind, const speculation::Draft& ngram_lookup,
                                         std::vector<float>* expected_gain) {
  acceptance_.PathChances(kind.verification, ngram_lookup, expected_gain);
  GainHistogram now;
  for (float chance : *expected_gain) now.Add(chance);
  ngram_lookup_[OfNgramLookup(kind)].Add(now);
}

void GoodputControl::Evaluate(RoundKind kind, const speculation::Draft& draft,
                              const DraftOrder& order, int32_t most,
                              std::vector<float>* expected_gain) {
  PerKind& c = by_kind_[kind.index()];
  acceptance_.PathChances(kind.verification, draft, &chances_);
  if (!speculation::NeedsDraftRows(kind.verification, draft.draw)) {
    *expected_gain = chances_;
    RecordGains(draft, order, &c);
    return;
  }
  // The average of the trees before this one: what this one drew may not decide how much of it is
  // verified.
  const int places = std::min(most, speculation::kMaxVerifyNodes - 1);
  expected_gain->assign(places, 1.0f);
  if (c.placed > 0) std::copy_n(c.by_place.begin(), places, expected_gain->begin());
  MakeNonIncreasing(absl::MakeSpan(*expected_gain));
  RecordGains(draft, order, &c);
  c.placed = std::min(c.placed + 1, kAveragedTrees);
  for (size_t i = 0; i < c.by_place.size(); ++i) {
    const float now = i < chances_.size() ? chances_[i] : 0.0f;
    c.by_place[i] += (now - c.by_place[i]) / static_cast<float>(c.placed);
  }
}

}  // namespace specfabric::scheduler
