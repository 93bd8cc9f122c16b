#ifndef SPECFABRIC_SCHEDULER_SEQUENCE_REQUEST_H_
#define SPECFABRIC_SCHEDULER_SEQUENCE_REQUEST_H_

// What is generated for one choice of one request. The gateway fills it in, schemas::Submit carries
// it, and the scheduler keeps it for the life of the sequence.

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/grammar.h"
#include "base/logit_rules.h"
#include "base/types.h"
#include "speculation/verification_method.h"

namespace specfabric::scheduler {

constexpr int32_t kMaxPriority = 100;

struct SequenceRequest {
  // The target sets these two; they are not sent.
  base::SequenceId id = 0;
  // kCoupled if sampling is greedy: every method would accept the arg-max tokens.
  speculation::VerificationMethod verification = speculation::VerificationMethod::kCoupled;

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
  bool speculate = true;                // false: never ask for drafts
  int32_t priority = 0;                 // higher first; from -kMaxPriority to kMaxPriority
  uint64_t tenant = 0;                  // tenants get equal shares; 0: no tenant in particular
  base::Nanos tpot_slo = 0;             // target for the time per output token; 0: none
  uint64_t cache_salt = 0;  // only sequences of one salt (a tenant's) share cached prefixes
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_SEQUENCE_REQUEST_H_
