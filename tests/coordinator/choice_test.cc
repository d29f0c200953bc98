// Tests of one choice: what it shows, counts and keeps back.
// Thread: single.
// Must never: open a socket.
#include "coordinator/api/choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/api_fixture.h"

namespace skein::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

struct Parts {
  Choice::Setup setup;
  GenerationParams params;
  RequestForm form = RequestForm::kCompletion;
  Choice Make() const { return Choice(setup, params, form, TinyTokenizer()); }
};

std::vector<int32_t> Ids(std::string_view text) {
  return TinyTokenizer().Encode(text, SpecialTokens::kPlain).value();
}

TEST(ChoiceTest, TextStandsBehindTheEcho) {
  Parts parts;
  parts.setup.echo = "once ";
  Choice choice = parts.Make();
  EXPECT_TRUE(choice.has_unsent());
  EXPECT_EQ(choice.Take().text.content, "once ");
  EXPECT_FALSE(choice.has_unsent());
  for (const int32_t id : Ids("upon a time")) choice.Append({id, 0, {}, false});
  TokenDelta last;
  last.finish = FinishReason::kLength;
  choice.End(last);
  EXPECT_EQ(choice.TakeWhole().text.content, "upon a time");
  EXPECT_EQ(choice.end()->finish_reason, "length");
  EXPECT_EQ(choice.usage().completion_tokens, static_cast<int64_t>(Ids("upon a time").size()));
}

// rule: S10
TEST(ChoiceTest, ACircleEndsItWhereThatWasAskedFor) {
  Parts parts;
  const std::vector<int32_t> word = Ids(" again");
  const auto tokens_until_the_end = [&](Choice& choice) {
    for (int64_t i = 0; i < 100; ++i) {
      choice.Append({word[static_cast<size_t>(i) % word.size()], 0, {}, false});
      if (choice.end().has_value()) return i + 1;
    }
    return int64_t{0};
  };
  Choice without = parts.Make();
  EXPECT_EQ(tokens_until_the_end(without), 0);
  parts.params.repetition_ngram = 4;
  Choice guarded = parts.Make();
  EXPECT_EQ(tokens_until_the_end(guarded), 16);
  EXPECT_EQ(guarded.end()->finish_reason, "stop");
  EXPECT_EQ(guarded.end()->stop_reason, "\"repetition\"");
  EXPECT_FALSE(guarded.end()->by_stop_string);
  EXPECT_EQ(guarded.usage().completion_tokens, 16);
  parts.params.stop.min_tokens = 40;
  Choice longer = parts.Make();
  EXPECT_EQ(tokens_until_the_end(longer), 40) << "not before min_tokens";
}

TEST(ChoiceTest, TokensOfThePromptAreCountedByItsFirstChoice) {
  Parts parts;
  TokenDelta delta;
  delta.cached_tokens = 8;
  delta.num_steps = 3;
  Choice later = parts.Make();
  later.TakeCounts(delta);
  EXPECT_EQ(later.usage().cached_tokens, 0);
  parts.setup.prompt_tokens = 9;
  Choice first = parts.Make();
  first.TakeCounts(delta);
  EXPECT_EQ(first.usage().cached_tokens, 8);
  EXPECT_EQ(first.usage().prompt_tokens, 9);
  Usage sum = first.usage();
  sum += later.usage();
  EXPECT_EQ(sum.num_steps, 6u);
}

TEST(ChoiceTest, AStopStringEndsItAndTheStopTokenIsCounted) {
  Parts parts;
  parts.setup.output.stop.strings = {"a t"};
  parts.params.return_ids = true;
  Choice choice = parts.Make();
  const std::vector<int32_t> ids = Ids("upon a time");
  size_t taken = 0;
  while (taken < ids.size() && !choice.end().has_value()) {
    choice.Append({ids[taken++], 0, {}, false});
  }
  ASSERT_TRUE(choice.end().has_value());
  EXPECT_EQ(choice.end()->stop_reason, "\"a t\"");
  const ChoicePiece piece = choice.Take();
  EXPECT_EQ(piece.text.content, "upon ");
  EXPECT_EQ(piece.ids->size(), taken);

  Choice other = parts.Make();
  other.Count({7, 0, {}, true});
  TokenDelta last;
  last.finish = FinishReason::kStop;
  last.stop_token_id = 7;
  other.End(last);
  EXPECT_EQ(other.end()->stop_reason, "7");
  EXPECT_EQ(other.usage().completion_tokens, 1);
  EXPECT_EQ(other.usage().num_accepted_draft_tokens, 1u);
  EXPECT_THAT(other.TakeWhole().ids, Optional(ElementsAre(7)));
}

TEST(ChoiceTest, IdsOfThePromptAreShownOnce) {
  Parts parts;
  parts.setup.prompt_ids = std::vector<int32_t>{4, 5};
  parts.params.return_ids = true;
  Choice choice = parts.Make();
  EXPECT_THAT(choice.Take().prompt_ids, Optional(ElementsAre(4, 5)));
  EXPECT_EQ(choice.Take().prompt_ids, std::nullopt);
  parts.form = RequestForm::kChat;
  EXPECT_EQ(parts.Make().Take().prompt_ids, std::nullopt) << "its opening chunk has them";
}

}  // namespace
}  // namespace skein::coordinator
