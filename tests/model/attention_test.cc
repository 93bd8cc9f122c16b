// The fast attention against libtorch's, and the promises about its bits.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "model/cpu/attention.h"
#include "model/reference/attention.h"
#include "model/reference/linear.h"
#include "tests/model/group.h"

namespace specfabric::model {
namespace {

struct Shape {
  int heads, kv_heads, head_dim;
};

// A cache of random keys and values, a batch of one sequence of each kind, and random queries.
class Scene {
 public:
  Scene(const Shape& shape, DataType dtype, int block_size, uint32_t seed)
      : shape_(shape), random_(seed) {
    auto cache = KvCache::Create({.layers = 2,
                                  .kv_heads = shape.kv_heads,
                                  .head_dim = shape.head_dim,
                                  .blocks = 200,
                                  .block_size = block_size,
                                  .dtype = dtype});
    EXPECT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
    free_blocks_.resize(200);
    std::iota(free_blocks_.begin(), free_blocks_.end(), 0);
    std::shuffle(free_blocks_.begin(), free_blocks_.end(), random_);
    for (int32_t slot = 0; slot < cache_.shape().slots(); ++slot) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        const std::vector<float> k = Normal(shape.head_dim), v = Normal(shape.head_dim);
        cache_.Write(1, head, slot, k.data(), v.data());
      }
    }
    batch.mask_words = 4;
  }

  std::vector<int32_t> TakeBlocks(int slots) {
    const int count = (slots + cache_.shape().block_size - 1) / cache_.shape().block_size;
    std::vector<int32_t> blocks(free_blocks_.end() - count, free_blocks_.end());
    free_blocks_.resize(free_blocks_.size() - count);
    return blocks;
  }

  // A random tree: every node's parent is any node before it.
  std::vector<int32_t> RandomParents(int nodes) {
    std::vector<int32_t> parents = {-1};
    for (int i = 1; i < nodes; ++i) parents.push_back(static_cast<int32_t>(random_() % i));
    return parents;
  }

  std::vector<float> Normal(size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }

  void Plan() {
    ASSERT_TRUE(MakeAttentionPlan(
                    batch,
                    {.vocabulary = 10, .blocks = 200, .block_size = cache_.shape().block_size},
                    &plan)
                    .ok());
    const int stride = cache_.shape().stride();
    queries.assign(batch.tokens.size() * shape_.heads * stride, 0.0f);
    for (size_t head = 0; head < batch.tokens.size() * shape_.heads; ++head) {
      std::vector<float> q = Normal(shape_.head_dim);
      for (float& value : q) value /= std::sqrt(static_cast<float>(shape_.head_dim));
      std::copy(q.begin(), q.end(), queries.begin() + head * stride);
    }
  }

  AttentionInputs Inputs() {
    return {.plan = &plan,
            .cache = &cache_,
            .layer = 1,
            .heads = shape_.heads,
            .queries = queries.data()};
  }

  std::vector<float> Fast(const cpu::Kernels& kernels = cpu::BestKernels(), int threads = 1) {
    ThreadPool pool(threads);
    cpu::Attention attention(kernels, &pool);
    std::vector<float> out(batch.tokens.size() * shape_.heads * shape_.head_dim, NAN);
    EXPECT_TRUE(attention.Forward(Inputs(), out.data()).ok());
    return out;
  }

  std::vector<float> Reference() {
    reference::SetThreads(1);
    std::vector<float> out(batch.tokens.size() * shape_.heads * shape_.head_dim, NAN);
    EXPECT_TRUE(reference::Attention(Inputs(), out.data()).ok());
    return out;
  }

  Batch batch;
  AttentionPlan plan;
  std::vector<float> queries;
  KvCache& cache() { return cache_; }

 private:
  Shape shape_;
  std::mt19937 random_;
  KvCache cache_ = *KvCache::Create({1, 1, 1, 1, 1, DataType::kFloat32});
  std::vector<int32_t> free_blocks_;
};

constexpr Shape kShapes[] = {{1, 1, 2},  {3, 1, 10}, {4, 4, 24},   {8, 2, 40},
                             {6, 2, 64}, {7, 1, 80}, {10, 2, 128}, {2, 1, 256}};

class AttentionTest : public ::testing::TestWithParam<DataType> {};

