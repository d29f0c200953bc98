// Tests of usage, logprobs and whole answers.
// Thread: single.
// Must never: open a socket.
#include "coordinator/api/answer_format.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tests/coordinator/api_fixture.h"

namespace skein::coordinator {
namespace {

TEST(AnswerFormatTest, UsageHasEveryField) {
  EXPECT_EQ(UsageJson({9, 12, 2, 4, 5, 20, 7}),
            "{\"prompt_tokens\":9,\"completion_tokens\":12,\"total_tokens\":21,"
            "\"prompt_tokens_details\":{\"cached_tokens\":2},\"completion_tokens_details\":{"
            "\"reasoning_tokens\":4,\"accepted_prediction_tokens\":0,"
            "\"rejected_prediction_tokens\":0},\"prompt_cache_hit_tokens\":2,"
            "\"prompt_cache_miss_tokens\":7,\"skein\":{\"steps\":5,\"draft_tokens\":20,"
            "\"accepted_draft_tokens\":7}}");
}

// rule: R4.3
TEST(AnswerFormatTest, ChatLogprobsShowBytesAndBounds) {
  LogprobList list(TinyTokenizer(), RequestForm::kChat, 1);
  EXPECT_TRUE(list.empty());
  list.Append({67, -0.6931F, {{67, -0.6931F}, {68, -1.0F}}});
  EXPECT_FALSE(list.empty());
  EXPECT_EQ(list.Take(),
            "{\"content\":[{\"token\":\"a\",\"logprob\":-0.6930999755859375,\"bytes\":[97],"
            "\"top_logprobs\":[{\"token\":\"a\",\"logprob\":-0.6930999755859375,\"bytes\":[97]}]}]"
            ",\"refusal\":null}");
  EXPECT_TRUE(list.empty());
  for (float value : {-std::numeric_limits<float>::infinity(), std::nanf("")}) {
    list.Append({67, value, {}});
    EXPECT_NE(list.Take().find("\"logprob\":-9999.0"), std::string::npos);
  }
}

TEST(AnswerFormatTest, CompletionLogprobsKeepOffsetsAndDistinctKeys) {
  LogprobList list(TinyTokenizer(), RequestForm::kCompletion, 2);
  list.Append({67, -1.0F, {{67, -1.0F}, {68, -2.0F}}});
  EXPECT_EQ(list.Take(),
            "{\"tokens\":[\"a\"],\"token_logprobs\":[-1.0],\"top_logprobs\":[{\"a\":-1.0,"
            "\"b\":-2.0}],\"text_offset\":[0]}");
  list.Append({68, -0.5F, {}});
  EXPECT_EQ(list.Take(),
            "{\"tokens\":[\"b\"],\"token_logprobs\":[-0.5],\"top_logprobs\":[{\"b\":-0.5}],"
            "\"text_offset\":[1]}");
}

TEST(AnswerFormatTest, WholeAnswers) {
  std::vector<ChoiceAnswer> choices(1);
  ChoiceAnswer& answer = choices[0];
  answer.text = {"why", "what"};
  answer.has_reasoning = true;
  answer.end = {"stop", "7"};
  const std::string chat = AnswerJson({RequestForm::kChat, "i", "m", "f", 3}, choices, {});
  EXPECT_NE(chat.find("\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
                      "\"what\",\"reasoning_content\":\"why\",\"refusal\":null},\"logprobs\":null,"
                      "\"finish_reason\":\"stop\",\"stop_reason\":7}],\"usage\":{"),
            std::string::npos)
      << chat;
  AnswerIdentity both = {RequestForm::kChat, "i", "m", "f", 3};
  both.names_reasoning = true;
  EXPECT_NE(AnswerJson(both, choices, {})
                .find("\"reasoning_content\":\"why\",\"reasoning\":\"why\",\"refusal\":null}"),
            std::string::npos);
  const std::string text = AnswerJson({RequestForm::kCompletion, "i", "m", "f", 3}, choices, {});
  EXPECT_NE(text.find("{\"index\":0,\"text\":\"what\",\"logprobs\":null"), std::string::npos);
  choices.push_back({.index = 1, .ids = std::vector<int32_t>{4}});
  const std::string two = AnswerJson({RequestForm::kChat, "i", "m", "f", 3}, choices, {});
  EXPECT_NE(two.find("},{\"index\":1,"), std::string::npos);
  EXPECT_NE(two.find("\"token_ids\":[4]}],\"usage\""), std::string::npos) << two;
}

}  // namespace
}  // namespace skein::coordinator
