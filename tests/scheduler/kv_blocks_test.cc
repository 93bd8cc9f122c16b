#include "scheduler/kv/kv_blocks.h"

#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/kv/prefix_hash.h"

namespace specfabric::scheduler {
namespace {

using base::TokenId;
using testing::ElementsAre;

constexpr int32_t kNone = KvBlocks::kNone;

TEST(KvBlocksTest, TakesEachBlockOnceAndAllOrNothing) {
  KvBlocks pool(10, 4);
  std::vector<int32_t> a, b;
  ASSERT_TRUE(pool.Take(4, &a) && pool.Take(6, &b));
  std::set<int32_t> blocks(a.begin(), a.end());
  blocks.insert(b.begin(), b.end());
  EXPECT_EQ(blocks.size(), 10u);
  EXPECT_EQ(*blocks.begin(), 0);
  EXPECT_EQ(*blocks.rbegin(), 9);
  EXPECT_FALSE(pool.Take(1, &b));
  EXPECT_TRUE(pool.Take(0, &b));
  EXPECT_EQ(b.size(), 6u);
  pool.ReleaseFrom(0, &a);
  EXPECT_EQ(pool.available(), 4);
  EXPECT_FALSE(pool.Take(5, &a));
  EXPECT_EQ(pool.available(), 4);
  EXPECT_TRUE(pool.Take(4, &a));
  pool.Check();
}

TEST(KvBlocksTest, SharedBlockIsFreeWhenItsLastOwnerReleasesIt) {
  KvBlocks pool(2, 4);
  std::vector<int32_t> blocks;
  ASSERT_TRUE(pool.Take(1, &blocks));
  pool.Retain(blocks[0]);
  EXPECT_EQ(pool.owners(blocks[0]), 2);
  pool.Release(blocks[0]);
  EXPECT_EQ(pool.available(), 1);
  pool.Release(blocks[0]);
  EXPECT_EQ(pool.available(), 2);
  EXPECT_EQ(pool.used(), 0);
}

// A pool of blocks of two tokens and a chain of published ones.
struct Chain {
  explicit Chain(int32_t blocks, int32_t bits = 128, bool compare = true)
      : pool(blocks, 2, compare), hasher(7, bits) {}

  KvBlocks::Content Content(const std::vector<TokenId>& tokens, int32_t parent, BlockKey above,
                            uint64_t salt = 0) {
    return {hasher.Extend(above, tokens), parent, salt, tokens};
  }
  // Publishes `texts` in new blocks, one below the other; returns the blocks, owned.
  std::vector<int32_t> Publish(const std::vector<std::vector<TokenId>>& texts) {
    std::vector<int32_t> blocks;
    EXPECT_TRUE(pool.Take(static_cast<int32_t>(texts.size()), &blocks));
    BlockKey key = hasher.Root(0, 0);
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto content = Content(texts[i], i > 0 ? blocks[i - 1] : kNone, key);
      EXPECT_EQ(pool.Publish(blocks[i], content), blocks[i]);
      key = content.key;
    }
    return blocks;
  }
  // The blocks of the longest known beginning of `texts`.
  std::vector<int32_t> Find(const std::vector<std::vector<TokenId>>& texts) {
    std::vector<int32_t> found;
    BlockKey key = hasher.Root(0, 0);
    for (const std::vector<TokenId>& text : texts) {
      const auto content = Content(text, found.empty() ? kNone : found.back(), key);
      const int32_t block = pool.Find(content);
      if (block == kNone) break;
      found.push_back(block);
      key = content.key;
    }
    return found;
  }

