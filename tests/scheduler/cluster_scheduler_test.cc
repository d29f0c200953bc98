// Several groups by example: who takes what, what moves when a group is lost, and that nothing
// waits behind a busy group while another is idle. The harness checks the invariants after every
// call.
#include "scheduler/cluster_scheduler.h"

#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/group_harness.h"

namespace skein::tests {
namespace {

using ::testing::ElementsAre;

std::vector<uint64_t> Ids(const std::optional<protocol::StepPlan>& plan) {
  std::vector<uint64_t> out;
  if (!plan) return out;
  for (const protocol::SequenceStep& step : plan->sequences) out.push_back(step.sequence.value());
  return out;
}

GroupHarness StartedPair(HarnessSetup setup = {}) {
  setup.groups = 2;
  GroupHarness harness(setup);
  harness.Start(1, 0);
  harness.Start(2, 1);
  return harness;
}

TEST(ClusterScheduler, EqualSequencesAlternate) {
  GroupHarness harness = StartedPair();
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(harness.AddSimple(id, 4, 3).ok());
  EXPECT_THAT(Ids(harness.Plan(0, 0)), ElementsAre(1U, 3U));
  EXPECT_THAT(Ids(harness.Plan(0, 1)), ElementsAre(2U, 4U));
  EXPECT_EQ(harness.scheduler().num_running(), 4U);
  EXPECT_EQ(harness.engine(0).outstanding_tokens(), 14U) << "prompts of 4, 3 to generate";
  EXPECT_TRUE(harness.Finish());
  for (uint64_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(harness.outcome(id).tokens, harness.Alone(id, 4, 3)) << id;
  }
}

TEST(ClusterScheduler, ALongPromptWeighsMoreThanShortOnes) {
  GroupHarness harness = StartedPair();
  ASSERT_TRUE(harness.AddSimple(1, 40, 2).ok());
  for (uint64_t id = 2; id <= 4; ++id) ASSERT_TRUE(harness.AddSimple(id, 4, 2).ok());
  EXPECT_THAT(Ids(harness.Plan(0, 0)), ElementsAre(1U));
  EXPECT_THAT(Ids(harness.Plan(0, 1)), ElementsAre(2U, 3U, 4U));
  EXPECT_TRUE(harness.Finish());
}

TEST(ClusterScheduler, PlansNameTheirGroup) {
  GroupHarness harness = StartedPair();
  for (uint64_t id = 1; id <= 2; ++id) ASSERT_TRUE(harness.AddSimple(id, 4, 3).ok());
  EXPECT_EQ(harness.Plan(0, 0)->group, protocol::GroupId(0));
  const auto plan = harness.Plan(0, 1);
  EXPECT_EQ(plan->group, protocol::GroupId(1));
  EXPECT_EQ(plan->epoch, protocol::Epoch(2));
  EXPECT_EQ(plan->step, protocol::StepId(1)) << "each group counts its own steps";
  EXPECT_EQ(harness.Commit(harness.result(0, 1), 0).code(), absl::StatusCode::kInvalidArgument);
}

TEST(ClusterScheduler, NothingWaitsBehindABusyGroup) {
  GroupHarness harness = StartedPair({.max_num_seqs = 1});
  ASSERT_TRUE(harness.AddSimple(1, 4, 9).ok());
  ASSERT_TRUE(harness.AddSimple(2, 4, 1).ok());
  ASSERT_TRUE(harness.AddSimple(3, 4, 1).ok());
  EXPECT_THAT(Ids(harness.Plan(0, 0)), ElementsAre(1U));
  EXPECT_THAT(Ids(harness.Plan(0, 1)), ElementsAre(2U));
  EXPECT_EQ(harness.scheduler().num_queued(), 1U);
  // Group 1 is done first: the next in line goes there, whoever was meant before.
  ASSERT_TRUE(harness.Deliver(0, 1).ok());
  EXPECT_THAT(Ids(harness.Plan(0, 1)), ElementsAre(3U));
  EXPECT_TRUE(harness.Finish());
}

TEST(ClusterScheduler, AGroupShortOfBlocksPassesTheNextOn) {
  GroupHarness harness = StartedPair({.block_tokens = 4, .num_blocks = 3});
  ASSERT_TRUE(harness.AddSimple(1, 12, 1).code() == absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(harness.AddSimple(1, 11, 1).ok());
  ASSERT_TRUE(harness.AddSimple(2, 2, 5).ok());
  ASSERT_TRUE(harness.AddSimple(3, 2, 5).ok());
  EXPECT_THAT(Ids(harness.Plan(0, 0)), ElementsAre(1U));
  EXPECT_THAT(Ids(harness.Plan(0, 1)), ElementsAre(2U, 3U));
  EXPECT_TRUE(harness.Finish());
}

// Two lanes and five blocks, one of them free: sequence 1 wants two more, those of sequence 2 are
// in the other lane's step.
void StarveFirst(GroupHarness& harness) {
  ASSERT_TRUE(harness.AddSimple(1, 17, 3).ok());
  ASSERT_THAT(Ids(harness.Plan(0)), ElementsAre(1U));
  ASSERT_TRUE(harness.AddSimple(2, 8, 5).ok());
  ASSERT_THAT(Ids(harness.Plan(1)), ElementsAre(2U));
  ASSERT_TRUE(harness.Deliver(0).ok());
}

constexpr HarnessSetup kTight = {.budget = 8, .lanes = 2, .block_tokens = 4, .num_blocks = 5};

TEST(ClusterScheduler, NobodyStartsWhileOneThatRunsWaitsForBlocks) {
  GroupHarness harness(kTight);
  harness.Start();
  ASSERT_NO_FATAL_FAILURE(StarveFirst(harness));
  ASSERT_TRUE(harness.AddSimple(3, 2, 2).ok());
  EXPECT_THAT(Ids(harness.Plan(0)), ElementsAre()) << "the block would be lacking next time too";
  EXPECT_TRUE(harness.engine().starved());
  EXPECT_THAT(Ids(harness.Plan(0)), ElementsAre());
  ASSERT_TRUE(harness.Deliver(1).ok());
  EXPECT_THAT(Ids(harness.Plan(0)), ElementsAre(1U));
  EXPECT_FALSE(harness.engine().starved());
  EXPECT_TRUE(harness.Finish());
  for (const auto& [id, prompt, generated] : {std::tuple(1, 17, 3), {2, 8, 5}, {3, 2, 2}}) {
    const auto number = static_cast<uint64_t>(id);
    EXPECT_EQ(harness.outcome(number).tokens,
              harness.Alone(number, static_cast<size_t>(prompt), generated));
  }
}

TEST(ClusterScheduler, WhoWaitedForBlocksAndIsGoneKeepsNobodyOut) {
  GroupHarness harness(kTight);
  harness.Start();
  ASSERT_NO_FATAL_FAILURE(StarveFirst(harness));
  ASSERT_TRUE(harness.AddSimple(3, 2, 2).ok());
  EXPECT_THAT(Ids(harness.Plan(0)), ElementsAre());
  EXPECT_TRUE(harness.Cancel(1));
  EXPECT_THAT(Ids(harness.Plan(0)), ElementsAre(3U));
}

TEST(ClusterScheduler, WhoWaitsForBlocksOfOneGroupDoesNotKeepTheOthersIdle) {
  HarnessSetup setup = kTight;
  setup.groups = 2;
  GroupHarness harness(setup);
  harness.Start(1, 0);
  ASSERT_NO_FATAL_FAILURE(StarveFirst(harness));
  EXPECT_THAT(Ids(harness.Plan(0)), ElementsAre());
  harness.Start(2, 1);
  ASSERT_TRUE(harness.AddSimple(3, 2, 2).ok());
  EXPECT_THAT(Ids(harness.Plan(0, 1)), ElementsAre(3U));
}

TEST(ClusterScheduler, ALostGroupsSequencesMoveToTheLiveOne) {
  GroupHarness harness = StartedPair();
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(harness.AddSimple(id, 4, 6).ok());
  for (uint32_t group : {0U, 1U}) {
    ASSERT_TRUE(harness.Plan(0, group).has_value());
    ASSERT_TRUE(harness.Deliver(0, group).ok());
  }
  ASSERT_TRUE(harness.Plan(0, 0).has_value());
  harness.Abort(0);
  EXPECT_EQ(harness.scheduler().num_queued(), 2U);
  EXPECT_EQ(harness.engine(0).outstanding_tokens(), 0U);
  const auto plan = harness.Plan(0, 1);
  EXPECT_THAT(Ids(plan), ElementsAre(2U, 4U, 1U, 3U)) << "at once, in its next step";
  EXPECT_EQ(plan->sequences[2].tokens.size(), 5U) << "prompt and the committed token";
  EXPECT_TRUE(plan->sequences[2].fresh_slot);
  EXPECT_FALSE(harness.Plan(0, 0).has_value());
  EXPECT_EQ(harness.engine(0).counters().replays, 2U);
  EXPECT_TRUE(harness.Finish());
  for (uint64_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(harness.outcome(id).tokens, harness.Alone(id, 4, 6)) << id;
  }
}

TEST(ClusterScheduler, WithoutGroupsSequencesWait) {
  GroupHarness harness = StartedPair();
  ASSERT_TRUE(harness.AddSimple(1, 4, 6).ok());
  ASSERT_TRUE(harness.Plan(0, 0).has_value());
  harness.Abort(0);
  harness.Abort(1);
  EXPECT_FALSE(harness.Plan(0, 0).has_value());
  EXPECT_FALSE(harness.Plan(0, 1).has_value());
  EXPECT_EQ(harness.scheduler().num_queued(), 1U);
  ASSERT_TRUE(harness.AddSimple(2, 4, 6).ok());
  harness.Start(7, 1);
  EXPECT_THAT(Ids(harness.Plan(0, 1)), ElementsAre(1U, 2U));
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 4, 6));
}

TEST(ClusterScheduler, BoundsOfTheQueueHoldForAllGroups) {
  GroupHarness harness = StartedPair({.max_num_seqs = 1, .queued_requests_max = 2});
  ASSERT_TRUE(harness.AddSimple(1, 4, 6).ok());
  ASSERT_TRUE(harness.AddSimple(2, 4, 6).ok());
  EXPECT_EQ(harness.AddSimple(3, 4, 6).message(), "queue_requests: 2 requests wait, at most 2 may");
  harness.Plan(0, 0);
  harness.Plan(0, 1);
  EXPECT_TRUE(harness.AddSimple(3, 4, 6).ok());
  EXPECT_TRUE(harness.AddSimple(4, 4, 6).ok());
  EXPECT_FALSE(harness.AddSimple(5, 4, 6).ok());
  EXPECT_TRUE(harness.Cancel(4));
  EXPECT_FALSE(harness.Cancel(2)) << "in flight in group 1";
  EXPECT_TRUE(harness.Finish());
  EXPECT_TRUE(harness.outcome(2).cancelled);
}

TEST(ClusterScheduler, ASequenceGoesWhereItFits) {
  GroupHarness harness({.block_tokens = 4, .num_blocks = 2, .groups = 2});
  harness.Start(1, 0);
  harness.Resize(8, 64);
  harness.Start(2, 1);
  ASSERT_TRUE(harness.AddSimple(1, 10, 6).ok());
  EXPECT_FALSE(harness.Plan(0, 0).has_value()) << "three blocks and more";
  EXPECT_THAT(Ids(harness.Plan(0, 1)), ElementsAre(1U));
  // The large group is lost: it waits for one that can run it, and ends if none of those live can.
  harness.Abort(1);
  EXPECT_FALSE(harness.Plan(0, 0).has_value());
  EXPECT_EQ(harness.scheduler().num_queued(), 1U);
  harness.Resize(3, 64);
  harness.Start(3, 1);
  EXPECT_EQ(harness.outcome(1).error.message(),
            "the new worker group cannot run it: 16 tokens need 4 cache blocks, the worker has 2; "
            "lower max_tokens, shorten the prompt or raise worker.num_blocks");
}

// Aim: the check of a group that cannot hold it must not wait there for ever.
TEST(ClusterScheduler, APinnedSequenceFitsItsEngineOrIsRefused) {
  GroupHarness harness({.block_tokens = 4, .num_blocks = 2, .groups = 2});
  harness.Start(1, 0);
  harness.Resize(8, 64);
  harness.Start(2, 1);
  scheduler::NewSequence pinned;
  pinned.id = protocol::SequenceId(1);
  pinned.prompt.assign(10, 5);
  pinned.stop = StopAt(6);
  pinned.pinned = 0;
  EXPECT_EQ(harness.scheduler().AddSequence(pinned).code(), absl::StatusCode::kInvalidArgument);
  pinned.pinned = 1;
  EXPECT_TRUE(harness.scheduler().AddSequence(pinned).ok());
}

// Two groups with prefix caches; the second one has the prompt of sequence 2, and nothing runs.
GroupHarness PairWithAPrefix(HarnessSetup setup = {}) {
  setup.prefix_caching = true;
  setup.num_checkpoints = 8;
  GroupHarness harness = StartedPair(setup);
  EXPECT_TRUE(harness.AddSimple(1, 4, 3).ok());
  EXPECT_TRUE(harness.AddSimple(2, 24, 3).ok());
  EXPECT_THAT(Ids(harness.Plan(0, 0)), ElementsAre(1U));
  EXPECT_THAT(Ids(harness.Plan(0, 1)), ElementsAre(2U));
  EXPECT_TRUE(harness.Finish());
  return harness;
}

// The prompt of sequence 2, and more of its own.
absl::Status AddContinuation(GroupHarness& harness, uint64_t id, int32_t generated) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 24; ++i) tokens.push_back(200 + i);
  for (int32_t i = 0; i < 4; ++i) tokens.push_back(static_cast<int32_t>(id) * 100 + i);
  return harness.Add(id, std::move(tokens), StopAt(generated));
}

