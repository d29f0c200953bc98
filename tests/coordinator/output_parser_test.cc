// Tests of the split of reasoning and content by ids.
// Thread: single.
// Must never: need a file outside the tree.
#include "coordinator/text/output_parser.h"

#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

const Tokenizer& Tiny() {
  static const Tokenizer* const tokenizer =
      Tokenizer::Load("deploy/models/tiny-v41/tokenizer.json").value().release();
  return *tokenizer;
}

std::vector<int32_t> Ids(std::string_view text, SpecialTokens special) {
  return Tiny().Encode(text, special).value();
}

OutputText Feed(OutputParser* parser, std::string_view text) {
  OutputText all;
  const auto add = [&](const OutputText& part) {
    all.reasoning += part.reasoning;
    all.content += part.content;
  };
  for (int32_t id : Ids(text, SpecialTokens::kParse)) add(parser->Append(id));
  add(parser->Finish());
  return all;
}

OutputOptions Chat(bool reasoning, StopStrings stop = {}) {
  return {OutputForm::kChat, reasoning, Tiny().FindSpecial("</think>").value(), std::move(stop)};
}

TEST(OutputParserTest, SplitsAtTheReasoningEnd) {
  OutputParser parser(Tiny(), Chat(true));
  const OutputText text = Feed(&parser, "let me think</think>Hanoi.");
  EXPECT_EQ(text.reasoning, "let me think");
  EXPECT_EQ(text.content, "Hanoi.");
  EXPECT_EQ(parser.reasoning_tokens(),
            Tiny().Encode("let me think</think>", SpecialTokens::kParse)->size());
  EXPECT_FALSE(parser.in_reasoning());
}

TEST(OutputParserTest, ASecondEndIsDroppedAndCounted) {
  OutputParser parser(Tiny(), Chat(true));
  const OutputText text = Feed(&parser, "a</think>b</think>c");
  EXPECT_EQ(text.content, "bc");
  EXPECT_EQ(parser.dropped_ends(), 1u);
}

TEST(OutputParserTest, UnclosedReasoningIsReasoning) {
  OutputParser parser(Tiny(), Chat(true));
  const OutputText text = Feed(&parser, "still thinking");
  EXPECT_EQ(text.reasoning, "still thinking");
  EXPECT_EQ(text.content, "");
  EXPECT_TRUE(parser.in_reasoning());
}

TEST(OutputParserTest, MarkerCharactersFromOrdinaryTokensAreText) {
  OutputParser parser(Tiny(), Chat(true));
  OutputText all;
  for (int32_t id : Ids("a</think>b", SpecialTokens::kPlain)) {
    all.reasoning += parser.Append(id).reasoning;
  }
  all.reasoning += parser.Finish().reasoning;
  EXPECT_EQ(all.reasoning, "a</think>b");
  EXPECT_TRUE(parser.in_reasoning());
}

TEST(OutputParserTest, StopStringsApplyToContentOnly) {
  OutputParser parser(Tiny(), Chat(true, {{"STOP"}}));
  const OutputText text = Feed(&parser, "a STOP b</think>c STOP d");
  EXPECT_EQ(text.reasoning, "a STOP b");
  EXPECT_EQ(text.content, "c ");
  EXPECT_EQ(parser.matched_stop(), "STOP");
}

TEST(OutputParserTest, ChatHidesSpecialTokensAndRawShowsThem) {
  OutputParser chat(Tiny(), Chat(false));
  EXPECT_EQ(Feed(&chat, "a<｜User｜>b").content, "ab");
  OutputParser raw(Tiny(), {OutputForm::kRaw, false, -1, {}});
  EXPECT_EQ(Feed(&raw, "a<｜User｜>b</think>").content, "a<｜User｜>b</think>");
}

}  // namespace
}  // namespace skein::coordinator
