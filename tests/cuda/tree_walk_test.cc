// The device's walk through trees against speculation::WalkCoupled.

#include "verification/cuda/tree_walk.h"

#include <random>

#include "speculation/tree.h"
#include "tests/cuda/device.h"
#include "tests/cuda/shuffle.h"
#include "verification/reference/acceptance.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::DeviceArray;
using base::cuda::DeviceTest;

using speculation::TokenTree;

// A choice of which Unpack returns the token.
PackedChoice PackToken(base::TokenId token) {
  return PackedChoice{0x80000000u} << 32 | static_cast<uint32_t>(~token);
}

// With a vocabulary so small that draft tokens are sometimes right and siblings may be equal.
TokenTree RandomTree(std::mt19937& rng, int nodes, int vocabulary) {
  TokenTree tree = TokenTree::Root(static_cast<base::TokenId>(rng() % vocabulary));
  while (tree.size() < nodes) {
    tree.Add(static_cast<int>(rng() % tree.size()), static_cast<base::TokenId>(rng() % vocabulary),
             0.0f);
  }
  return tree;
}

class TreeWalkTest : public DeviceTest {};

TEST_F(TreeWalkTest, AcceptsAsTheCpuDoes) {
  std::mt19937 rng(1);
  std::vector<TokenTree> trees;
  std::vector<std::vector<base::TokenId>> chosen;
  std::vector<int32_t> begin = {0}, parents, tokens;
  std::vector<uint64_t> ancestors;
  std::vector<PackedChoice> choices;
  constexpr int kTrees = 2000;
  for (int i = 0; i < kTrees; ++i) {
    const int vocabulary = 1 + static_cast<int>(rng() % 4);
    const TokenTree tree = RandomTree(rng, 1 + static_cast<int>(rng() % 64), vocabulary);
    parents.insert(parents.end(), tree.parents.begin(), tree.parents.end());
    tokens.insert(tokens.end(), tree.tokens.begin(), tree.tokens.end());
    const std::vector<uint64_t> masks = speculation::AncestorMasks(tree);
    ancestors.insert(ancestors.end(), masks.begin(), masks.end());
    std::vector<base::TokenId>& own = chosen.emplace_back();
    for (int node = 0; node < tree.size(); ++node) {
      own.push_back(static_cast<base::TokenId>(rng() % vocabulary));
      choices.push_back(PackToken(own.back()));
      if (rng() % 8 != 0) continue;
      // The logit that is not finite may be that of a child's token.
      choices.back() = Pack(sampling::kNotFinite, own.back());
      own.back() = base::kNoToken;
    }
    begin.push_back(static_cast<int32_t>(tokens.size()));
    trees.push_back(tree);
  }
  DeviceArray<int32_t> d_begin(begin), d_parents(parents), d_tokens(tokens);
  DeviceArray<uint64_t> d_ancestors(ancestors), d_choices(choices);
  DeviceArray<Walked> d_walked(kTrees);
  std::vector<Walked> walked;
  for (const uint64_t seed : {1, 2}) {
    base::cuda::ShuffleThreads(seed);
    ASSERT_EQ(EnqueueTreeWalk({kTrees, d_begin.data(), d_parents.data(), d_tokens.data(),
                               d_ancestors.data(), d_choices.data()},
                              d_walked.data(), nullptr),
              absl::OkStatus());
    const std::vector<Walked> run = d_walked.Read();
    for (size_t i = 0; i < walked.size(); ++i) EXPECT_EQ(run[i].path, walked[i].path) << i;
    walked = run;
  }
  for (int i = 0; i < kTrees; ++i) {
    const speculation::Accepted expected = speculation::WalkCoupled(trees[i], chosen[i]);
    uint64_t path = 1;
    for (int node : expected.path) path |= uint64_t{1} << node;
    EXPECT_EQ(walked[i].path, path) << i;
    EXPECT_EQ(walked[i].last, expected.path.empty() ? 0 : expected.path.back()) << i;
    EXPECT_EQ(walked[i].bonus, expected.finite ? expected.tokens.back() : base::kNoToken) << i;
  }
}

TEST(TreeBatchTest, NoTreesAreRefused) {
  EXPECT_EQ(EnqueueTreeWalk({}, nullptr, nullptr).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace specfabric::verification::cuda
