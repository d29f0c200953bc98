// Logprobs of prompts: each token is scored once and in order, whatever the budget, preemption, the
// end of an epoch and the prefix cache do to the prefill.
#include "scheduler/prompt_scores.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/group_harness.h"

namespace skein::tests {
namespace {

using ::testing::HasSubstr;

std::vector<int32_t> Counting(int32_t count) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(i);
  return tokens;
}

std::vector<float> Wanted(const std::vector<int32_t>& prompt) {
  std::vector<float> scores;
  for (size_t i = 1; i < prompt.size(); ++i) {
    scores.push_back(ScoreOf(std::span(prompt).first(i), prompt[i]));
  }
  return scores;
}

absl::Status AddScored(GroupHarness& harness, uint64_t id, std::vector<int32_t> prompt,
                       int32_t generated = 4, int32_t priority = 0) {
  scheduler::NewSequence sequence;
  sequence.id = protocol::SequenceId(id);
  sequence.prompt = std::move(prompt);
  sequence.stop = StopAt(generated);
  sequence.priority = priority;
  sequence.sampling.num_prompt_logprobs = 2;
  return harness.scheduler().AddSequence(std::move(sequence));
}

TEST(PromptScores, LP4EachTokenIsScoredOnceInOrderWhateverTheBudget) {
  for (const uint32_t budget : {1, 2, 5, 64}) {
    for (const int32_t length : {1, 2, 3, 23}) {
      GroupHarness harness({.budget = budget, .max_draft_tokens = budget > 5 ? 4U : 0U});
      harness.Start();
      ASSERT_TRUE(AddScored(harness, 1, Counting(length)).ok());
      ASSERT_TRUE(harness.AddSimple(2, 9, 6).ok());
      ASSERT_TRUE(harness.Finish());
      EXPECT_EQ(harness.outcome(1).scores, Wanted(Counting(length)));
      EXPECT_EQ(harness.outcome(1).tokens, DecodeAlone(Counting(length), StopAt(4), 64));
      EXPECT_TRUE(harness.outcome(2).scores.empty());
    }
  }
}

TEST(PromptScores, TheEndOfAnEpochInThePrefillScoresNothingTwice) {
  for (int steps = 0; steps < 7; ++steps) {
    GroupHarness harness({.budget = 4});
    harness.Start();
    ASSERT_TRUE(AddScored(harness, 1, Counting(22)).ok());
    for (int i = 0; i < steps; ++i) {
      ASSERT_TRUE(harness.Plan());
      ASSERT_TRUE(harness.Deliver().ok());
    }
    harness.Plan();  // lost
    harness.Abort();
    harness.Start(2);
    ASSERT_TRUE(harness.Finish());
    EXPECT_EQ(harness.outcome(1).scores, Wanted(Counting(22))) << steps;
  }
}

TEST(PromptScores, PreemptionInThePrefillScoresNothingTwice) {
  GroupHarness harness({.budget = 3, .num_blocks = 9});
  harness.Start();
  ASSERT_TRUE(harness.AddSimple(2, 2, 20).ok());  // served before it, and grows beside it
  ASSERT_TRUE(AddScored(harness, 1, Counting(30), 4, 1).ok());
  ASSERT_TRUE(harness.Finish());
  EXPECT_GT(harness.engine().counters().preemptions[0], 0U);
  EXPECT_EQ(harness.outcome(1).scores, Wanted(Counting(30)));
}

// rule: R4.4 — what a hit would skip is computed.
TEST(PromptScores, R44AHitSkipsNoRowThatIsScored) {
  for (const uint32_t recompute : {0, 6}) {
    GroupHarness harness(
        {.prefix_caching = true, .num_checkpoints = 2, .recompute_tokens = recompute});
    harness.Start();
    ASSERT_TRUE(harness.Add(1, Counting(30), StopAt(4)).ok());
    ASSERT_TRUE(harness.Finish());
    ASSERT_TRUE(AddScored(harness, 2, Counting(30)).ok());
    ASSERT_TRUE(harness.Finish());
    EXPECT_EQ(harness.outcome(2).scores, Wanted(Counting(30)));
    EXPECT_EQ(harness.outcome(2).cached_tokens, 0U);
    ASSERT_TRUE(harness.Add(3, Counting(30), StopAt(4)).ok());
    ASSERT_TRUE(harness.Finish());
    EXPECT_GT(harness.outcome(3).cached_tokens, 0U) << "others still hit";
  }
}

// Its blocks may be read again once their scores are known.
TEST(PromptScores, AReplayMayHitWhatIsScored) {
  GroupHarness harness({.budget = 8, .prefix_caching = true, .num_checkpoints = 2});
  harness.Start();
  ASSERT_TRUE(AddScored(harness, 1, Counting(30), 30).ok());
  ASSERT_TRUE(harness.Add(2, Counting(30), StopAt(20)).ok());
  while (harness.outcome(1).scores.size() < 29) {
    ASSERT_TRUE(harness.Plan());
    ASSERT_TRUE(harness.Deliver().ok());
  }
  const uint64_t queries = harness.engine().counters().cache_queries;
  harness.Abort();
  harness.Start(2);
  ASSERT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(1).scores, Wanted(Counting(30)));
  EXPECT_EQ(harness.engine().counters().cache_queries, queries) << "counted at first admission";
}

