// Sequences and the deaths of their workers in planted order: who is marked, who runs alone, who is
// condemned, and that nobody else pays. A group's worker is node group + 1. Also cordons and moves.
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/group_harness.h"

namespace skein::tests {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<uint64_t> Ids(const std::optional<protocol::StepPlan>& plan) {
  std::vector<uint64_t> out;
  if (!plan) return out;
  for (const protocol::SequenceStep& step : plan->sequences) out.push_back(step.sequence.value());
  return out;
}

bool Computes(const protocol::StepPlan& plan, uint64_t id) {
  for (const protocol::SequenceStep& step : plan.sequences) {
    if (step.sequence.value() == id) return true;
  }
  return false;
}

// Runs everything while any step that holds `poison` ends its worker; returns the deaths.
int RunWithPoison(GroupHarness& harness, uint32_t groups, uint32_t lanes, uint64_t poison) {
  int deaths = 0;
  uint64_t epoch = 100;
  std::set<uint32_t> dead;
  for (int round = 0; round < 600 && !harness.scheduler().empty(); ++round) {
    for (uint32_t group = 0; group < groups; ++group) {
      if (dead.erase(group) > 0) {  // the next incarnation says how the last one ended
        harness.Settle(group, true);
        harness.Start(++epoch, group);
      }
      for (uint32_t lane = 0; lane < lanes && !dead.contains(group); ++lane) {
        if (harness.waiting(lane, group)) {
          EXPECT_TRUE(harness.Deliver(lane, group).ok());
        }
        const auto plan = harness.Plan(lane, group);
        if (!plan || !Computes(*plan, poison)) continue;
        ++deaths;
        harness.Die(group);
        dead.insert(group);
      }
    }
  }
  return deaths;
}

class PoisonTest : public ::testing::TestWithParam<std::tuple<uint32_t, uint32_t>> {};

// However many groups and lanes there are: three deaths, one verdict, every other stream whole.
TEST_P(PoisonTest, EndsAfterThreeDeathsAndHarmsNobody) {
  const auto [groups, lanes] = GetParam();
  HarnessSetup setup;
  setup.groups = groups;
  setup.lanes = lanes;
  setup.max_num_seqs = 12;
  setup.num_blocks = 256;
  GroupHarness harness(setup);
  for (uint32_t group = 0; group < groups; ++group) harness.Start(group + 1, group);
  for (uint64_t id = 1; id <= 8; ++id) ASSERT_TRUE(harness.AddSimple(id, 4, 40).ok());
  ASSERT_TRUE(harness.AddSimple(9, 4, 40).ok());
  EXPECT_EQ(RunWithPoison(harness, groups, lanes, 9), 3);
  EXPECT_EQ(harness.outcome(9).error,
            absl::AbortedError("this request ended its worker 3 times, the last time alone; it is "
                               "not tried again"));
  for (uint64_t id = 1; id <= 8; ++id) {
    EXPECT_EQ(harness.outcome(id).tokens, harness.Alone(id, 4, 40)) << id;
    EXPECT_TRUE(harness.outcome(id).error.ok()) << harness.outcome(id).error;
  }
  EXPECT_TRUE(harness.scheduler().empty());
}

INSTANTIATE_TEST_SUITE_P(Sizes, PoisonTest,
                         ::testing::Combine(::testing::Values(1u, 2u, 3u),
                                            ::testing::Values(1u, 2u)));

TEST(PoisonSchedule, DeathsFromOutsideNeverMark) {
  GroupHarness harness(HarnessSetup{});
  harness.Start(1);
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(harness.AddSimple(id, 4, 30).ok());
  for (uint64_t epoch = 2; epoch < 12; ++epoch) {
    ASSERT_TRUE(harness.Plan());
    harness.Die();
    harness.Settle(0, false);
    harness.Start(epoch);
    EXPECT_THAT(Ids(harness.Plan()), ElementsAre(1U, 2U, 3U)) << "all together";
    ASSERT_TRUE(harness.Deliver().ok());
  }
  EXPECT_TRUE(harness.Finish());
  for (uint64_t id = 1; id <= 3; ++id) {
    EXPECT_EQ(harness.outcome(id).tokens, harness.Alone(id, 4, 30));
  }
}

TEST(PoisonSchedule, OnlyTheRunningStepIsMarked) {
  HarnessSetup setup;
  setup.budget = 4;
  GroupHarness harness(setup);
  harness.Start(1);
  ASSERT_TRUE(harness.AddSimple(1, 4, 10).ok());
  ASSERT_TRUE(harness.AddSimple(2, 4, 10).ok());
  EXPECT_THAT(Ids(harness.Plan()), ElementsAre(1U));
  harness.Die();
  const auto& sequences = harness.scheduler().sequences();
  EXPECT_TRUE(sequences.at(protocol::SequenceId(1))->suspicion.marked());
  EXPECT_FALSE(sequences.at(protocol::SequenceId(2))->suspicion.marked());
}

TEST(PoisonSchedule, AWorkerThatLeftAndLivesMarksNobody) {
  GroupHarness harness(HarnessSetup{});
  harness.Start(1);
  ASSERT_TRUE(harness.AddSimple(1, 4, 10).ok());
  ASSERT_TRUE(harness.Plan());
  harness.Abort();
  EXPECT_FALSE(harness.scheduler().sequences().at(protocol::SequenceId(1))->suspicion.marked());
}

// Two groups and two deaths at once: the third place is the queue, until it is known.
TEST(PoisonSchedule, WhoDiedAloneWaitsForTheVerdict) {
  HarnessSetup setup;
  setup.groups = 2;
  GroupHarness harness(setup);
  harness.Start(1, 0);
  harness.Start(2, 1);
  ASSERT_TRUE(harness.AddSimple(1, 4, 20).ok());
  ASSERT_TRUE(harness.Plan(0, 0));
  harness.Die(0);
  ASSERT_TRUE(harness.Plan(0, 1)) << "not hostage to the repair";
  harness.Die(1);
  harness.Settle(0, true);
  harness.Start(3, 0);
  harness.Settle(1, true);
  harness.Start(4, 1);
  EXPECT_THAT(Ids(harness.Plan(0, 1)), IsEmpty()) << "probation has one place, the first group";
  EXPECT_THAT(Ids(harness.Plan(0, 0)), ElementsAre(1U));
  harness.Die(0);
  EXPECT_THAT(Ids(harness.Plan(0, 1)), IsEmpty()) << "held";
  harness.Settle(0, false);
  EXPECT_THAT(Ids(harness.Plan(0, 1)), ElementsAre(1U)) << "killed from outside: probation again";
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 4, 20));
}

