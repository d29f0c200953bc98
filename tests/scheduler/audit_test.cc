// Leaks that are planted in a running group are found by the sums that follow each step and by the
// next audit, and nothing is found without them.
#include "scheduler/audit.h"

#include <gtest/gtest.h>

#include "tests/scheduler/group_harness.h"

namespace skein::tests {
namespace {

using scheduler::AuditFindings;

class AuditTest : public ::testing::Test {
 protected:
  AuditTest() : harness_({.prefix_caching = true, .num_checkpoints = 2}) {
    harness_.Start();
    EXPECT_TRUE(harness_.Add(1, {1, 2, 3, 4, 5, 6, 7, 8, 9}, StopAt(20)).ok());
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(harness_.Plan());
      EXPECT_TRUE(harness_.Deliver().ok());
    }
    EXPECT_EQ(Audit(), AuditFindings{});
    EXPECT_TRUE(SumsAgree());
  }

  AuditFindings Audit() { return scheduler::AuditBlocks(harness_.engine()); }
  bool SumsAgree() { return scheduler::SumsAgree(harness_.engine()); }
  // What a defect would reach; the interface gives no such way.
  scheduler::BlockPool& pool() {
    return const_cast<scheduler::BlockPool&>(*harness_.engine().block_pool());
  }
  scheduler::PrefixCache& cache() {
    return const_cast<scheduler::PrefixCache&>(*harness_.engine().prefix_cache());
  }
  scheduler::Sequence& sequence() { return *harness_.engine().running(0).front(); }

  GroupHarness harness_;
};

TEST_F(AuditTest, ABlockFreedBeforeItsSequenceEnds) {
  pool().Release({sequence().blocks.back()});
  EXPECT_FALSE(SumsAgree());
  EXPECT_EQ(Audit(), (AuditFindings{0, 1}));
}

TEST_F(AuditTest, ABlockPublishedTwice) {
  scheduler::CacheChain chain;
  cache().Hold("other", {}, chain);
  const std::vector<int32_t> tokens = {9, 9, 9, 9};
  cache().Publish(chain, tokens, sequence().blocks.front());
  EXPECT_FALSE(SumsAgree());
  EXPECT_EQ(Audit(), (AuditFindings{0, 1}));
}

TEST_F(AuditTest, AReferenceThatIsLost) {
  sequence().blocks.pop_back();
  EXPECT_FALSE(SumsAgree());
  EXPECT_EQ(Audit(), (AuditFindings{1, 0}));
}

TEST_F(AuditTest, ABlockThatNobodyKnows) {
  scheduler::BlockTable lost;
  ASSERT_TRUE(pool().Allocate(2, lost));
  EXPECT_FALSE(SumsAgree());
  EXPECT_EQ(Audit(), (AuditFindings{2, 0}));
}

TEST_F(AuditTest, ACheckpointThatNobodyHas) {
  ASSERT_TRUE(cache().ReserveCheckpoint());
  EXPECT_FALSE(SumsAgree());
  EXPECT_EQ(Audit(), (AuditFindings{1, 0}));
}

// Mistakes that cancel out in the sums are found all the same.
TEST_F(AuditTest, AReferenceThatIsLostBesideOneTooMany) {
  scheduler::BlockTable& blocks = sequence().blocks;
  ASSERT_GE(blocks.size(), 2U);
  pool().AddReference(blocks.front());
  pool().Release({blocks.back()});
  EXPECT_EQ(Audit(), (AuditFindings{1, 1}));
}

}  // namespace
}  // namespace skein::tests
