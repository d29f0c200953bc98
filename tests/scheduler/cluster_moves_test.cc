// Sequences that move with their cache: out of groups that are emptied, and from groups that
// compute prompts to those that decode. Whatever becomes of a transfer, the answer is that of
// decoding alone, and nothing that was lent or is to come has another use meanwhile: the harness
// checks every invariant and the audit after each call.
#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "tests/scheduler/group_harness.h"

namespace skein::tests {
namespace {

using scheduler::MoveCause;
using scheduler::MoveResult;

HarnessSetup Moving(uint32_t groups, uint32_t prefill_groups) {
  HarnessSetup setup;
  setup.groups = groups;
  setup.prefix_caching = true;
  setup.moves_blocks = true;
  setup.prefill_groups = prefill_groups;
  setup.num_checkpoints = 4;
  return setup;
}

uint64_t CountOf(GroupHarness& harness, MoveCause cause, MoveResult result) {
  return harness.scheduler()
      .move_counters()[static_cast<size_t>(cause)][static_cast<size_t>(result)];
}

// One step of every group.
void StepAll(GroupHarness& harness, uint32_t groups) {
  for (uint32_t group = 0; group < groups; ++group) {
    if (harness.waiting(0, group)) {
      ASSERT_TRUE(harness.Deliver(0, group).ok());
    }
  }
  for (uint32_t group = 0; group < groups; ++group) harness.Plan(0, group);
}
// The steps in flight end.
void DeliverAll(GroupHarness& harness, uint32_t groups) {
  for (uint32_t group = 0; group < groups; ++group) {
    if (harness.waiting(0, group)) {
      ASSERT_TRUE(harness.Deliver(0, group).ok());
    }
  }
}

TEST(ClusterMovesTest, AGroupThatIsEmptiedGivesItsSequencesWithTheirCache) {
  GroupHarness harness(Moving(2, 0));
  harness.Start(1, 0);
  ASSERT_TRUE(harness.AddSimple(1, 14, 20).ok());
  for (int i = 0; i < 6; ++i) StepAll(harness, 1);
  DeliverAll(harness, 1);
  harness.Start(2, 1);
  harness.scheduler().Cordon(protocol::GroupId(0));
  harness.scheduler().Evict(protocol::GroupId(0));
  EXPECT_EQ(harness.scheduler().num_running(protocol::GroupId(0)), 1U) << "until moves are planned";
  const auto orders = harness.PlanMoves();
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders[0].from, 0U);
  EXPECT_EQ(orders[0].to, 1U);
  EXPECT_GE(orders[0].position, 12U) << "the last block of the prompt, or a later one";
  EXPECT_EQ(orders[0].position, orders[0].lent.size() * 4);
  EXPECT_EQ(orders[0].lent.size(), orders[0].wanted.size());
  EXPECT_EQ(harness.scheduler().num_running(), 0U);
  EXPECT_EQ(harness.scheduler().num_moving_from(protocol::GroupId(0)), 1U);
  EXPECT_FALSE(harness.Plan(0, 1).has_value()) << "it waits for its blocks";
  harness.EndMove();
  const auto plan = harness.Plan(0, 1);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->sequences[0].first_position, orders[0].position);
  EXPECT_TRUE(plan->sequences[0].restore_from.has_value());
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 14, 20));
  EXPECT_EQ(CountOf(harness, MoveCause::kDrain, MoveResult::kMoved), 1U);
}

// Who would have to compute all again waits for a group that is suspect at the moment.
TEST(ClusterMovesTest, AGroupThatIsEmptiedWaitsForATargetThatComesBack) {
  GroupHarness harness(Moving(2, 0));
  harness.Start(1, 0);
  ASSERT_TRUE(harness.AddSimple(1, 14, 20).ok());
  for (int i = 0; i < 6; ++i) StepAll(harness, 1);
  DeliverAll(harness, 1);
  harness.Start(2, 1);
  harness.scheduler().Cordon(protocol::GroupId(0));
  harness.scheduler().Evict(protocol::GroupId(0));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(harness.PlanMoves(scheduler::MoveAnswer::kLater).empty());
    EXPECT_EQ(harness.scheduler().num_running(protocol::GroupId(0)), 1U);
  }
  EXPECT_EQ(CountOf(harness, MoveCause::kDrain, MoveResult::kReplayed), 0U);
  ASSERT_EQ(harness.PlanMoves().size(), 1U);
  harness.EndMove();
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 14, 20));
  EXPECT_EQ(CountOf(harness, MoveCause::kDrain, MoveResult::kMoved), 1U);
}