TEST_P(AttentionTest, AgreesWithLibtorch) {
  if (!reference::IsBuilt()) GTEST_SKIP() << "built without libtorch";
  for (const Shape& shape : kShapes) {
    for (int block_size : {1, 5, 16}) {
      Scene scene(shape, GetParam(), block_size, 1);
      // Chunks, single rows and trees, with and without a prefix; more than 64 nodes.
      AddChain(&scene.batch, std::vector<int32_t>(9, 1), 0, scene.TakeBlocks(9));
      AddTree(&scene.batch, std::vector<int32_t>(7, 1), scene.RandomParents(7), 21,
              scene.TakeBlocks(28));
      AddChain(&scene.batch, {1}, 37, scene.TakeBlocks(38));
      AddTree(&scene.batch, {1}, {-1}, 0, scene.TakeBlocks(1));
      if (block_size == 16) {
        AddTree(&scene.batch, std::vector<int32_t>(90, 1), scene.RandomParents(90), 133,
                scene.TakeBlocks(223));
      }
      scene.Plan();
      const std::vector<float> want = scene.Reference();
      std::vector<float> first;
      for (const cpu::Kernels* const* k = cpu::AllKernels(); *k != nullptr; ++k) {
        if (!(*k)->supported()) continue;
        const std::vector<float> got = scene.Fast(**k);
        for (size_t i = 0; i < want.size(); ++i) {
          ASSERT_NEAR(got[i], want[i], 3e-6) << (*k)->name << " head_dim " << shape.head_dim;
        }
        if (first.empty()) first = got;
        ASSERT_EQ(got, first) << (*k)->name << ": bits differ between instruction sets";
      }
      ASSERT_EQ(scene.Fast(cpu::BestKernels(), 3), first) << "bits depend on threads";
    }
  }
}

// A path of a tree must give the bits of the same tokens laid out as a chain.
TEST_P(AttentionTest, PathOfATreeHasTheBitsOfAChain) {
  for (const Shape& shape : kShapes) {
    for (int kv_len : {0, 1, 15, 16, 40}) {
      Scene tree(shape, GetParam(), 4, 2);
      const std::vector<int32_t> parents = {-1, 0, 0, 2, 1, 3, 3, 6, 0, 7};
      const std::vector<int32_t> path = {0, 2, 3, 6, 7, 9};  // root to the last node
      const std::vector<int32_t> tree_blocks = tree.TakeBlocks(kv_len + 10);
      AddTree(&tree.batch, std::vector<int32_t>(10, 1), parents, kv_len, tree_blocks);
      tree.Plan();

      Scene chain(shape, GetParam(), 16, 2);  // another block size, other physical slots
      const std::vector<int32_t> chain_blocks =
          chain.TakeBlocks(kv_len + static_cast<int>(path.size()));
      AddChain(&chain.batch, std::vector<int32_t>(path.size(), 1), kv_len, chain_blocks);
      chain.Plan();
      const auto copy_slot = [&](int32_t from, int32_t to) {
        const KvShape& kv = tree.cache().shape();
        const size_t bytes = size_t(kv.stride()) * kv.element_bytes();
        for (int head = 0; head < shape.kv_heads; ++head) {
          std::memcpy(static_cast<std::byte*>(chain.cache().keys(1, head)) + to * bytes,
                      static_cast<std::byte*>(tree.cache().keys(1, head)) + from * bytes, bytes);
          std::memcpy(static_cast<std::byte*>(chain.cache().values(1, head)) + to * bytes,
                      static_cast<std::byte*>(tree.cache().values(1, head)) + from * bytes, bytes);
        }
      };
      for (int slot = 0; slot < kv_len; ++slot)
        copy_slot(tree.plan.slots[slot], chain.plan.slots[slot]);
      const size_t row_queries = size_t(shape.heads) * tree.cache().shape().stride();
      for (size_t i = 0; i < path.size(); ++i) {
        copy_slot(tree.plan.slots[kv_len + path[i]], chain.plan.slots[kv_len + i]);
        std::copy_n(tree.queries.begin() + path[i] * row_queries, row_queries,
                    chain.queries.begin() + i * row_queries);
      }
      const std::vector<float> a = tree.Fast(), b = chain.Fast();
      const size_t row = size_t(shape.heads) * shape.head_dim;
      for (size_t i = 0; i < path.size(); ++i) {
        ASSERT_TRUE(
            std::equal(b.begin() + i * row, b.begin() + (i + 1) * row, a.begin() + path[i] * row))
            << "head_dim " << shape.head_dim << " kv_len " << kv_len << " node " << path[i];
      }
    }
  }
}

// One key far above the others must not overflow, nor far below matter.
TEST_P(AttentionTest, ExtremeScores) {
  Scene scene({1, 1, 16}, GetParam(), 16, 3);
  AddChain(&scene.batch, {1}, 9, scene.TakeBlocks(10));
  scene.Plan();
  std::vector<float> key(16, 0.0f), value(16, 0.0f);
  for (int j = 0; j < 10; ++j) {
    key[0] = j == 4 ? 300.0f : -300.0f;
    value[0] = static_cast<float>(j);
    scene.cache().Write(1, 0, scene.plan.slots[j], key.data(), value.data());
  }
  std::fill(scene.queries.begin(), scene.queries.end(), 0.0f);
  scene.queries[0] = 1.0f;
  EXPECT_EQ(scene.Fast()[0], 4.0f);
  scene.queries[0] = -1.0f;
  EXPECT_NEAR(scene.Fast()[0], (45.0f - 4.0f) / 9.0f, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionTest,
                         ::testing::Values(DataType::kFloat32, DataType::kBFloat16),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace specfabric::model
