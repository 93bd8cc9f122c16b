// Random traces of requests, drafts (right and wrong, early, late and missing), cancels and failed
// steps, on a simulated KV cache. In every trace each text must be the one that the sequence has
// when it is alone, every request must end, and no block may leak.

#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/fake_group.h"

namespace specfabric::scheduler {
namespace {

using base::Nanos;
using base::TokenId;
using speculation::TokenTree;

struct Outcome {
  std::vector<std::string> errors;
  uint64_t digest = 0;  // of all plans, in order
  SchedulerStats stats;
  int64_t accepted = 0, rounds = 0, aborts = 0, cancels = 0, tree_moves = 0;
  int64_t ngram_lookup_tokens = 0;  // draft tokens
  int64_t cached_tokens = 0,
          resumed = 0;  // of events; preempted sequences that ended by themselves
};

// The injected fault.
enum class Fault { kNone, kMovesNotDone, kTokensNotCompared, kSharedBlockWritten };

class Trace {
 public:
  explicit Trace(uint32_t seed, Fault fault = Fault::kNone)
      : random_(seed),
        fault_(fault),
        options_(RandomOptions()),
        texts_{Tokens(options_.max_context), Tokens(options_.max_context)},
        scheduler_(options_),
        group_(options_, fault != Fault::kMovesNotDone) {}

  Outcome Run() {
    const uint64_t requests = Pick(1, 16);
    for (int steps = 0; steps < 20'000; ++steps) {
      if (submitted_ < requests && Chance(0.3)) Submit();
      DeliverDrafts();
      if (!live_.empty() && Chance(0.02)) CancelOne();
      now_ += Pick(0, 300) * base::kMicrosecond;
      auto planned = scheduler_.Plan(now_);
      Check();
      if (auto* wait = std::get_if<WaitUntil>(&planned)) {
        if (live_.empty() && submitted_ == requests) break;
        Wait(*wait);
      } else {
        Step(std::get<StepPlan>(planned));
        if (!group_.errors().empty()) break;
      }
    }
    if (!live_.empty()) Error(absl::StrCat(live_.size(), " requests never ended"));
    outcome_.stats = scheduler_.stats();
    if (outcome_.stats.used_blocks != 0) Error("blocks leaked");
    if (outcome_.stats.running != 0 || outcome_.stats.waiting != 0) Error("sequences leaked");
    for (const std::string& error : group_.errors()) Error(error);
    return outcome_;
  }

 private:
  struct Live {
    SequenceRequest request;
    Expected expected;
    std::vector<TokenId> output;
    bool cancelled = false, finished = false, scored = false, preempted = false, told = false;
  };
  struct PendingDraft {
    Nanos at;
    base::SequenceId id;
    uint32_t round;
    TokenTree tree;  // empty: OnNoDraft
  };

  int Pick(int low, int high) { return std::uniform_int_distribution<>(low, high)(random_); }
  bool Chance(double p) { return std::bernoulli_distribution(p)(random_); }
  void Check() const {
    if (fault_ == Fault::kNone) scheduler_.Check();
  }
  void Error(const std::string& what) { outcome_.errors.push_back(what); }

  SchedulerOptions RandomOptions() {
    SchedulerOptions options;
    options.block_size = Chance(0.7) ? 4 : 16;
    options.max_context = Pick(20, 120);
    // From just enough for one sequence to plenty.
    options.kv_blocks =
        options.max_context / options.block_size + 1 + (Chance(0.5) ? Pick(0, 4) : Pick(4, 40));
    options.max_sequences = Pick(1, 8);
    options.max_step_tokens = Pick(4, 100);
    options.max_tree_nodes = Pick(1, 64);
    options.vocabulary = 11;
    options.misses.probe_rounds = Pick(1, 6);
    if (Chance(0.3)) options.speculation = SpeculationPolicy::kAlways;
    options.max_draft_wait = Pick(1, 5) * base::kMillisecond;
    options.priority_ageing = Pick(0, 20) * base::kMillisecond;
    options.prefix_cache = Chance(0.7);
    options.ngram_lookup = Chance(0.5);
    options.model_salt = 5;
    options.cache_seed = 17;
    if (Chance(0.2))
      options.cache_fault_injection.hash_bits = Pick(0, 4);  // collisions only cost hits
    // No evictions, whose checks would find the fault before the trace does.
    if (fault_ == Fault::kTokensNotCompared || fault_ == Fault::kSharedBlockWritten) {
      options.prefix_cache = true;
      options.kv_blocks = 1000;
      options.block_size = 4;
      options.max_sequences = 8;
      options.cache_fault_injection = {.rewrite_shared = fault_ == Fault::kSharedBlockWritten};
    }
    if (fault_ == Fault::kTokensNotCompared) {
      options.cache_fault_injection = {.hash_bits = 2, .compare_tokens = false};
    }
    return options;
  }

