#include "scheduler/simulation/modelled_ahead.h"

#include <algorithm>

#include "base/hash.h"

namespace specfabric::scheduler {
namespace {

bool LessLikely(const ModelledAhead::Node& a, const ModelledAhead::Node& b) {
  return a.chance < b.chance;
}

}  // namespace

void ModelledAhead::Advance(const ModelledText& text, uint64_t sequence, int32_t committed) {
  for (; committed_ < committed; ++committed_) {
    root_.path = base::ExtendPrefixHash(root_.path, text.Token(sequence, committed_));
  }
  root_.position = committed;
  std::erase_if(ran_, [&](const auto& node) { return node.second < committed; });
  next_.clear();
}

ModelledAhead::Node ModelledAhead::Child(const ModelledText& text, uint64_t sequence,
                                         const Node& parent, int index) {
  return {.path = base::ExtendPrefixHash(parent.path, ModelledText::DraftToken(index)),
          .position = parent.position + 1,
          .chance = parent.chance * text.Chance(sequence, parent.position, index)};
}

void ModelledAhead::Start(const ModelledText& text, uint64_t sequence, const AheadCost& cost) {
  Clear(cost);
  if (left_ > 0) Offer(text, sequence, root_);
}

void ModelledAhead::Clear(const AheadCost& cost) {
  next_.clear();
  left_ = cost.nodes;
  least_chance_ = cost.least_chance;
}

void ModelledAhead::OfferRoots(const ModelledText& text, uint64_t sequence, const Node& parent,
                               int children) {
  for (int index = children; left_ > 0 && index < kCandidates; ++index) {
    const Node root = Child(text, sequence, parent, index);
    if (root.chance >= least_chance_ && !Ran(root)) Push(root);
  }
}

void ModelledAhead::Push(const Node& node) {
  next_.push_back(node);
  std::push_heap(next_.begin(), next_.end(), LessLikely);
}

ModelledAhead::Node ModelledAhead::Take() {
  std::pop_heap(next_.begin(), next_.end(), LessLikely);
  const Node node = next_.back();
  next_.pop_back();
  if (--left_ == 0) next_.clear();
  return node;
}

void ModelledAhead::OnRun(const ModelledText& text, uint64_t sequence, const Node& node) {
  NoteRun(node);
  if (left_ > 0) Offer(text, sequence, node);
}

void ModelledAhead::Offer(const ModelledText& text, uint64_t sequence, const Node& node) {
  for (int index = 0; index < kCandidates; ++index) {
    const Node child = Child(text, sequence, node, index);
    if (child.chance < least_chance_) continue;
    if (Ran(child)) {
      Offer(text, sequence, child);
      continue;
    }
    Push(child);
  }
}

}  // namespace specfabric::scheduler
