// Chunk lengths within the budget, block counts, and the choice of whom to preempt.
#include "scheduler/batch_policy.h"

#include <vector>

#include <gtest/gtest.h>

namespace skein::scheduler {
namespace {

Sequence Running(uint64_t id, int32_t priority = 0) {
  Sequence sequence;
  sequence.id = protocol::SequenceId(id);
  sequence.arrival = id;
  sequence.rank = RankOf(priority, 0);
  sequence.state = SequenceState::kRunning;
  return sequence;
}

TEST(BatchPolicy, AChunkIsWhatIsLeftWithinTheBudget) {
  Sequence sequence = Running(1);
  sequence.tokens.assign(10, 3);
  sequence.planned = 4;
  EXPECT_EQ(ChunkLength(sequence, {.tokens = 64, .sequences = 1}), 6U);
  EXPECT_EQ(ChunkLength(sequence, {.tokens = 5, .sequences = 1}), 5U);
  EXPECT_EQ(ChunkLength(sequence, {.tokens = 0, .sequences = 1}), 0U);
  EXPECT_EQ(ChunkLength(sequence, {.tokens = 64, .sequences = 0}), 0U);
}

TEST(BatchPolicy, BlocksRoundUp) {
  EXPECT_EQ(BlocksFor(0, 4), 0U);
  EXPECT_EQ(BlocksFor(1, 4), 1U);
  EXPECT_EQ(BlocksFor(4, 4), 1U);
  EXPECT_EQ(BlocksFor(5, 4), 2U);
}

TEST(BatchPolicy, TheVictimIsTheLastServedAfterTheWanting) {
  Sequence first = Running(1);
  Sequence wanting = Running(2);
  Sequence third = Running(3);
  Sequence last = Running(4);
  const std::vector<Sequence*> running = {&first, &wanting, &third, &last};
  EXPECT_EQ(ChooseVictim(running, wanting), &last);
  last.in_flight = true;
  EXPECT_EQ(ChooseVictim(running, wanting), &third);
  third.in_flight = true;
  EXPECT_EQ(ChooseVictim(running, wanting), nullptr);
  EXPECT_EQ(ChooseVictim(running, last), nullptr);
}

TEST(BatchPolicy, PriorityComesBeforeArrival) {
  Sequence wanting = Running(5);
  Sequence urgent = Running(9, -1);
  Sequence patient = Running(1, 1);
  const std::vector<Sequence*> running = {&urgent, &wanting, &patient};
  EXPECT_EQ(ChooseVictim(running, wanting), &patient);
  patient.in_flight = true;
  EXPECT_EQ(ChooseVictim(running, wanting), nullptr);
}

}  // namespace
}  // namespace skein::scheduler