TEST(ClusterMovesTest, ALostTransferMeansPrefill) {
  GroupHarness harness(Moving(2, 0));
  harness.Start(1, 0);
  ASSERT_TRUE(harness.AddSimple(1, 14, 20).ok());
  for (int i = 0; i < 6; ++i) StepAll(harness, 1);
  DeliverAll(harness, 1);
  harness.Start(2, 1);
  const uint32_t free = harness.engine(1).num_free_blocks();
  harness.scheduler().Cordon(protocol::GroupId(0));
  harness.scheduler().Evict(protocol::GroupId(0));
  ASSERT_EQ(harness.PlanMoves().size(), 1U);
  EXPECT_LT(harness.engine(1).num_free_blocks(), free) << "their places are kept";
  harness.EndMove(false);
  EXPECT_EQ(harness.engine(1).num_free_blocks(), free);
  const auto plan = harness.Plan(0, 1);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->sequences[0].first_position, 0U);
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 14, 20));
  EXPECT_EQ(CountOf(harness, MoveCause::kDrain, MoveResult::kReplayed), 1U);
}

TEST(ClusterMovesTest, WithoutAPlaceOrACacheWhatIsEmptiedIsComputedAgain) {
  GroupHarness harness(Moving(2, 0));
  harness.Start(1, 0);
  ASSERT_TRUE(harness.AddSimple(1, 3, 2).ok());   // less than a block
  ASSERT_TRUE(harness.AddSimple(2, 14, 8).ok());  // and nobody may take it
  for (int i = 0; i < 2; ++i) StepAll(harness, 1);
  DeliverAll(harness, 1);
  harness.scheduler().Evict(protocol::GroupId(0));
  EXPECT_TRUE(harness.PlanMoves().empty()) << "there is no other group";
  EXPECT_EQ(harness.scheduler().num_running(), 0U);
  harness.Start(2, 1);
  harness.scheduler().Cordon(protocol::GroupId(0));
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(2).tokens, harness.Alone(2, 14, 8));
}

TEST(ClusterMovesTest, PromptsAreComputedInOneGroupAndAnswersInTheOther) {
  GroupHarness harness(Moving(2, 1));
  harness.Start(1, 0);
  harness.Start(2, 1);
  ASSERT_TRUE(harness.AddSimple(1, 14, 20).ok());
  ASSERT_TRUE(harness.AddSimple(2, 4, 5).ok());  // no whole block before its last token
  StepAll(harness, 2);
  EXPECT_EQ(harness.engine(0).num_running(), 1U);
  EXPECT_EQ(harness.engine(1).num_running(), 1U) << "nothing of it is worth handing over";
  DeliverAll(harness, 2);
  EXPECT_TRUE(harness.PlanMoves().empty()) << "the prompt is not computed";
  StepAll(harness, 2);
  DeliverAll(harness, 2);
  ASSERT_EQ(harness.outcome(1).tokens.size(), 1U);
  const auto orders = harness.PlanMoves();
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders[0].position, 12U);
  harness.EndMove();
  StepAll(harness, 2);
  EXPECT_EQ(harness.engine(0).num_running(), 0U);
  EXPECT_EQ(harness.engine(1).num_running(), 2U);
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 14, 20));
  EXPECT_EQ(harness.outcome(2).tokens, harness.Alone(2, 4, 5));
  EXPECT_EQ(CountOf(harness, MoveCause::kHandOver, MoveResult::kMoved), 1U);
  // The same prompt again: what the other group has need not cross.
  ASSERT_TRUE(harness
                  .Add(
                      3,
                      [] {
                        std::vector<int32_t> tokens;
                        for (int i = 0; i < 14; ++i) tokens.push_back(100 + i);
                        return tokens;
                      }(),
                      StopAt(5))
                  .ok());
  StepAll(harness, 2);
  DeliverAll(harness, 2);
  EXPECT_TRUE(harness.PlanMoves().empty());
  EXPECT_EQ(CountOf(harness, MoveCause::kHandOver, MoveResult::kMoved), 2U);
  EXPECT_TRUE(harness.Finish());
}