  std::vector<TokenId> Tokens(int count) {
    std::vector<TokenId> tokens(count);
    for (TokenId& token : tokens) token = Pick(0, options_.vocabulary - 1);
    return tokens;
  }

  // Its own tokens, or a prefix that other requests share.
  std::vector<TokenId> Prompt() {
    const int size = Pick(1, Chance(0.5) ? options_.max_context - 3 : options_.max_context / 4);
    if (Chance(0.2)) return Tokens(size);
    const std::vector<TokenId>& text = texts_[Pick(0, 1)];
    std::vector<TokenId> prompt(text.begin(), text.begin() + size);
    for (int i = Pick(0, 4 * size); i < size; ++i) prompt[i] = Pick(0, options_.vocabulary - 1);
    if (Chance(0.3)) {  // it repeats itself, so that the n-gram lookup finds something
      const int period = Pick(1, size);
      for (int i = period; i < size; ++i) prompt[i] = prompt[i - period];
    }
    return prompt;
  }

  void Submit() {
    SequenceRequest request;
    request.id = ++submitted_;
    request.prompt = Prompt();
    request.priority = Chance(0.3) ? Pick(-2, 2) : 0;
    request.cache_salt = Chance(0.1) ? 1 : 0;
    request.tenant = Pick(0, 3);
    request.max_tokens = Chance(0.1) ? 0 : Pick(1, 60);
    if (request.max_tokens > 2 && Chance(0.3)) {
      const int room = options_.max_context - 1 - static_cast<int>(request.prompt.size());
      request.generated = Tokens(Pick(1, std::min(request.max_tokens - 1, room)));
    }
    if (Chance(0.3)) request.stop_ids = Tokens(1);
    request.score_prompt = Chance(0.2);
    if (Chance(0.3)) request.logprobs = 0;
    request.speculate = Chance(0.9);
    if (Chance(0.2)) request.max_draft_tokens = Pick(0, 8);
    if (Chance(0.2)) {
      request.drafter = "one";
      request.sources = Chance(0.5)
                            ? DraftSources{.grammar = false, .ngram_lookup = true, .drafters = 0}
                            : DraftSources{.grammar = false, .ngram_lookup = false, .drafters = 4};
    }
    Live live{.request = request, .expected = RunAlone(request, options_), .output = {}};
    const absl::Status status = scheduler_.Add(std::move(request), now_);
    Check();
    if (!status.ok()) {
      Error(absl::StrCat("refused: ", std::string(status.message())));
      return;
    }
    live_.emplace(submitted_, std::move(live));
  }

  // Below the last committed token: right tokens, wrong tokens, or a useless tree.
  TokenTree Draft(const std::vector<TokenId>& committed) {
    TokenTree tree = TokenTree::Root(committed.back());
    const bool good = Chance(0.7);
    std::vector<TokenId> truth = committed;
    int parent = 0;
    const int nodes = Pick(0, 70);
    while (tree.size() <= nodes) {
      if (good && Chance(0.6)) {
        truth.push_back(NextToken(truth, options_.vocabulary));
        parent = tree.Add(parent, truth.back(), 0.0f);
      } else {
        tree.Add(Pick(0, tree.size() - 1), Pick(0, options_.vocabulary - 1), 0.0f);
      }
    }
    if (Chance(0.03)) tree.tokens[0] = (tree.tokens[0] + 1) % options_.vocabulary;
    return tree;
  }