TEST(ClusterScheduler, APromptGoesWhereItsPrefixIs) {
  GroupHarness harness = PairWithAPrefix();
  ASSERT_TRUE(AddContinuation(harness, 3, 5).ok());
  ASSERT_TRUE(harness.AddSimple(4, 28, 5).ok());
  EXPECT_THAT(Ids(harness.Plan(0, 0)), ElementsAre(4U)) << "of an unknown one nobody has a part";
  EXPECT_THAT(Ids(harness.Plan(0, 1)), ElementsAre(3U));
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(3).cached_tokens, 24U);
  // The cache of a new epoch is empty.
  harness.Abort(1);
  harness.Start(3, 1);
  ASSERT_TRUE(AddContinuation(harness, 5, 5).ok());
  EXPECT_THAT(Ids(harness.Plan(0, 0)), ElementsAre(5U));
  EXPECT_TRUE(harness.Finish());
}

TEST(ClusterScheduler, APrefixIsWorthAsManyTokensAsItHas) {
  GroupHarness harness = PairWithAPrefix();
  // 4 + 16 tokens each where the prefix is, 24 more where it is not.
  for (uint64_t id = 3; id <= 6; ++id) ASSERT_TRUE(AddContinuation(harness, id, 16).ok());
  EXPECT_THAT(Ids(harness.Plan(0, 1)), ElementsAre(3U, 4U, 6U))
      << "0, 20 against 24, 40 against 44";
  EXPECT_THAT(Ids(harness.Plan(0, 0)), ElementsAre(5U)) << "40 against 24";
  EXPECT_TRUE(harness.Finish());
}

