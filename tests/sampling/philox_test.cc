#include "sampling/philox.h"

#include <set>

#include "gtest/gtest.h"

namespace specfabric::sampling {
namespace {

TEST(PhiloxTest, KnownAnswersOfTheReferenceImplementation) {
  // Random123, kat_vectors, philox4x32 with 10 rounds.
  EXPECT_EQ(Philox4x32(0, {0, 0, 0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32(0xffffffffffffffff, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, WordIsOneWordOfItsBlock) {
  const DrawSite site{.purpose = Purpose::kDraft, .position = 9, .draw = 2, .node = 5};
  for (uint32_t index = 0; index < 16; ++index) {
    EXPECT_EQ(PhiloxWord(3, site, index), Philox4x32(3, PhiloxCounter(site, index / 4))[index % 4]);
  }
}

TEST(PhiloxTest, NoTwoSitesShareACounter) {
  std::set<PhiloxBlock> counters;
  int sites = 0;
  for (Purpose purpose :
       {Purpose::kGumbel, Purpose::kDraft, Purpose::kAccept, Purpose::kResidual}) {
    for (uint32_t position : {0u, 1u, 65536u}) {
      for (uint32_t draw : {0u, 1u, 65536u}) {
        for (uint32_t node : {0u, 1u, 65535u}) {
          for (uint32_t block : {0u, 1u, 32767u}) {
            counters.insert(PhiloxCounter({purpose, position, draw, node}, block));
            ++sites;
          }
        }
      }
    }
  }
  EXPECT_EQ(static_cast<int>(counters.size()), sites);
}

}  // namespace
}  // namespace specfabric::sampling