  KvBlocks pool;
  PrefixHasher hasher;
};

TEST(PrefixCacheTest, PublishedBlocksAreEvictedChildrenFirst) {
  Chain chain(4);
  std::vector<int32_t> blocks = chain.Publish({{1, 2}, {3, 4}, {5, 6}});
  const std::vector<int32_t> known = blocks;
  EXPECT_EQ(chain.Find({{1, 2}, {3, 4}, {5, 6}}), known);
  EXPECT_EQ(chain.Find({{1, 2}, {3, 4}, {5, 7}}).size(), 2u);
  EXPECT_EQ(chain.Find({{3, 4}}).size(), 0u);  // not at the start of the text
  chain.pool.ReleaseFrom(0, &blocks);
  EXPECT_EQ(chain.pool.cached(), 3);
  EXPECT_EQ(chain.pool.used(), 0);
  EXPECT_EQ(chain.Find({{1, 2}, {3, 4}, {5, 6}}), known);
  std::vector<int32_t> others;
  ASSERT_TRUE(chain.pool.Take(2, &others));  // the free one, and the last of the chain
  EXPECT_THAT(others[1], known[2]);
  EXPECT_EQ(chain.Find({{1, 2}, {3, 4}, {5, 6}}).size(), 2u);
  chain.pool.Retain(known[0]);  // used again: only its child is left to evict
  ASSERT_TRUE(chain.pool.Take(1, &others));
  EXPECT_EQ(others[2], known[1]);
  EXPECT_FALSE(chain.pool.Take(1, &others));
  EXPECT_THAT(chain.Find({{1, 2}, {3, 4}}), ElementsAre(known[0]));
  chain.pool.Check();
}

TEST(PrefixCacheTest, LeastRecentlyReleasedIsEvictedFirst) {
  Chain chain(3);
  std::vector<int32_t> a = chain.Publish({{1, 1}}), b = chain.Publish({{2, 2}}),
                       c = chain.Publish({{3, 3}});
  const int32_t first = b[0];
  for (std::vector<int32_t>* blocks : {&b, &a, &c}) chain.pool.ReleaseFrom(0, blocks);
  ASSERT_TRUE(chain.pool.Take(1, &b));
  EXPECT_EQ(b[0], first);
  EXPECT_EQ(chain.Find({{2, 2}}).size(), 0u);
  EXPECT_EQ(chain.Find({{1, 1}}).size(), 1u);
  chain.pool.Check();
}

TEST(PrefixCacheTest, ForgottenBlocksAreNotFound) {
  Chain chain(4);
  std::vector<int32_t> blocks = chain.Publish({{1, 2}, {3, 4}, {5, 6}});
  const std::vector<int32_t> known = blocks;
  for (int32_t block : known) chain.pool.Forget(block);  // no effect while they have an owner
  EXPECT_EQ(chain.Find({{1, 2}, {3, 4}, {5, 6}}), known);
  chain.pool.ReleaseFrom(0, &blocks);
  chain.pool.Forget(known[2]);
  EXPECT_THAT(chain.Find({{1, 2}, {3, 4}, {5, 6}}), ElementsAre(known[0], known[1]));
  EXPECT_EQ(chain.pool.cached(), 2);
  chain.pool.Check();
  // A block with children stays until the room is needed, and they with it.
  chain.pool.Forget(known[0]);
  chain.pool.Forget(known[0]);
  chain.pool.Check();
  EXPECT_EQ(chain.Find({{1, 2}, {3, 4}}).size(), 0u);
  EXPECT_EQ(chain.pool.available(), 4);
  // Its content may be published again, with that of its children.
  std::vector<int32_t> anew = chain.Publish({{1, 2}});
  EXPECT_THAT(chain.Find({{1, 2}, {3, 4}}), ElementsAre(anew[0]));
  std::vector<int32_t> others;
  ASSERT_TRUE(chain.pool.Take(3, &others));
  chain.pool.Check();
  EXPECT_EQ(chain.pool.cached(), 0);
  EXPECT_THAT(chain.Find({{1, 2}, {3, 4}}), ElementsAre(anew[0]));
  chain.pool.ReleaseFrom(0, &others);
  chain.pool.ReleaseFrom(0, &anew);
  chain.pool.Check();
}

TEST(PrefixCacheTest, EqualContentIsSharedAndCollisionsAreNoHits) {
  Chain chain(4, 0);  // one key for everything
  const std::vector<int32_t> known = chain.Publish({{1, 2}});
  std::vector<int32_t> blocks;
  ASSERT_TRUE(chain.pool.Take(1, &blocks));
  const BlockKey root = chain.hasher.Root(0, 0);
  const std::vector<TokenId> same = {1, 2}, other = {1, 3};
  EXPECT_EQ(chain.pool.Publish(blocks[0], chain.Content(same, kNone, root)), known[0]);
  EXPECT_EQ(chain.pool.Publish(blocks[0], chain.Content(other, kNone, root)), kNone);
  EXPECT_EQ(chain.pool.Find(chain.Content(other, kNone, root)), kNone);
  EXPECT_EQ(chain.pool.Find(chain.Content(same, known[0], root)),
            kNone);  // at another place in the text
  EXPECT_EQ(chain.pool.Find(chain.Content(same, kNone, root, 9)), kNone);  // another tenant's
  EXPECT_FALSE(chain.pool.published(blocks[0]));
  chain.pool.Check();
}

TEST(PrefixHashTest, KeysDependOnSecretSaltsParentAndEveryToken) {
  const PrefixHasher hasher(1);
  const auto less = [](const BlockKey& a, const BlockKey& b) {
    return std::pair(a.high, a.low) < std::pair(b.high, b.low);
  };
  std::set<BlockKey, decltype(less)> keys(less);
  const std::vector<TokenId> tokens = {1, 2, 3, 4}, other = {1, 2, 3, 5};
  for (uint64_t salt : {0, 1}) {
    for (uint64_t model : {0, 1}) {
      const BlockKey root = hasher.Root(model, salt);
      keys.insert({root, hasher.Extend(root, tokens), hasher.Extend(root, other),
                   hasher.Extend(hasher.Extend(root, tokens), tokens)});
    }
  }
  keys.insert(PrefixHasher(2).Root(0, 0));
  keys.insert(PrefixHasher(std::nullopt).Root(0, 0));
  keys.insert(PrefixHasher(std::nullopt).Root(0, 0));
  EXPECT_EQ(keys.size(), 19u);
  EXPECT_EQ(PrefixHasher(1).Root(0, 1), hasher.Root(0, 1));
}

TEST(KvBlocksDeathTest, WrongAccountingEndsTheProcess) {
  KvBlocks pool(2, 2);
  EXPECT_DEATH(pool.Release(0), "check failed");
  EXPECT_DEATH(pool.Release(2), "check failed");
  EXPECT_DEATH(pool.Retain(0), "check failed");
  std::vector<int32_t> blocks;
  ASSERT_TRUE(pool.Take(2, &blocks));
  const std::vector<TokenId> tokens = {1, 2};
  // A block whose parent is not published would later be found under another parent's content.
  EXPECT_DEATH(pool.Publish(blocks[0], {{}, blocks[1], 0, tokens}), "check failed");
}

}  // namespace
}  // namespace specfabric::scheduler