// Many wait for room in the steps, and plans are many: a prompt is looked up now and then.
TEST(ClusterScheduler, WhoIsPlacedInEveryPlanIsLookedUpSeldom) {
  static int first_blocks;
  HarnessSetup setup{.budget = 2, .max_model_len = 256};
  setup.num_blocks = 256;
  setup.hash = [](uint64_t parent, std::span<const int32_t> tokens) {
    first_blocks += tokens[0] == 500 ? 1 : 0;
    return scheduler::HashTokens(parent, tokens);
  };
  GroupHarness harness = PairWithAPrefix(setup);
  // Both engines have slots, and steps that are full.
  for (const uint64_t id : {3, 4}) ASSERT_TRUE(harness.AddSimple(id, 80, 2).ok());
  ASSERT_TRUE(harness.AddSimple(5, 20, 2).ok());
  first_blocks = 0;
  int plans = 0;
  while (harness.scheduler().num_queued() > 0 || plans == 0) {
    for (const uint32_t engine : {0U, 1U}) {
      if (harness.waiting(0, engine)) {
        EXPECT_TRUE(harness.Deliver(0, engine).ok());
      }
      plans += harness.Plan(0, engine).has_value() ? 1 : 0;
    }
  }
  EXPECT_GT(plans, 64);
  EXPECT_GE(first_blocks, 2);
  EXPECT_LE(first_blocks, 2 * 8 + 2) << "of " << plans << " plans";
  EXPECT_TRUE(harness.Finish());
}

