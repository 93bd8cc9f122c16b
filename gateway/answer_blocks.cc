#include "gateway/answer_blocks.h"

#include <utility>

#include "gateway/append.h"

namespace specfabric::gateway {

std::vector<BlockNews> AnswerBlocks::Add(TextPiece piece) {
  std::vector<BlockNews> news;
  if (!piece.reasoning.empty()) Extend(BlockKind::kReasoning, std::move(piece.reasoning), &news);
  AppendTo(held_, std::move(piece.entries));
  if (!piece.text.empty()) {
    Extend(BlockKind::kText, std::move(piece.text), &news);
    std::vector<TokenEntry> entries = std::exchange(held_, {});
    AppendTo(blocks_.back().entries, std::vector<TokenEntry>(entries));
    news.back().entries = std::move(entries);
  }
  for (ToolCallPart& call : piece.calls) {
    if (!call.name.empty()) {
      blocks_.push_back({.kind = BlockKind::kCall, .name = std::move(call.name)});
      news.push_back({.block = blocks_.size() - 1, .begins = true});
    }
    Extend(BlockKind::kCall, std::move(call.arguments), &news);
  }
  return news;
}

void AnswerBlocks::Extend(BlockKind kind, std::string text, std::vector<BlockNews>* news) {
  const bool begins = blocks_.empty() || blocks_.back().kind != kind;
  if (begins) blocks_.push_back({.kind = kind});
  blocks_.back().text += text;
  news->push_back({.block = blocks_.size() - 1, .begins = begins, .text = std::move(text)});
}

}  // namespace specfabric::gateway
