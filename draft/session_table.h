#ifndef SPECFABRIC_DRAFT_SESSION_TABLE_H_
#define SPECFABRIC_DRAFT_SESSION_TABLE_H_

// The sequences a draft worker holds KV for. A session is a cache: it can be dropped at any time,
// and the target then resends what is missing. Owned by the engine thread; pure but for its
// arguments (no clock, no model): KV itself lives in the model, here is only the accounting.
//
// Targets share sessions and KV blocks max-min fairly: what nobody uses is for whoever asks, and
// once all is in use a target can take from one that would still hold as much as itself, never from
// one that holds less. So nobody keeps a target below its equal share, and nobody above it takes
// from one below. Among its own sequences a target gets room only from those that it has not asked
// about for a while: where more of them are alive than fit, some are answered `busy` and serve
// plainly or elsewhere, rather than all of them losing their KV in turn.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/clock.h"
#include "base/hash.h"
#include "draft/ahead_plan.h"
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

// One sequence's committed prefix, KV and speculation cache. Slot s of the session holds the KV of
// tokens[s] for s < kv_len. What was run of the speculation cache lies behind the committed tokens:
// node i in slot tokens.size() + speculation_cache.slot(i).
struct Session {
  SessionKey key;
  std::vector<base::TokenId> tokens;
  std::vector<uint64_t> hashes = {base::kEmptyPrefixHash};  // [tokens + 1], of every prefix
  int32_t kv_len = 0;
  std::vector<int32_t> blocks;
  SpeculationCache speculation_cache;
  int32_t sent_levels = 0;  // of the last tree
  speculation::VerificationMethod verification =
      speculation::VerificationMethod::kCoupled;  // of the last request
  base::SamplingParams sampling;                  // likewise
  uint64_t candidates_tag = 0;                    // tag of those that the cache's candidates are of
  base::Nanos last_used = 0;
  bool busy = false;  // being drafted for: not evictable
  // Guessing goes on while the target verifies; see AheadPlan.
  AheadPlan ahead;

  int32_t length() const { return static_cast<int32_t>(tokens.size()); }
};

struct SessionTableOptions {
  int32_t kv_blocks = 0;
  int32_t block_size = 16;
  int32_t max_sessions = 64;
  int32_t context = 2048;
  base::Nanos time_to_live = 300 * base::kSecond;
  // A session that was used since is alive: it makes no room for others of its own target.
  base::Nanos alive = base::kSecond;
};

// What one target holds.
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
  uint64_t reused_tree_slots = 0;  // accepted draft tokens whose KV was kept
  uint64_t truncated_tokens = 0;
};

// What Apply found. kOk: `session` is at the committed prefix the request names, not busy yet, and
// `moves` keep the KV of accepted draft tokens (to be done before the next forward pass).
struct Applied {
  schemas::DraftStatus status = schemas::DraftStatus::kOk;
  Session* session = nullptr;
  std::vector<model::KvMove> moves = {};
  // Of a session whose last tree was answered with: what became of it, and the tokens beyond the
  // first that came with it (those accepted).
  std::optional<Outcome> outcome = {};
  int32_t accepted = 0;
  std::vector<schemas::PrefixPoint> known = {};  // kNeedResync: block-aligned, longest first
};

class SessionTable {
 public:
  explicit SessionTable(const SessionTableOptions& options);

  // Opens, commits, rolls back or resumes: afterwards the session's tokens are exactly the
  // request's prefix. Rolling back is a truncation. kBusy: no room that this target could claim;
  // kTooLong: longer than the context. A failed request leaves the session as it was.
  Applied Apply(const schemas::DraftRequest& request, base::Nanos now);

  // Makes the session's blocks cover `slots`, evicting idle sessions of others if need be. False:
  // there is no room that its target could claim.
  bool Reserve(Session* session, int32_t slots, base::Nanos now);
  // The same with blocks that nobody holds.
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
  // Sessions that this target could open now without giving up one of its own. Those that are being
  // drafted for count as if they were idle: they will be in a moment.
  int32_t free_sessions(uint64_t target_incarnation) const;
  ResourceUsage usage(uint64_t target_incarnation) const;
  // For /debug/sessions: one JSON object with counts, a row a target and a row a session.
  std::string DebugJson(base::Nanos now) const;
  // True if blocks and sessions are accounted for exactly; `why` says what is not.
  bool Check(std::string* why) const;

 private:
  using Map = absl::flat_hash_map<SessionKey, std::unique_ptr<Session>>;

  Session* FindOrOpen(const SessionKey& key, base::Nanos now);
  // Frees `missing` of `resource` for a target that will hold `claim` of it then: dead sessions of
  // its own, then the least recently used idle ones of whoever holds most, while that is more than
  // the claim. All or nothing.
  bool MakeRoom(uint64_t target_incarnation, int32_t ResourceUsage::*resource, int32_t missing,
                int32_t claim, base::Nanos now);
  void Release(Map::iterator it);
  std::vector<schemas::PrefixPoint> KnownPoints(const Session& session) const;
  // Physical slot of the session's slot s.
  int32_t Physical(const Session& session, int32_t s) const;
  // Takes what it can from the speculation cache for tokens that follow the session's.
  void KeepSpeculated(Session* session, absl::Span<const base::TokenId> new_tokens,
                      Applied* applied);

  SessionTableOptions options_;
  scheduler::KvBlocks blocks_;
  Map sessions_;
  absl::flat_hash_map<uint64_t, ResourceUsage>
      usages_;  // by target; of those that hold any session
  SessionStats stats_;
};

}  // namespace specfabric::draft

#endif  // SPECFABRIC_DRAFT_SESSION_TABLE_H_
