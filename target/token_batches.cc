#include "target/token_batches.h"

#include <utility>

#include "base/status.h"
#include "spdlog/spdlog.h"

namespace specfabric::target {
namespace {

// Size of an entry without the contents of its lists: the table, offsets, list lengths.
constexpr size_t kEntryBytes = 128;

size_t BytesOf(const std::vector<base::TokenLogprobs>& list) {
  size_t bytes = 0;
  for (const base::TokenLogprobs& entry : list) bytes += 10 + 8 * entry.top.size();
  return bytes;
}

size_t BytesOf(const schemas::Tokens& tokens) {
  return kEntryBytes +
         sizeof(int32_t) * (tokens.tokens.size() + tokens.speculation.accepted_at.size()) +
         tokens.error.size() + BytesOf(tokens.logprobs) + BytesOf(tokens.prompt_logprobs);
}

}  // namespace

void TokenBatches::Add(link::PeerId peer, schemas::Tokens tokens) {
  const size_t bytes = BytesOf(tokens);
  std::vector<Batch>& batches = peers_[peer];
  if (batches.empty() || batches.back().bytes + bytes > max_bytes_ ||
      batches.back().message.sequences.size() >= schemas::kMaxBatchSequences) {
    batches.emplace_back();
  }
  batches.back().bytes += bytes;
  batches.back().message.sequences.push_back(std::move(tokens));
}

void TokenBatches::Send(const SendTokens& send) {
  for (const auto& [peer, batches] : peers_) {
    for (const Batch& batch : batches) {
      const absl::Status sent = send(peer, batch.message);
      if (sent.ok()) continue;
      // A gateway that takes no tokens is about to be disconnected; that cancels its sequences.
      spdlog::warn("target peer={}: tokens of {} sequences not sent: {}", peer,
                   batch.message.sequences.size(), base::Message(sent));
      break;
    }
  }
  peers_.clear();
}

}  // namespace specfabric::target
