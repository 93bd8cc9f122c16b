#ifndef SPECFABRIC_BASE_SEQUENCE_OUTPUT_H_
#define SPECFABRIC_BASE_SEQUENCE_OUTPUT_H_

// New tokens of one sequence, in one type from the scheduler's event through the message to the
// gateway's text.

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace specfabric::base {

// May carry no token (prompt scores only, or the end of the sequence alone).
struct SequenceOutput {
  int32_t first_index = 0;  // of tokens[0] in the output, tokens of earlier attempts included
  std::vector<TokenId> tokens;
  std::vector<TokenLogprobs> logprobs;         // [tokens] if requested
  std::vector<TokenLogprobs> prompt_logprobs;  // tokens 1.. of the prompt, in order, once
};

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_SEQUENCE_OUTPUT_H_
