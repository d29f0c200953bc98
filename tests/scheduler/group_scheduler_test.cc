// Planning and commit by example: chunks, order, lanes, preemption, ends, cancellation, replay and
// refusals. The harness checks the invariants after every call.
#include "scheduler/group_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/group_harness.h"

namespace skein::tests {
namespace {

using scheduler::EndReason;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<size_t> Chunks(const protocol::StepPlan& plan) {
  std::vector<size_t> out;
  for (const protocol::SequenceStep& step : plan.sequences) out.push_back(step.tokens.size());
  return out;
}

std::vector<uint64_t> Ids(const protocol::StepPlan& plan) {
  std::vector<uint64_t> out;
  for (const protocol::SequenceStep& step : plan.sequences) out.push_back(step.sequence.value());
  return out;
}

class Budgets : public ::testing::TestWithParam<uint32_t> {};

TEST_P(Budgets, ThePromptIsComputedInChunksOfTheBudget) {
  const uint32_t budget = GetParam();
  GroupHarness harness({.budget = budget});
  harness.Start();
  ASSERT_TRUE(harness.AddSimple(1, 20, 3).ok());
  for (uint32_t at = 0; at < 20; at += budget) {
    const auto plan = harness.Plan();
    ASSERT_TRUE(plan.has_value());
    ASSERT_EQ(plan->sequences.size(), 1U);
    const protocol::SequenceStep& step = plan->sequences[0];
    EXPECT_EQ(step.first_position, at);
    EXPECT_EQ(step.tokens.size(), std::min(budget, 20 - at));
    EXPECT_EQ(step.tokens[0], static_cast<int32_t>(100 + at));
    EXPECT_EQ(step.fresh_slot, at == 0);
    EXPECT_EQ(step.sample, at + budget >= 20);
    ASSERT_TRUE(harness.Deliver().ok());
  }
  EXPECT_THAT(harness.outcome(1).tokens, ElementsAre(harness.Alone(1, 20, 3)[0]));
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 20, 3));
  EXPECT_EQ(harness.outcome(1).ended, EndReason::kLength);
  EXPECT_EQ(harness.outcome(1).num_steps, (20 + budget - 1) / budget + 2);
}

INSTANTIATE_TEST_SUITE_P(Chunks, Budgets, ::testing::Values(1U, 7U, 64U));

scheduler::NewSequence WithPenalty(uint64_t id, size_t prompt) {
  scheduler::NewSequence sequence;
  sequence.id = protocol::SequenceId(id);
  for (size_t i = 0; i < prompt; ++i) sequence.prompt.push_back(static_cast<int32_t>(100 + i));
  sequence.stop.max_tokens = 8;
  protocol::LogitEdits edits;
  edits.presence_penalty = 1;
  sequence.sampling.edits = std::make_shared<const protocol::LogitEdits>(edits);
  return sequence;
}

TEST(GroupScheduler, EditsGoWithTheSlotAndAgainAfterAnEpoch) {
  GroupHarness harness({.budget = 4});
  harness.Start();
  ASSERT_TRUE(harness.scheduler().AddSequence(WithPenalty(1, 6)).ok());
  for (int i = 0; i < 4; ++i) {
    const auto plan = harness.Plan();
    ASSERT_TRUE(plan.has_value());
    const auto& edits = plan->sequences[0].edits.value;
    EXPECT_EQ(edits != nullptr, i == 0) << "step " << i;
    if (i == 0) {
      EXPECT_EQ(edits->edits.presence_penalty, 1);
      EXPECT_EQ(edits->prompt_length, 6U);
      EXPECT_EQ(edits->history, std::vector<int32_t>());
    }
    ASSERT_TRUE(harness.Deliver().ok());
  }
  harness.Abort();
  harness.Start(2);
  const auto plan = harness.Plan();
  ASSERT_TRUE(plan.has_value());
  ASSERT_TRUE(plan->sequences[0].fresh_slot);
  ASSERT_NE(plan->sequences[0].edits.value, nullptr);
  EXPECT_EQ(plan->sequences[0].edits.value->prompt_length, 6U) << "outputs stay outputs";
}