// Who waits does not go where its prefix was, in an epoch before.
TEST(ClusterScheduler, WhoWaitsIsLookedUpAnewOnceAnEpochStarts) {
  GroupHarness harness = PairWithAPrefix();
  ASSERT_TRUE(harness.AddSimple(3, 4, 14).ok());
  ASSERT_TRUE(harness.AddSimple(4, 4, 20).ok());
  EXPECT_THAT(Ids(harness.Plan(0, 0)), ElementsAre(3U));
  EXPECT_THAT(Ids(harness.Plan(0, 1)), ElementsAre(4U));
  EXPECT_TRUE(harness.Deliver(0, 1).ok());
  ASSERT_TRUE(AddContinuation(harness, 5, 5).ok());
  // Four times it is placed on the second group, which makes no step.
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(harness.Deliver(0, 0).ok());
    EXPECT_THAT(Ids(harness.Plan(0, 0)), ElementsAre(3U)) << i;
  }
  harness.Abort(1);
  harness.Start(3, 1);
  EXPECT_TRUE(harness.Deliver(0, 0).ok());
  EXPECT_THAT(Ids(harness.Plan(0, 0)), ElementsAre(3U, 5U))
      << "the second group has more to do and nothing cached";
  EXPECT_TRUE(harness.Finish());
}

