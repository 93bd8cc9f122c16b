#include "base/hash.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace specfabric::base {
namespace {

TEST(HashTest, PrefixHashChains) {
  const std::vector<TokenId> tokens = {5, 0, 7, 7};
  uint64_t hash = kEmptyPrefixHash;
  for (TokenId token : tokens) hash = ExtendPrefixHash(hash, token);
  EXPECT_EQ(ExtendPrefixHash(kEmptyPrefixHash, tokens), hash);
}

TEST(HashTest, PrefixHashSeesOrderAndLength) {
  std::set<uint64_t> hashes;
  for (const std::vector<TokenId>& tokens :
       std::vector<std::vector<TokenId>>{{}, {0}, {0, 0}, {1}, {0, 1}, {1, 0}, {1, 1}, {0, 0, 0}}) {
    hashes.insert(ExtendPrefixHash(kEmptyPrefixHash, tokens));
  }
  EXPECT_EQ(hashes.size(), 8u);
}

TEST(HashTest, Fnv1aKnownAnswers) {
  // From the FNV authors' test vectors.
  EXPECT_EQ(Fnv1a(""), 0xcbf29ce484222325u);
  EXPECT_EQ(Fnv1a("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(Fnv1a("foobar"), 0x85944171f73967e8u);
}

TEST(HashTest, SplitMixKnownAnswer) {
  // First output of SplitMix64 seeded with 1234567.
  EXPECT_EQ(Mix64(1234567), 6457827717110365317u);
}

TEST(HashTest, ChoicesHaveTheirOwnSeedsAndTheFirstKeepsTheRequests) {
  EXPECT_EQ(ChoiceSeed(9, 0), 9u);
  std::set<uint64_t> seeds;
  for (uint32_t choice = 0; choice < 100; ++choice) seeds.insert(ChoiceSeed(9, choice));
  EXPECT_EQ(seeds.size(), 100u);
}

}  // namespace
}  // namespace specfabric::base
