#include "model/features.h"

#include "gtest/gtest.h"

namespace specfabric::model {
namespace {

TEST(FeaturesTest, AreAllOnButThoseNamed) {
  const auto all = AllFeaturesBut("");
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_TRUE(all->cuda_graphs && all->flash_attention && all->gpu_draft_probs && all->gpu_states &&
              all->peer_sums);
  const auto some = AllFeaturesBut("peer_sums, cuda_graphs,");
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_TRUE(some->flash_attention && some->gpu_draft_probs && some->gpu_states);
  EXPECT_FALSE(some->cuda_graphs || some->peer_sums);
  const auto none =
      AllFeaturesBut("cuda_graphs,flash_attention,gpu_draft_probs,gpu_states,peer_sums");
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->cuda_graphs || none->flash_attention || none->gpu_draft_probs ||
               none->gpu_states || none->peer_sums);
}

TEST(FeaturesTest, AnUnknownNameIsRefusedWithThoseThatAreKnown) {
  const auto refused = AllFeaturesBut("cuda_graphs,graphs");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.status().message(),
            "'graphs': allowed are cuda_graphs, flash_attention, gpu_draft_probs, gpu_states and "
            "peer_sums");
}

TEST(FeaturesTest, AreDescribedInOneLine) {
  EXPECT_EQ(Describe(kCudaGraphs, {.on = true, .why = ""}), "feature cuda_graphs: on");
  EXPECT_EQ(Describe(kPeerSums, {.on = false, .why = kDisabled}),
            "feature peer_sums: off: it is disabled");
}

}  // namespace
}  // namespace specfabric::model
