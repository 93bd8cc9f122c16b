#include "scheduler/policy/goodput.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "speculation/merge.h"

namespace specfabric::scheduler {
namespace {

using speculation::VerificationMethod;

// Trees between those of all levels, which show the gain of the deeper ones by now; a
// round has at most one.
constexpr int32_t kExploreInterval = 64;
// Trees that an average is of.
constexpr int32_t kAveragedTrees = 32;
// The same of the n-gram lookup's, of which most rounds have none and some have many.
constexpr int32_t kNgramLookupRounds = 128;
// More is asked for than is expected to be verified: which nodes are best is known once they are
// there.
constexpr double kRequestHeadroom = 1.5;
// Gains that are expected to be smaller do not outweigh what the estimates may be wrong by,
// and what no estimate counts: a draft that shares its processors with the target slows it down.
constexpr double kMinSpeedup = 1.03;       // tokens a second, to those of going plainly
constexpr int32_t kFewAskers = 4;          // askers
constexpr int32_t kFullProbeInterval = 4;  // of so many probes one is by all, if that can pay
// Rounds of a probe: in the first the draft reads what it was not asked for, and how long it takes
// shows in the second.
constexpr int32_t kProbeRounds = 2;
// Of a step without draft tokens so much has to be remembered: what plain decoding takes is not
// measured while it is not done. One in about 350 steps sees to it.
constexpr double kMinPlainSamples = 0.5;
constexpr double kClearAdvantage = 2.5;  // advantage that an old measurement does not bring about
constexpr int32_t kMaxUnmeasuredOrders = 8;  // orders; loads that pass quickly need not be known

}  // namespace

GainHistogram GoodputControl::LookedUp(const PerMethod& c, int32_t askers) {
  GainHistogram gains;
  if (c.ngram_lookup_rounds > 0) gains.Add(c.ngram_lookup, askers);
  return gains;
}

DraftOrder GoodputControl::Best(const PerMethod& c, bool merges, int32_t askers,
                                const StepBase& step, int32_t most) const {
  DraftOrder best;
  GainHistogram offered = LookedUp(c, askers);
  const RowAllocation plain = AllocateRows(offered, step, step_time_);
  double best_rate = kMinSpeedup * plain.rate;
  if (!merges) offered = {};  // one tree is verified, the draft's or the n-gram lookup's
  for (int depth = 1; depth <= kDepths && c.seen[depth - 1] > 0; ++depth) {
    if (c.gains[depth - 1].all == 0) break;  // no tree has gone that deep
    offered.Add(c.gains[depth - 1], askers);
    StepBase later = step;
    later.delay += c.reply.Expect(askers, depth) + c.reply.Deviation(askers);
    const RowAllocation allocation = AllocateRows(offered, later, step_time_);
    if (allocation.draft_tokens == 0 || allocation.rate <= best_rate) continue;
    best_rate = allocation.rate;
    const double rows = allocation.draft_tokens / askers;
    best = {
        .ask = true,
        .max_nodes = std::min(most, static_cast<int32_t>(std::ceil(kRequestHeadroom * rows)) + 1),
        .max_depth = depth,
        .latency = later.delay - step.delay,
        .gain = std::max(0.0, allocation.tokens - plain.tokens) / askers,
        .rows = std::max(0.0, allocation.draft_tokens - plain.draft_tokens) / askers,
        .advantage = allocation.rate / plain.rate};
  }
  return best;
}

// A guess costs at least what it does on average where that is least; which draft tokens a step
// takes is decided when they are there.
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

DraftOrder GoodputControl::BestCostLimited(const PerMethod& c, int32_t askers, const StepBase& step,
                                           int32_t most) const {
  GainHistogram offered = LookedUp(c, askers);
  const RowAllocation plain = AllocateRows(offered, step, step_time_);
  offered.Add(c.cost_limited_gains, askers);
  StepBase later = step;
  later.delay += c.reply.Expect(askers, c.deepest) + c.reply.Deviation(askers);
  const RowAllocation allocation = AllocateRows(offered, later, step_time_);
  DraftOrder order = {
      .ask = allocation.draft_tokens > 0 && allocation.rate > kMinSpeedup * plain.rate,
      .max_nodes = most,
      .max_depth = kDepths,
      .cost_limited = true,
      .askers = askers,
      .latency = later.delay - step.delay,
      .gain = std::max(0.0, allocation.tokens - plain.tokens) / askers,
      .rows = std::max(0.0, allocation.draft_tokens - plain.draft_tokens) / askers,
      .advantage = allocation.rate / plain.rate};
  SetCosts(std::max(allocation.rate, plain.rate), step, most, &order);
  return order;
}

bool GoodputControl::PaysAtOnce(const PerMethod& c, bool merges, int32_t askers,
                                const StepBase& step) const {
  GainHistogram offered = LookedUp(c, askers);
  const double plain = AllocateRows(offered, step, step_time_).rate;
  if (!merges) offered = {};
  for (const GainHistogram& level : c.gains) offered.Add(level, askers);
  return AllocateRows(offered, step, step_time_).rate > plain;
}

bool GoodputControl::MeasuresPlain(int32_t rows) {
  if (step_time_.Known(rows) >= kMinPlainSamples) {
    unmeasured_ = 0;
    return false;
  }
  return ++unmeasured_ % kMaxUnmeasuredOrders == 0;
}

DraftOrder GoodputControl::Order(VerificationMethod verification, int32_t askers,
                                 const StepBase& step, int32_t most) {
  PerMethod& c = by_method_[static_cast<size_t>(verification)];
  const bool cost_limited = askers <= kFewAskers && !speculation::UsesDraftProbs(verification);
  if ((cost_limited ? c.cost_limited_seen : c.seen[0]) == 0 || !step_time_.known()) {
    // A tree is taken to gain one token until more is known.
    return Deepest(verification,
                   {.cost_limited = cost_limited,
                    .askers = askers,
                    .gain = 1,
                    .rows = static_cast<double>(most)},
                   most);
  }
  const bool merges = speculation::Merges(verification);
  DraftOrder order =
      cost_limited ? BestCostLimited(c, askers, step, most) : Best(c, merges, askers, step, most);
  order.askers = askers;
  if (order.ask && order.advantage < kClearAdvantage &&
      MeasuresPlain(static_cast<int32_t>(step.rows))) {
    order.ask = false;
    return order;
  }
  if (order.ask) {
    c.paid = true;
    c.probe_rounds = 0;
    if (cost_limited) return order;
    c.until_explored -= std::min(askers, kExploreInterval / 16);
    if (c.until_explored <= 0) {
      c.until_explored = kExploreInterval;
      order.explorer = ++c.explored % askers;  // another one each time
    }
    return order;
  }
  BackOff(verification);
  if (c.probe_rounds == 0) {
    if (--c.until_probe > 0) return order;
    c.probe_interval = std::min(2 * c.probe_interval, kLastProbe);
    c.until_probe = c.probe_interval;
    c.probe_rounds = kProbeRounds;
    // What draft tokens are expected_gain a few sequences show; how long replies to all take, all.
    c.all_probe = c.probes++ % kFullProbeInterval == 0 && PaysAtOnce(c, merges, askers, step);
  }
  --c.probe_rounds;
  const int32_t some = std::min(askers, std::max(kFewAskers, askers / 8));
  order.askers = order.probers = c.all_probe ? askers : some;
  order.mixed = c.all_probe && !cost_limited;
  return order;
}

// Deep trees all take about as long: what one level takes of that they do not tell, and it may be
// the only one that pays.
DraftOrder GoodputControl::Probe(VerificationMethod verification, DraftOrder order, int32_t most,
                                 int32_t left) const {
  DraftOrder probe = Deepest(verification, order, most);
  if (order.mixed && left % 2 == 1) probe.max_depth = 1;
  return probe;
}

// A draft that promises much and keeps nothing is believed ever more slowly, as it is asked ever
// more rarely; else what it costs to find out again and again would be a good part of all rounds.
// One that keeps what it promises is asked again soon after it last paid, and never very rarely.
void GoodputControl::BackOff(VerificationMethod verification) {
  PerMethod& c = by_method_[static_cast<size_t>(verification)];
  if (c.accepted > c.expected / 2) {
    c.probe_interval = c.paid ? kFirstProbe : std::min(c.probe_interval, kReliableProbe);
    c.until_probe = std::min(c.until_probe, c.probe_interval);
  }
  c.expected = c.accepted = 0;
  c.paid = false;
  acceptance_.Decay(verification, static_cast<double>(kFirstProbe) / c.probe_interval);
}

DraftOrder GoodputControl::Deepest(VerificationMethod verification, DraftOrder order,
                                   int32_t most) const {
  const PerMethod& c = by_method_[static_cast<size_t>(verification)];
  order.ask = true;
  order.max_nodes = most;
  order.max_depth = kDepths;
  order.latency = c.reply.Expect(order.askers, c.deepest) + c.reply.Deviation(order.askers);
  return order;
}

void GoodputControl::OnReply(VerificationMethod verification, const DraftOrder& order,
                             const speculation::TokenTree& tree, base::Nanos latency) {
  const auto depths = speculation::DepthArray(tree);
  const int32_t depth = *std::max_element(depths.begin(), depths.begin() + tree.size());
  PerMethod& c = by_method_[static_cast<size_t>(verification)];
  c.reply.Observe(order.askers, depth, latency);
  if (order.max_depth < kDepths) return;
  const double levels = std::clamp(depth, 1, kDepths);
  c.deepest += (levels - c.deepest) / 4;
  c.most_levels = std::max(levels, c.most_levels + (levels - c.most_levels) / 64);
}

void GoodputControl::OnSkipped(VerificationMethod verification, const DraftOrder& order,
                               base::Nanos waited) {
  PerMethod& c = by_method_[static_cast<size_t>(verification)];
  const double depth = std::min<double>(order.max_depth, c.deepest);
  c.reply.ObserveAtLeast(order.askers, static_cast<int32_t>(depth + 0.5), waited);
}

// As TCP's retransmission timer (RFC 6298): four deviations above the mean.
base::Nanos GoodputControl::ReplyTimeout(VerificationMethod verification,
                                         const DraftOrder& order) const {
  const PerMethod& c = by_method_[static_cast<size_t>(verification)];
  if (!c.reply.known(order.askers)) return base::kForever;
  // A tree may always be some levels deeper than those before it.
  const double depth = std::min<double>(order.max_depth, c.most_levels + 4);
  return 2 * c.reply.Expect(order.askers, depth) + 4 * c.reply.Deviation(order.askers);
}

void GoodputControl::OnVerified(VerificationMethod verification, const speculation::Draft& draft,
                                absl::Span<const int32_t> path) {
  PerMethod& c = by_method_[static_cast<size_t>(verification)];
  acceptance_.PathChances(verification, draft, &chances_);
  c.expected += std::accumulate(chances_.begin(), chances_.end(), 0.0);
  c.accepted += static_cast<double>(path.size());
  acceptance_.Observe(verification, draft, path);
}

void GoodputControl::Average(const GainHistogram& now, int32_t most, int32_t* seen,
                             GainHistogram* average) {
  *seen = std::min(*seen + 1, most);
  if (now.all == 0 && average->all == 0) return;
  const double share = 1.0 / *seen;
  average->all += share * (now.all - average->all);
  for (int b = 0; b < kGainBuckets; ++b) {
    average->count[b] += share * (now.count[b] - average->count[b]);
    average->sum[b] += share * (now.sum[b] - average->sum[b]);
  }
}

void GoodputControl::RecordGains(const speculation::Draft& draft, const DraftOrder& order,
                                 PerMethod* c) const {
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
  if (order.cost_limited)
    return Average(now[0], kAveragedTrees, &c->cost_limited_seen, &c->cost_limited_gains);
  for (int d = 0; d < levels; ++d) Average(now[d], kAveragedTrees, &c->seen[d], &c->gains[d]);
}

void GoodputControl::EvaluateNgramLookup(VerificationMethod verification,
                                         const speculation::Draft& ngram_lookup,
                                         std::vector<float>* expected_gain) {
  PerMethod& c = by_method_[static_cast<size_t>(verification)];
  acceptance_.PathChances(verification, ngram_lookup, expected_gain);
  if (!expected_gain->empty()) acceptance_.DecayNgramLookup(verification);
  GainHistogram now;
  for (float chance : *expected_gain) now.Add(chance);
  Average(now, kNgramLookupRounds, &c.ngram_lookup_rounds, &c.ngram_lookup);
}

void GoodputControl::Evaluate(VerificationMethod verification, const speculation::Draft& draft,
                              const DraftOrder& order, int32_t most,
                              std::vector<float>* expected_gain) {
  PerMethod& c = by_method_[static_cast<size_t>(verification)];
  acceptance_.PathChances(verification, draft, &chances_);
  if (!speculation::NeedsDraftRows(verification, draft.draw)) {
    *expected_gain = chances_;
    RecordGains(draft, order, &c);
    return;
  }
  // The expected gain of the trees before this one: nothing of this one may decide about itself.
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