TEST(GroupScheduler, AWorkerThatKnowsNoEditsIsNotAskedForThem) {
  GroupHarness harness({.edits_logits = false});
  harness.Start();
  const absl::Status refused = harness.scheduler().AddSequence(WithPenalty(1, 6));
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("penalties"));
  EXPECT_TRUE(harness.AddSimple(2, 6, 3).ok());
}

TEST(GroupScheduler, PlansNameTheEpochAndCountSteps) {
  GroupHarness harness({});
  harness.Start(77);
  ASSERT_TRUE(harness.AddSimple(1, 2, 2).ok());
  const auto first = harness.Plan();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->epoch, protocol::Epoch(77));
  EXPECT_EQ(first->step, protocol::StepId(1));
  EXPECT_EQ(first->lane, 0U);
  ASSERT_TRUE(harness.Deliver().ok());
  EXPECT_EQ(harness.Plan()->step, protocol::StepId(2));
}

TEST(GroupScheduler, ThePlanCarriesTheSampling) {
  scheduler::ClusterScheduler scheduler(LimitsOf({}), 1);
  scheduler.StartEpoch(protocol::GroupId(0), protocol::Epoch(1), std::vector{GeometryOf({})});
  scheduler::NewSequence sequence;
  sequence.id = protocol::SequenceId(3);
  sequence.prompt = {1, 2};
  sequence.stop.max_tokens = 1;
  sequence.sampling = {.temperature = 0.5F,
                       .top_p = 0.25F,
                       .min_p = 0.125F,
                       .top_k = 9,
                       .seed = 1234567890123ULL,
                       .has_seed = true,
                       .num_top_logprobs = 4,
                       .processed_logprobs = true};
  ASSERT_TRUE(scheduler.AddSequence(sequence).ok());
  const protocol::RowSampling sampling =
      scheduler.PlanStep(protocol::GroupId(0), 0).at(0).sequences[0].sampling;
  EXPECT_EQ(sampling, (protocol::RowSampling{0.5F, 0.25F, 0.125F, 9, 1234567890123ULL, 4, true}));
}

TEST(GroupScheduler, DecodingComesBeforePrefillAndNewcomers) {
  GroupHarness harness({.budget = 7});
  harness.Start();
  ASSERT_TRUE(harness.AddSimple(1, 20, 3).ok());
  ASSERT_TRUE(harness.AddSimple(2, 3, 3, -1).ok());
  EXPECT_THAT(Ids(*harness.Plan()), ElementsAre(2U, 1U));
  ASSERT_TRUE(harness.Deliver().ok());
  ASSERT_TRUE(harness.AddSimple(3, 2, 3, -5).ok());
  // 2 decodes, 1 goes on with its prompt and takes the rest of the budget; 3 waits.
  auto plan = harness.Plan();
  EXPECT_THAT(Ids(*plan), ElementsAre(2U, 1U));
  EXPECT_THAT(Chunks(*plan), ElementsAre(1U, 6U));
  EXPECT_EQ(harness.scheduler().num_queued(), 1U);
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 20, 3));
  EXPECT_EQ(harness.outcome(3).tokens, harness.Alone(3, 2, 3));
}

TEST(GroupScheduler, AtMostMaxNumSeqsRun) {
  GroupHarness harness({.max_num_seqs = 2});
  harness.Start();
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(harness.AddSimple(id, 2, 2).ok());
  EXPECT_THAT(Ids(*harness.Plan()), ElementsAre(1U, 2U));
  EXPECT_EQ(harness.scheduler().num_running(), 2U);
  EXPECT_EQ(harness.scheduler().num_queued(), 1U);
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(3).tokens, harness.Alone(3, 2, 2));
}

