// Blocks are handed out lowest id first, all or nothing, and come back when released.
#include "scheduler/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::scheduler {
namespace {

using protocol::BlockId;
using ::testing::ElementsAre;

TEST(BlockPool, HandsOutTheLowestFreeIds) {
  BlockPool pool(4);
  const auto first = pool.Allocate(2);
  ASSERT_TRUE(first.has_value());
  EXPECT_THAT(*first, ElementsAre(BlockId(0), BlockId(1)));
  EXPECT_EQ(pool.num_free(), 2U);
  pool.Release({BlockId(0)});
  EXPECT_EQ(pool.references(BlockId(0)), 0U);
  EXPECT_EQ(pool.references(BlockId(1)), 1U);
  EXPECT_THAT(*pool.Allocate(2), ElementsAre(BlockId(0), BlockId(2)));
}

TEST(BlockPool, GivesAllOrNothing) {
  BlockPool pool(3);
  EXPECT_FALSE(pool.Allocate(4).has_value());
  EXPECT_EQ(pool.num_free(), 3U);
  EXPECT_EQ(pool.Allocate(0)->size(), 0U);
  EXPECT_EQ(pool.Allocate(3)->size(), 3U);
  EXPECT_FALSE(pool.Allocate(1).has_value());
  EXPECT_EQ(pool.num_blocks(), 3U);
}

TEST(BlockPoolDeathTest, ReleasingAFreeBlockIsABug) {
  BlockPool pool(2);
  EXPECT_DEATH(pool.Release({BlockId(1)}),
               "scheduler invariant 1: block 1 is released without a reference");
  EXPECT_DEATH(pool.Release({BlockId(7)}), "block 7 is released without a reference");
}

}  // namespace
}  // namespace skein::scheduler