TEST(ClusterMovesTest, AFailedHandOverIsComputedWhereItWasToGo) {
  GroupHarness harness(Moving(2, 1));
  harness.Start(1, 0);
  harness.Start(2, 1);
  ASSERT_TRUE(harness.AddSimple(1, 14, 20).ok());
  for (int i = 0; i < 2; ++i) StepAll(harness, 2);
  DeliverAll(harness, 2);
  ASSERT_EQ(harness.PlanMoves().size(), 1U);
  harness.EndMove(false);
  StepAll(harness, 2);
  EXPECT_EQ(harness.engine(1).num_running(), 1U);
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 14, 20));
  EXPECT_EQ(CountOf(harness, MoveCause::kHandOver, MoveResult::kReplayed), 1U);
}

TEST(ClusterMovesTest, AGroupAloneDoesBothParts) {
  for (const uint32_t alone : {0U, 1U}) {
    GroupHarness harness(Moving(2, 1));
    harness.Start(1, alone);
    ASSERT_TRUE(harness.AddSimple(1, 14, 20).ok());
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(harness.PlanMoves().empty());
      if (harness.waiting(0, alone)) {
        ASSERT_TRUE(harness.Deliver(0, alone).ok());
      }
      harness.Plan(0, alone);
    }
    EXPECT_EQ(harness.engine(alone).num_running(), 1U);
    EXPECT_TRUE(harness.Finish());
    EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 14, 20));
  }
}

TEST(ClusterMovesTest, WhoWaitsForATransferMayBeCancelledOrLoseEitherSide) {
  for (const int what : {0, 1, 2, 3}) {
    GroupHarness harness(Moving(3, 1));
    for (uint32_t group = 0; group < 3; ++group) harness.Start(group + 1, group);
    ASSERT_TRUE(harness.AddSimple(1, 14, 20).ok());
    for (int i = 0; i < 2; ++i) StepAll(harness, 3);
    DeliverAll(harness, 3);
    ASSERT_EQ(harness.PlanMoves().size(), 1U);
    if (what == 0) {
      EXPECT_TRUE(harness.Cancel(1));
    }
    if (what == 1) harness.Abort(0);
    if (what == 2) harness.Abort(1);
    if (what == 3) harness.scheduler().Cordon(protocol::GroupId(1));
    if (what > 0) {
      StepAll(harness, 3);
      EXPECT_EQ(harness.engine(1).num_running() + harness.engine(2).num_running(), 1U)
          << "it waits no more: " << what;
    }
    harness.EndMove(what != 1);
    EXPECT_TRUE(harness.Finish());
    if (what > 0) {
      EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 14, 20)) << what;
    }
  }
}

// The state at the end of a prompt found no place: it is decoded where it is until there is one.
TEST(ClusterMovesTest, WhatWouldBeComputedAgainIsNotHandedOver) {
  HarnessSetup setup = Moving(2, 1);
  setup.num_checkpoints = 1;
  GroupHarness harness(setup);
  harness.Start(1, 0);
  harness.Start(2, 1);
  std::vector<int32_t> prompt;
  for (int i = 0; i < 6; ++i) prompt.push_back(100 + i);
  ASSERT_TRUE(harness.Add(1, prompt, StopAt(12)).ok());
  for (int i = 0; i < 2; ++i) StepAll(harness, 2);
  DeliverAll(harness, 2);
  ASSERT_EQ(harness.PlanMoves().size(), 1U);
  EXPECT_EQ(harness.PlanMoves()[0].position, 4U);
  // Its transfer has the one checkpoint, which another prompt begins with.
  for (int i = 0; i < 10; ++i) prompt.push_back(200 + i);
  ASSERT_TRUE(harness.Add(2, prompt, StopAt(30)).ok());
  for (int i = 0; i < 3; ++i) StepAll(harness, 2);
  DeliverAll(harness, 2);
  ASSERT_FALSE(harness.outcome(2).tokens.empty());
  EXPECT_EQ(harness.PlanMoves().size(), 1U) << "eleven tokens of its prompt have no state";
  EXPECT_EQ(harness.engine(0).num_running(), 1U);
  harness.EndMove();
  for (int i = 0; i < 12 && harness.PlanMoves().empty(); ++i) {
    StepAll(harness, 2);
    DeliverAll(harness, 2);
  }
  ASSERT_EQ(harness.PlanMoves().size(), 1U) << "now there is a checkpoint";
  EXPECT_GE(harness.PlanMoves()[0].position, 16U);
  harness.EndMove();
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(2).tokens, DecodeAlone(prompt, StopAt(30), harness.max_model_len()));
}