TEST(ClusterScheduler, EqualCallsGiveEqualPlans) {
  auto run = [] {
    GroupHarness harness = StartedPair({.max_num_seqs = 3, .budget = 5, .lanes = 2});
    for (uint64_t id = 1; id <= 9; ++id) {
      EXPECT_TRUE(harness.AddSimple(id, id, 4, static_cast<int32_t>(id % 2)).ok());
    }
    std::vector<protocol::StepPlan> plans;
    for (uint32_t i = 0; i < 80; ++i) {
      const uint32_t lane = i % 2;
      const uint32_t group = i / 2 % 2;
      if (harness.waiting(lane, group)) {
        EXPECT_TRUE(harness.Deliver(lane, group).ok());
      }
      if (auto plan = harness.Plan(lane, group)) plans.push_back(*std::move(plan));
    }
    return plans;
  };
  const std::vector<protocol::StepPlan> first = run();
  EXPECT_GT(first.size(), 20U);
  EXPECT_EQ(first, run());
}

// rule: A2
TEST(ClusterScheduler, KeysUnderContentionGetTheirSharesOfTheTokens) {
  GroupHarness harness({.max_num_seqs = 8, .budget = 24, .num_blocks = 400, .groups = 2});
  harness.Start(1, 0);
  harness.Start(1, 1);
  // Keys of weight 1 and 3, the second with answers of half the length; each has 24 that run or
  // wait. Time is the number of steps.
  std::map<uint64_t, uint64_t> key_of;
  std::map<uint64_t, uint64_t> tokens;
  uint64_t id = 0;
  const auto add = [&](uint64_t key, int64_t step) {
    scheduler::NewSequence sequence;
    sequence.id = protocol::SequenceId(++id);
    sequence.prompt.assign(key == 1 ? 12 : 7, static_cast<int32_t>(id));
    sequence.stop = StopAt(key == 1 ? 20 : 10);
    sequence.flow = key == 1 ? "one" : "three";
    sequence.weight = key == 1 ? 1 : 3;
    sequence.arrived_ms = step * 50;
    key_of[id] = key;
    EXPECT_TRUE(harness.scheduler().AddSequence(std::move(sequence)).ok());
  };
  for (int i = 0; i < 24; ++i) add(1, 0), add(3, 0);
  std::set<uint64_t> ended;
  constexpr int kSteps = 1500;
  for (int step = 1; step <= kSteps; ++step) {
    for (uint32_t group = 0; group < 2; ++group) {
      if (!harness.Plan(0, group)) continue;
      ASSERT_TRUE(harness.Deliver(0, group).ok());
    }
    for (uint64_t at = 1, last = id; at <= last; ++at) {
      if (ended.contains(at) || !harness.outcome(at).over()) continue;
      ended.insert(at);
      tokens[key_of[at]] += harness.outcome(at).tokens.size() + (key_of[at] == 1 ? 12 : 7);
      add(key_of[at], step);
    }
  }
  const auto all = static_cast<double>(tokens[1] + tokens[3]);
  EXPECT_GT(ended.size(), 500U);
  EXPECT_NEAR(static_cast<double>(tokens[1]) / all, 0.25, 0.0125);
  EXPECT_NEAR(static_cast<double>(tokens[3]) / all, 0.75, 0.0375);
}

