#ifndef SPECFABRIC_SCHEDULER_SEQUENCE_REQUEST_H_
#define SPECFABRIC_SCHEDULER_SEQUENCE_REQUEST_H_

// What is generated for one choice of one request. The gateway fills it in, schemas::Submit carries
// it, and the scheduler keeps it for the life of the sequence.

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/grammar.h"
#include "base/logit_rules.h"
#include "base/types.h"
#include "speculation/tree.h"
#include "speculation/verification_method.h"

namespace specfabric::scheduler {

constexpr int32_t kMaxPriority = 100;
constexpr int32_t kMaxDraftTokens = speculation::kMaxVerifyNodes - 1;  // of a round
constexpr uint32_t kAllDrafters = ~uint32_t{0};

// What may draft for a sequence.
struct DraftSources {
  bool grammar = true, ngram_lookup = true;
  uint32_t drafters = kAllDrafters;  // bit set, 1 << speculation::Draft::drafter
  bool any() const { return grammar || ngram_lookup || drafters != 0; }
  friend bool operator==(const DraftSources&, const DraftSources&) = default;
};
constexpr DraftSources kNoDraftSources = {.grammar = false, .ngram_lookup = false, .drafters = 0};

struct SequenceRequest {
  // The target sets these three; they are not sent.
  base::SequenceId id = 0;
  // kCoupled if sampling is greedy: every method would accept the arg-max tokens.
  speculation::VerificationMethod verification = speculation::VerificationMethod::kCoupled;
  DraftSources sources;  // that `drafter` names; see allowed_sources

  std::vector<base::TokenId> prompt;     // at least one token
  std::vector<base::TokenId> generated;  // emitted by an earlier attempt; the output continues it
  base::SamplingParams sampling;
  base::LogitRules rules;               // masked: exactly where there is a grammar
  base::Grammar grammar;                // of the output; the scheduler does not read it
  uint32_t attempt = 0;                 // of this request: see sampling::DrawNumber
  int32_t max_tokens = 16;              // output tokens, `generated` included; 0 only scores
  std::vector<base::TokenId> stop_ids;  // end the output, reason kStop; the id itself is emitted
  bool score_prompt = false;            // report log-probabilities of prompt tokens (echo)
  int32_t logprobs = -1;                // top log-probabilities a token; -1 none
  // The outputs do not depend on these, where the verification method is lossless.
  bool speculate = true;                       // false: decoded plainly, without draft tokens
  int32_t max_draft_tokens = kMaxDraftTokens;  // verified in a round; 0: as `speculate` false
  std::string drafter;       // the one source that may draft (target/draft_pool.h); empty: any
  int32_t priority = 0;      // higher first; from -kMaxPriority to kMaxPriority
  uint64_t tenant = 0;       // tenants get equal shares; 0: no tenant in particular
  base::Nanos tpot_slo = 0;  // target for the time per output token; 0: none
  uint64_t cache_salt = 0;   // only sequences of one salt (a tenant's) share cached prefixes

  DraftSources allowed_sources() const {
    return speculate && max_draft_tokens > 0 ? sources : kNoDraftSources;
  }
  // Its draft trees are smaller than others', or another drafter's: they tell nothing of theirs.
  bool limits_drafts() const { return max_draft_tokens < kMaxDraftTokens || !drafter.empty(); }
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_SEQUENCE_REQUEST_H_
