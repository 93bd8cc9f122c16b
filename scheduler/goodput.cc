#include "scheduler/goodput.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "speculation/merge.h"

namespace specfabric::scheduler {
namespace {

using speculation::Coupling;

// Trees between those of all levels, which show what the deeper ones are worth by now; a round has
// at most one.
constexpr int32_t kExploreEvery = 64;
// Trees that an average is of.
constexpr int32_t kTrees = 32;
// The same of the lookup's, of which most rounds have none and some have many.
constexpr int32_t kLookups = 128;
// More is asked for than is expected to be verified: which nodes are best is known once they are
// there.
constexpr double kSlack = 1.5;
// Gains that are expected to be smaller are not worth what the estimates may be wrong by, and what
// no estimate counts: a draft that shares its processors with the target slows it down.
constexpr double kWorthwhile = 1.03;  // tokens a second, to those of going plainly
constexpr int32_t kFew = 4;           // askers
constexpr int32_t kAllProbe = 4;      // of so many probes one is by all, if that can pay
// Rounds of a probe: in the first the draft reads what it was not asked for, and how long it takes
// shows in the second.
constexpr int32_t kProbeRounds = 2;
// Of a step without guesses so much has to be remembered: what plain decoding takes is not measured
// while it is not done. One in about 350 steps sees to it.
constexpr double kPlainStep = 0.5;
constexpr double kBeyondDoubt = 2.5;  // advantage that an old measurement does not bring about
constexpr int32_t kUnmeasured = 8;    // orders; loads that pass quickly need not be known

}  // namespace

Worths GoodputControl::LookedUp(const PerCoupling& c, int32_t askers) {
  Worths worths;
  if (c.looked_up > 0) worths.Add(c.lookup, askers);
  return worths;
}

DraftOrder GoodputControl::Best(const PerCoupling& c, bool merges, int32_t askers,
                                const StepBase& step, int32_t most) const {
  DraftOrder best;
  Worths offered = LookedUp(c, askers);
  const Cut plain = ShareRows(offered, step, step_time_);
  double best_rate = kWorthwhile * plain.rate;
  if (!merges) offered = {};  // one tree is verified, the draft's or the lookup's
  for (int depth = 1; depth <= kDepths && c.seen[depth - 1] > 0; ++depth) {
    if (c.worths[depth - 1].all == 0) break;  // no tree has gone that deep
    offered.Add(c.worths[depth - 1], askers);
    StepBase later = step;
    later.delay += c.reply.Expect(askers, depth) + c.reply.Deviation(askers);
    const Cut cut = ShareRows(offered, later, step_time_);
    if (cut.guesses == 0 || cut.rate <= best_rate) continue;
    best_rate = cut.rate;
    const double rows = cut.guesses / askers;
    best = {.ask = true,
            .max_nodes = std::min(most, static_cast<int32_t>(std::ceil(kSlack * rows)) + 1),
            .max_depth = depth,
            .latency = later.delay - step.delay,
            .gain = std::max(0.0, cut.tokens - plain.tokens) / askers,
            .rows = std::max(0.0, cut.guesses - plain.guesses) / askers,
            .advantage = cut.rate / plain.rate};
  }
  return best;
}

// A guess costs at least what it does on average where that is least; which guesses a step takes is
// decided when they are there.
void GoodputControl::SetPrices(double rate, const StepBase& step, int32_t most,
                               DraftOrder* order) const {
  const auto base_rows = static_cast<int32_t>(step.rows);
  const auto base = static_cast<double>(step_time_.Predict(base_rows, step.context));
  double least = std::numeric_limits<double>::infinity();
  for (int32_t guesses = 1; guesses <= most; guesses *= 2) {
    const int32_t rows = guesses * order->askers;
    const auto with = static_cast<double>(step_time_.Predict(base_rows + rows, step.context));
    least = std::min(least, (with - base) / rows);
  }
  order->second_price = rate * 1e9 / order->askers;
  order->row_price = rate * least;
}

DraftOrder GoodputControl::BestPriced(const PerCoupling& c, int32_t askers, const StepBase& step,
                                      int32_t most) const {
  Worths offered = LookedUp(c, askers);
  const Cut plain = ShareRows(offered, step, step_time_);
  offered.Add(c.priced_worths, askers);
  StepBase later = step;
  later.delay += c.reply.Expect(askers, c.deepest) + c.reply.Deviation(askers);
  const Cut cut = ShareRows(offered, later, step_time_);
  DraftOrder order = {.ask = cut.guesses > 0 && cut.rate > kWorthwhile * plain.rate,
                      .max_nodes = most,
                      .max_depth = kDepths,
                      .priced = true,
                      .askers = askers,
                      .latency = later.delay - step.delay,
                      .gain = std::max(0.0, cut.tokens - plain.tokens) / askers,
                      .rows = std::max(0.0, cut.guesses - plain.guesses) / askers,
                      .advantage = cut.rate / plain.rate};
  SetPrices(std::max(cut.rate, plain.rate), step, most, &order);
  return order;
}

bool GoodputControl::PaysAtOnce(const PerCoupling& c, bool merges, int32_t askers,
                                const StepBase& step) const {
  Worths offered = LookedUp(c, askers);
  const double plain = ShareRows(offered, step, step_time_).rate;
  if (!merges) offered = {};
  for (const Worths& level : c.worths) offered.Add(level, askers);
  return ShareRows(offered, step, step_time_).rate > plain;
}

bool GoodputControl::MeasuresPlain(int32_t rows) {
  if (step_time_.Known(rows) >= kPlainStep) {
    unmeasured_ = 0;
    return false;
  }
  return ++unmeasured_ % kUnmeasured == 0;
}

DraftOrder GoodputControl::Order(Coupling coupling, int32_t askers, const StepBase& step,
                                 int32_t most) {
  PerCoupling& c = couplings_[static_cast<size_t>(coupling)];
  const bool priced = askers <= kFew && !speculation::WeighsDraft(coupling);
  if ((priced ? c.priced_seen : c.seen[0]) == 0 || !step_time_.known()) {
    // A tree is taken to be worth one token until more is known.
    return Deepest(
        coupling,
        {.priced = priced, .askers = askers, .gain = 1, .rows = static_cast<double>(most)}, most);
  }
  const bool merges = speculation::Merges(coupling);
  DraftOrder order =
      priced ? BestPriced(c, askers, step, most) : Best(c, merges, askers, step, most);
  order.askers = askers;
  if (order.ask && order.advantage < kBeyondDoubt &&
      MeasuresPlain(static_cast<int32_t>(step.rows))) {
    order.ask = false;
    return order;
  }
  if (order.ask) {
    c.paid = true;
    c.probe_rounds = 0;
    if (priced) return order;
    c.until_explored -= std::min(askers, kExploreEvery / 16);
    if (c.until_explored <= 0) {
      c.until_explored = kExploreEvery;
      order.explorer = ++c.explored % askers;  // another one each time
    }
    return order;
  }
  BackOff(coupling);
  if (c.probe_rounds == 0) {
    if (--c.until_probe > 0) return order;
    c.probe_interval = std::min(2 * c.probe_interval, kLastProbe);
    c.until_probe = c.probe_interval;
    c.probe_rounds = kProbeRounds;
    // What guesses are worth a few sequences show; how long replies to all take, all.
    c.all_probe = c.probes++ % kAllProbe == 0 && PaysAtOnce(c, merges, askers, step);
  }
  --c.probe_rounds;
  const int32_t some = std::min(askers, std::max(kFew, askers / 8));
  order.askers = order.probers = c.all_probe ? askers : some;
  order.mixed = c.all_probe && !priced;
  return order;
}

// Deep trees all take about as long: what one level takes of that they do not tell, and it may be
// the only one that pays.
DraftOrder GoodputControl::Probe(Coupling coupling, DraftOrder order, int32_t most,
                                 int32_t left) const {
  DraftOrder probe = Deepest(coupling, order, most);
  if (order.mixed && left % 2 == 1) probe.max_depth = 1;
  return probe;
}

// A draft that promises much and keeps nothing is believed ever more slowly, as it is asked ever
// more rarely; else what it costs to find out again and again would be a good part of all rounds.
// One that keeps what it promises is asked again soon after it last paid, and never very rarely.
void GoodputControl::BackOff(Coupling coupling) {
  PerCoupling& c = couplings_[static_cast<size_t>(coupling)];
  if (c.accepted > c.expected / 2) {
    c.probe_interval = c.paid ? kFirstProbe : std::min(c.probe_interval, kHonestProbe);
    c.until_probe = std::min(c.until_probe, c.probe_interval);
  }
  c.expected = c.accepted = 0;
  c.paid = false;
  acceptance_.Fade(coupling, static_cast<double>(kFirstProbe) / c.probe_interval);
}

DraftOrder GoodputControl::Deepest(Coupling coupling, DraftOrder order, int32_t most) const {
  const PerCoupling& c = couplings_[static_cast<size_t>(coupling)];
  order.ask = true;
  order.max_nodes = most;
  order.max_depth = kDepths;
  order.latency = c.reply.Expect(order.askers, c.deepest) + c.reply.Deviation(order.askers);
  return order;
}

void GoodputControl::OnReply(Coupling coupling, const DraftOrder& order,
                             const speculation::TokenTree& tree, base::Nanos latency) {
  const auto depths = speculation::DepthArray(tree);
  const int32_t depth = *std::max_element(depths.begin(), depths.begin() + tree.size());
  PerCoupling& c = couplings_[static_cast<size_t>(coupling)];
  c.reply.Observe(order.askers, depth, latency);
  if (order.max_depth < kDepths) return;
  const double levels = std::clamp(depth, 1, kDepths);
  c.deepest += (levels - c.deepest) / 4;
  c.most_levels = std::max(levels, c.most_levels + (levels - c.most_levels) / 64);
}

void GoodputControl::OnGoneWithout(Coupling coupling, const DraftOrder& order, base::Nanos waited) {
  PerCoupling& c = couplings_[static_cast<size_t>(coupling)];
  const double depth = std::min<double>(order.max_depth, c.deepest);
  c.reply.ObserveAtLeast(order.askers, static_cast<int32_t>(depth + 0.5), waited);
}

// As TCP's retransmission timer (RFC 6298): four deviations above the mean.
base::Nanos GoodputControl::Patience(Coupling coupling, const DraftOrder& order) const {
  const PerCoupling& c = couplings_[static_cast<size_t>(coupling)];
  if (!c.reply.known(order.askers)) return base::kForever;
  // A tree may always be some levels deeper than those before it.
  const double depth = std::min<double>(order.max_depth, c.most_levels + 4);
  return 2 * c.reply.Expect(order.askers, depth) + 4 * c.reply.Deviation(order.askers);
}

void GoodputControl::OnVerified(Coupling coupling, const speculation::Draft& draft,
                                absl::Span<const int32_t> path) {
  PerCoupling& c = couplings_[static_cast<size_t>(coupling)];
  acceptance_.PathChances(coupling, draft, &chances_);
  c.expected += std::accumulate(chances_.begin(), chances_.end(), 0.0);
  c.accepted += static_cast<double>(path.size());
  acceptance_.Observe(coupling, draft, path);
}

void GoodputControl::Average(const Worths& now, int32_t most, int32_t* seen, Worths* average) {
  *seen = std::min(*seen + 1, most);
  if (now.all == 0 && average->all == 0) return;
  const double share = 1.0 / *seen;
  average->all += share * (now.all - average->all);
  for (int b = 0; b < kWorthBuckets; ++b) {
    average->count[b] += share * (now.count[b] - average->count[b]);
    average->sum[b] += share * (now.sum[b] - average->sum[b]);
  }
}

void GoodputControl::NoteWorth(const speculation::Draft& draft, const DraftOrder& order,
                               PerCoupling* c) const {
  const speculation::TokenTree& tree = draft.tree;
  const int32_t levels = order.priced ? 1 : std::min(order.max_depth, kDepths);
  std::array<Worths, kDepths> now;
  std::fill_n(now.begin(), levels, Worths{});
  const auto depths = speculation::DepthArray(tree);
  for (int node = 1; node < tree.size(); ++node) {
    const speculation::Source by = draft.source(node);
    if (by.guesser != speculation::Guesser::kDrafter || by.drafter != draft.drafter) continue;
    const int32_t level = order.priced ? 0 : depths[node] - 1;
    if (level < levels) now[level].Add(chances_[node - 1]);
  }
  if (order.priced) return Average(now[0], kTrees, &c->priced_seen, &c->priced_worths);
  for (int d = 0; d < levels; ++d) Average(now[d], kTrees, &c->seen[d], &c->worths[d]);
}

void GoodputControl::JudgeLookup(Coupling coupling, const speculation::Draft& lookup,
                                 std::vector<float>* worth) {
  PerCoupling& c = couplings_[static_cast<size_t>(coupling)];
  acceptance_.PathChances(coupling, lookup, worth);
  if (!worth->empty()) acceptance_.FadeLookup(coupling);
  Worths now;
  for (float chance : *worth) now.Add(chance);
  Average(now, kLookups, &c.looked_up, &c.lookup);
}

void GoodputControl::Judge(Coupling coupling, const speculation::Draft& draft,
                           const DraftOrder& order, int32_t most, std::vector<float>* worth) {
  PerCoupling& c = couplings_[static_cast<size_t>(coupling)];
  acceptance_.PathChances(coupling, draft, &chances_);
  if (!speculation::NeedsDraftRows(coupling, draft.draw)) {
    *worth = chances_;
    NoteWorth(draft, order, &c);
    return;
  }
  // What the trees before this one were worth: nothing of this one may decide about itself.
  const int places = std::min(most, speculation::kMaxVerifyNodes - 1);
  worth->assign(places, 1.0f);
  if (c.placed > 0) std::copy_n(c.by_place.begin(), places, worth->begin());
  LevelInDrawOrder(absl::MakeSpan(*worth));
  NoteWorth(draft, order, &c);
  c.placed = std::min(c.placed + 1, kTrees);
  for (size_t i = 0; i < c.by_place.size(); ++i) {
    const float now = i < chances_.size() ? chances_[i] : 0.0f;
    c.by_place[i] += (now - c.by_place[i]) / static_cast<float>(c.placed);
  }
}

}  // namespace specfabric::scheduler
