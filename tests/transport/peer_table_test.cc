// Names of peers, and the limits of outstanding sends.

#include "transport/peer_table.h"

#include <algorithm>
#include <atomic>
#include <latch>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::transport {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kKiB = 1024, kMiB = kKiB * kKiB;

PeerId AddPeer(PeerTable& table) {
  const PeerId peer = table.Name();
  table.Add(peer);
  return peer;
}

// How many sends of so many bytes the peer takes before it refuses one.
int Capacity(PeerTable& table, PeerId peer, uint64_t bytes) {
  int count = 0;
  while (table.Reserve(peer, bytes).ok()) ++count;
  for (int i = 0; i < count; ++i) table.Release(peer, bytes);
  return count;
}

TEST(PeerTableTest, NamesDiffer) {
  PeerTable table(1, kMiB);
  std::set<PeerId> names;
  for (int i = 0; i < 1000; ++i) {
    const PeerId peer = table.Name();
    EXPECT_NE(peer, 0u);
    EXPECT_TRUE(names.insert(peer).second);
    if (i % 2 == 0) table.Forget(peer);
  }
}

TEST(PeerTableTest, AnyOutstandingCountsOpenPeersOnly) {
  PeerTable table(4, kMiB);
  const PeerId a = AddPeer(table), b = AddPeer(table);
  EXPECT_FALSE(table.AnyOutstanding());
  ASSERT_TRUE(table.Reserve(b, 100).ok());
  EXPECT_TRUE(table.AnyOutstanding());
  ASSERT_TRUE(table.Reserve(a, 100).ok());
  table.Release(b, 100);
  EXPECT_TRUE(table.AnyOutstanding());
  table.Remove(a);
  EXPECT_FALSE(table.AnyOutstanding());
}

TEST(PeerTableTest, AnIndexIsReusedOnlyAfterAllOthers) {
  PeerTable table(1, kMiB);
  std::vector<bool> used(PeerTable::kIndexes, false);
  std::set<PeerId> names;
  for (uint32_t i = 0; i < PeerTable::kIndexes; ++i) {
    const PeerId peer = table.Name();
    EXPECT_FALSE(used[PeerTable::IndexOf(peer)]);
    used[PeerTable::IndexOf(peer)] = true;
    names.insert(peer);
    table.Forget(peer);
  }
  const PeerId again = table.Name();
  EXPECT_NE(again, 0u);
  EXPECT_EQ(PeerTable::IndexOf(again), PeerTable::IndexOf(*names.begin()));
  EXPECT_EQ(names.count(again), 0u);
}

TEST(PeerTableTest, ThereAre65536Indexes) {
  PeerTable table(1, kMiB);
  std::vector<PeerId> names;
  for (uint32_t i = 0; i < 65536; ++i) names.push_back(table.Name());
  EXPECT_EQ(std::count(names.begin(), names.end(), PeerId{0}), 0);
  EXPECT_EQ(table.Name(), 0u);
  table.Forget(names[777]);
  const PeerId one_more = table.Name();
  EXPECT_EQ(PeerTable::IndexOf(one_more), PeerTable::IndexOf(names[777]));
  EXPECT_EQ(table.Name(), 0u);
}

TEST(PeerTableTest, SendsAreBoundedByNumber) {
  PeerTable table(3, kMiB);
  const PeerId peer = AddPeer(table);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(table.Reserve(peer, 0).ok());
  const absl::Status full = table.Reserve(peer, 0);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("3 sends of 0 KiB outstanding, at most 3"));
  table.Release(peer, 0);
  EXPECT_TRUE(table.Reserve(peer, 0).ok());
  EXPECT_FALSE(table.Reserve(peer, 0).ok());
}

TEST(PeerTableTest, SendsAreBoundedByBytes) {
  PeerTable table(1000, 64 * kKiB);
  const PeerId peer = AddPeer(table);
  EXPECT_EQ(Capacity(table, peer, 16 * kKiB), 4);
  EXPECT_EQ(Capacity(table, peer, 16 * kKiB + 1), 3);
  EXPECT_EQ(Capacity(table, peer, 1), 16);  // counted in units of 4 KiB
  EXPECT_EQ(Capacity(table, peer, 0), 1000);
}

TEST(PeerTableTest, OneFrameIsAlwaysAllowed) {
  PeerTable table(1000, 64 * kKiB);
  const PeerId peer = AddPeer(table);
  ASSERT_TRUE(table.Reserve(peer, 10 * kMiB).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(table.Reserve(peer, 1)));
  table.Release(peer, 10 * kMiB);
  ASSERT_TRUE(table.Reserve(peer, 64 * kKiB).ok());
  EXPECT_TRUE(table.Reserve(peer, 0).ok());
}

// FabricOptions::max_frame_bytes may be as large as its type.
TEST(PeerTableTest, LargestFrame) {
  PeerTable table(10, kMiB);
  const PeerId peer = AddPeer(table);
  ASSERT_TRUE(table.Reserve(peer, UINT32_MAX).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(table.Reserve(peer, 1)));
  table.Release(peer, UINT32_MAX);
  EXPECT_EQ(Capacity(table, peer, 4 * kKiB), 10);
}