TEST(PoisonSchedule, MarkedSequencesSpreadOverTheGroups) {
  HarnessSetup setup;
  setup.groups = 3;
  GroupHarness harness(setup);
  harness.Start(1, 0);
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(harness.AddSimple(id, 4, 20).ok());
  ASSERT_TRUE(harness.Plan(0, 0));
  harness.Die(0);
  harness.Start(2, 1);
  harness.Start(3, 2);
  EXPECT_THAT(Ids(harness.Plan(0, 1)), ElementsAre(1U, 3U));
  EXPECT_THAT(Ids(harness.Plan(0, 2)), ElementsAre(2U, 4U));
}

TEST(PoisonSchedule, ARequestWhoseWorkersDieTooOftenEnds) {
  GroupHarness harness(HarnessSetup{});
  harness.Start(1);
  ASSERT_TRUE(harness.AddSimple(1, 4, 58).ok());
  for (uint64_t death = 1; death <= 4; ++death) {
    // Far enough between two deaths to be cleared each time.
    for (int step = 0; step < 12; ++step) {
      ASSERT_TRUE(harness.Plan());
      ASSERT_TRUE(harness.Deliver().ok());
    }
    ASSERT_TRUE(harness.Plan());
    harness.Die();
    harness.Settle(0, true);
    harness.Start(death + 1);
  }
  EXPECT_EQ(harness.outcome(1).error,
            absl::UnavailableError("workers of this request died 4 times; try again later"));
}

// Runs a sequence through four groups whose workers die after it was cleared of the death before.
void DieInFourGroups(GroupHarness& harness) {
  for (uint32_t group = 0; group < 4; ++group) {
    harness.Start(group + 1, group);
    for (int step = 0; step < 12; ++step) {
      ASSERT_TRUE(harness.Plan(0, group));
      ASSERT_TRUE(harness.Deliver(0, group).ok());
    }
    ASSERT_TRUE(harness.Plan(0, group));
    harness.Die(group);
  }
}

// Four workers that are killed before the first of them is back: the request waits, and goes on.
TEST(PoisonSchedule, DeathsThatAreNotSettledEndNobody) {
  HarnessSetup setup;
  setup.groups = 5;
  GroupHarness harness(setup);
  ASSERT_TRUE(harness.AddSimple(1, 4, 58).ok());
  ASSERT_NO_FATAL_FAILURE(DieInFourGroups(harness));
  harness.Start(5, 4);
  EXPECT_THAT(Ids(harness.Plan(0, 4)), IsEmpty()) << "held";
  harness.Settle(2, false);
  EXPECT_THAT(Ids(harness.Plan(0, 4)), ElementsAre(1U)) << "one of them came from outside";
  for (const uint32_t group : {0, 1, 3}) harness.Settle(group, false);
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 4, 58));
}

