// The judge of the acceptance checks must find each kind of flaw.
#include "tests/accept/stream_load.h"

#include <gtest/gtest.h>

#include "tests/process/mock_model.h"

namespace skein::tests {
namespace {

const std::string kAnswer = MockAnswer(std::vector<int32_t>{40, 41}, 100);

TEST(FlawOfTest, ABeginningOfTheAnswerHasNone) {
  EXPECT_EQ(FlawOf(kAnswer, kAnswer), Flaw::kNone);
  EXPECT_EQ(FlawOf(kAnswer, kAnswer.substr(0, 10)), Flaw::kNone);
}

TEST(FlawOfTest, EachKindIsNamed) {
  EXPECT_EQ(FlawOf(kAnswer, kAnswer.substr(0, 50) + kAnswer.substr(51)), Flaw::kLost);
  EXPECT_EQ(FlawOf(kAnswer, kAnswer.substr(0, 50) + kAnswer.substr(49)), Flaw::kDuplicated);
  const std::string other = MockAnswer(std::vector<int32_t>{42}, 100);
  EXPECT_EQ(FlawOf(kAnswer, kAnswer.substr(0, 50) + other.substr(50)), Flaw::kMixed);
  EXPECT_EQ(FlawOf(kAnswer, kAnswer + "x"), Flaw::kMixed);
}

}  // namespace
}  // namespace skein::tests
