#include "draft/session_table.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
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
  const auto holder = usages_.find(it->first.target_incarnation);
  holder->second.blocks -= static_cast<int32_t>(it->second->blocks.size());
  if (--holder->second.sessions == 0) usages_.erase(holder);
  blocks_.ReleaseFrom(0, &it->second->blocks);
  sessions_.erase(it);
}

bool SessionTable::MakeRoom(uint64_t target_incarnation, int32_t ResourceUsage::*resource,
                            int32_t missing, int32_t claim, base::Nanos now) {
  auto usages = usages_;  // after the evictions so far
  std::vector<Map::iterator> idle, victims;
  for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
    const bool own = it->first.target_incarnation == target_incarnation;
    if (it->second->busy || (own && now - it->second->last_used < options_.alive)) continue;
    idle.push_back(it);
  }
  const auto eviction_order = [&](Map::iterator it) {
    const uint64_t target = it->first.target_incarnation;
    const int32_t held = target == target_incarnation ? std::numeric_limits<int32_t>::max()
                                                      : usages.at(target).*resource;
    return std::pair(held, -it->second->last_used);
  };
  while (missing > 0) {
    const auto worst = std::max_element(idle.begin(), idle.end(), [&](auto a, auto b) {
      return eviction_order(a) < eviction_order(b);
    });
    if (worst == idle.end() || eviction_order(*worst).first <= claim) return false;
    const auto blocks = static_cast<int32_t>((*worst)->second->blocks.size());
    const ResourceUsage freed = {.sessions = 1, .blocks = blocks};
    if (freed.*resource == 0) {
      idle.erase(worst);
      continue;
    }
    ResourceUsage& held = usages.at((*worst)->first.target_incarnation);
    held.sessions -= freed.sessions;
    held.blocks -= freed.blocks;
    missing -= freed.*resource;
    victims.push_back(*worst);
    idle.erase(worst);
  }
  for (Map::iterator victim : victims) Release(victim);
  stats_.evicted_lru += victims.size();
  return true;
}

bool SessionTable::Reserve(Session* session, int32_t slots, base::Nanos now) {
  const auto wanted = static_cast<int32_t>((slots + options_.block_size - 1) / options_.block_size);
  const auto more = wanted - static_cast<int32_t>(session->blocks.size());
  if (more <= 0) return true;
  const uint64_t target = session->key.target_incarnation;
  if (more > blocks_.available()) {
    // The session that needs the blocks must not be evicted for them.
    const bool was_busy = std::exchange(session->busy, true);
    const bool made = MakeRoom(target, &ResourceUsage::blocks, more - blocks_.available(),
                               usage(target).blocks + more, now);
    session->busy = was_busy;
    if (!made) return false;
  }
  SPECFABRIC_CHECK(blocks_.Take(more, &session->blocks));
  usages_.at(target).blocks += more;
  return true;
}

bool SessionTable::ReserveFree(Session* session, int32_t slots) {
  const auto wanted = static_cast<int32_t>((slots + options_.block_size - 1) / options_.block_size);
  const auto more = wanted - static_cast<int32_t>(session->blocks.size());
  if (more <= 0) return true;
  if (!blocks_.Take(more, &session->blocks)) return false;
  usages_.at(session->key.target_incarnation).blocks += more;
  return true;
}

Session* SessionTable::FindOrOpen(const SessionKey& key, base::Nanos now) {
  if (auto it = sessions_.find(key); it != sessions_.end()) return it->second.get();
  const uint64_t target = key.target_incarnation;
  if (static_cast<int32_t>(sessions_.size()) >= options_.max_sessions &&
      !MakeRoom(target, &ResourceUsage::sessions, 1, usage(target).sessions + 1, now)) {
    return nullptr;
  }
  auto session = std::make_unique<Session>();
  session->key = key;
  session->last_used = now;
  ++usages_[target].sessions;
  return (sessions_[key] = std::move(session)).get();
}

std::vector<schemas::PrefixPoint> SessionTable::KnownPoints(const Session& session) const {
  std::vector<schemas::PrefixPoint> points;
  int32_t length = session.length() / options_.block_size * options_.block_size;
  int32_t step = options_.block_size;
  // Dense near the end, where prefixes usually diverge, then sparser and sparser.
  while (length > 0 && points.size() < kMaxKnownPoints) {
    points.push_back({length, session.hashes[length]});
    if (points.size() % 16 == 0) step *= 4;
    length -= step;
  }
  return points;
}

void SessionTable::KeepSlots(const SpeculationCache::Moved& moved, Session* session,
                             std::vector<model::KvMove>* moves) {
  // In ascending order a source is never behind its destination, so in-order moves are safe.
  const int32_t behind = session->length() - session->origin;
  int32_t to = behind;
  for (const int32_t slot : moved.slots) {
    const int32_t from = behind + slot;
    if (from != to) moves->push_back({Physical(*session, from), Physical(*session, to)});
    ++to;
  }
  session->kv_len += moved.committed;
  stats_.reused_tree_slots += moved.slots.size();
}