TEST(PoisonSchedule, FourDeathsEndARequestWhenTheLastIsSettled) {
  HarnessSetup setup;
  setup.groups = 4;
  GroupHarness harness(setup);
  ASSERT_TRUE(harness.AddSimple(1, 4, 58).ok());
  ASSERT_NO_FATAL_FAILURE(DieInFourGroups(harness));
  for (const uint32_t group : {3, 0, 1}) harness.Settle(group, true);
  EXPECT_FALSE(harness.outcome(1).over());
  harness.Settle(2, true);
  EXPECT_EQ(harness.outcome(1).error,
            absl::UnavailableError("workers of this request died 4 times; try again later"));
  EXPECT_TRUE(harness.scheduler().empty());
}

// A worker that is back when the sequence has long gone on elsewhere still says how it ended.
TEST(PoisonSchedule, DeathsThatASequenceSurvivedAreSettledToo) {
  HarnessSetup setup;
  setup.groups = 2;
  GroupHarness harness(setup);
  uint64_t epoch = 2;
  for (uint32_t group = 0; group < 2; ++group) harness.Start(group + 1, group);
  ASSERT_TRUE(harness.AddSimple(1, 2, 60).ok());
  for (int death = 0; death < 5; ++death) {
    const uint32_t group = harness.Plan(0, 0) ? 0 : 1;
    if (group == 1) {
      ASSERT_TRUE(harness.Plan(0, 1));
    }
    harness.Die(group);
    for (int step = 0; step < 11; ++step) {
      ASSERT_TRUE(harness.Plan(0, 1 - group));
      ASSERT_TRUE(harness.Deliver(0, 1 - group).ok());
    }
    harness.Settle(group, false);
    harness.Start(++epoch, group);
  }
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 2, 60));
}

TEST(CordonTest, ACordonedGroupFinishesAndTakesNobody) {
  HarnessSetup setup;
  setup.groups = 2;
  GroupHarness harness(setup);
  harness.Start(1, 0);
  harness.Start(2, 1);
  for (uint64_t id = 1; id <= 2; ++id) ASSERT_TRUE(harness.AddSimple(id, 4, 6).ok());
  ASSERT_TRUE(harness.Plan(0, 0));
  ASSERT_TRUE(harness.Plan(0, 1));
  harness.scheduler().Cordon(protocol::GroupId(0));
  for (uint64_t id = 3; id <= 4; ++id) ASSERT_TRUE(harness.AddSimple(id, 4, 6).ok());
  ASSERT_TRUE(harness.Deliver(0, 0).ok());
  EXPECT_THAT(Ids(harness.Plan(0, 0)), ElementsAre(1U));
  ASSERT_TRUE(harness.Deliver(0, 1).ok());
  EXPECT_THAT(Ids(harness.Plan(0, 1)), ElementsAre(2U, 3U, 4U));
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.engine(0).num_running(), 0U);
}

TEST(CordonTest, MovedSequencesGoOnInTheOtherGroup) {
  HarnessSetup setup;
  setup.groups = 2;
  GroupHarness harness(setup);
  harness.Start(1, 0);
  harness.Start(2, 1);
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(harness.AddSimple(id, 4, 20).ok());
  for (int step = 0; step < 5; ++step) {
    for (uint32_t group = 0; group < 2; ++group) {
      ASSERT_TRUE(harness.Plan(0, group));
      ASSERT_TRUE(harness.Deliver(0, group).ok());
    }
  }
  ASSERT_TRUE(harness.Plan(0, 0));
  harness.scheduler().Cordon(protocol::GroupId(0));
  harness.scheduler().Evict(protocol::GroupId(0));
  EXPECT_EQ(harness.engine(0).num_running(), 2U) << "a step in flight ends first";
  ASSERT_TRUE(harness.Deliver(0, 0).ok());
  EXPECT_EQ(harness.engine(0).num_running(), 0U);
  EXPECT_EQ(harness.engine(0).counters().moves, 2U);
  EXPECT_THAT(Ids(harness.Plan(0, 1)), ElementsAre(2U, 4U, 1U, 3U));
  EXPECT_TRUE(harness.Finish());
  for (uint64_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(harness.outcome(id).tokens, harness.Alone(id, 4, 20)) << "each token once";
  }
}

TEST(CordonTest, WithOneGroupSequencesWaitForIt) {
  GroupHarness harness(HarnessSetup{});
  harness.Start(1);
  ASSERT_TRUE(harness.AddSimple(1, 4, 20).ok());
  ASSERT_TRUE(harness.Plan());
  ASSERT_TRUE(harness.Deliver().ok());
  harness.scheduler().Cordon(protocol::GroupId(0));
  harness.scheduler().Evict(protocol::GroupId(0));
  EXPECT_FALSE(harness.Plan());
  harness.Abort();
  harness.Start(2);
  EXPECT_FALSE(harness.Plan()) << "a new epoch lifts no cordon";
  harness.scheduler().Uncordon(protocol::GroupId(0));
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 4, 20));
}

