// What an engine lends stays as it is, and what is to come has no other use, however much the cache
// is wanted meanwhile.
#include <gtest/gtest.h>

#include "tests/scheduler/group_harness.h"

namespace skein::tests {
namespace {

using protocol::TransferId;
using scheduler::Expectation;

HarnessSetup Small() {
  HarnessSetup setup;
  setup.prefix_caching = true;
  setup.moves_blocks = true;
  setup.num_blocks = 8;
  setup.num_checkpoints = 1;
  setup.max_model_len = 32;
  return setup;
}

// An engine of its own that has computed 12 tokens of a sequence and their state.
struct LendingEngine {
  LendingEngine() {
    harness.Start();
    EXPECT_TRUE(harness.AddSimple(1, 14, 2).ok());
    EXPECT_TRUE(harness.Finish());
    sequence.prompt_length = 14;
    for (int32_t i = 0; i < 14; ++i) sequence.tokens.push_back(100 + i);
  }
  scheduler::GroupScheduler& engine() {
    return const_cast<scheduler::GroupScheduler&>(harness.engine());
  }
  GroupHarness harness{Small()};
  scheduler::Sequence sequence;  // the same tokens
};

TEST(GroupMovesTest, WhatIsLentOutlivesEveryWantOfTheCache) {
  LendingEngine lender;
  ASSERT_EQ(lender.engine().Lendable(lender.sequence), 12U);
  const scheduler::Loan loan = lender.engine().Lend(TransferId(7), lender.sequence);
  EXPECT_EQ(loan.blocks.size(), 3U);
  // Others want all blocks and the one checkpoint.
  ASSERT_TRUE(lender.harness.AddSimple(2, 16, 3).ok());
  EXPECT_TRUE(lender.harness.Finish());
  EXPECT_EQ(lender.harness.outcome(2).tokens, lender.harness.Alone(2, 16, 3));
  EXPECT_EQ(lender.engine().Lendable(lender.sequence), 12U) << "it is all there";
  EXPECT_EQ(lender.engine().num_free_blocks(), 5U);
  lender.engine().EndLoan(TransferId(7));
  EXPECT_EQ(lender.engine().num_free_blocks(), 8U);
  lender.engine().EndLoan(TransferId(7));  // unknown now
  ASSERT_TRUE(lender.harness.AddSimple(3, 25, 3).ok());
  EXPECT_TRUE(lender.harness.Finish());
  EXPECT_EQ(lender.engine().Lendable(lender.sequence), 0U) << "it was evicted";
}

TEST(GroupMovesTest, PlacesOfAnArrivalAreKeptAndGivenBack) {
  GroupHarness harness(Small());
  harness.Start();
  auto& engine = const_cast<scheduler::GroupScheduler&>(harness.engine());
  scheduler::Sequence sequence;
  for (int32_t i = 0; i < 14; ++i) sequence.tokens.push_back(100 + i);
  EXPECT_EQ(engine.Expect(TransferId(1), sequence, 12), Expectation::kComes);
  EXPECT_EQ(engine.num_free_blocks(), 5U);
  EXPECT_EQ(engine.arrivals().at(TransferId(1)).blocks.size(), 3U);
  EXPECT_EQ(engine.Expect(TransferId(2), sequence, 12), Expectation::kNoRoom)
      << "there is one checkpoint";
  engine.EndArrival(TransferId(1), false);
  EXPECT_EQ(engine.num_free_blocks(), 8U);
  EXPECT_EQ(engine.Lendable(sequence), 0U);
  EXPECT_EQ(engine.Expect(TransferId(3), sequence, 12), Expectation::kComes);
  engine.EndArrival(TransferId(3), true);
  EXPECT_EQ(engine.Lendable(sequence), 12U);
  EXPECT_EQ(engine.num_free_blocks(), 8U) << "idle";
  EXPECT_EQ(engine.Expect(TransferId(4), sequence, 12), Expectation::kHere);
  sequence.tokens.resize(40, 9);
  EXPECT_EQ(engine.Expect(TransferId(5), sequence, 36), Expectation::kNoRoom);
  EXPECT_EQ(engine.num_free_blocks(), 8U);
  EXPECT_EQ(engine.Lendable(sequence), 12U) << "nothing was evicted for it";
}

TEST(GroupMovesTest, WithoutACheckpointNoBlockIsEvicted) {
  LendingEngine lender;
  auto& engine = lender.engine();
  lender.engine().Lend(TransferId(1), lender.sequence);  // pins the one checkpoint
  // Two blocks that are idle, and six tokens beyond what is free.
  ASSERT_TRUE(lender.harness.AddSimple(2, 9, 1).ok());
  EXPECT_TRUE(lender.harness.Finish());
  const uint64_t evictions = engine.counters().cache_evictions;
  scheduler::Sequence other;
  for (int32_t i = 0; i < 22; ++i) other.tokens.push_back(900 + i);
  EXPECT_EQ(engine.Expect(TransferId(2), other, 20), Expectation::kNoRoom);
  EXPECT_EQ(engine.counters().cache_evictions, evictions);
}

// A transfer's bytes and the plans of a worker come in no order.
TEST(GroupMovesTest, TheCheckpointThatAStepBeginsWithIsNotWrittenByATransfer) {
  LendingEngine lender;
  auto& engine = lender.engine();
  ASSERT_TRUE(lender.harness.Add(2, lender.sequence.tokens, StopAt(3)).ok());
  const std::optional<protocol::StepPlan> plan = lender.harness.Plan();
  ASSERT_TRUE(plan && plan->sequences[0].restore_from);
  scheduler::Sequence other;
  for (int32_t i = 0; i < 14; ++i) other.tokens.push_back(900 + i);
  EXPECT_EQ(engine.Expect(TransferId(1), other, 12), Expectation::kNoRoom) << "it is in use";
  ASSERT_TRUE(lender.harness.Deliver().ok());
  ASSERT_EQ(engine.Expect(TransferId(1), other, 12), Expectation::kComes);
  EXPECT_EQ(engine.arrivals().at(TransferId(1)).checkpoint, *plan->sequences[0].restore_from);
}

// Two that begin alike and come at a time: the second keeps what only it has, and the state.
TEST(GroupMovesTest, ArrivalsThatBeginAlikeAreBothKept) {
  HarnessSetup setup = Small();
  setup.num_blocks = 12;
  setup.num_checkpoints = 2;
  GroupHarness harness(setup);
  harness.Start();
  auto& engine = const_cast<scheduler::GroupScheduler&>(harness.engine());
  scheduler::Sequence first, second;
  for (int32_t i = 0; i < 14; ++i) first.tokens.push_back(100 + i);
  second.tokens = first.tokens;
  second.tokens.resize(8);
  for (int32_t i = 0; i < 14; ++i) second.tokens.push_back(200 + i);
  ASSERT_EQ(engine.Expect(TransferId(1), first, 12), Expectation::kComes);
  ASSERT_EQ(engine.Expect(TransferId(2), second, 20), Expectation::kComes);
  EXPECT_EQ(engine.num_free_blocks(), 4U);
  engine.EndArrival(TransferId(1), true);
  // Somebody uses what came first when the second one comes.
  engine.Lend(TransferId(3), first);
  engine.EndArrival(TransferId(2), true);
  EXPECT_EQ(engine.Lendable(second), 20U);
  EXPECT_EQ(engine.Lendable(first), 12U);
  engine.EndLoan(TransferId(3));
  EXPECT_EQ(engine.num_free_blocks(), 12U);
  EXPECT_EQ(engine.prefix_cache()->num_blocks(), 6U) << "what both begin with is listed once";
}

}  // namespace
}  // namespace skein::tests