TEST(PeerTableTest, LimitsOutOfRangeAreClamped) {
  PeerTable most(1 << 30, UINT64_MAX >> 1);
  const PeerId peer = AddPeer(most);
  EXPECT_EQ(Capacity(most, peer, 0), 65535);
  EXPECT_EQ(Capacity(most, peer, 64 * kMiB), 63);  // of 4 GiB less a unit
  EXPECT_EQ(Capacity(most, peer, 0), 65535);
  PeerTable none(-5, kMiB);
  const PeerId mute = AddPeer(none);
  EXPECT_TRUE(absl::IsResourceExhausted(none.Reserve(mute, 0)));
}

TEST(PeerTableTest, OnlyOpenPeersTakeSends) {
  PeerTable table(2, kMiB);
  EXPECT_TRUE(absl::IsNotFound(table.Reserve(0, 0)));
  EXPECT_TRUE(absl::IsNotFound(table.Reserve(12345, 0)));
  const PeerId peer = table.Name();
  EXPECT_TRUE(absl::IsNotFound(table.Reserve(peer, 0)));
  table.Add(peer);
  EXPECT_TRUE(table.Reserve(peer, 0).ok());
  table.Remove(peer);
  const absl::Status gone = table.Reserve(peer, 0);
  EXPECT_TRUE(absl::IsNotFound(gone));
  EXPECT_THAT(std::string(gone.message()), HasSubstr("is closed"));
  table.Release(peer, 0);  // a late release of a removed peer is ignored
  table.Remove(peer);
  EXPECT_TRUE(absl::IsNotFound(table.Reserve(peer, 0)));
}

TEST(PeerTableTest, LateReleaseDoesNotChangeTheNextPeerOfTheIndex) {
  PeerTable table(4, kMiB);
  const PeerId first = AddPeer(table);
  ASSERT_TRUE(table.Reserve(first, 4096).ok());
  table.Forget(first);
  PeerId second = 0;
  do {
    second = table.Name();
    if (PeerTable::IndexOf(second) != PeerTable::IndexOf(first)) table.Forget(second);
  } while (PeerTable::IndexOf(second) != PeerTable::IndexOf(first));
  ASSERT_NE(second, first);
  table.Add(second);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(table.Reserve(second, 4096).ok());
  table.Release(first, 4096);
  table.Remove(first);
  EXPECT_TRUE(absl::IsNotFound(table.Reserve(first, 0)));
  EXPECT_TRUE(absl::IsResourceExhausted(table.Reserve(second, 0)));
  for (int i = 0; i < 4; ++i) table.Release(second, 4096);
  EXPECT_EQ(Capacity(table, second, 0), 4);
}

TEST(PeerTableTest, ConcurrentSendsStayWithinTheLimitsAndEndAtZero) {
  constexpr int kThreads = 4, kRounds = 20'000, kMaxSends = 5;
  constexpr uint64_t kMaxBytes = 64 * kKiB;
  PeerTable table(kMaxSends, kMaxBytes);
  const PeerId peer = AddPeer(table);
  // Outstanding throughout, so that even a thread that runs alone reaches the limits.
  constexpr int kOutstanding = 3;
  constexpr uint64_t kOutstandingSize = 16 * kKiB;
  for (int i = 0; i < kOutstanding; ++i) ASSERT_TRUE(table.Reserve(peer, kOutstandingSize).ok());
  std::atomic<int> sends{kOutstanding};
  std::atomic<int64_t> bytes{kOutstanding * kOutstandingSize};
  std::atomic<int> refused{0};
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 rng(t);
      start.arrive_and_wait();
      for (int i = 0; i < kRounds; ++i) {
        std::vector<uint64_t> held;
        while (held.size() < 3) {
          const uint64_t size = 4 * kKiB * (rng() % 6);
          if (!table.Reserve(peer, size).ok()) {
            ++refused;
            break;
          }
          held.push_back(size);
          // Counted after the reservation and uncounted before the release.
          ASSERT_LE(++sends, kMaxSends);
          ASSERT_LE(bytes += size, static_cast<int64_t>(kMaxBytes));
        }
        for (const uint64_t size : held) {
          --sends;
          bytes -= size;
          table.Release(peer, size);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, kThreads * kRounds);  // a third send is never allowed
  for (int i = 0; i < kOutstanding; ++i) table.Release(peer, kOutstandingSize);
  EXPECT_EQ(Capacity(table, peer, 0), kMaxSends);
  EXPECT_EQ(Capacity(table, peer, 16 * kKiB), 4);
}

TEST(PeerTableTest, ConcurrentRemovalIsSeenByAll) {
  constexpr int kThreads = 3, kLives = 2'000;
  PeerTable table(8, kMiB);
  std::atomic<PeerId> current{AddPeer(table)};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        const PeerId peer = current;
        if (table.Reserve(peer, 5000).ok()) table.Release(peer, 5000);
      }
    });
  }
  for (int life = 0; life < kLives; ++life) {
    const PeerId old = current;
    const PeerId next = AddPeer(table);
    current = next;
    table.Remove(old);
    ASSERT_TRUE(absl::IsNotFound(table.Reserve(old, 0)));
    table.Forget(old);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Capacity(table, current, 5000), 8);
}

}  // namespace
}  // namespace specfabric::transport