void SessionTable::KeepSpeculated(Session* session, absl::Span<const base::TokenId> new_tokens,
                                  Applied* applied) {
  const int32_t length = session->length();
  if (session->kv_len != length || session->speculation_cache.size() == 0) {
    session->speculation_cache.Reset(new_tokens.empty() ? session->tokens.back()
                                                        : new_tokens.back());
    return;
  }
  const SpeculationCache::Moved moved = session->speculation_cache.Follow(new_tokens);
  if (!new_tokens.empty()) applied->outcome = moved.outcome;
  if (options_.keeps != SessionTableOptions::Keeps::kNothing) {
    KeepSlots(moved, session, &applied->moves);
  }
  if (options_.keeps == SessionTableOptions::Keeps::kNodes) return;
  session->speculation_cache.KeepRoot();
  if (applied->outcome == Outcome::kHit && session->speculation_cache.candidates(0).empty()) {
    applied->outcome = Outcome::kNotGrown;
  }
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
  if (!Reserve(session, static_cast<int32_t>(length), now)) {
    // A session that was only just opened is not kept.
    if (session->tokens.empty()) Release(sessions_.find(key));
    return {.status = DraftStatus::kBusy};
  }
  Applied applied;
  if (common == session->length()) {
    KeepSpeculated(session, append, &applied);
    applied.accepted = std::max<int32_t>(0, static_cast<int32_t>(append.size()) - 1);
  } else {
    stats_.truncated_tokens += session->length() - common;
    session->kv_len = std::min(session->kv_len, common);
    session->states.Truncate(common);
    session->speculation_cache.Reset(append.empty() ? session->tokens[common - 1] : append.back());
  }
  Commit(session, common, append);
  const uint64_t tag = base::Mix64(schemas::SamplingTag(request.verification, request.sampling) ^
                                   request.sampling.seed);
  const bool changed = std::exchange(session->candidates_tag, tag) != tag;
  // Where siblings are drawn at random, they are drawn anew in each round.
  if (changed || speculation::UsesDraftProbs(request.verification)) {
    session->speculation_cache.Reset(session->tokens.back());
  }
  session->verification = request.verification;
  session->sampling = request.sampling;
  // If the root's candidates are not known, the root has to be run (again).
  if (session->speculation_cache.candidates(0).empty()) {
    session->kv_len = std::min(session->kv_len, session->length() - 1);
  }
  session->last_used = now;
  applied.session = session;
  return applied;
}

Session* SessionTable::ForStates(const SessionKey& key, base::Nanos now) {
  Session* session = FindOrOpen(key, now);
  if (session != nullptr) session->last_used = now;
  return session;
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

ResourceUsage SessionTable::usage(uint64_t target_incarnation) const {
  const auto it = usages_.find(target_incarnation);
  return it == usages_.end() ? ResourceUsage{} : it->second;
}

int32_t SessionTable::free_sessions(uint64_t target_incarnation) const {
  const int32_t held = usage(target_incarnation).sessions;
  const int32_t unused = options_.max_sessions - static_cast<int32_t>(sessions_.size());
  // Whether it can have so many more: each of the others keeps as many as it would hold itself.
  const auto can_have = [&](int32_t more) {
    int32_t room = unused;
    for (const auto& [target, other] : usages_) {
      if (target != target_incarnation) room += std::max(0, other.sessions - (held + more));
    }
    return more <= room;
  };
  int32_t least = unused, most = options_.max_sessions - held;
  while (least < most) {
    const int32_t middle = least + (most - least + 1) / 2;
    if (can_have(middle)) {
      least = middle;
    } else {
      most = middle - 1;
    }
  }
  return least;
}

std::string SessionTable::DebugJson(base::Nanos now) const {
  const SessionStats s = stats();
  std::string why;
  const bool usable = Check(&why);
  std::string json = absl::StrFormat(
      "{\"sessions\":%d,\"busy\":%d,\"capacity\":%d,\"free_blocks\":%d,\"blocks\":%d,"
      "\"evicted_lru\":%d,\"expired_ttl\":%d,\"purged\":%d,\"ended\":%d,\"resyncs\":%d,"
      "\"reused_tree_slots\":%d,\"truncated_tokens\":%d,\"usable\":%s,\"targets\":[",
      s.sessions, s.busy, options_.max_sessions, s.free_blocks, options_.kv_blocks, s.evicted_lru,
      s.expired_ttl, s.purged, s.ended, s.resyncs, s.reused_tree_slots, s.truncated_tokens,
      usable ? "true" : "false");
  const char* separator = "";
  for (const auto& [target, held] : usages_) {
    absl::StrAppendFormat(&json, "%s{\"target\":\"%016x\",\"sessions\":%d,\"blocks\":%d}",
                          separator, target, held.sessions, held.blocks);
    separator = ",";
  }
  json += "],\"rows\":[";
  separator = "";
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
  absl::flat_hash_map<uint64_t, ResourceUsage> held;
  for (const auto& [key, session] : sessions_) {
    owned += session->blocks.size();
    ++held[key.target_incarnation].sessions;
    held[key.target_incarnation].blocks += static_cast<int32_t>(session->blocks.size());
    const auto slots = static_cast<int64_t>(session->blocks.size()) * options_.block_size;
    if (session->kv_len > session->length() || session->kv_len > slots ||
        session->hashes.size() != session->tokens.size() + 1) {
      *why = absl::StrCat("session of sequence ", key.sequence, " is inconsistent");
      return false;
    }
  }
  if (held != usages_) {
    *why = "what the targets hold is not what their sessions do";
    return false;
  }
  if (owned + blocks_.available() != static_cast<size_t>(options_.kv_blocks)) {
    *why = absl::StrCat(owned, " blocks owned and ", blocks_.available(), " free, of ",
                        options_.kv_blocks);
    return false;
  }
  return true;
}

}  // namespace specfabric::draft