TEST(PromptScores, AWorkerThatScoresNothingIsNotAskedTo) {
  GroupHarness harness({.scores_prompts = false});
  harness.Start();
  const absl::Status refused = AddScored(harness, 1, Counting(6));
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("logprobs of prompts"));
}

// rule: R4.1 — never the raw ones in their place.
TEST(PromptScores, AWorkerThatKnowsNoProcessedLogprobsIsNotAskedForThem) {
  GroupHarness harness({.processes_logprobs = false});
  harness.Start();
  scheduler::NewSequence sequence;
  sequence.id = protocol::SequenceId(1);
  sequence.prompt = {1, 2};
  sequence.stop.max_tokens = 1;
  sequence.sampling.logprobs = true;
  scheduler::NewSequence processed = sequence;
  processed.sampling.processed_logprobs = true;
  const absl::Status refused = harness.scheduler().AddSequence(processed);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("processed logprobs"));
  EXPECT_TRUE(harness.scheduler().AddSequence(sequence).ok());
}

TEST(PromptScores, LogitsThatAreNotFiniteEndTheRequest) {
  GroupHarness harness({});
  harness.Start();
  ASSERT_TRUE(AddScored(harness, 1, Counting(6)).ok());
  ASSERT_TRUE(harness.Plan());
  protocol::StepResult result = harness.result();
  result.sequences[0].scores[3].logprob = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(harness.Commit(result).ok());
  EXPECT_EQ(harness.outcome(1).error.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(harness.outcome(1).error.message()), HasSubstr("position 4"));
}

TEST(PromptScores, AResultThatScoresOtherRowsIsRefused) {
  GroupHarness harness({});
  harness.Start();
  ASSERT_TRUE(AddScored(harness, 1, Counting(6)).ok());
  ASSERT_TRUE(harness.Plan());
  protocol::StepResult result = harness.result();
  result.sequences[0].scores.pop_back();
  EXPECT_THAT(std::string(harness.Commit(result).message()), HasSubstr("scores 4 tokens"));
}

// Prompts together score no more in a step than a message holds.
TEST(PromptScores, AStepScoresABoundedNumberOfRows) {
  GroupHarness harness({.max_num_seqs = 3,
                        .budget = 4096,
                        .block_tokens = 64,
                        .num_blocks = 100,
                        .max_model_len = 1600});
  harness.Start();
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(AddScored(harness, id, Counting(1500), 2).ok());
  ASSERT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(3).scores.size(), 1499U);
}

// Who finds no row to score waits, and holds up nobody who scores nothing.
TEST(PromptScores, OthersEnterAStepThatScoresNoMore) {
  GroupHarness harness({.max_num_seqs = 3,
                        .budget = 4096,
                        .block_tokens = 64,
                        .num_blocks = 100,
                        .max_model_len = 1600});
  harness.Start();
  for (uint64_t id = 1; id <= 2; ++id) ASSERT_TRUE(AddScored(harness, id, Counting(1500), 2).ok());
  ASSERT_TRUE(harness.Add(3, Counting(10), StopAt(2)).ok());
  const auto plan = harness.Plan();
  ASSERT_TRUE(plan.has_value());
  ASSERT_EQ(plan->sequences.size(), 2U);
  EXPECT_EQ(plan->sequences[0].sequence, protocol::SequenceId(1));
  EXPECT_EQ(plan->sequences[1].sequence, protocol::SequenceId(3));
  ASSERT_TRUE(harness.Deliver().ok());
  ASSERT_TRUE(harness.Finish());
  EXPECT_EQ(harness.outcome(2).scores.size(), 1499U);
}

}  // namespace
}  // namespace skein::tests
