// When a sequence ends, and what it derives from its counters.
#include "scheduler/sequence.h"

#include <gtest/gtest.h>

namespace skein::scheduler {
namespace {

// A prompt of three tokens and the given answer.
Sequence Generated(const std::vector<int32_t>& answer) {
  Sequence sequence;
  sequence.tokens = {10, 11, 12};
  sequence.prompt_length = 3;
  sequence.tokens.insert(sequence.tokens.end(), answer.begin(), answer.end());
  sequence.stop.max_tokens = 4;
  sequence.stop.stop_token_ids = {1, 12};
  return sequence;
}

TEST(Sequence, APromptNeverEndsEvenOnAStopToken) {
  EXPECT_EQ(EndOf(Generated({}), 3), std::nullopt);
}

TEST(Sequence, StopTokensEnd) {
  EXPECT_EQ(EndOf(Generated({5}), 100), std::nullopt);
  EXPECT_EQ(EndOf(Generated({5, 1}), 100), EndReason::kStopToken);
  EXPECT_EQ(EndOf(Generated({12}), 100), EndReason::kStopToken);
}

TEST(Sequence, AStopTokenAtTheLengthLimitIsAStop) {
  EXPECT_EQ(EndOf(Generated({5, 5, 5, 1}), 100), EndReason::kStopToken);
  EXPECT_EQ(EndOf(Generated({5, 5, 5, 5}), 100), EndReason::kLength);
}

TEST(Sequence, MinTokensHoldsStopTokensBack) {
  Sequence sequence = Generated({1});
  sequence.stop.min_tokens = 2;
  EXPECT_EQ(EndOf(sequence, 100), std::nullopt);
  sequence.tokens.push_back(1);
  EXPECT_EQ(EndOf(sequence, 100), EndReason::kStopToken);
}

TEST(Sequence, TheModelLengthEnds) {
  EXPECT_EQ(EndOf(Generated({5}), 5), std::nullopt);
  EXPECT_EQ(EndOf(Generated({5, 5}), 5), EndReason::kLength);
}

TEST(Sequence, PrefillIsMoreThanTheNewestToken) {
  Sequence sequence = Generated({5});
  EXPECT_EQ(sequence.num_generated(), 1U);
  EXPECT_TRUE(sequence.prefilling());
  sequence.planned = 3;
  EXPECT_FALSE(sequence.prefilling());
}

}  // namespace
}  // namespace skein::scheduler
