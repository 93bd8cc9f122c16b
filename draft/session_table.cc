#include "draft/session_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/hash.h"

namespace specfabric::draft {

using schemas::DraftRequest;
using schemas::DraftStatus;

namespace {

constexpr size_t kMaxKnownPoints = 64;

void Commit(Session* session, int32_t keep, absl::Span<const base::TokenId> append) {
  session->tokens.resize(keep);
  session->hashes.resize(keep + 1);
  for (base::TokenId token : append) {
    session->tokens.push_back(token);
    session->hashes.push_back(base::ExtendPrefixHash(session->hashes.back(), token));
  }
}

}  // namespace

SessionTable::SessionTable(const SessionTableOptions& options)
    : options_(options), blocks_(options.kv_blocks, options.block_size) {}

int32_t SessionTable::Physical(const Session& session, int32_t s) const {
  return session.blocks[s / options_.block_size] * options_.block_size + s % options_.block_size;
}

void SessionTable::Release(Map::iterator it) {
  blocks_.ReleaseFrom(0, &it->second->blocks);
  sessions_.erase(it);
}

bool SessionTable::EvictOne() {
  auto oldest = sessions_.end();
  for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
    if (it->second->busy) continue;
    if (oldest == sessions_.end() || it->second->last_used < oldest->second->last_used) {
      oldest = it;
    }
  }
  if (oldest == sessions_.end()) return false;
  Release(oldest);
  ++stats_.evicted_lru;
  return true;
}

bool SessionTable::Reserve(Session* session, int32_t slots) {
  const size_t wanted = (slots + options_.block_size - 1) / options_.block_size;
  // Eviction must not take the session that asks.
  const bool was_busy = std::exchange(session->busy, true);
  bool enough = true;
  while (enough && session->blocks.size() < wanted) {
    const auto missing = static_cast<int32_t>(wanted - session->blocks.size());
    if (!blocks_.Take(missing, &session->blocks)) enough = EvictOne();
  }
  session->busy = was_busy;
  return enough;
}

bool SessionTable::ReserveFree(Session* session, int32_t slots) {
  const size_t wanted = (slots + options_.block_size - 1) / options_.block_size;
  if (session->blocks.size() >= wanted) return true;
  return blocks_.Take(static_cast<int32_t>(wanted - session->blocks.size()), &session->blocks);
}

Session* SessionTable::FindOrOpen(const SessionKey& key, base::Nanos now) {
  if (auto it = sessions_.find(key); it != sessions_.end()) return it->second.get();
  if (static_cast<int32_t>(sessions_.size()) >= options_.max_sessions && !EvictOne()) {
    return nullptr;
  }
  auto session = std::make_unique<Session>();
  session->key = key;
  session->last_used = now;
  return (sessions_[key] = std::move(session)).get();
}

std::vector<schemas::PrefixPoint> SessionTable::KnownPoints(const Session& session) const {
  std::vector<schemas::PrefixPoint> points;
  int32_t length = session.length() / options_.block_size * options_.block_size;
  int32_t step = options_.block_size;
  // Dense near the end, where prefixes part, then ever sparser.
  while (length > 0 && points.size() < kMaxKnownPoints) {
    points.push_back({length, session.hashes[length]});
    if (points.size() % 16 == 0) step *= 4;
    length -= step;
  }
  return points;
}

void SessionTable::KeepGuesses(Session* session, absl::Span<const base::TokenId> new_tokens,
                               Applied* applied) {
  const int32_t length = session->length();
  if (session->kv_len != length || session->guesses.size() == 0) {
    session->guesses.Plant(new_tokens.empty() ? session->tokens.back() : new_tokens.back());
    return;
  }
  const GuessCache::Moved moved = session->guesses.Follow(new_tokens);
  // In ascending order a source is never behind its destination, so in-order moves are safe.
  int32_t to = length;
  for (const int32_t slot : moved.slots) {
    const int32_t from = length + slot;
    if (from != to) applied->moves.push_back({Physical(*session, from), Physical(*session, to)});
    ++to;
  }
  session->kv_len += moved.committed;
  stats_.reused_tree_slots += moved.slots.size();
  if (!new_tokens.empty()) applied->outcome = moved.outcome;
}

