#include "draft/session_table.h"

#include <map>
#include <random>

#include "base/hash.h"
#include "gtest/gtest.h"

namespace specfabric::draft {
namespace {

using base::TokenId;
using schemas::DraftRequest;
using schemas::DraftStatus;

SessionTableOptions Small() {
  SessionTableOptions options;
  options.kv_blocks = 16;
  options.block_size = 4;
  options.max_sessions = 3;
  options.context = 40;
  options.time_to_live = 10 * base::kSecond;
  options.alive = 0;
  return options;
}

uint64_t HashOf(const std::vector<TokenId>& tokens, size_t length) {
  return base::ExtendPrefixHash(base::kEmptyPrefixHash,
                                absl::MakeConstSpan(tokens).subspan(0, length));
}

// A request for the committed prefix `tokens`, of which the target believes the draft holds `base`.
DraftRequest Request(base::SequenceId sequence, const std::vector<TokenId>& tokens, int base) {
  DraftRequest request;
  request.target_incarnation = 7;
  request.sequence = sequence;
  request.base_length = base;
  request.base_hash = HashOf(tokens, base);
  request.append_tokens.assign(tokens.begin() + base, tokens.end());
  return request;
}

// Stands for the model: all committed tokens have been run, so KV is valid up to the end.
void RunCommitted(Session* session) { session->kv_len = session->length(); }

// Adds a node and gives it a KV slot, as the engine does when it runs the node.
int RunNode(Session* session, int parent, TokenId token) {
  const int node = session->speculation_cache.FindOrAdd(parent, token, 0);
  session->speculation_cache.TakeSlot(node);
  return node;
}

// The node gets candidates.
void SetFollowers(Session* session, int node) {
  session->speculation_cache.SetCandidates(node, {{{1, 0.0f}, -0.1f}, {{2, -2.0f}, -2.1f}});
}

TEST(SessionTable, OpensExtendsAndKeepsKv) {
  SessionTable table(Small());
  Applied opened = table.Apply(Request(1, {5, 6, 7}, 0), 0);
  ASSERT_EQ(opened.status, DraftStatus::kOk);
  EXPECT_EQ(opened.session->tokens, (std::vector<TokenId>{5, 6, 7}));
  EXPECT_EQ(opened.session->kv_len, 0);
  RunCommitted(opened.session);
  Applied more = table.Apply(Request(1, {5, 6, 7, 8, 9}, 3), 1);
  ASSERT_EQ(more.status, DraftStatus::kOk);
  EXPECT_EQ(more.session->kv_len, 3);
  EXPECT_TRUE(more.moves.empty());
}

TEST(SessionTable, RootIsRunAgainUnlessItsCandidatesAreKnown) {
  SessionTable table(Small());
  Session* session = table.Apply(Request(1, {5, 6, 7}, 0), 0).session;
  RunCommitted(session);
  EXPECT_EQ(table.Apply(Request(1, {5, 6, 7}, 3), 1).session->kv_len, 2);
  RunCommitted(session);
  SetFollowers(session, 0);
  EXPECT_EQ(table.Apply(Request(1, {5, 6, 7}, 3), 1).session->kv_len, 3);
}

TEST(SessionTable, NodesBelowTheNewRootStay) {
  SessionTable table(Small());
  Session* session = table.Apply(Request(1, {5, 6, 7}, 0), 0).session;
  ASSERT_TRUE(table.Reserve(session, 12, 0));
  RunCommitted(session);
  SetFollowers(session, 0);
  RunNode(session, 0, 2);                    // slot 3
  const int child = RunNode(session, 0, 1);  // slot 4
  SetFollowers(session, child);
  const int below = RunNode(session, child, 2);  // slot 5
  SetFollowers(session, below);
  Applied next = table.Apply(Request(1, {5, 6, 7, 1}, 3), 1);
  EXPECT_EQ(next.outcome, Outcome::kHit);
  EXPECT_EQ(next.accepted, 0);
  EXPECT_EQ(session->kv_len, 4) << "the root need not be run";
  ASSERT_EQ(session->speculation_cache.size(), 2);
  EXPECT_EQ(session->speculation_cache.tree().tokens[1], 2);
  EXPECT_EQ(session->speculation_cache.slot(1), 0);
  EXPECT_EQ(session->speculation_cache.candidates(1).size(), 2u);
  const auto physical = [&](int s) { return session->blocks[s / 4] * 4 + s % 4; };
  ASSERT_EQ(next.moves.size(), 2u);
  EXPECT_EQ(next.moves[0].from, physical(4));
  EXPECT_EQ(next.moves[0].to, physical(3));
  EXPECT_EQ(next.moves[1].from, physical(5));
  EXPECT_EQ(next.moves[1].to, physical(4));
}

TEST(SessionTable, CandidatesOfOtherSamplingAreNotUsed) {
  for (const bool drawn : {false, true}) {
    SessionTable table(Small());
    Session* session = table.Apply(Request(1, {5, 6, 7}, 0), 0).session;
    ASSERT_TRUE(table.Reserve(session, 12, 0));
    RunCommitted(session);
    SetFollowers(session, 0);
    SetFollowers(session, RunNode(session, 0, 1));
    DraftRequest request = Request(1, {5, 6, 7, 1}, 3);
    if (drawn) {
      request.verification = schemas::VerificationMethod::kRejection;
    } else {
      request.sampling.seed = 9;
      request.sampling.temperature = 1;
    }
    Applied next = table.Apply(request, 1);
    EXPECT_EQ(session->speculation_cache.size(), 1);
    EXPECT_TRUE(session->speculation_cache.candidates(0).empty());
    EXPECT_EQ(session->kv_len, 3) << "the root is run";
    EXPECT_TRUE(next.moves.empty());
  }
}

TEST(SessionTable, SaysWhyTheNewRootWasNotRun) {
  const auto outcome = [](std::vector<TokenId> appended) {
    SessionTable table(Small());
    Session* session = table.Apply(Request(1, {5, 6, 7}, 0), 0).session;
    EXPECT_TRUE(table.Reserve(session, 12, 0));
    RunCommitted(session);
    SetFollowers(session, 0);
    SetFollowers(session, RunNode(session, 0, 1));
    std::vector<TokenId> tokens = {5, 6, 7};
    tokens.insert(tokens.end(), appended.begin(), appended.end());
    return table.Apply(Request(1, tokens, 3), 1).outcome;
  };
  EXPECT_EQ(outcome({1}), Outcome::kHit);
  EXPECT_EQ(outcome({2}), Outcome::kNotGrown);
  EXPECT_EQ(outcome({9}), Outcome::kNotCandidate);
  EXPECT_EQ(outcome({1, 2}), Outcome::kNotGrown);
  EXPECT_EQ(outcome({1, 9}), Outcome::kNotCandidate);
  EXPECT_EQ(outcome({2, 1}), Outcome::kNotReached);
  EXPECT_EQ(outcome({}), std::nullopt);
}

TEST(SessionTable, AcceptedTreeSlotsBecomeThePrefix) {
  SessionTable table(Small());
  Session* session = table.Apply(Request(1, {5, 6, 7}, 0), 0).session;
  ASSERT_TRUE(table.Reserve(session, 12, 0));
  RunCommitted(session);
  RunNode(session, 0, 100);                     // slot 3
  const int accepted = RunNode(session, 0, 8);  // slot 4
  RunNode(session, accepted, 101);              // slot 5
  RunNode(session, accepted, 9);                // slot 6
  Applied next = table.Apply(Request(1, {5, 6, 7, 8, 9, 10}, 3), 1);
  ASSERT_EQ(next.status, DraftStatus::kOk);
  EXPECT_EQ(next.session->kv_len, 5);  // 8 and 9 kept, 10 is the root that is run
  ASSERT_EQ(next.moves.size(), 2u);
  const auto physical = [&](int s) { return next.session->blocks[s / 4] * 4 + s % 4; };
  EXPECT_EQ(next.moves[0].from, physical(4));
  EXPECT_EQ(next.moves[0].to, physical(3));
  EXPECT_EQ(next.moves[1].from, physical(6));
  EXPECT_EQ(next.moves[1].to, physical(4));
}

TEST(SessionTable, RollbackTruncates) {
  SessionTable table(Small());
  RunCommitted(table.Apply(Request(1, {5, 6, 7, 8, 9}, 0), 0).session);
  Applied back = table.Apply(Request(1, {5, 6, 3}, 2), 1);
  ASSERT_EQ(back.status, DraftStatus::kOk);
  EXPECT_EQ(back.session->tokens, (std::vector<TokenId>{5, 6, 3}));
  EXPECT_EQ(back.session->kv_len, 2);
  EXPECT_EQ(table.stats().truncated_tokens, 3u);
}

TEST(SessionTable, RepeatedTokensKeepTheirKv) {
  SessionTable table(Small());
  RunCommitted(table.Apply(Request(1, {5, 6, 7, 8}, 0), 0).session);
  EXPECT_EQ(table.Apply(Request(1, {5, 6, 7, 8, 9}, 0), 1).session->kv_len, 4);
}

TEST(SessionTable, UnknownPrefixAsksForResyncWithBlockAlignedPoints) {
  SessionTable table(Small());
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  RunCommitted(table.Apply(Request(1, tokens, 0), 0).session);
  DraftRequest lost = Request(1, {1, 2, 3, 4, 50, 60}, 5);
  Applied resync = table.Apply(lost, 1);
  EXPECT_EQ(resync.status, DraftStatus::kNeedResync);
  ASSERT_EQ(resync.known.size(), 2u);
  EXPECT_EQ(resync.known[0].length, 8);
  EXPECT_EQ(resync.known[0].hash, HashOf(tokens, 8));
  EXPECT_EQ(resync.known[1].length, 4);
  EXPECT_EQ(table.stats().resyncs, 1u);
  // A request from the point that both know succeeds.
  EXPECT_EQ(table.Apply(Request(1, {1, 2, 3, 4, 50, 60}, 4), 2).session->kv_len, 4);
}

TEST(SessionTable, TooLongIsRefusedAndChangesNothing) {
  SessionTable table(Small());
  table.Apply(Request(1, {1, 2}, 0), 0);
  const std::vector<TokenId> tokens(40, 3);
  EXPECT_EQ(table.Apply(Request(2, tokens, 0), 0).status, DraftStatus::kTooLong);
  EXPECT_EQ(table.stats().sessions, 1);
}

TEST(SessionTable, EvictsTheLeastRecentlyUsedIdleSession) {
  SessionTable table(Small());
  Session* first = table.Apply(Request(1, {1}, 0), 0).session;
  first->busy = true;
  table.Apply(Request(2, {2}, 0), 1);
  table.Apply(Request(3, {3}, 0), 2);
  EXPECT_EQ(table.Apply(Request(4, {4}, 0), 3).status, DraftStatus::kOk);
  EXPECT_EQ(table.stats().evicted_lru, 1u);
  // Sequence 2 was the oldest idle one: its session is new, so a base is unknown.
  EXPECT_EQ(table.Apply(Request(2, {2, 5}, 1), 4).status, DraftStatus::kNeedResync);
  // Sequence 1 was busy and has kept its session.
  first->busy = false;
  EXPECT_EQ(table.Apply(Request(1, {1, 5}, 1), 5).status, DraftStatus::kOk);
}

TEST(SessionTable, BusyWhenNothingCanBeEvicted) {
  SessionTable table(Small());
  for (int i = 1; i <= 3; ++i) table.Apply(Request(i, {i}, 0), i).session->busy = true;
  EXPECT_EQ(table.Apply(Request(4, {4}, 0), 9).status, DraftStatus::kBusy);
  EXPECT_EQ(table.Apply(Request(1, {1, 2}, 1), 9).status, DraftStatus::kBusy);
}

TEST(SessionTable, ExpirePurgeAndEndFreeEverything) {
  SessionTable table(Small());
  table.Apply(Request(1, {1}, 0), 0);
  table.Apply(Request(2, {2}, 0), 5 * base::kSecond);
  EXPECT_EQ(table.Expire(11 * base::kSecond), 1);
  table.End({7, 2});
  EXPECT_EQ(table.stats().ended, 1u);
  table.Apply(Request(3, {3}, 0), 0);
  EXPECT_EQ(table.Purge(8), 0);
  EXPECT_EQ(table.Purge(7), 1);
  EXPECT_EQ(table.stats().free_blocks, 16);
}

DraftRequest Of(uint64_t target, base::SequenceId sequence, int32_t length) {
  DraftRequest request = Request(sequence, std::vector<TokenId>(length, 3), 0);
  request.target_incarnation = target;
  return request;
}

SessionTableOptions Shared() {
  SessionTableOptions options = Small();
  options.kv_blocks = 1000;
  options.max_sessions = 12;
  options.alive = base::kSecond;
  return options;
}

TEST(SessionTable, SequencesOfOneTargetDoNotEvictEachOther) {
  SessionTable table(Shared());
  for (int s = 0; s < 12; ++s) table.Apply(Of(1, s, 3), s);
  EXPECT_EQ(table.free_sessions(1), 0);
  EXPECT_EQ(table.Apply(Of(1, 12, 3), 20).status, DraftStatus::kBusy);
  // A session that was not used for a second is evicted.
  for (int s = 1; s < 12; ++s) table.Apply(Of(1, s, 4), base::kSecond / 2);
  EXPECT_EQ(table.Apply(Of(1, 12, 3), base::kSecond + 1).status, DraftStatus::kOk);
  EXPECT_EQ(table.Apply(Of(1, 13, 3), base::kSecond + 1).status, DraftStatus::kBusy);
  EXPECT_EQ(table.stats().sessions, 12);
  EXPECT_EQ(table.stats().evicted_lru, 1u);
}

TEST(SessionTable, ATargetTakesItsShareFromTheLargestHolder) {
  SessionTable table(Shared());
  for (int s = 0; s < 8; ++s) table.Apply(Of(1, s, 3), s);
  for (int s = 0; s < 4; ++s) table.Apply(Of(2, s, 3), s);
  EXPECT_EQ(table.free_sessions(1), 0);
  EXPECT_EQ(table.free_sessions(2), 2);
  EXPECT_EQ(table.free_sessions(3), 4);
  for (int s = 0; s < 4; ++s) {
    EXPECT_EQ(table.Apply(Of(3, s, 3), 10 + s).status, DraftStatus::kOk) << s;
  }
  EXPECT_EQ(table.Apply(Of(3, 4, 3), 20).status, DraftStatus::kBusy);
  for (uint64_t target = 1; target <= 3; ++target) {
    EXPECT_EQ(table.usage(target).sessions, 4) << target;
    EXPECT_EQ(table.free_sessions(target), 0) << target;
  }
  // Sessions that a target ends are free for the others.
  EXPECT_EQ(table.Purge(2), 4);
  EXPECT_EQ(table.free_sessions(1), 4);
  EXPECT_EQ(table.free_sessions(2), 4);
}

TEST(SessionTable, KvIsSharedLikeSessions) {
  SessionTableOptions options = Shared();
  options.kv_blocks = 16;
  options.block_size = 4;
  SessionTable table(options);
  for (int s = 0; s < 4; ++s) table.Apply(Of(1, s, 16), s);  // all sixteen blocks
  EXPECT_EQ(table.Apply(Of(1, 9, 4), 10).status, DraftStatus::kBusy);
  EXPECT_EQ(table.stats().sessions, 4) << "a session that got nothing is not kept";
  EXPECT_EQ(table.Apply(Of(2, 0, 20), 11).status, DraftStatus::kOk);
  EXPECT_EQ(table.usage(2).blocks, 5);
  EXPECT_EQ(table.usage(1).blocks, 8);
  // The larger holder can only take what is free.
  EXPECT_EQ(table.Apply(Of(1, 5, 12), 12).status, DraftStatus::kOk);
  EXPECT_EQ(table.Apply(Of(1, 6, 4), 13).status, DraftStatus::kBusy);
  EXPECT_EQ(table.usage(2).blocks, 5);
}

// Targets ask at random, and each session is busy for a while. A target that is refused could only
// have been served at the cost of one that holds no more. A target that loses a session keeps at
// least as many as the one that took it has then; of blocks, several of which go with a session, it
// had more before. And a target gets as many sessions as free_sessions says.
TEST(SessionTable, SharesAreMaxMinFairUnderRandomTraffic) {
  constexpr uint64_t kTargets = 4;
  uint64_t refused = 0, taken = 0;
  for (int seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % n); };
    SessionTableOptions options = Shared();
    options.max_sessions = 3 + below(12);
    options.kv_blocks = 10 + below(60);
    options.alive = below(2) * 30;
    SessionTable table(options);
    std::map<std::pair<uint64_t, int>, Session*> busy;
    for (int step = 0; step < 300; ++step) {
      const uint64_t target = 1 + below(kTargets);
      // Some targets have more sequences than others.
      const int sequence = below(4 * static_cast<int>(target));
      const int length = 1 + below(36);
      std::map<uint64_t, ResourceUsage> before;
      for (uint64_t t = 1; t <= kTargets; ++t) before[t] = table.usage(t);
      const int32_t free = table.free_sessions(target);
      const int32_t free_blocks = table.stats().free_blocks;
      if (busy.contains({target, sequence})) {
        busy[{target, sequence}]->busy = false;
        busy.erase({target, sequence});
        continue;
      }
      if (below(8) == 0) {
        table.End({target, static_cast<base::SequenceId>(sequence)});
        continue;
      }
      const Applied applied = table.Apply(Of(target, sequence, length), step);
      std::string why;
      ASSERT_TRUE(table.Check(&why)) << why;
      const ResourceUsage mine = table.usage(target);
      for (uint64_t t = 1; t <= kTargets; ++t) {
        const ResourceUsage now = table.usage(t);
        if (t == target || now.sessions == before[t].sessions) continue;
        ++taken;
        const bool for_a_session = now.sessions >= mine.sessions && before[t].sessions > 1;
        const bool for_blocks = before[t].blocks > mine.blocks;
        ASSERT_TRUE(for_a_session || for_blocks) << "seed " << seed << " step " << step;
      }
      if (applied.status == DraftStatus::kOk) {
        if (below(3) == 0) {
          applied.session->busy = true;
          busy[{target, sequence}] = applied.session;
        }
      } else {
        ASSERT_EQ(applied.status, DraftStatus::kBusy);
        ++refused;
        const bool all_idle = busy.empty();
        const int32_t wanted = (length + options.block_size - 1) / options.block_size;
        const bool had_blocks = free_blocks >= wanted;
        ASSERT_FALSE(all_idle && had_blocks && free > 0) << "seed " << seed << " step " << step;
        // Below an equal share of both, and with all sessions idle, no target is refused.
        const auto share = [](int32_t all) { return all / static_cast<int32_t>(kTargets); };
        const bool below_share = before[target].sessions < share(options.max_sessions) &&
                                 before[target].blocks + wanted <= share(options.kv_blocks);
        ASSERT_FALSE(all_idle && below_share) << "seed " << seed << " step " << step;
      }
    }
  }
  EXPECT_GT(refused, 1000u);
  EXPECT_GT(taken, 1000u);
}

