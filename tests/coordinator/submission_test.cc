// Tests of the sequences that a request becomes.
// Thread: single.
// Must never: open a socket.
#include "coordinator/api/submission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/api_fixture.h"

namespace skein::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const RequestIds kIds(5);

SubmissionParts Parts(int32_t max_model_len = 100) {
  SubmissionParts parts{TinyTokenizer(), TinyTemplate(), kIds, max_model_len, 4096, {}, {}};
  parts.next_number = [next = uint64_t{10}]() mutable { return next++; };
  return parts;
}

ApiOr<Submission> Make(const GenerationParams& params, std::vector<PromptTokens> prompts,
                       int32_t max_model_len = 100) {
  return MakeSubmission(params, {RequestForm::kCompletion, std::move(prompts)},
                        Parts(max_model_len));
}

TEST(SubmissionTest, EachChoiceIsASequenceOfItsOwn) {
  GenerationParams params;
  params.n = 2;
  params.sampling.has_seed = true;
  params.sampling.seed = ~uint64_t{0};
  params.return_ids = true;
  const auto made = Make(params, {{{1, 2}, "x"}, {{3}}});
  const auto& submission = std::get<Submission>(made);
  ASSERT_EQ(submission.requests.size(), 4u);
  ASSERT_EQ(submission.choices.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const SubmitRequest& request = submission.requests[i];
    const Choice::Setup& choice = submission.choices[i];
    EXPECT_EQ(request.id, protocol::RequestId(10 + i));
    EXPECT_EQ(choice.request, request.id);
    EXPECT_EQ(choice.index, i);
    EXPECT_EQ(request.sampling.seed, i % 2 == 0 ? ~uint64_t{0} : 0u) << "it wraps around";
    EXPECT_EQ(*choice.prompt_ids, request.prompt_ids);
    EXPECT_EQ(choice.echo, i < 2 ? "x" : "");
  }
  EXPECT_THAT(submission.requests[1].prompt_ids, ElementsAre(1, 2));
  EXPECT_THAT(submission.requests[2].prompt_ids, ElementsAre(3));
  EXPECT_EQ(submission.choices[0].prompt_tokens, 2);
  EXPECT_EQ(submission.choices[1].prompt_tokens, 0);
  EXPECT_EQ(submission.choices[2].prompt_tokens, 1);
}

TEST(SubmissionTest, LengthsAreThoseOfEachPrompt) {
  GenerationParams params;
  const auto made = Make(params, {{std::vector<int32_t>(90, 7)}, {{1}}});
  const auto& requests = std::get<Submission>(made).requests;
  EXPECT_EQ(requests[0].stop.max_tokens, 10);
  EXPECT_EQ(requests[1].stop.max_tokens, 99);
  EXPECT_THAT(requests[0].stop.stop_token_ids, Contains(TinyTemplate().eos_id()));
  params.stop.ignore_eos = true;
  params.stop.min_tokens = 11;
  const auto refused = Make(params, {{{1}}, {std::vector<int32_t>(90, 7)}});
  EXPECT_THAT(std::get<ApiError>(refused).message, HasSubstr("at most 10 tokens fit"));
  const auto one = Make(params, {{{1}}});
  EXPECT_THAT(std::get<Submission>(one).requests[0].stop.stop_token_ids,
              Not(Contains(TinyTemplate().eos_id())));
  params.max_tokens = 60;
  const auto too_long = Make(params, {{std::vector<int32_t>(41, 7)}});
  EXPECT_EQ(std::get<ApiError>(too_long).code, "context_length_exceeded");
}

TEST(SubmissionTest, MinTokensMasksTheStopTokens) {
  GenerationParams params;
  const auto constraint = [&] {
    return std::get<Submission>(Make(params, {{{1}}})).requests[0].constraint;
  };
  EXPECT_EQ(constraint(), nullptr);
  params.stop.min_tokens = 3;
  ASSERT_NE(constraint(), nullptr);
  EXPECT_TRUE(constraint()->binds());
  const auto eos = static_cast<size_t>(TinyTemplate().eos_id());
  EXPECT_EQ(constraint()->Mask()[eos / 32] >> (eos % 32) & 1u, 0u);
  params.stop.ignore_eos = true;
  EXPECT_EQ(constraint(), nullptr) << "nothing ends it";
}

}  // namespace
}  // namespace skein::coordinator
