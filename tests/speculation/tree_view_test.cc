#include "speculation/tree_view.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "speculation/tree.h"

namespace specfabric::speculation {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int> Children(TreeView tree, int node) {
  std::vector<int> children;
  for (int child = NextChild(tree, node, node); child >= 0; child = NextChild(tree, node, child)) {
    children.push_back(child);
  }
  return children;
}

TEST(TreeViewTest, NextChildVisitsChildrenInDrawOrder) {
  TokenTree tree = TokenTree::Root(10);
  tree.Add(0, 11, -0.1f);
  tree.Add(0, 12, -0.2f);
  tree.Add(1, 13, -0.3f);
  tree.Add(0, 14, -0.4f);
  EXPECT_THAT(Children(tree, 0), ElementsAre(1, 2, 4));
  EXPECT_THAT(Children(tree, 1), ElementsAre(3));
  EXPECT_THAT(Children(tree, 4), IsEmpty());
}

TEST(TreeViewTest, ViewsRowsOfAPlan) {
  const std::vector<int32_t> parents = {-1, 0, -1, 0, 1};
  const std::vector<base::TokenId> tokens = {5, 6, 7, 8, 9};
  const TreeView tree = {absl::MakeConstSpan(parents).subspan(2),
                         absl::MakeConstSpan(tokens).subspan(2)};
  EXPECT_EQ(tree.size(), 3);
  EXPECT_THAT(Children(tree, 1), ElementsAre(2));
  EXPECT_EQ(ChildWith(tree, 0, 8), 1);
  EXPECT_EQ(tree.Root().size(), 1);
  EXPECT_THAT(Children(tree.Root(), 0), IsEmpty());
}

}  // namespace
}  // namespace specfabric::speculation