  void Plan(const DraftWanted& wanted) {
    const std::vector<TokenId>* committed = scheduler_.Committed(wanted.id);
    if (committed == nullptr || static_cast<int>(committed->size()) != wanted.committed) {
      Error("a draft is wanted below a token that is not committed");
      return;
    }
    if (wanted.max_nodes < 1 || wanted.max_nodes >= options_.max_tree_nodes ||
        wanted.deadline <= now_) {
      Error("a draft is wanted with limits out of range");
    }
    if (Chance(0.1)) return;  // lost
    const Nanos delay =
        Chance(0.8) ? Pick(0, 900) * base::kMicrosecond : Pick(1, 20) * base::kMillisecond;
    PendingDraft draft{now_ + delay, wanted.id, wanted.round, {}};
    if (Chance(0.95)) draft.tree = Draft(*committed);
    if (Chance(0.05)) drafts_.push_back(draft);  // twice
    if (Chance(0.03)) ++draft.round;
    drafts_.push_back(std::move(draft));
  }

  void DeliverDrafts() {
    std::erase_if(drafts_, [&](PendingDraft& draft) {
      if (draft.at > now_) return false;
      if (draft.tree.size() == 0) {
        scheduler_.OnNoDraft(draft.id, draft.round);
      } else {
        const auto drafter = static_cast<uint8_t>(Pick(0, speculation::kMaxDrafters - 1));
        if (Chance(0.1)) {
          scheduler_.OnExtraDraft(draft.id, draft.round, {.tree = draft.tree, .drafter = drafter});
        }
        scheduler_.OnDraft(draft.id, draft.round, {.tree = draft.tree, .drafter = drafter}, now_);
      }
      return true;
    });
  }

  void CancelOne() {
    auto it = std::next(live_.begin(), Pick(0, static_cast<int>(live_.size()) - 1));
    it->second.cancelled = true;
    ++outcome_.cancels;
    Apply(scheduler_.Cancel(it->first));
  }

  void Wait(const WaitUntil& wait) {
    if (wait.time <= now_) Error("told to wait until a time that has passed");
    Nanos next = wait.time;
    for (const PendingDraft& draft : drafts_) next = std::min(next, std::max(draft.at, now_));
    if (next == base::kForever && !live_.empty()) Error("live requests, but nothing to wait for");
    if (next != base::kForever) now_ = next;
  }

  void Step(const StepPlan& plan) {
    Digest(plan);
    for (base::SequenceId id : plan.preempted) live_.at(id).preempted = true;
    outcome_.tree_moves += static_cast<int64_t>(plan.moves.size());
    StepResult result = group_.Execute(plan, scheduler_);
    if (!group_.errors().empty()) return;
    if (result.sequences.empty()) std::exit(3);
    now_ += Pick(1, 1500) * base::kMicrosecond;
    DeliverDrafts();
    if (!live_.empty() && Chance(0.02)) CancelOne();
    if (Chance(0.002)) {
      ++outcome_.aborts;
      for (const PlanSequence& part : plan.sequences) live_.at(part.id).cancelled = true;
      Apply(scheduler_.Abort());
    } else {
      Apply(scheduler_.Commit(&result, now_));
    }
    Check();
  }

  void Digest(const StepPlan& plan) {
    const auto mix = [&](uint64_t value) {
      outcome_.digest = base::Mix64(outcome_.digest ^ base::Mix64(value));
    };
    for (TokenId token : plan.tokens) mix(token);
    for (int32_t block : plan.blocks) mix(block);
    for (const SlotMove& move : plan.moves) mix(uint64_t(move.from) << 32 | uint32_t(move.to));
    for (const PlanSequence& part : plan.sequences) mix(part.id);
  }

  void Apply(const std::vector<Event>& events) {
    for (const Event& event : events) {
      if (const auto* tokens = std::get_if<TokensEvent>(&event)) OnTokens(*tokens);
      if (const auto* wanted = std::get_if<DraftWanted>(&event)) Plan(*wanted);
      if (const auto* ended = std::get_if<SequenceEnded>(&event)) OnEnded(ended->id);
    }
  }

