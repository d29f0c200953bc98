// The prefix cache alone: identity, holds, eviction, checkpoints.
#include "scheduler/prefix_cache.h"

#include <gtest/gtest.h>

namespace skein::scheduler {
namespace {

constexpr uint32_t kBlock = 2;

// A cache with its pool, and sequences that come and go.
class PrefixCacheTest : public ::testing::Test {
 protected:
  explicit PrefixCacheTest(BlockHash hash = &HashTokens)
      : pool_(6), cache_(pool_, kBlock, 10, 2, hash) {}

  // A sequence computes its tokens and ends; the chain is its part of the cache meanwhile.
  void Compute(const std::string& root, const std::vector<int32_t>& tokens) {
    PrefixCache::Match match;
    const size_t whole = tokens.size() / kBlock;
    cache_.Find(root, tokens, whole, match);
    CacheChain chain;
    cache_.Hold(root, match, chain);
    BlockTable own;
    for (size_t i = match.nodes.size(); i < whole; ++i) {
      while (pool_.num_free() == 0) ASSERT_TRUE(cache_.EvictOne());
      ASSERT_TRUE(pool_.Allocate(1, own));
      cache_.Publish(chain, std::span(tokens).subspan(i * kBlock, kBlock), own.back());
    }
    cache_.Release(chain);
    pool_.Release(own);
  }
  size_t Found(const std::string& root, const std::vector<int32_t>& tokens) {
    PrefixCache::Match match;
    cache_.Find(root, tokens, tokens.size() / kBlock, match);
    evicted_ = match.evicted;
    return match.nodes.size();
  }