// Before its last token is computed a prompt of whole blocks and one has no state at their end.
TEST(ClusterMovesTest, APromptOfWholeBlocksAndATokenIsHandedOverWithItsFirstToken) {
  GroupHarness harness(Moving(2, 1));
  harness.Start(1, 0);
  harness.Start(2, 1);
  ASSERT_TRUE(harness.AddSimple(1, 13, 20).ok());
  StepAll(harness, 2);
  DeliverAll(harness, 2);
  EXPECT_TRUE(harness.PlanMoves().empty());
  StepAll(harness, 2);
  DeliverAll(harness, 2);
  ASSERT_EQ(harness.outcome(1).tokens.size(), 1U);
  ASSERT_EQ(harness.PlanMoves().size(), 1U);
  EXPECT_EQ(harness.PlanMoves()[0].position, 12U);
  harness.EndMove();
  EXPECT_TRUE(harness.Finish());
}

TEST(ClusterMovesTest, AHalfComputedPromptIsDrainedToAGroupThatComputesPrompts) {
  HarnessSetup setup = Moving(3, 2);
  setup.budget = 8;
  GroupHarness harness(setup);
  for (uint32_t group = 0; group < 3; ++group) harness.Start(group + 1, group);
  // What the cache has of it was computed by one before.
  std::vector<int32_t> prompt;
  for (int i = 0; i < 9; ++i) prompt.push_back(100 + i);
  ASSERT_TRUE(harness.Add(1, prompt, StopAt(1)).ok());
  EXPECT_TRUE(harness.Finish());
  for (int i = 0; i < 31; ++i) prompt.push_back(200 + i);
  ASSERT_TRUE(harness.Add(2, prompt, StopAt(8)).ok());
  StepAll(harness, 3);
  DeliverAll(harness, 3);
  ASSERT_EQ(harness.engine(0).num_running(), 1U);
  ASSERT_TRUE(harness.outcome(2).tokens.empty());
  harness.scheduler().Cordon(protocol::GroupId(0));
  harness.scheduler().Evict(protocol::GroupId(0));
  const auto orders = harness.PlanMoves();
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders[0].to, 1U) << "most of its prompt is still to be computed";
  harness.EndMove();
  StepAll(harness, 3);
  EXPECT_EQ(harness.engine(1).num_running(), 1U);
  for (int i = 0; i < 20 && harness.PlanMoves().empty(); ++i) {
    StepAll(harness, 3);
    DeliverAll(harness, 3);
  }
  ASSERT_EQ(harness.PlanMoves().size(), 1U);
  EXPECT_EQ(harness.PlanMoves()[0].to, 2U) << "its answer belongs to those that decode";
  harness.EndMove();
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(2).tokens, DecodeAlone(prompt, StopAt(8), harness.max_model_len()));
}