  static int Sum(const DraftTokenCounts& counts) {
    return std::accumulate(counts.by_drafter.begin(), counts.by_drafter.end(),
                           counts.by_ngram_lookup);
  }

  void OnTokens(const TokensEvent& event) {
    const auto it = live_.find(event.id);
    if (it == live_.end() || it->second.finished) return Error("tokens after the end");
    Live& live = it->second;
    const size_t before = live.request.generated.size() + live.output.size();
    if (event.first_index != static_cast<int32_t>(before)) Error("first_index is wrong");
    live.output.insert(live.output.end(), event.tokens.begin(), event.tokens.end());
    if (event.accepted > event.drafted || event.drafted >= options_.max_tree_nodes) {
      Error("counts of draft tokens are wrong");
    }
    const DraftSources sources = live.request.allowed_sources();
    if (event.drafted > (sources.any() ? live.request.max_draft_tokens : 0)) {
      Error("more draft tokens than the request allows");
    }
    const int by_ngram_lookup =
        event.drafted_by.by_ngram_lookup + event.drafted_by.also_ngram_lookup;
    if ((by_ngram_lookup > 0 && !sources.ngram_lookup) ||
        (event.drafted_by.by_ngram_lookup < event.drafted && sources.drafters == 0)) {
      Error("draft tokens of a source that the request does not allow");
    }
    outcome_.accepted += event.accepted;
    outcome_.ngram_lookup_tokens += by_ngram_lookup;
    if (Sum(event.drafted_by) != event.drafted || Sum(event.accepted_by) != event.accepted) {
      Error("draft tokens without a source");
    }
    outcome_.rounds += event.round;
    const size_t logprobs = live.request.logprobs >= 0 ? event.tokens.size() : 0;
    if (event.logprobs.size() != logprobs) Error("log-probabilities are missing");
    for (size_t i = 0; i < event.logprobs.size(); ++i) {
      if (event.logprobs[i].token != event.tokens[i]) Error("log-probabilities of other tokens");
    }
    CheckScores(event, &live);
    CheckCached(event, &live);
    if (!event.finish) return;
    live.finished = true;
    if (live.cancelled) return CheckCancelled(event, live);
    if (*event.finish != live.expected.finish) Error("finish reason is wrong");
    if (live.output != live.expected.output) Error(absl::StrCat("text ", event.id, " is wrong"));
    if (live.request.score_prompt && !live.scored) Error("the prompt was not scored");
    outcome_.resumed += live.preempted;
  }

  void CheckCached(const TokensEvent& event, Live* live) {
    outcome_.cached_tokens += event.cached_tokens;
    if (event.cached_tokens == 0) return;
    if (std::exchange(live->told, true)) Error("cached tokens were reported twice");
    const int32_t prompt = static_cast<int32_t>(live->request.prompt.size());
    const bool whole = event.cached_tokens % options_.block_size == 0;
    if (!options_.prefix_cache || live->request.score_prompt || event.cached_tokens > prompt ||
        (!whole && event.cached_tokens < prompt)) {
      Error("an impossible number of cached tokens");
    }
  }

  void CheckScores(const TokensEvent& event, Live* live) {
    if (event.prompt_logprobs.empty()) {
      live->scored |= live->request.prompt.size() == 1;
      return;
    }
    if (!live->request.score_prompt || live->scored) Error("scores that were not requested");
    live->scored = true;
    if (event.prompt_logprobs.size() != live->request.prompt.size() - 1) {
      return Error("not all of the prompt was scored");
    }
    for (size_t i = 0; i < event.prompt_logprobs.size(); ++i) {
      if (event.prompt_logprobs[i].token != live->request.prompt[i + 1])
        Error("wrong token scored");
    }
  }

