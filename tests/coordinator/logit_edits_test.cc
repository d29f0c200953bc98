// Tests of what a request edits of its logits, with the demo model's tokenizer.
// Thread: single.
// Must never: open a socket.
#include "coordinator/api/logit_edits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/api_fixture.h"

namespace skein::coordinator {
namespace {

using ::testing::ElementsAre;

std::vector<int32_t> Encode(std::string_view text) {
  return TinyTokenizer().Encode(text, SpecialTokens::kPlain).value();
}

GenerationParams WithBadWord(std::string word) {
  GenerationParams params;
  params.bad_words.push_back(std::move(word));
  EXPECT_EQ(SetEdits(TinyTokenizer(), &params), std::nullopt);
  return params;
}

TEST(LogitEditsTest, NothingToEditIsNothing) {
  GenerationParams params;
  EXPECT_EQ(SetEdits(TinyTokenizer(), &params), std::nullopt);
  EXPECT_EQ(params.sampling.edits, nullptr);
}

TEST(LogitEditsTest, ABadWordIsBadAsItStandsAndAfterASpace) {
  ASSERT_EQ(Encode("the").size(), Encode(" the").size());
  ASSERT_NE(Encode("the"), Encode(" the"));
  EXPECT_THAT(WithBadWord("the").sampling.edits->bad_words,
              ElementsAre(Encode("the"), Encode(" the")));
  EXPECT_THAT(WithBadWord("  the").sampling.edits->bad_words,
              ElementsAre(Encode("the"), Encode(" the")))
      << "spaces before it do not matter";
}

}  // namespace
}  // namespace skein::coordinator
