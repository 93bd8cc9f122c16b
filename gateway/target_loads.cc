#include "gateway/target_loads.h"

#include "metrics/registry.h"

namespace specfabric::gateway {

using link::PeerId;

void TargetLoads::Up(PeerId peer, const schemas::Hello& hello) {
  targets_[peer] = {hello.incarnation, std::nullopt};
}

void TargetLoads::Down(PeerId peer) {
  if (targets_.erase(peer) > 0) Show();
}

void TargetLoads::Report(PeerId peer, const schemas::TargetLoad& load) {
  const auto found = targets_.find(peer);
  if (found == targets_.end()) return;
  Count(found->second.incarnation, load);
  found->second.load = load;
  Show();
}

void TargetLoads::Count(uint64_t incarnation, const schemas::TargetLoad& load) {
  const auto [entry, first] = counted_.try_emplace(incarnation);
  Counted& counted = entry->second;
  const auto advance = [first = first](int64_t total, uint64_t* seen, metrics::Counter* counter) {
    if (first) {
      *seen = static_cast<uint64_t>(total);
    } else {
      metrics::AdvanceTo(static_cast<uint64_t>(total), seen, counter);
    }
  };
  advance(load.drafts, &counted.drafts, &metrics_.drafts);
  advance(load.drafted, &counted.drafted, &metrics_.draft_tokens);
  advance(load.accepted, &counted.accepted, &metrics_.accepted_tokens);
  if (counted.accepted_at.size() < load.accepted_at.size()) {
    counted.accepted_at.resize(load.accepted_at.size());
  }
  for (size_t i = 0; i < load.accepted_at.size(); ++i) {
    advance(load.accepted_at[i], &counted.accepted_at[i], &metrics_.AcceptedAt(i));
  }
}

void TargetLoads::Show() {
  int64_t running = 0, waiting = 0, used = 0, blocks = 0, tokens = 0;
  int32_t block_size = 0;
  for (const auto& [peer, target] : targets_) {
    if (!target.load) continue;
    running += target.load->running;
    waiting += target.load->waiting;
    used += target.load->kv_blocks_used;
    blocks += target.load->kv_blocks;
    tokens += int64_t{target.load->kv_blocks} * target.load->block_size;
    if (block_size == 0) block_size = target.load->block_size;
  }
  metrics_.running.Set(static_cast<double>(running));
  metrics_.waiting.Set(static_cast<double>(waiting));
  metrics_.kv_usage.Set(blocks == 0 ? 0 : static_cast<double>(used) / static_cast<double>(blocks));
  // In blocks of the first target's size, should they differ.
  metrics_.SetCacheConfig(block_size, block_size == 0 ? 0 : tokens / block_size);
}

}  // namespace specfabric::gateway
