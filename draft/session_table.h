#ifndef SPECFABRIC_DRAFT_SESSION_TABLE_H_
#define SPECFABRIC_DRAFT_SESSION_TABLE_H_

// The sequences for which a draft worker holds KV. A session is a cache: it can be dropped at any
// time, and the target then resends what is missing. Only does the accounting; the KV itself is in
// the model. No clock: time is an argument. Engine thread only.
//
// Targets share sessions and KV blocks max-min fairly: any target may take what is free, and once
// all is in use a target can take from another that would still hold as much as itself, but never
// from one that would hold less. So every target can get its equal share, and none above its share
// takes from one below. Among a target's own sequences, only those that it has not asked about for
// a while make room: if more are alive than fit, some are answered `busy` and decode without drafts
// or with another worker, rather than all of them losing their KV in turn.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/clock.h"
#include "base/hash.h"
#include "draft/ahead_plan.h"
#include "draft/session_states.h"
#include "draft/speculation_cache.h"
#include "model/batch.h"
#include "scheduler/kv/kv_blocks.h"
#include "schemas/messages.h"

namespace specfabric::draft {

struct SessionKey {
  uint64_t target_incarnation = 0;
  base::SequenceId sequence = 0;
  bool operator==(const SessionKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const SessionKey& key) {
    return H::combine(std::move(h), key.target_incarnation, key.sequence);
  }
};

// One sequence's committed prefix, KV and speculation cache. Slot t - origin of the session holds
// the KV of tokens[t] for origin <= t < kv_len. The KV of the speculation cache's nodes follows
// that of the committed tokens: node i is in slot tokens.size() - origin +
// speculation_cache.slot(i).
struct Session {
  SessionKey key;
  std::vector<base::TokenId> tokens;
  std::vector<uint64_t> hashes = {base::kEmptyPrefixHash};  // [tokens + 1], of every prefix
  int32_t kv_len = 0;
  // Tokens that are not run: of a drafter that reads states the first one, whose state belongs to
  // the second, and those before a cold start.
  int32_t origin = 0;
  SessionStates states;
  std::vector<int32_t> blocks;
  SpeculationCache speculation_cache;
  int32_t sent_levels = 0;  // levels of the last tree that was sent
  speculation::VerificationMethod verification =
      speculation::VerificationMethod::kCoupled;  // of the last request
  base::SamplingParams sampling;                  // of the last request
  int32_t vocabulary = 0;       // of its target, whose draft probabilities have rows of so many
  uint64_t candidates_tag = 0;  // of the sampling of the cache's candidates
  base::Nanos last_used = 0;
  bool busy = false;  // a tree is growing for it: it cannot be evicted
  AheadPlan ahead;    // what is run while the target verifies
  int32_t masks = 0;  // rows of masks behind each next root that is run ahead (PARD)

  int32_t length() const { return static_cast<int32_t>(tokens.size()); }
};

struct SessionTableOptions {
  int32_t kv_blocks = 0;
  int32_t block_size = 16;
  int32_t max_sessions = 64;
  int32_t context = 2048;
  // What is kept of the nodes below a root that is committed. Of a parallel draft model none are:
  // they were predicted without knowing it, and what follows it is in the levels of a root that was
  // run ahead. A drafter that reads states runs the committed tokens again: their keys came from
  // states of its own, and the true ones are better (formats: EAGLE-3).
  enum class Keeps : uint8_t { kNodes, kLevels, kNothing };
  Keeps keeps = Keeps::kNodes;
  base::Nanos time_to_live = 300 * base::kSecond;
  // A session that was used within this time is alive: it makes no room for others of its target.
  base::Nanos alive = base::kSecond;
};

// The sessions and KV blocks that one target holds.
struct ResourceUsage {
  int32_t sessions = 0;
  int32_t blocks = 0;
  bool operator==(const ResourceUsage&) const = default;
};

struct SessionStats {
  int32_t sessions = 0;
  int32_t busy = 0;
  int32_t free_blocks = 0;
  uint64_t evicted_lru = 0, expired_ttl = 0, purged = 0, ended = 0, resyncs = 0;
  uint64_t reused_tree_slots = 0;  // draft tokens, accepted or below those, whose KV was kept
  uint64_t truncated_tokens = 0;
};

// The result of Apply. kOk: `session` holds the committed prefix that the request names, is not
// busy yet, and `moves`, to be done before the next forward pass, keep the KV of accepted draft
// tokens.
struct Applied {
  schemas::DraftStatus status = schemas::DraftStatus::kOk;
  Session* session = nullptr;
  std::vector<model::KvMove> moves = {};
  // If the request adds tokens to a session that was sent a tree: what became of that tree, and how
  // many of its draft tokens were accepted.
  std::optional<Outcome> outcome = {};
  int32_t accepted = 0;
  std::vector<schemas::PrefixPoint> known = {};  // kNeedResync: block-aligned, longest first
};

class SessionTable {
 public:
  explicit SessionTable(const SessionTableOptions& options);