// Tokens are looked up when there is a place for them, and not in every round.
TEST(ClusterMovesTest, RoundsWithoutAPlaceLookAtNoToken) {
  static uint64_t hashed;
  HarnessSetup setup = Moving(2, 1);
  setup.max_num_seqs = 2;
  setup.hash = [](uint64_t parent, std::span<const int32_t> tokens) {
    ++hashed;
    return scheduler::HashTokens(parent, tokens);
  };
  GroupHarness harness(setup);
  harness.Start(1, 0);
  harness.Start(2, 1);
  // Both slots of the group that decodes are taken.
  ASSERT_TRUE(harness.AddSimple(1, 3, 40).ok());
  ASSERT_TRUE(harness.AddSimple(2, 3, 40).ok());
  ASSERT_TRUE(harness.AddSimple(3, 14, 20).ok());
  for (int i = 0; i < 2; ++i) StepAll(harness, 2);
  DeliverAll(harness, 2);
  ASSERT_EQ(harness.engine(1).num_running(), 2U);
  ASSERT_FALSE(harness.outcome(3).tokens.empty());
  hashed = 0;
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(harness.PlanMoves().empty());
  EXPECT_EQ(hashed, 0U);
  EXPECT_TRUE(harness.Finish());
}

// The other group has no room for the state: asked once, and again behind the next block end.
TEST(ClusterMovesTest, ARoundThatFoundNoRoomIsNotRepeatedForEveryToken) {
  static uint64_t hashed;
  HarnessSetup setup = Moving(2, 1);
  setup.num_checkpoints = 1;
  setup.hash = [](uint64_t parent, std::span<const int32_t> tokens) {
    ++hashed;
    return scheduler::HashTokens(parent, tokens);
  };
  GroupHarness harness(setup);
  harness.Start(1, 0);
  harness.Start(2, 1);
  ASSERT_TRUE(harness.AddSimple(1, 6, 30).ok());
  ASSERT_TRUE(harness.AddSimple(2, 6, 30).ok());
  for (int i = 0; i < 3; ++i) StepAll(harness, 2);
  DeliverAll(harness, 2);
  ASSERT_EQ(harness.PlanMoves().size(), 1U) << "the other one finds no checkpoint there";
  ASSERT_EQ(harness.engine(0).num_running(), 1U);
  hashed = 0;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(harness.PlanMoves().size(), 1U);
  EXPECT_EQ(hashed, 0U);
  harness.EndMove();
  EXPECT_TRUE(harness.Finish());
}

// Loans whose fetch was refused end late. A group that is emptied waits for transfers that are
// under way, and not for those.
TEST(ClusterMovesTest, LoansThatNobodyTakesDoNotStopADrain) {
  HarnessSetup setup = Moving(2, 0);
  setup.max_num_seqs = setup.num_checkpoints = 12;
  GroupHarness harness(setup);
  harness.Start(1, 0);
  for (uint64_t id = 1; id <= 8; ++id) ASSERT_TRUE(harness.AddSimple(id, 14, 20).ok());
  for (int i = 0; i < 6; ++i) StepAll(harness, 1);
  DeliverAll(harness, 1);
  harness.Start(2, 1);
  harness.scheduler().Cordon(protocol::GroupId(0));
  harness.scheduler().Evict(protocol::GroupId(0));
  const std::vector<scheduler::MoveOrder> orders = harness.PlanMoves();
  ASSERT_EQ(orders.size(), scheduler::kLoansMax);
  for (const scheduler::MoveOrder& order : orders) {
    EXPECT_EQ(harness.scheduler().num_running(protocol::GroupId(0)), 2U) << "they wait for others";
    harness.scheduler().EndArrival(order.to, order.transfer, false);
    EXPECT_EQ(harness.PlanMoves().size(), scheduler::kLoansMax) << "nothing new";
  }
  EXPECT_EQ(harness.engine(0).loans().size(), scheduler::kLoansMax);
  EXPECT_EQ(harness.scheduler().num_running(protocol::GroupId(0)), 0U);
  EXPECT_EQ(CountOf(harness, MoveCause::kDrain, MoveResult::kReplayed), 8U);
  EXPECT_TRUE(harness.Finish());
  for (uint64_t id = 1; id <= 8; ++id) {
    EXPECT_EQ(harness.outcome(id).tokens, harness.Alone(id, 14, 20)) << id;
  }
  for (size_t i = 0; i < orders.size(); ++i) harness.EndMove(false);
  EXPECT_TRUE(harness.engine(0).loans().empty());
}