TEST(GroupScheduler, TwoLanesHaveTheirOwnSequences) {
  GroupHarness harness({.lanes = 2});
  harness.Start();
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(harness.AddSimple(id, 2, 3).ok());
  const auto lane0 = harness.Plan(0);
  ASSERT_TRUE(lane0.has_value());
  EXPECT_THAT(Ids(*lane0), ElementsAre(1U, 2U)) << "its share of the queue";
  const auto lane1 = harness.Plan(1);
  ASSERT_TRUE(lane1.has_value());
  EXPECT_EQ(lane1->lane, 1U);
  EXPECT_EQ(lane1->step, protocol::StepId(2));
  EXPECT_THAT(Ids(*lane1), ElementsAre(3U, 4U));
  EXPECT_FALSE(harness.Plan(0).has_value()) << "one step of a lane at a time";
  // Results may come back in any order.
  ASSERT_TRUE(harness.Deliver(1).ok());
  ASSERT_TRUE(harness.Deliver(0).ok());
  EXPECT_TRUE(harness.Finish());
  for (uint64_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(harness.outcome(id).tokens, harness.Alone(id, 2, 3)) << id;
  }
}

// rule: A3
TEST(GroupScheduler, PreemptsTheLastServedWhenBlocksRunOut) {
  GroupHarness harness({.block_tokens = 4, .num_blocks = 2});
  harness.Start();
  ASSERT_TRUE(harness.AddSimple(1, 3, 5).ok());
  ASSERT_TRUE(harness.AddSimple(2, 3, 5).ok());
  EXPECT_THAT(Ids(*harness.Plan()), ElementsAre(1U, 2U));
  ASSERT_TRUE(harness.Deliver().ok());
  EXPECT_THAT(Ids(*harness.Plan()), ElementsAre(1U, 2U));
  ASSERT_TRUE(harness.Deliver().ok());
  // Token 5 of sequence 1 needs the second block, which sequence 2 holds.
  EXPECT_THAT(Ids(*harness.Plan()), ElementsAre(1U));
  EXPECT_EQ(harness.engine().counters().preemptions[0], 1U);
  EXPECT_EQ(harness.engine().counters().preempted_tokens[0], 4U);
  EXPECT_EQ(harness.scheduler().num_queued(), 1U);
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 3, 5));
  EXPECT_EQ(harness.outcome(2).tokens, harness.Alone(2, 3, 5));
}

TEST(GroupScheduler, ANewcomerPushesNobodyOut) {
  GroupHarness harness({.block_tokens = 4, .num_blocks = 2});
  harness.Start();
  ASSERT_TRUE(harness.AddSimple(1, 6, 2).ok());
  ASSERT_TRUE(harness.Plan().has_value());
  ASSERT_TRUE(harness.Deliver().ok());
  ASSERT_TRUE(harness.AddSimple(2, 3, 1, -9).ok());
  EXPECT_THAT(Ids(*harness.Plan()), ElementsAre(1U));
  EXPECT_EQ(harness.engine().counters().preemptions[0], 0U);
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(2).tokens, harness.Alone(2, 3, 1));
}

TEST(GroupScheduler, StopTokensEndASequenceAndFreeItsBlocks) {
  GroupHarness harness({});
  harness.Start();
  const std::vector<int32_t> alone = harness.Alone(1, 3, 8);
  ASSERT_TRUE(harness.Add(1, {100, 101, 102}, StopAt(8, 0, {alone[2]})).ok());
  EXPECT_TRUE(harness.Finish());
  const auto first = std::find(alone.begin(), alone.end(), alone[2]) + 1;
  EXPECT_EQ(harness.outcome(1).tokens, std::vector<int32_t>(alone.begin(), first));
  EXPECT_EQ(harness.outcome(1).ended, EndReason::kStopToken);
  EXPECT_EQ(harness.engine().block_pool()->num_free(), 64U);
  EXPECT_EQ(harness.engine().num_free_slots(), 4U);
}

