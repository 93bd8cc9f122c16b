#include "target/first_token_watch.h"

#include "gtest/gtest.h"

namespace specfabric::target {
namespace {

// So many rounds, of which every `of`-th is accepted; how often it told.
int Rounds(FirstTokenWatch* watch, int rounds, int of) {
  int told = 0;
  for (int i = 0; i < rounds; ++i) told += watch->Observe(i % of == 0);
  return told;
}

TEST(FirstTokenWatchTest, TellsOnceOfADrafterThatIsHardlyEverRight) {
  FirstTokenWatch watch;
  EXPECT_EQ(Rounds(&watch, FirstTokenWatch::kRounds - 1, 50), 0);
  EXPECT_FALSE(watch.acceptance());
  EXPECT_EQ(Rounds(&watch, 1000, 50), 1);
  EXPECT_NEAR(*watch.acceptance(), 0.02, 0.02);
  EXPECT_EQ(Rounds(&watch, 2000, 2), 0);
  EXPECT_NEAR(*watch.acceptance(), 0.5, 0.02);
  EXPECT_EQ(Rounds(&watch, 2000, 50), 1);
}

TEST(FirstTokenWatchTest, SaysNothingOfAGoodOne) {
  FirstTokenWatch watch;
  EXPECT_EQ(Rounds(&watch, 5000, 2), 0);
}

}  // namespace
}  // namespace specfabric::target