// ---- groups of several ranks

HarnessSetup TwoRanks() {
  HarnessSetup setup;
  setup.ranks = 2;
  return setup;
}

std::vector<size_t> SizesOf(const std::vector<protocol::StepPlan>& plans) {
  std::vector<size_t> sizes;
  for (const protocol::StepPlan& plan : plans) sizes.push_back(plan.sequences.size());
  return sizes;
}

// Aim: every rank gets a plan of every step, and the lane waits for all of them.
TEST(ClusterRanks, AllRanksTakeEveryStep) {
  GroupHarness harness(TwoRanks());
  harness.Start();
  ASSERT_TRUE(harness.AddSimple(1, 4, 2).ok());
  const auto plans = harness.PlanRanks();
  EXPECT_EQ(SizesOf(plans), std::vector<size_t>({1, 0}));
  EXPECT_EQ(plans[1].rank, protocol::RankId(1));
  EXPECT_NE(plans[0].plan_hash, 0U);
  ASSERT_TRUE(harness.Deliver(0, 0).ok());
  EXPECT_EQ(harness.outcome(1).tokens.size(), 1U) << "what one rank answered is true";
  EXPECT_TRUE(harness.PlanRanks().empty()) << "the other has not answered";
  ASSERT_TRUE(harness.Deliver(0, 1).ok());
  ASSERT_TRUE(harness.AddSimple(2, 3, 2).ok());
  const auto next = harness.PlanRanks();
  EXPECT_EQ(SizesOf(next), std::vector<size_t>({1, 1})) << "the idle rank has less to do";
  EXPECT_EQ(next[0].step.value(), plans[0].step.value() + 1);
  EXPECT_NE(next[0].plan_hash, plans[0].plan_hash);
  ASSERT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 4, 2));
  EXPECT_EQ(harness.outcome(2).tokens, harness.Alone(2, 3, 2));
}

// Aim: equal prompts may be cached on each rank, in blocks of its own.
TEST(ClusterRanks, EachRankHasItsOwnBlocksSlotsAndCache) {
  HarnessSetup setup = TwoRanks();
  setup.prefix_caching = true;
  setup.num_checkpoints = 2;
  GroupHarness harness(setup);
  harness.Start();
  for (uint64_t id : {1, 2}) {
    ASSERT_TRUE(harness.Add(id, {9, 8, 7, 6, 5, 4}, StopAt(3)).ok());
  }
  EXPECT_EQ(SizesOf(harness.PlanRanks()), std::vector<size_t>({1, 1}));
  for (const uint32_t engine : {0, 1}) {
    EXPECT_EQ(harness.engine(engine).num_running(), 1U);
    EXPECT_EQ(harness.engine(engine).num_free_slots(), 3U);
  }
  ASSERT_TRUE(harness.Finish());
  ASSERT_TRUE(harness.Add(3, {9, 8, 7, 6, 5, 4}, StopAt(3)).ok());
  ASSERT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(3).cached_tokens, 4U);
  EXPECT_EQ(harness.outcome(3).tokens, harness.outcome(1).tokens);
}

