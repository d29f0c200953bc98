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
  BlockTable table;
  ASSERT_TRUE(pool.Allocate(2, table));
  EXPECT_THAT(table, ElementsAre(BlockId(0), BlockId(1)));
  EXPECT_EQ(pool.num_free(), 2U);
  pool.Release({BlockId(0)});
  EXPECT_EQ(pool.references(BlockId(0)), 0U);
  EXPECT_EQ(pool.references(BlockId(1)), 1U);
  ASSERT_TRUE(pool.Allocate(2, table));
  EXPECT_THAT(table, ElementsAre(BlockId(0), BlockId(1), BlockId(0), BlockId(2))) << "appended";
}

TEST(BlockPool, GivesAllOrNothing) {
  BlockPool pool(3);
  BlockTable table;
  EXPECT_FALSE(pool.Allocate(4, table));
  EXPECT_EQ(table.size(), 0U);
  EXPECT_EQ(pool.num_free(), 3U);
  EXPECT_TRUE(pool.Allocate(0, table));
  EXPECT_TRUE(pool.Allocate(3, table));
  EXPECT_EQ(table.size(), 3U);
  EXPECT_FALSE(pool.Allocate(1, table));
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