  BlockPool pool_;
  PrefixCache cache_;
  bool evicted_ = false;
};

TEST_F(PrefixCacheTest, FindsTheLongestFrontOfWholeBlocks) {
  Compute("", {1, 2, 3, 4, 5});
  EXPECT_EQ(Found("", {1, 2, 3, 4, 5, 6}), 2U);
  EXPECT_EQ(Found("", {1, 2, 3, 5}), 1U);
  EXPECT_EQ(Found("", {2, 1}), 0U);
  EXPECT_EQ(Found("", {3, 4}), 0U) << "the same tokens after nothing are another block";
  EXPECT_EQ(cache_.num_blocks(), 2U);
  EXPECT_EQ(pool_.num_free(), 4U);
}

TEST_F(PrefixCacheTest, RootsShareNothing) {
  Compute("a", {1, 2, 3, 4});
  EXPECT_EQ(Found("b", {1, 2, 3, 4}), 0U);
  Compute("b", {1, 2});
  EXPECT_EQ(Found("a", {1, 2, 3, 4}), 2U);
  EXPECT_EQ(Found("b", {1, 2, 3, 4}), 1U);
}

TEST_F(PrefixCacheTest, EvictsTheOldestFromItsEndOn) {
  Compute("", {1, 2, 3, 4, 5, 6});
  Compute("", {7, 8, 9, 10});
  EXPECT_EQ(Found("", {1, 2, 3, 4, 5, 6}), 3U);
  ASSERT_TRUE(cache_.EvictOne());
  EXPECT_EQ(Found("", {1, 2, 3, 4, 5, 6}), 2U);
  EXPECT_TRUE(evicted_);
  EXPECT_EQ(Found("", {1, 2, 5, 5}), 1U);
  EXPECT_FALSE(evicted_);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(cache_.EvictOne());
  EXPECT_FALSE(cache_.EvictOne());
  EXPECT_EQ(pool_.num_free(), 6U);
  EXPECT_EQ(cache_.num_evictions(), 5U);
}

TEST_F(PrefixCacheTest, WhatIsListedIsFollowedAndHeld) {
  Compute("", {1, 2, 3, 4});
  PrefixCache::Match none;
  cache_.Find("", std::vector<int32_t>{}, 0, none);
  CacheChain chain;
  cache_.Hold("", none, chain);
  EXPECT_TRUE(cache_.Follow(chain, std::vector<int32_t>{1, 2}));
  EXPECT_FALSE(cache_.Follow(chain, std::vector<int32_t>{1, 2})) << "not behind itself";
  EXPECT_TRUE(cache_.Follow(chain, std::vector<int32_t>{3, 4}));
  EXPECT_FALSE(cache_.EvictOne()) << "both are held";
  cache_.Release(chain);
  EXPECT_TRUE(cache_.EvictOne());
}

TEST_F(PrefixCacheTest, WhatIsHeldStays) {
  Compute("", {1, 2, 3, 4});
  PrefixCache::Match match;
  const std::vector<int32_t> tokens = {1, 2};
  cache_.Find("", tokens, 1, match);
  CacheChain chain;
  cache_.Hold("", match, chain);
  EXPECT_EQ(cache_.num_idle(), 1U);
  ASSERT_TRUE(cache_.EvictOne());
  EXPECT_FALSE(cache_.EvictOne());
  cache_.Release(chain);
  EXPECT_EQ(cache_.num_holds(), 0U);
  EXPECT_TRUE(cache_.EvictOne());
}

TEST_F(PrefixCacheTest, TheSecondOfTwoEqualBlocksStaysPrivateWhileTheFirstIsInUse) {
  CacheChain first;
  CacheChain second;
  cache_.Hold("", {}, first);
  cache_.Hold("", {}, second);
  BlockTable blocks;
  ASSERT_TRUE(pool_.Allocate(3, blocks));
  const std::vector<int32_t> tokens = {1, 2};
  cache_.Publish(first, tokens, blocks[0]);
  cache_.Publish(second, tokens, blocks[1]);
  EXPECT_TRUE(second.closed);
  EXPECT_TRUE(second.nodes.empty());
  EXPECT_EQ(pool_.references(blocks[0]), 2U);
  EXPECT_EQ(pool_.references(blocks[1]), 1U);
  cache_.Release(second);
  cache_.Release(first);
  EXPECT_EQ(cache_.num_idle(), 1U);
  // Once nobody has the first, the next one takes its place.
  pool_.Release({blocks[0]});
  CacheChain third;
  cache_.Hold("", {}, third);
  cache_.Publish(third, tokens, blocks[2]);
  EXPECT_FALSE(third.closed);
  EXPECT_EQ(third.nodes.size(), 1U);
  EXPECT_EQ(pool_.references(blocks[0]), 0U);
  EXPECT_EQ(pool_.references(blocks[2]), 2U);
  EXPECT_EQ(cache_.num_blocks(), 1U);
}

TEST_F(PrefixCacheTest, TheCheckpointUsedLeastGivesItsSlot) {
  Compute("", {1, 2, 3, 4, 5, 6});
  PrefixCache::Match match;
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6};
  cache_.Find("", tokens, 3, match);
  for (size_t i = 0; i < 2; ++i) {
    const auto slot = cache_.ReserveCheckpoint();
    ASSERT_TRUE(slot);
    EXPECT_EQ(slot->value(), 10 + i);
    cache_.Attach(match.nodes[i], *slot);
  }
  cache_.Touch(match.nodes[0]);
  const auto taken = cache_.ReserveCheckpoint();
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->value(), 11U);
  EXPECT_FALSE(cache_.checkpoint(match.nodes[1]));
  cache_.Attach(match.nodes[2], *taken);
  cache_.Find("", tokens, 3, match);
  EXPECT_EQ(match.with_state, 3U);
  EXPECT_TRUE(cache_.EvictOne()) << "the last block goes with its checkpoint";
  EXPECT_EQ(cache_.num_checkpoints(), 1U);
  EXPECT_EQ(cache_.num_free_checkpoints(), 1U);
}

TEST_F(PrefixCacheTest, NoCheckpointIsTakenFromOneBeingWritten) {
  ASSERT_TRUE(cache_.ReserveCheckpoint());
  ASSERT_TRUE(cache_.ReserveCheckpoint());
  EXPECT_FALSE(cache_.ReserveCheckpoint());
}

// Every block has the same hash.
class CollidingTest : public PrefixCacheTest {
 protected:
  CollidingTest()
      : PrefixCacheTest(+[](uint64_t, std::span<const int32_t>) { return uint64_t{7}; }) {}
};

// rule: P1
TEST_F(CollidingTest, AHashIsNoIdentity) {
  Compute("a", {1, 2, 3, 4});
  Compute("b", {1, 2});
  EXPECT_EQ(Found("a", {1, 2, 3, 4}), 2U);
  EXPECT_EQ(Found("b", {1, 2, 3, 4}), 1U);
  EXPECT_EQ(Found("a", {3, 4}), 0U);
  EXPECT_EQ(Found("a", {1, 2, 1, 2}), 1U);
  EXPECT_EQ(Found("c", {1, 2}), 0U);
}

}  // namespace
}  // namespace skein::scheduler
