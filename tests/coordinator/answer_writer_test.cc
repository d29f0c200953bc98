// Tests of the choice of a writer; what writers write is in sse_writer_test, answer_format_test and
// messages_writer_test.
// Thread: single.
// Must never: open a socket.
#include "coordinator/api/answer_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(AnswerWriterTest, EachFormEndsItsStreamsInItsWay) {
  GenerationParams params;
  const auto make = [&](RequestForm form) {
    return MakeAnswerWriter({form, "x_1", "m", "f", 5}, params);
  };
  EXPECT_EQ(make(RequestForm::kChat)->Done({}), "data: [DONE]\n\n");
  EXPECT_THAT(make(RequestForm::kMessages)->Done({}), StartsWith("event: message_stop"));
  params.include_usage = true;
  EXPECT_THAT(make(RequestForm::kCompletion)->Done({}), StartsWith("data: {\"id\":\"x_1\""));
  EXPECT_THAT(make(RequestForm::kCompletion)->Done({}), EndsWith("data: [DONE]\n\n"));
  EXPECT_THAT(make(RequestForm::kCompletion)->Last(1, {"stop"}, {}), HasSubstr("\"usage\":null"));
}

TEST(AnswerWriterTest, OnlyAChatOpensItsChoicesBeforeTheirText) {
  const GenerationParams params;
  const auto first = [&](RequestForm form, bool reasons) {
    return MakeAnswerWriter({form, "x_1", "m", "f", 5}, params)->First(2, reasons, {}, {});
  };
  EXPECT_THAT(first(RequestForm::kChat, false), HasSubstr("\"content\":\"\""));
  EXPECT_THAT(first(RequestForm::kChat, true), HasSubstr("\"content\":null"));
  EXPECT_EQ(first(RequestForm::kCompletion, false), "");
  EXPECT_EQ(first(RequestForm::kMessages, true), "");
}

TEST(AnswerWriterTest, RefusalsHaveTheStatusOfTheForm) {
  const GenerationParams params;
  const auto status = [&](RequestForm form) {
    return MakeAnswerWriter({form, "x_1", "m", "f", 5}, params)->Refusal(Draining(), 2).status;
  };
  EXPECT_EQ(status(RequestForm::kChat), 503);
  EXPECT_EQ(status(RequestForm::kMessages), 529);
}

}  // namespace
}  // namespace skein::coordinator
