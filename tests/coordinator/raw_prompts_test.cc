// Tests of prompts without a chat form: their ids, what is special, and the routes that show them.
#include "coordinator/api/raw_prompts.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/coordinator/api_fixture.h"

namespace skein::coordinator {
namespace {

RequestLimits Limits() {
  RequestLimits limits;
  limits.max_model_len = 100;
  limits.vocab_size = TinyTokenizer().vocab_size();
  return limits;
}

std::string TokenizedText(std::string_view body) {
  auto made =
      Tokenized(protocol::ParseJson(body).value(), Limits(), TinyTokenizer(), TinyTemplate());
  const auto* error = std::get_if<ApiError>(&made);
  return error != nullptr ? error->code : std::get<std::string>(made);
}

TEST(RawPromptsTest, NamesTheSpecialIdThatIsRefused) {
  RawPrompt prompt;
  prompt.is_text = false;
  prompt.ids = {77, 78};
  EXPECT_FALSE(RefuseSpecialIds(prompt, TinyTokenizer()).has_value());
  prompt.ids.push_back(TinyTemplate().eos_id());
  const auto error = RefuseSpecialIds(prompt, TinyTokenizer());
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->status, 403);
  EXPECT_EQ(error->message,
            "this API key may not send special token ids, and 1 is one; leave it out or ask the "
            "operator for the right");
}

TEST(RawPromptsTest, RefusesATextThatCannotFitBeforeItIsTokenised) {
  const size_t longest = TinyTokenizer().longest_token_bytes();
  EXPECT_FALSE(CheckTextSize(100 * longest - 1, TinyTokenizer(), 100).has_value());
  EXPECT_EQ(CheckTextSize(100 * longest, TinyTokenizer(), 100)->code, "context_length_exceeded");
}

TEST(RawPromptsTest, AnswersTheRoutesOfTokens) {
  EXPECT_EQ(TokenizedText(R"({"prompt":[5,6]})"),
            R"({"count":2,"max_model_len":100,"tokens":[5,6]})");
  EXPECT_EQ(TokenizedText(R"({"prompt":["a","b"]})"), "unsupported_parameter");
  EXPECT_EQ(TokenizedText(R"({"messages":[]})"), "invalid_value");
  const auto text =
      Detokenized(protocol::ParseJson(R"({"tokens":[66]})").value(), Limits(), TinyTokenizer());
  EXPECT_EQ(TextAt(std::get<std::string>(text), {"prompt"}),
            TinyTokenizer().Decode({{66}}).value());
  const auto bad =
      Detokenized(protocol::ParseJson(R"({"tokens":5})").value(), Limits(), TinyTokenizer());
  EXPECT_EQ(std::get<ApiError>(bad).param, "tokens");
}

}  // namespace
}  // namespace skein::coordinator
