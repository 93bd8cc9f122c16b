// Who runs: which requests are taken, who is admitted, who gives way.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "scheduler/scheduler_impl.h"

namespace specfabric::scheduler {
namespace {

absl::Status CheckTokens(const std::vector<base::TokenId>& tokens, int32_t vocabulary) {
  for (base::TokenId token : tokens) {
    if (token < 0 || token >= vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", token, ": allowed are 0 to ", vocabulary - 1));
    }
  }
  return absl::OkStatus();
}

bool ComesBefore(const Sequence* a, const Sequence* b) { return a->queue_order < b->queue_order; }

}  // namespace

absl::Status Scheduler::Impl::CheckRequest(const SequenceRequest& request) const {
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t generated = static_cast<int64_t>(request.generated.size());
  if (prompt == 0) return absl::InvalidArgumentError("the prompt is empty");
  if (request.max_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens is ", request.max_tokens, ": must not be negative"));
  }
  if (request.priority < -kMaxPriority || request.priority > kMaxPriority) {
    return absl::InvalidArgumentError(absl::StrCat("priority ", request.priority, ": allowed are ",
                                                   -kMaxPriority, " to ", kMaxPriority));
  }
  const int64_t room = options.max_context - (request.max_tokens > 0 ? 1 : 0);
  if (prompt + generated > room) {
    return absl::InvalidArgumentError(absl::StrCat("prompt and output have ", prompt + generated,
                                                   " tokens: this model takes at most ", room));
  }
  if (generated > 0 && generated >= request.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(generated, " tokens are generated already of ",
                                                   request.max_tokens, ": nothing is left to do"));
  }
  if (absl::Status status = CheckTokens(request.prompt, options.vocabulary); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckTokens(request.generated, options.vocabulary); !status.ok()) {
    return status;
  }
  std::vector<base::TokenId> ruled = request.rules.suppressed_token_ids;
  for (const base::LogitBias& bias : request.rules.bias) ruled.push_back(bias.token);
  return CheckTokens(ruled, options.vocabulary);
}

// In order: a large sequence that is next is not overtaken by small ones.
void Scheduler::Impl::Admit() {
  while (static_cast<int32_t>(running.size()) < options.max_sequences) {
    Sequence* sequence = waiting.Next();
    if (sequence == nullptr || !TakePrefillBlocks(sequence)) return;
    waiting.Remove(sequence);
    sequence->phase = Phase::kPrefill;
    sequence->Reserve(options.block_size);
    if (sequence->preemptions == 0) {
      shares.Charge(sequence->request.tenant,
                    TenantShares::kPromptWeight * sequence->committed_size());
      counted.cache_queries += options.prefix_cache ? sequence->committed_size() : 0;
    }
    running.insert(std::upper_bound(running.begin(), running.end(), sequence, ComesBefore),
                   sequence);
  }
}

// All that its prefill needs, and beyond that one block for each that runs already: otherwise the
// next step might take back what this one gave.
bool Scheduler::Impl::TakePrefillBlocks(Sequence* sequence) {
  const base::SequenceId id = sequence->request.id;
  if (!running.empty() && id == refused && blocks.pool.available() <= refused_available) {
    return false;
  }
  const int32_t available = blocks.pool.available();
  const int32_t found = blocks.AdoptCached(sequence);
  const int32_t missing =
      blocks.BlocksFor(sequence->committed_size()) - static_cast<int32_t>(sequence->blocks.size());
  const int32_t spare = static_cast<int32_t>(running.size());
  if (missing + spare > blocks.pool.available()) {
    SPECFABRIC_CHECK(!running.empty());  // alone, whatever Add took fits
    blocks.Drop(sequence);
    refused = id;
    refused_available = available;
    return false;
  }
  SPECFABRIC_CHECK(blocks.Grow(sequence->committed_size(), sequence));
  if (sequence->preemptions == 0) {
    sequence->cached_tokens += found;
    counted.cache_hits += found;
  }
  return true;
}

bool Scheduler::Impl::MakeRoom(int32_t slots, Sequence* sequence, StepPlan* plan) {
  if (blocks.Grow(slots, sequence)) return true;
  const int32_t missing = blocks.BlocksFor(slots) - static_cast<int32_t>(sequence->blocks.size());
  if (BlocksBehind(*sequence) + blocks.pool.available() < missing) return false;
  while (!blocks.Grow(slots, sequence)) {
    SPECFABRIC_CHECK(running.back() != sequence);
    Preempt(running.back(), plan);
  }
  return true;
}

// A block that sequences share comes free with the last of them.
int32_t Scheduler::Impl::BlocksBehind(const Sequence& sequence) {
  owners_behind.resize(blocks.pool.total(), 0);
  int32_t count = 0;
  for (auto it = running.rbegin(); *it != &sequence; ++it) {
    for (int32_t block : (*it)->blocks) {
      if (++owners_behind[block] == blocks.pool.owners(block)) ++count;
    }
  }
  for (auto it = running.rbegin(); *it != &sequence; ++it) {
    for (int32_t block : (*it)->blocks) owners_behind[block] = 0;
  }
  return count;
}

// Its sampling goes on as if nothing had been: random numbers are keyed by position, and its rounds
// go on counting, so that no draw is repeated (sampling::DrawNumber). The draft it had or waits
// for is void.
void Scheduler::Impl::Preempt(Sequence* sequence, StepPlan* plan) {
  SPECFABRIC_CHECK(!sequence->in_flight);
  blocks.Drop(sequence);
  sequence->phase = Phase::kWaiting;
  sequence->wait.EndRound();
  sequence->has_draft = false;
  sequence->prompt_logprobs.clear();
  ++sequence->preemptions;
  ++counted.preemptions;
  std::erase(running, sequence);
  waiting.Add(sequence);
  plan->preempted.push_back(sequence->request.id);
}

}  // namespace specfabric::scheduler