Applied SessionTable::Apply(const DraftRequest& request, base::Nanos now) {
  const int64_t length = int64_t{request.base_length} + request.append_tokens.size();
  if (length >= options_.context) return {.status = DraftStatus::kTooLong};
  if (length == 0) return {.status = DraftStatus::kUnsupported};
  const SessionKey key{request.target_incarnation, request.sequence};
  Session* session = FindOrOpen(key, now);
  if (session == nullptr || session->busy) return {.status = DraftStatus::kBusy};
  const int32_t base = request.base_length;
  if (base > session->length() || session->hashes[base] != request.base_hash) {
    ++stats_.resyncs;
    return {.status = DraftStatus::kNeedResync, .known = KnownPoints(*session)};
  }
  // A request that repeats tokens we hold (its acknowledgement was lost) keeps their KV.
  absl::Span<const base::TokenId> append = request.append_tokens;
  int32_t common = base;
  while (!append.empty() && common < session->length() &&
         session->tokens[common] == append.front()) {
    append.remove_prefix(1);
    ++common;
  }
  if (!Reserve(session, static_cast<int32_t>(length))) {
    return {.status = DraftStatus::kBusy};
  }
  Applied applied;
  if (common == session->length()) {
    KeepGuesses(session, append, &applied);
    applied.accepted = std::max<int32_t>(0, static_cast<int32_t>(append.size()) - 1);
  } else {
    stats_.truncated_tokens += session->length() - common;
    session->kv_len = std::min(session->kv_len, common);
    session->guesses.Plant(append.empty() ? session->tokens[common - 1] : append.back());
  }
  Commit(session, common, append);
  // Where it is not known what the first level is to be chosen from the root is run (again).
  const uint64_t tag =
      base::Mix64(schemas::SamplingTag(request.coupling, request.sampling) ^ request.sampling.seed);
  const bool changed = std::exchange(session->guessed_under, tag) != tag;
  if (changed) session->noise.clear();
  // What is drawn is drawn anew in each round.
  if (changed || speculation::WeighsDraft(request.coupling)) {
    session->guesses.Plant(session->tokens.back());
  }
  session->coupling = request.coupling;
  session->sampling = request.sampling;
  std::erase_if(session->noise,
                [&](const Session::NoiseRow& row) { return row.position < session->length(); });
  if (session->guesses.candidates(0).empty()) {
    session->kv_len = std::min(session->kv_len, session->length() - 1);
  }
  session->last_used = now;
  applied.session = session;
  return applied;
}

const Session* SessionTable::Find(const SessionKey& key) const {
  const auto it = sessions_.find(key);
  return it == sessions_.end() ? nullptr : it->second.get();
}

void SessionTable::End(const SessionKey& key) {
  auto it = sessions_.find(key);
  if (it == sessions_.end() || it->second->busy) return;
  Release(it);
  ++stats_.ended;
}

int SessionTable::Purge(uint64_t target_incarnation) {
  int count = 0;
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    auto here = it++;
    if (here->first.target_incarnation != target_incarnation || here->second->busy) continue;
    Release(here);
    ++count;
  }
  stats_.purged += count;
  return count;
}

int SessionTable::Expire(base::Nanos now) {
  int count = 0;
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    auto here = it++;
    if (here->second->busy || now - here->second->last_used < options_.time_to_live) continue;
    Release(here);
    ++count;
  }
  stats_.expired_ttl += count;
  return count;
}

SessionStats SessionTable::stats() const {
  SessionStats stats = stats_;
  stats.sessions = static_cast<int32_t>(sessions_.size());
  stats.free_blocks = blocks_.available();
  for (const auto& [key, session] : sessions_) stats.busy += session->busy;
  return stats;
}

int32_t SessionTable::free_sessions() const {
  return options_.max_sessions - static_cast<int32_t>(sessions_.size());
}

std::string SessionTable::DebugJson(base::Nanos now) const {
  const SessionStats s = stats();
  std::string why;
  const bool usable = Check(&why);
  std::string json = absl::StrFormat(
      "{\"sessions\":%d,\"busy\":%d,\"capacity\":%d,\"free_blocks\":%d,\"blocks\":%d,"
      "\"evicted_lru\":%d,\"expired_ttl\":%d,\"purged\":%d,\"ended\":%d,\"resyncs\":%d,"
      "\"reused_tree_slots\":%d,\"truncated_tokens\":%d,\"usable\":%s,\"rows\":[",
      s.sessions, s.busy, options_.max_sessions, s.free_blocks, options_.kv_blocks, s.evicted_lru,
      s.expired_ttl, s.purged, s.ended, s.resyncs, s.reused_tree_slots, s.truncated_tokens,
      usable ? "true" : "false");
  const char* separator = "";
  for (const auto& [key, session] : sessions_) {
    absl::StrAppendFormat(&json,
                          "%s{\"target\":\"%016x\",\"sequence\":%d,\"tokens\":%d,\"kv_len\":%d,"
                          "\"blocks\":%d,\"idle_seconds\":%.3f,\"busy\":%s}",
                          separator, key.target_incarnation, key.sequence, session->length(),
                          session->kv_len, session->blocks.size(),
                          base::ToSeconds(now - session->last_used),
                          session->busy ? "true" : "false");
    separator = ",";
  }
  return absl::StrCat(json, "]}");
}

bool SessionTable::Check(std::string* why) const {
  size_t owned = 0;
  for (const auto& [key, session] : sessions_) {
    owned += session->blocks.size();
    const auto slots = static_cast<int64_t>(session->blocks.size()) * options_.block_size;
    if (session->kv_len > session->length() || session->kv_len > slots ||
        session->hashes.size() != session->tokens.size() + 1) {
      *why = absl::StrCat("session of sequence ", key.sequence, " is inconsistent");
      return false;
    }
  }
  if (owned + blocks_.available() != static_cast<size_t>(options_.kv_blocks)) {
    *why = absl::StrCat(owned, " blocks owned and ", blocks_.available(), " free, of ",
                        options_.kv_blocks);
    return false;
  }
  return true;
}

}  // namespace specfabric::draft
