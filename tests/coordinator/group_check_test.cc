// The answer of a check: what is asked, what is kept, and where two answers differ.
#include "coordinator/group_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

TEST(GroupCheckTest, KeepsTokensAndTheBitsOfTheirLogprobs) {
  CheckSink sink;
  TokenDelta delta;
  delta.tokens = {{7, -0.5F, {}}, {8, -0.0F, {}}};
  sink.Deliver(delta);
  EXPECT_FALSE(sink.ended());
  TokenDelta last;
  last.finish = FinishReason::kLength;
  sink.Deliver(last);
  EXPECT_TRUE(sink.ended());
  EXPECT_THAT(sink.result().tokens, ::testing::ElementsAre(7, 8));
  EXPECT_THAT(sink.result().logprob_bits, ::testing::ElementsAre(0xBF000000u, 0x80000000u));
}

TEST(GroupCheckTest, SaysWhereAnswersDiffer) {
  const CheckResult one = {{7, 8}, {0xBF000000u, 0xBF800000u}};
  CheckResult other = one;
  EXPECT_EQ(Difference(one, other), "");
  other.logprob_bits[1] = 0xC0000000u;
  EXPECT_EQ(Difference(one, other), "token 1 is 8 with logprob -2, expected 8 with -1");
  other.tokens.pop_back();
  other.logprob_bits.pop_back();
  EXPECT_EQ(Difference(one, other), "1 tokens, expected 2");
}

TEST(GroupCheckTest, FitsShortModels) {
  const SubmitRequest check = MakeCheck(3, 10, nullptr);
  EXPECT_EQ(check.id.value(), (uint64_t{1} << 63) + 3);
  EXPECT_EQ(check.prompt_ids.size(), 5u);
  EXPECT_EQ(check.stop.max_tokens, 5);
  EXPECT_EQ(check.sampling.temperature, 0);
}

}  // namespace
}  // namespace skein::coordinator