// Aim: the end of the epoch takes what runs on every rank back to the queue.
TEST(ClusterRanks, OneLostRankEndsTheEpochOfAll) {
  GroupHarness harness(TwoRanks());
  harness.Start();
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(harness.AddSimple(id, 4, 6).ok());
  harness.PlanRanks();
  ASSERT_TRUE(harness.Deliver(0, 1).ok());
  harness.Die();
  EXPECT_EQ(harness.scheduler().num_queued(), 4U);
  uint32_t marked = 0;
  for (const auto& [id, sequence] : harness.scheduler().sequences()) {
    marked += sequence->suspicion.marked() ? 1 : 0;
  }
  EXPECT_EQ(marked, 2U) << "those of rank 1 were not in flight any more";
  harness.Settle(0, false);
  harness.Start(2);
  ASSERT_TRUE(harness.Finish());
  for (uint64_t id = 1; id <= 4; ++id)
    EXPECT_EQ(harness.outcome(id).tokens, harness.Alone(id, 4, 6));
}

// Aim: a suspect has the steps of its group to itself, and it gets them although the other rank
// always has something to run.
TEST(ClusterRanks, ASuspectRunsAloneInItsGroup) {
  GroupHarness harness(TwoRanks());
  harness.Start();
  ASSERT_TRUE(harness.AddSimple(1, 3, 2).ok());
  ASSERT_EQ(SizesOf(harness.PlanRanks()), std::vector<size_t>({1, 0}));
  harness.Abort(0, scheduler::AbortCause::kStepFailed, 0, 0);
  harness.Start(2);
  uint64_t id = 1;
  for (int step = 0; step < 12 && !harness.outcome(1).over(); ++step) {
    while (harness.scheduler().num_queued() < 3) {
      ASSERT_TRUE(harness.AddSimple(++id, 3, 8).ok());
    }
    const auto plans = harness.PlanRanks();
    size_t suspects = 0, all = 0;
    for (const protocol::StepPlan& plan : plans) {
      for (const protocol::SequenceStep& part : plan.sequences) {
        ++all;
        const auto& sequence = *harness.scheduler().sequences().at(part.sequence);
        suspects += sequence.alone() ? 1 : 0;
      }
    }
    EXPECT_TRUE(suspects == 0 || all == 1) << suspects << " of " << all;
    for (const uint32_t engine : {0, 1}) {
      if (!harness.waiting(0, engine)) continue;
      ASSERT_TRUE(harness.Deliver(0, engine).ok());
    }
  }
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 3, 2));
}

// Aim: of two that are to be kept apart, the second goes to the other group, not to the other rank.
TEST(ClusterRanks, MarkedSequencesSpreadOverGroups) {
  HarnessSetup setup = TwoRanks();
  setup.groups = 2;
  GroupHarness harness(setup);
  harness.Start(1, 0);
  for (uint64_t id : {1, 2}) ASSERT_TRUE(harness.AddSimple(id, 3, 6).ok());
  ASSERT_EQ(SizesOf(harness.PlanRanks()), std::vector<size_t>({1, 1}));
  harness.Die(0);
  harness.Start(2, 0);
  harness.Start(3, 1);
  EXPECT_EQ(SizesOf(harness.PlanRanks(0, 0)), std::vector<size_t>({1, 0}));
  EXPECT_EQ(SizesOf(harness.PlanRanks(0, 1)), std::vector<size_t>({1, 0}));
}

TEST(ClusterRanks, AResultOfARankThatThereIsNotIsRefused) {
  GroupHarness harness(TwoRanks());
  harness.Start();
  ASSERT_TRUE(harness.AddSimple(1, 3, 2).ok());
  harness.PlanRanks();
  protocol::StepResult wrong = harness.result(0, 1);
  wrong.rank = protocol::RankId(2);
  EXPECT_EQ(harness.Commit(wrong).message(), "result of rank 2 of a group of 2 ranks");
}

}  // namespace
}  // namespace skein::tests
