#include "base/reused_vector.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::base {
namespace {

using ::testing::ElementsAre;

TEST(ReusedVectorTest, ElementsKeepTheirMemoryWhenItShrinks) {
  ReusedVector<std::vector<int>> lists;
  lists.Resize(3);
  lists[2].reserve(100);
  const int* const memory = lists[2].data();
  lists.Resize(1);
  EXPECT_EQ(lists.size(), 1u);
  lists.Resize(3);
  EXPECT_EQ(lists[2].data(), memory);
  EXPECT_GE(lists[2].capacity(), 100u);
}

TEST(ReusedVectorTest, IteratesOverTheElementsInUse) {
  ReusedVector<int> numbers = {4, 5, 6};
  EXPECT_THAT(std::vector<int>(numbers.begin(), numbers.end()), ElementsAre(4, 5, 6));
  numbers.Resize(1);
  EXPECT_THAT(std::vector<int>(numbers.begin(), numbers.end()), ElementsAre(4));
  numbers.push_back(7);
  EXPECT_EQ(numbers.back(), 7);
  EXPECT_THAT(std::vector<int>(numbers.begin(), numbers.end()), ElementsAre(4, 7));
  numbers.Resize(0);
  EXPECT_TRUE(numbers.empty());
  EXPECT_EQ(numbers.begin(), numbers.end());
}

TEST(ReusedVectorTest, MovedFromIsEmpty) {
  ReusedVector<std::string> from = {"a", "b"};
  const ReusedVector<std::string> to = std::move(from);
  EXPECT_EQ(to.size(), 2u);
  EXPECT_TRUE(from.empty());  // NOLINT(bugprone-use-after-move)
}

}  // namespace
}  // namespace specfabric::base