  // Opens, extends, rolls back or resumes the session: afterwards its tokens are exactly the
  // request's prefix. Rolling back truncates. kBusy: no room that this target may take; kTooLong:
  // longer than the context. A failed request leaves the session as it was.
  Applied Apply(const schemas::DraftRequest& request, base::Nanos now);

  // The session of states that have come, opened if it is new: they come before the first request.
  // Null: there is no room for it.
  Session* ForStates(const SessionKey& key, base::Nanos now);

  // Makes the session's blocks cover `slots`, evicting idle sessions if necessary. False: there is
  // no room that its target may take.
  bool Reserve(Session* session, int32_t slots, base::Nanos now);
  // The same, with free blocks only.
  bool ReserveFree(Session* session, int32_t slots);
  // All sessions, in no order. `f` must not end one.
  template <typename F>
  void ForEach(F&& f) {
    for (auto& [key, session] : sessions_) f(session.get());
  }

  const Session* Find(const SessionKey& key) const;  // null if unknown
  void End(const SessionKey& key);         // no-op if unknown or busy (the TTL then takes it)
  int Purge(uint64_t target_incarnation);  // all idle ones of a target that is gone
  int Expire(base::Nanos now);             // idle ones past their time to live

  SessionStats stats() const;
  // Sessions that this target could open now without giving up one of its own. Busy sessions count
  // as if they were idle: they will be in a moment.
  int32_t free_sessions(uint64_t target_incarnation) const;
  ResourceUsage usage(uint64_t target_incarnation) const;
  // For /debug/sessions: one JSON object with counts, one row per target and one row per session.
  std::string DebugJson(base::Nanos now) const;
  // Whether all blocks and sessions are accounted for; otherwise `why` says what is not.
  bool Check(std::string* why) const;

 private:
  using Map = absl::flat_hash_map<SessionKey, std::unique_ptr<Session>>;

  Session* FindOrOpen(const SessionKey& key, base::Nanos now);
  // Frees `missing` of `resource` for a target that will then hold `claim` of it: evicts sessions
  // of its own that are not alive, then the least recently used idle ones of the target that holds
  // most, while that holds more than the claim. Evicts nothing if that does not suffice.
  bool MakeRoom(uint64_t target_incarnation, int32_t ResourceUsage::*resource, int32_t missing,
                int32_t claim, base::Nanos now);
  void Release(Map::iterator it);
  std::vector<schemas::PrefixPoint> KnownPoints(const Session& session) const;
  // The KV slot of the session's slot s in the model.
  int32_t Physical(const Session& session, int32_t s) const;
  void KeepSlots(const SpeculationCache::Moved& moved, Session* session,
                 std::vector<model::KvMove>* moves);
  // Keeps the nodes of the speculation cache that are on, or below, the path of the new tokens, as
  // far as options_.keeps says.
  void KeepSpeculated(Session* session, absl::Span<const base::TokenId> new_tokens,
                      Applied* applied);

  SessionTableOptions options_;
  scheduler::KvBlocks blocks_;
  Map sessions_;
  absl::flat_hash_map<uint64_t, ResourceUsage> usages_;  // by target; only with a session
  SessionStats stats_;
};

}  // namespace specfabric::draft

#endif  // SPECFABRIC_DRAFT_SESSION_TABLE_H_