  // A cancelled or failed sequence has a prefix of its text, or ended by itself before that.
  void CheckCancelled(const TokensEvent& event, const Live& live) {
    const bool stopped =
        *event.finish == FinishReason::kCancelled || *event.finish == FinishReason::kError;
    if (!stopped && *event.finish != live.expected.finish) Error("finish of a cancelled sequence");
    if (live.output.size() > live.expected.output.size() ||
        !std::equal(live.output.begin(), live.output.end(), live.expected.output.begin())) {
      Error("text of a cancelled sequence is wrong");
    }
  }

  void OnEnded(base::SequenceId id) {
    const auto it = live_.find(id);
    if (it == live_.end() || !it->second.finished) return Error("ended without a finish");
    live_.erase(it);
    group_.OnEnded(id);
  }

  std::mt19937 random_;
  const Fault fault_;
  SchedulerOptions options_;
  const std::vector<TokenId> texts_[2];
  Scheduler scheduler_;
  FakeGroup group_;
  Nanos now_ = base::kSecond;
  uint64_t submitted_ = 0;
  std::map<base::SequenceId, Live> live_;
  std::vector<PendingDraft> drafts_;
  Outcome outcome_;
};

constexpr int kTraces = 2000;

TEST(TraceTest, EveryTextIsTheOneTheSequenceHasAlone) {
  Outcome sum;
  for (uint32_t seed = 0; seed < kTraces; ++seed) {
    const Outcome outcome = Trace(seed).Run();
    ASSERT_THAT(outcome.errors, testing::IsEmpty()) << "seed " << seed;
    sum.accepted += outcome.accepted;
    sum.rounds += outcome.rounds;
    sum.aborts += outcome.aborts;
    sum.cancels += outcome.cancels;
    sum.tree_moves += outcome.tree_moves;
    sum.ngram_lookup_tokens += outcome.ngram_lookup_tokens;
    sum.cached_tokens += outcome.cached_tokens;
    sum.resumed += outcome.resumed;
    sum.stats.draft_hits += outcome.stats.draft_hits;
    sum.stats.draft_misses += outcome.stats.draft_misses;
    sum.stats.late_drafts += outcome.stats.late_drafts;
    sum.stats.preemptions += outcome.stats.preemptions;
    sum.stats.cache_hits += outcome.stats.cache_hits;
  }
  // The traces must have covered all of this.
  EXPECT_GT(sum.accepted, 10'000);
  EXPECT_GT(sum.rounds, 10'000);
  EXPECT_GT(sum.tree_moves, 10'000);
  EXPECT_GT(sum.ngram_lookup_tokens, 2'000);
  EXPECT_GT(sum.aborts, 50);
  EXPECT_GT(sum.cancels, 500);
  EXPECT_GT(sum.stats.draft_hits, 5'000u);
  EXPECT_GT(sum.stats.draft_misses, 1'000u);
  EXPECT_GT(sum.stats.late_drafts, 500u);
  EXPECT_GT(sum.stats.preemptions, 500u);
  EXPECT_GT(sum.resumed, 300);
  EXPECT_GT(sum.stats.cache_hits, 10'000u);
  EXPECT_GT(sum.cached_tokens, 10'000);
  RecordProperty("preemptions", static_cast<int>(sum.stats.preemptions));
  RecordProperty("cached_tokens", static_cast<int>(sum.cached_tokens));
}

TEST(TraceTest, SameCallsGiveSamePlans) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    EXPECT_EQ(Trace(seed).Run().digest, Trace(seed).Run().digest);
  }
}

int Caught(Fault fault) {
  int caught = 0;
  for (uint32_t seed = 0; seed < 50; ++seed) caught += !Trace(seed, fault).Run().errors.empty();
  return caught;
}

TEST(TraceTest, MissingMovesAreDetected) { EXPECT_GT(Caught(Fault::kMovesNotDone), 25); }

TEST(TraceTest, HitWithoutComparedTokensIsDetected) {
  EXPECT_GT(Caught(Fault::kTokensNotCompared), 25);
}

TEST(TraceTest, WrittenSharedBlockIsDetected) { EXPECT_GT(Caught(Fault::kSharedBlockWritten), 25); }

}  // namespace
}  // namespace specfabric::scheduler
