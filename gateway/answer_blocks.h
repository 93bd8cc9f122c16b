#ifndef SPECFABRIC_GATEWAY_ANSWER_BLOCKS_H_
#define SPECFABRIC_GATEWAY_ANSWER_BLOCKS_H_

// An answer as a list of blocks, as the Responses and the Messages API tell it: reasoning, text and
// calls of tools, in the order in which the model wrote them.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gateway/answer.h"

namespace specfabric::gateway {

enum class BlockKind : uint8_t { kReasoning, kText, kCall };

struct AnswerBlock {
  BlockKind kind = BlockKind::kText;
  std::string text = {};                 // of a call: its arguments
  std::string name = {};                 // of the tool that is called
  std::vector<TokenEntry> entries = {};  // of text, if log-probabilities are requested
};

// What is new of a block. The one before it is complete once the next begins.
struct BlockNews {
  size_t block = 0;
  bool begins = false;
  std::string text = {};
  std::vector<TokenEntry> entries = {};
};

class AnswerBlocks {
 public:
  // In order; of one piece a block may have several.
  std::vector<BlockNews> Add(TextPiece piece);
  const std::vector<AnswerBlock>& blocks() const { return blocks_; }

 private:
  void Extend(BlockKind kind, std::string text, std::vector<BlockNews>* news);

  std::vector<AnswerBlock> blocks_;
  std::vector<TokenEntry> held_;  // of text that is held back
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_ANSWER_BLOCKS_H_