TEST(ClusterMovesTest, ATransferThatTakesTooLongKeepsItsPlacesUntilItEnds) {
  GroupHarness harness(Moving(2, 1));
  harness.Start(1, 0);
  harness.Start(2, 1);
  ASSERT_TRUE(harness.AddSimple(1, 14, 6).ok());
  for (int i = 0; i < 2; ++i) StepAll(harness, 2);
  DeliverAll(harness, 2);
  ASSERT_EQ(harness.PlanMoves().size(), 1U);
  harness.scheduler().GiveUpMove(protocol::TransferId(1));
  EXPECT_TRUE(harness.Finish()) << "it is computed again";
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 14, 6));
  EXPECT_EQ(harness.engine(0).loans().size(), 1U);
  EXPECT_EQ(harness.engine(1).arrivals().size(), 1U);
  harness.EndMove();
  EXPECT_TRUE(harness.engine(0).loans().empty());
  EXPECT_TRUE(harness.engine(1).arrivals().empty());
}

// Small caches, random requests, moves that arrive, are lost, given up or outlived by nobody.
TEST(ClusterMovesTest, RandomMovesKeepEveryAccountAndEveryAnswer) {
  uint64_t moved = 0, replayed = 0;
  for (uint32_t seed = 1; seed <= 150; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    HarnessSetup setup = Moving(2 + below(2), below(2));
    setup.num_blocks = 12 + below(20);
    setup.num_checkpoints = 1 + below(4);
    setup.max_model_len = 40;
    setup.budget = 4 + below(30);
    setup.lanes = 1 + below(2);
    GroupHarness harness(setup);
    for (uint32_t group = 0; group < setup.groups; ++group) harness.Start(group + 1, group);
    uint64_t epoch = 10;
    std::map<uint64_t, std::pair<size_t, int32_t>> asked;
    for (uint64_t step = 0; step < 160; ++step) {
      if (below(6) == 0 && asked.size() < 12) {
        const uint64_t id = asked.size() + 1;
        asked[id] = {1 + below(20), static_cast<int32_t>(1 + below(12))};
        ASSERT_TRUE(harness.AddSimple(id, asked[id].first, asked[id].second).ok());
      }
      const uint32_t group = below(setup.groups);
      const uint32_t what = below(40);
      if (what == 0) harness.scheduler().Evict(protocol::GroupId(group));
      if (what == 0) harness.scheduler().Cordon(protocol::GroupId(group));
      if (what <= 3) harness.scheduler().Uncordon(protocol::GroupId((group + 1) % setup.groups));
      if (what == 4) {
        harness.Abort(group);
        harness.Start(++epoch, group);
      }
      for (uint32_t lane = 0; lane < setup.lanes; ++lane) {
        if (harness.waiting(lane, group)) {
          ASSERT_TRUE(harness.Deliver(lane, group).ok());
        }
      }
      const auto& orders = harness.PlanMoves(below(10) > 0 ? scheduler::MoveAnswer::kYes
                                                           : scheduler::MoveAnswer::kNo);
      if (!orders.empty() && below(8) == 0) harness.scheduler().GiveUpMove(orders[0].transfer);
      if (!orders.empty() && below(3) == 0) harness.EndMove(below(3) > 0 && what != 4);
      for (uint32_t lane = 0; lane < setup.lanes; ++lane) harness.Plan(lane, group);
      ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
    }
    while (!harness.PlanMoves(scheduler::MoveAnswer::kNo).empty()) harness.EndMove(false);
    for (uint32_t group = 0; group < setup.groups; ++group) {
      harness.scheduler().Uncordon(protocol::GroupId(group));
    }
    EXPECT_TRUE(harness.Finish()) << "seed " << seed;
    for (const auto& [id, request] : asked) {
      EXPECT_EQ(harness.outcome(id).tokens, harness.Alone(id, request.first, request.second))
          << "seed " << seed;
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
    for (const auto& of_cause : harness.scheduler().move_counters()) {
      moved += of_cause[0];
      replayed += of_cause[1];
    }
  }
  EXPECT_GT(moved, 100U);
  EXPECT_GT(replayed, 50U);
}

}  // namespace
}  // namespace skein::tests
