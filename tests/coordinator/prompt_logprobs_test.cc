// Tests of logprobs of prompts: their form, and how requests ask for them.
// Thread: the test's, beside the listener's and the control loop's.
// Must never: wait for time to pass without a condition.
#include "coordinator/api/prompt_logprobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/api/submission.h"
#include "tests/coordinator/api_fixture.h"

namespace skein::coordinator {
namespace {

using protocol::JsonValue;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kText[] = "/v1/completions";

// 67 is "a", 68 "b", 69 "c".
PromptLogprobs Abc(bool begins_hidden = false) {
  PromptLogprobs prompt({{67, 68, 69}, begins_hidden}, TinyTokenizer());
  prompt.Append(std::vector<protocol::TokenScore>{{-1.5F, {{69, -0.5F}, {68, -1.5F}}}});
  EXPECT_FALSE(prompt.complete());
  prompt.Append(std::vector<protocol::TokenScore>{{-7.0F, {{67, -0.25F}, {68, -2.0F}}}});
  EXPECT_TRUE(prompt.complete());
  return prompt;
}

// rule: R4.4
TEST(PromptLogprobsTest, R44TheListHasEachTokenAndItsAlternativesById) {
  EXPECT_EQ(Abc().Json(2), R"([null,{"69":{"logprob":-0.5,"rank":1,"decoded_token":"c"},)"
                           R"("68":{"logprob":-1.5,"rank":2,"decoded_token":"b"}},)"
                           R"({"69":{"logprob":-7.0,"rank":null,"decoded_token":"c"},)"
                           R"("67":{"logprob":-0.25,"rank":1,"decoded_token":"a"},)"
                           R"("68":{"logprob":-2.0,"rank":2,"decoded_token":"b"}}])");
  EXPECT_EQ(Abc().Json(0), R"([null,{"68":{"logprob":-1.5,"rank":null,"decoded_token":"b"}},)"
                           R"({"69":{"logprob":-7.0,"rank":null,"decoded_token":"c"}}])");
}

// rule: R4.4 — "with echo the first prompt token has null".
TEST(PromptLogprobsTest, R44AnEchoBeginsWithNull) {
  LogprobList list(TinyTokenizer(), RequestForm::kCompletion, 1);
  Abc().AppendTo(&list);
  list.Append({67, -0.125F, {{67, -0.125F}}});
  EXPECT_EQ(list.Take(),
            R"({"tokens":["a","b","c","a"],"token_logprobs":[null,-1.5,-7.0,-0.125],)"
            R"("top_logprobs":[null,{"b":-1.5,"c":-0.5},{"c":-7.0,"a":-0.25},{"a":-0.125}],)"
            R"("text_offset":[0,1,2,3]})");
}

// A token that was added before the text has an entry and no place in the text.
TEST(PromptLogprobsTest, AHiddenBeginningTakesNoRoomInTheText) {
  LogprobList list(TinyTokenizer(), RequestForm::kCompletion, 0);
  Abc(true).AppendTo(&list);
  EXPECT_THAT(list.Take(), HasSubstr(R"("text_offset":[0,0,1])"));
}

class PromptLogprobsRequestTest : public ApiFixture {};

TEST_F(PromptLogprobsRequestTest, AChatShowsThoseOfItsPromptOnce) {
  const protocol::HttpResult result =
      Post(kChat, R"({"messages":[{"role":"user","content":"Hi"}],"prompt_logprobs":1,"n":2})");
  ASSERT_EQ(result.status, 200) << result.body;
  const SubmitRequest first = control_.TakeSubmitted();
  EXPECT_EQ(first.sampling.num_prompt_logprobs, 1);
  EXPECT_EQ(control_.TakeSubmitted().sampling.num_prompt_logprobs, -1);
  const JsonValue list = At(result.body, {"prompt_logprobs"});
  ASSERT_EQ(list.elements().size(), first.prompt_ids.size());
  EXPECT_TRUE(list.elements()[0].IsNull());
  EXPECT_FALSE(list.elements()[1].members().empty());
}

TEST_F(PromptLogprobsRequestTest, WhoAsksForNoneGetsNone) {
  const protocol::HttpResult result = Post(kText, R"({"prompt":"a b","echo":true})");
  EXPECT_THAT(result.body, Not(HasSubstr("prompt_logprobs")));
  EXPECT_EQ(control_.TakeSubmitted().sampling.num_prompt_logprobs, -1);
}

TEST_F(PromptLogprobsRequestTest, EachChoiceOfACompletionHasItsPrompts) {
  const protocol::HttpResult result =
      Post(kText, R"({"prompt":["a b c",[5,6]],"n":2,"echo":true,"logprobs":2,)"
                  R"("prompt_logprobs":0,"max_tokens":3})");
  ASSERT_EQ(result.status, 200) << result.body;
  const SubmitRequest first = control_.TakeSubmitted();
  EXPECT_EQ(first.sampling.num_prompt_logprobs, 2) << "the larger of both";
  const JsonValue choices = At(result.body, {"choices"});
  for (size_t i = 0; i < 4; ++i) {
    const JsonValue& choice = choices.elements()[i];
    const size_t prompt = i < 2 ? first.prompt_ids.size() : 2;
    EXPECT_EQ(choice.Find("prompt_logprobs")->elements().size(), prompt);
    const auto logprobs = choice.Find("logprobs")->Find("token_logprobs")->elements();
    ASSERT_EQ(logprobs.size(), prompt + 3) << i;
    EXPECT_TRUE(logprobs[0].IsNull());
    EXPECT_FALSE(logprobs[1].IsNull());
  }
}

// An echo and its logprobs come in one chunk, when all of the prompt is known.
TEST_F(PromptLogprobsRequestTest, AStreamShowsTheEchoWithItsLogprobs) {
  const std::string fields = R"({"prompt":"a b c","echo":true,"logprobs":1,"max_tokens":3)";
  const protocol::HttpResult whole = Post(kText, fields + "}");
  const auto events = Stream(kText, fields + R"(,"stream":true})");
  const JsonValue first = At(events.front(), {"choices", "0"});
  EXPECT_THAT(std::string(first.Find("text")->string()), HasSubstr("a b c"));
  ASSERT_FALSE(first.Find("logprobs")->IsNull()) << "the echo alone";
  EXPECT_GE(first.Find("logprobs")->Find("tokens")->elements().size(), 4u) << "BOS and three";
  std::string text;
  size_t tokens = 0;
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const JsonValue choice = At(event, {"choices", "0"});
    text += choice.Find("text")->string();
    if (choice.Find("logprobs")->IsNull()) continue;
    tokens += choice.Find("logprobs")->Find("tokens")->elements().size();
  }
  EXPECT_EQ(text, TextAt(whole.body, {"choices", "0", "text"}));
  EXPECT_EQ(tokens, At(whole.body, {"choices", "0", "logprobs", "tokens"}).elements().size());
}

TEST(PromptLogprobsBound, AnAnswerHasAMillionEntriesAtMost) {
  GenerationParams params;
  params.n = 8;
  params.prompt_logprobs = 20;
  params.max_tokens = 1;
  const RequestIds ids(1);
  uint64_t number = 0;
  const SubmissionParts parts{
      TinyTokenizer(), TinyTemplate(), ids, 10'000, 4096, [&] { return ++number; }, {}};
  const auto make = [&](size_t tokens) {
    GenerationInput input{RequestForm::kCompletion, {}};
    input.prompts.push_back({std::vector<int32_t>(tokens, 67)});
    return MakeSubmission(params, std::move(input), parts);
  };
  EXPECT_TRUE(std::holds_alternative<Submission>(make(6241)));
  const auto refused = make(6242);
  ASSERT_TRUE(std::holds_alternative<ApiError>(refused));
  EXPECT_EQ(std::get<ApiError>(refused).param, "prompt_logprobs");
  EXPECT_THAT(std::get<ApiError>(refused).message, HasSubstr("at most 1048576"));
}

}  // namespace
}  // namespace skein::coordinator