TEST(GroupScheduler, MinTokensKeepsAStopTokenInTheText) {
  GroupHarness harness({});
  harness.Start();
  const std::vector<int32_t> alone = harness.Alone(1, 3, 5);
  ASSERT_TRUE(harness.Add(1, {100, 101, 102}, StopAt(5, 5, {alone[0]})).ok());
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, alone);
}

TEST(GroupScheduler, MinTokensCountTheStopTokenItself) {
  GroupHarness harness({});
  harness.Start();
  const std::vector<int32_t> alone = harness.Alone(1, 3, 5);
  ASSERT_NE(alone[0], alone[1]);
  ASSERT_TRUE(harness.Add(1, {100, 101, 102}, StopAt(5, 2, {alone[1]})).ok());
  ASSERT_TRUE(harness.Add(2, {100, 101, 102}, StopAt(5, 3, {alone[1]})).ok());
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens.size(), 2U) << "it is the last of them";
  EXPECT_GT(harness.outcome(2).tokens.size(), 2U) << "it is one before";
}

TEST(GroupScheduler, TheModelLengthEndsASequence) {
  GroupHarness harness({.max_model_len = 10});
  harness.Start();
  ASSERT_TRUE(harness.AddSimple(1, 7, 50).ok());
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens.size(), 3U);
  EXPECT_EQ(harness.outcome(1).ended, EndReason::kLength);
}