// Random requests of a target that sometimes loses replies: after each accepted request the session
// holds exactly the prefix asked for, kv_len never covers tokens that were not run, and no block is
// lost.
TEST(SessionTable, RandomTracesStayConsistent) {
  int kept = 0;
  for (int seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % n); };
    SessionTable table(Small());
    std::map<base::SequenceId, std::vector<TokenId>> truth;
    std::map<base::SequenceId, int> known;
    // The prefix that the KV of each physical slot was computed from: the hash of that prefix.
    std::map<int, uint64_t> kv;
    for (int step = 0; step < 120; ++step) {
      const base::SequenceId id = 1 + below(5);
      std::vector<TokenId>& tokens = truth[id];
      if (below(6) == 0 && !tokens.empty()) {
        tokens.resize(1 + below(static_cast<int>(tokens.size())));
      }
      known[id] = std::min<int>(known[id], tokens.size());
      for (int i = below(4); i >= 0 && tokens.size() < 36; --i) tokens.push_back(below(3));
      const int base = below(3) == 0 ? below(known[id] + 1) : known[id];
      Applied applied = table.Apply(Request(id, tokens, base), step);
      std::string why;
      ASSERT_TRUE(table.Check(&why)) << why;
      if (applied.status == DraftStatus::kNeedResync) {
        known[id] = 0;
        continue;
      }
      if (applied.status != DraftStatus::kOk) continue;
      Session* s = applied.session;
      ASSERT_EQ(s->tokens, tokens);
      for (const auto& move : applied.moves) kv[move.to] = kv[move.from];
      const auto physical = [&](int slot) { return s->blocks[slot / 4] * 4 + slot % 4; };
      for (int i = 0; i < s->kv_len; ++i) {
        ASSERT_EQ(kv[physical(i)], HashOf(tokens, i + 1)) << "slot " << i << " seed " << seed;
      }
      known[id] = static_cast<int>(tokens.size());
      if (!table.Reserve(s, s->length() + 4, step)) continue;
      for (int i = s->kv_len; i < s->length(); ++i) kv[physical(i)] = HashOf(tokens, i + 1);
      s->kv_len = s->length();
      const auto path = [&](int node) {
        std::vector<TokenId> whole = tokens;
        for (int a = node; a > 0; a = s->speculation_cache.tree().parents[a]) {
          whole.insert(whole.begin() + tokens.size(), s->speculation_cache.tree().tokens[a]);
        }
        return HashOf(whole, whole.size());
      };
      for (int node = 1; node < s->speculation_cache.size(); ++node) {
        if (!s->speculation_cache.run(node)) continue;
        ++kept;
        ASSERT_EQ(kv[physical(s->length() + s->speculation_cache.slot(node))], path(node)) << seed;
      }
      if (below(2) == 0) SetFollowers(s, 0);
      if (!table.Reserve(s, s->length() + s->speculation_cache.slots_used() + 4, step)) continue;
      for (int i = 0; i < 4; ++i) {
        const int parent = below(s->speculation_cache.size());
        const TokenId token = below(3);
        const int known_child = s->speculation_cache.Child(parent, token);
        if (!s->speculation_cache.run(parent) ||
            (known_child >= 0 && s->speculation_cache.run(known_child)))
          continue;
        const int node = RunNode(s, parent, token);
        if (below(2) == 0) SetFollowers(s, node);
        kv[physical(s->length() + s->speculation_cache.slot(node))] = path(node);
      }
    }
  }
  EXPECT_GT(kept, 500) << "nodes that outlived a commit";
}

}  // namespace
}  // namespace specfabric::draft
