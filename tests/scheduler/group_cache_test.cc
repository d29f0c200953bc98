// What a group's plans say of its prefix cache, and what its counters say of hits and misses.
#include <gtest/gtest.h>

#include "tests/scheduler/group_harness.h"

namespace skein::tests {
namespace {

using scheduler::CacheMiss;

std::vector<int32_t> Counting(int32_t count, int32_t from = 0) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(from + i);
  return tokens;
}

class GroupCacheTest : public ::testing::Test {
 protected:
  explicit GroupCacheTest(const HarnessSetup& setup = {.prefix_caching = true,
                                                       .num_checkpoints = 2})
      : harness_(setup) {
    harness_.Start();
  }
  // The first plan of a request that then runs to its end.
  protocol::SequenceStep First(uint64_t id, std::vector<int32_t> prompt,
                               const std::string& root = "") {
    EXPECT_TRUE(harness_.Add(id, std::move(prompt), StopAt(1), 0, {}, root).ok());
    const auto plan = harness_.Plan();
    EXPECT_TRUE(plan);
    EXPECT_TRUE(harness_.Finish());
    return plan->sequences.front();
  }
  uint64_t Missed(CacheMiss reason) const {
    return harness_.engine().counters().cache_misses[static_cast<size_t>(reason)];
  }

  GroupHarness harness_;
};

TEST_F(GroupCacheTest, AHitResumesAtTheCheckpointOfTheLastWholeBlock) {
  const protocol::SequenceStep cold = First(1, Counting(10));
  EXPECT_EQ(cold.tokens.size(), 8U) << "the prefill stops where a checkpoint is left";
  EXPECT_FALSE(cold.restore_from);
  const protocol::SequenceStep hit = First(2, Counting(11));
  EXPECT_EQ(hit.first_position, 8U);
  EXPECT_EQ(hit.shared_length, 8U);
  ASSERT_TRUE(hit.restore_from);
  EXPECT_EQ(hit.restore_from->value(), 4U) << "behind the slots";
  EXPECT_EQ(hit.tokens.size(), 3U);
  EXPECT_EQ(harness_.outcome(1).cached_tokens, 0U);
  EXPECT_EQ(harness_.outcome(2).cached_tokens, 8U);
  EXPECT_EQ(harness_.engine().counters().cache_hits, 8U);
  EXPECT_EQ(harness_.engine().counters().cache_queries, 21U);
}

TEST_F(GroupCacheTest, TheLastTokenIsAlwaysComputed) {
  First(1, Counting(8));
  EXPECT_EQ(First(2, Counting(8)).first_position, 4U);
}

// rule: PC3
TEST_F(GroupCacheTest, BlocksWithoutStateAreSharedAndTheirEndGetsACheckpoint) {
  First(1, Counting(17));
  std::vector<int32_t> branch = Counting(8);
  branch.insert(branch.end(), {40, 41, 42, 43, 44});
  const protocol::SequenceStep missing = First(2, branch);
  EXPECT_EQ(missing.first_position, 0U);
  EXPECT_EQ(missing.shared_length, 8U);
  EXPECT_EQ(missing.tokens.size(), 8U);
  EXPECT_EQ(Missed(CacheMiss::kStateMissing), 8U);
  branch[9] = 7;
  EXPECT_EQ(First(3, branch).first_position, 8U);
}

TEST_F(GroupCacheTest, MissesHaveReasons) {
  First(1, Counting(10));
  EXPECT_EQ(Missed(CacheMiss::kCold), 8U);
  EXPECT_EQ(Missed(CacheMiss::kAlignment), 2U);
  First(2, Counting(10), "other");
  EXPECT_EQ(Missed(CacheMiss::kCold), 16U) << "roots share nothing";
  for (uint64_t id = 3; id < 10; ++id) First(id, Counting(40, static_cast<int32_t>(id) * 50));
  const uint64_t cold = Missed(CacheMiss::kCold);
  First(40, Counting(10));
  EXPECT_EQ(Missed(CacheMiss::kEvicted), 8U);
  EXPECT_EQ(Missed(CacheMiss::kCold), cold);
  EXPECT_GT(harness_.engine().counters().cache_evictions, 0U);
}

TEST_F(GroupCacheTest, NothingOutlivesTheEpoch) {
  First(1, Counting(10));
  harness_.Abort();
  harness_.Start(2);
  EXPECT_EQ(First(2, Counting(10)).first_position, 0U);
}

class FullPoolTest : public GroupCacheTest {
 protected:
  FullPoolTest()
      : GroupCacheTest({.num_blocks = 8, .prefix_caching = true, .num_checkpoints = 2}) {}
};

TEST_F(FullPoolTest, ANewcomerNeedsRoomOnlyForWhatNobodyUses) {
  ASSERT_TRUE(harness_.Add(1, Counting(24), StopAt(8)).ok());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(harness_.Plan());
    ASSERT_TRUE(harness_.Deliver().ok());
  }
  EXPECT_LT(harness_.engine().num_free_blocks(), 6U);
  ASSERT_TRUE(harness_.Add(2, Counting(25), StopAt(1)).ok());
  const auto plan = harness_.Plan();
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->sequences.size(), 2U);
  EXPECT_TRUE(harness_.Finish());
}

class RecomputeTest : public GroupCacheTest {
 protected:
  RecomputeTest() : GroupCacheTest({.prefix_caching = true, .recompute_tokens = 5}) {}
};

TEST_F(RecomputeTest, AHitWithoutCheckpointResumesBeforeWhatItShares) {
  First(1, Counting(20));
  const protocol::SequenceStep hit = First(2, Counting(20));
  EXPECT_EQ(hit.shared_length, 16U);
  EXPECT_EQ(hit.first_position, 8U) << "two whole blocks hold the five tokens";
  EXPECT_FALSE(hit.restore_from);
  EXPECT_EQ(harness_.outcome(2).cached_tokens, 8U);
}

// Its geometry has none of the fields.
class WorkerBeforeTest : public GroupCacheTest {
 protected:
  WorkerBeforeTest() : GroupCacheTest({.prefix_caching = true}) {}
};

TEST_F(WorkerBeforeTest, AWorkerThatCannotResumeIsSentNothingShared) {
  First(1, Counting(10));
  const protocol::SequenceStep again = First(2, Counting(10));
  EXPECT_EQ(again.shared_length, 0U);
  EXPECT_EQ(again.tokens.size(), 10U);
  EXPECT_EQ(harness_.engine().prefix_cache(), nullptr);
}

class WithoutCacheTest : public GroupCacheTest {
 protected:
  WithoutCacheTest() : GroupCacheTest({.num_checkpoints = 2}) {}
};

TEST_F(WithoutCacheTest, NothingIsSharedAndNothingStops) {
  EXPECT_EQ(First(1, Counting(10)).tokens.size(), 10U);
  EXPECT_EQ(First(2, Counting(10)).first_position, 0U);
  EXPECT_EQ(harness_.engine().counters().cache_queries, 0U);
}

}  // namespace
}  // namespace skein::tests