TEST(CordonTest, PinnedSequencesRunInTheirGroupAlone) {
  HarnessSetup setup;
  setup.groups = 2;
  GroupHarness harness(setup);
  harness.Start(1, 0);
  harness.Start(2, 1);
  harness.scheduler().Cordon(protocol::GroupId(1));
  scheduler::NewSequence check;
  check.id = protocol::SequenceId(1);
  check.prompt = {1, 2, 3};
  check.stop = StopAt(4);
  check.pinned = 1;
  ASSERT_TRUE(harness.scheduler().AddSequence(std::move(check)).ok());
  ASSERT_TRUE(harness.AddSimple(2, 4, 4).ok());
  EXPECT_THAT(Ids(harness.Plan(0, 0)), ElementsAre(2U)) << "it holds up nobody";
  EXPECT_THAT(Ids(harness.Plan(0, 1)), ElementsAre(1U)) << "in spite of the cordon";
  harness.scheduler().Evict(protocol::GroupId(1));
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.engine(1).counters().moves, 0U);
}

// The lowest group has a smaller cache: what it can never hold is on probation elsewhere.
TEST(Poison, ProbationIsWhereTheSequenceFits) {
  HarnessSetup setup;
  setup.groups = 2;
  GroupHarness harness(setup);
  harness.Resize(2, 64);
  harness.Start(1, 0);
  harness.Resize(64, 64);
  harness.Start(2, 1);
  ASSERT_TRUE(harness.AddSimple(1, 20, 2).ok());
  for (uint64_t death = 0; death < 2; ++death) {
    ASSERT_TRUE(harness.Plan(0, 1).has_value());
    harness.Die(1);
    harness.Settle(1, true);
    harness.Start(3 + death, 1);
  }
  EXPECT_FALSE(harness.Plan(0, 0).has_value());
  ASSERT_TRUE(harness.Plan(0, 1).has_value());
  EXPECT_NE(harness.engine(1).probation(), nullptr);
}

// The check of a group is pinned to it, and waits for its turn all the same.
// Sequence 1 waits for blocks that a step in flight holds: newcomers would wait with it.
TEST(Poison, ProbationDoesNotWaitForThoseThatWaitForBlocks) {
  GroupHarness harness(
      {.budget = 8, .lanes = 2, .block_tokens = 4, .num_blocks = 5, .max_model_len = 20});
  ASSERT_TRUE(harness.AddSimple(9, 2, 3).ok());
  for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
    harness.Start(epoch);
    ASSERT_THAT(Ids(harness.Plan()), ElementsAre(9U));
    harness.Die();
  }
  for (int death = 1; death <= 2; ++death) harness.Settle(0, true);
  harness.Start(4);
  ASSERT_TRUE(harness.AddSimple(1, 17, 3).ok());
  ASSERT_THAT(Ids(harness.Plan(0)), ElementsAre(1U)) << "the other one is held";
  ASSERT_TRUE(harness.AddSimple(2, 8, 5).ok());
  ASSERT_THAT(Ids(harness.Plan(1)), ElementsAre(2U));
  ASSERT_TRUE(harness.Deliver(0).ok());
  ASSERT_FALSE(harness.Plan(0));
  ASSERT_TRUE(harness.engine().starved());
  harness.Settle(0, false);
  ASSERT_TRUE(harness.Deliver(1).ok());
  EXPECT_THAT(Ids(harness.Plan(0)), ElementsAre(9U));
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(9).tokens, harness.Alone(9, 2, 3));
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 17, 3));
}

TEST(Poison, APinnedSequenceIsNotOnProbationBesideAnother) {
  HarnessSetup setup;
  setup.groups = 2;
  GroupHarness harness(setup);
  for (uint32_t group = 0; group < 2; ++group) harness.Start(group + 1, group);
  const auto die_twice = [&](uint32_t group) {
    for (uint64_t death = 0; death < 2; ++death) {
      ASSERT_TRUE(harness.Plan(0, group).has_value());
      harness.Die(group);
      harness.Settle(group, true);
      harness.Start(10 * (group + 1) + death, group);
    }
  };
  ASSERT_TRUE(harness.AddSimple(1, 4, 4).ok());
  die_twice(0);
  ASSERT_TRUE(harness.Plan(0, 0).has_value());
  scheduler::NewSequence pinned;
  pinned.id = protocol::SequenceId(2);
  pinned.prompt = {1, 2};
  pinned.stop.max_tokens = 4;
  pinned.pinned = 1;
  ASSERT_TRUE(harness.scheduler().AddSequence(std::move(pinned)).ok());
  die_twice(1);
  EXPECT_FALSE(harness.Plan(0, 1).has_value());
}

}  // namespace
}  // namespace skein::tests