TEST(GroupScheduler, RefusesWhatCanNeverRun) {
  GroupHarness harness({.block_tokens = 4, .num_blocks = 3, .max_model_len = 32});
  harness.Start();
  EXPECT_EQ(harness.Add(1, {}, StopAt(1)).message(),
            "the prompt has no tokens, at least one is needed");
  EXPECT_EQ(harness.Add(1, {5}, StopAt(0)).message(), "max_tokens is 0, must be at least 1");
  EXPECT_EQ(
      harness.AddSimple(1, 32, 1).message(),
      "the prompt has 32 tokens, max_model_len is 32; shorten it or raise model.max_model_len");
  const absl::Status blocks = harness.AddSimple(1, 8, 5);
  EXPECT_EQ(blocks.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(blocks.message(),
            "13 tokens need 4 cache blocks, the worker has 3; lower max_tokens, shorten the prompt "
            "or raise worker.num_blocks");
  EXPECT_TRUE(harness.AddSimple(1, 8, 4).ok());
  EXPECT_EQ(harness.AddSimple(1, 2, 1).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(harness.scheduler().sequences().size(), 1U);
}

TEST(GroupScheduler, RefusesBeyondTheBoundsOfTheQueue) {
  GroupHarness harness({.queued_requests_max = 2, .queued_tokens_max = 6});
  harness.Start();
  ASSERT_TRUE(harness.AddSimple(1, 4, 1).ok());
  EXPECT_THAT(std::string(harness.AddSimple(2, 3, 1).message()), HasSubstr("queue_tokens: 4"));
  ASSERT_TRUE(harness.AddSimple(3, 2, 1).ok());
  const absl::Status full = harness.AddSimple(4, 1, 1);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("queue_requests: 2"));
  EXPECT_EQ(harness.scheduler().sequences().size(), 2U);
}

TEST(GroupScheduler, CancelsQueuedRunningAndInFlight) {
  GroupHarness harness({.max_num_seqs = 2});
  harness.Start();
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(harness.AddSimple(id, 2, 9).ok());
  EXPECT_TRUE(harness.Cancel(3)) << "queued: gone at once";
  ASSERT_TRUE(harness.Plan().has_value());
  EXPECT_FALSE(harness.Cancel(1)) << "in flight: its step must end";
  ASSERT_TRUE(harness.Deliver().ok());
  EXPECT_TRUE(harness.outcome(1).cancelled);
  EXPECT_TRUE(harness.outcome(1).tokens.empty());
  EXPECT_TRUE(harness.Cancel(2)) << "running between steps: gone at once";
  EXPECT_FALSE(harness.Cancel(99)) << "unknown";
  EXPECT_TRUE(harness.scheduler().empty());
  EXPECT_EQ(harness.engine().block_pool()->num_free(), 64U);
  EXPECT_FALSE(harness.Plan().has_value());
}

TEST(GroupScheduler, ARefusedResultChangesNothing) {
  GroupHarness harness({});
  harness.Start(5);
  ASSERT_TRUE(harness.AddSimple(1, 2, 2).ok());
  EXPECT_THAT(std::string(harness.Commit(protocol::StepResult{}).message()),
              HasSubstr("lane 0 has no step in flight"));
  ASSERT_TRUE(harness.Plan().has_value());
  const protocol::StepResult good = harness.result();
  auto refused = [&](auto change, const char* text) {
    protocol::StepResult bad = good;
    change(bad);
    const absl::Status status = harness.Commit(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  refused([](auto& r) { r.step = protocol::StepId(9); },
          "result of step 9 epoch 5, in flight is step 1 epoch 5");
  refused([](auto& r) { r.epoch = protocol::Epoch(4); },
          "result of step 1 epoch 4, in flight is step 1 epoch 5");
  refused([](auto& r) { r.lane = 7; }, "lane 7 has no step in flight");
  refused([](auto& r) { r.sequences.clear(); }, "result has 0 sequences, the plan 1");
  refused([](auto& r) { r.sequences[0].sequence = protocol::SequenceId(8); },
          "result 0 is of sequence 8 with 1 rows, the plan has sequence 1 with 1");
  refused([](auto& r) { r.sequences[0].rows.clear(); },
          "result 0 is of sequence 1 with 0 rows, the plan has sequence 1 with 1");
  EXPECT_TRUE(harness.Deliver().ok());
  EXPECT_THAT(std::string(harness.Commit(good).message()), HasSubstr("has no step in flight"));
  EXPECT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).tokens, harness.Alone(1, 2, 2));
}

TEST(GroupScheduler, ARowWithoutTokenEndsTheSequenceWithAnError) {
  for (const uint32_t flags : {protocol::kRowNonFinite, protocol::kRowAllMasked}) {
    GroupHarness harness({});
    harness.Start();
    ASSERT_TRUE(harness.AddSimple(1, 2, 2).ok());
    ASSERT_TRUE(harness.Plan().has_value());
    protocol::StepResult result = harness.result();
    result.sequences[0].rows[0].plain_token = -1;
    result.sequences[0].rows[0].flags = flags;
    ASSERT_TRUE(harness.Commit(result).ok());
    EXPECT_EQ(harness.outcome(1).error.message(),
              flags == protocol::kRowNonFinite ? "no token at position 2: the logits are not finite"
                                               : "no token at position 2: no token is allowed");
    EXPECT_TRUE(harness.scheduler().empty());
  }
}

TEST(GroupScheduler, EqualCallsGiveEqualPlans) {
  auto run = [] {
    GroupHarness harness({.max_num_seqs = 3, .budget = 5, .lanes = 2, .num_blocks = 5});
    harness.Start();
    for (uint64_t id = 1; id <= 6; ++id) {
      EXPECT_TRUE(harness.AddSimple(id, id, 4, static_cast<int32_t>(id % 2)).ok());
    }
    std::vector<protocol::StepPlan> plans;
    for (int i = 0; i < 60; ++i) {
      const uint32_t lane = static_cast<uint32_t>(i % 2);
      if (harness.waiting(lane)) {
        EXPECT_TRUE(harness.Deliver(lane).ok());
      }
      if (auto plan = harness.Plan(lane)) plans.push_back(*std::move(plan));
    }
    return plans;
  };
  const std::vector<protocol::StepPlan> first = run();
  EXPECT_GT(first.size(), 10U);
  EXPECT_EQ(first, run());
}

}  // namespace
}  // namespace skein::tests
