// Tests of masks: against every token tried by itself, and at each place where a block may begin.
// Thread: the test's.
// Must never: need a file outside the tree.
#include "coordinator/text/grammar_matcher.h"

#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/text/chat_template.h"

namespace skein::coordinator {
namespace {

using ::testing::ElementsAre;

const Tokenizer& Tiny() {
  static const Tokenizer* const tokenizer =
      Tokenizer::Load("deploy/models/tiny-v41/tokenizer.json").value().release();
  return *tokenizer;
}
const ChatTemplate& Chat() {
  static const ChatTemplate* const chat =
      ChatTemplate::Load(Tiny(), "deploy/models/tiny-v41").value().release();
  return *chat;
}

enum class Wants { kMay, kMust };

GrammarMatcher Matcher(Wants wants, bool reasons = false,
                       CallGrammar::Calls calls = CallGrammar::Calls::kSeveral) {
  static const auto trie = std::make_shared<const TokenTrie>(Tiny(), Tiny().vocab_size());
  auto setup = std::make_shared<GrammarMatcher::Setup>();
  setup->tokenizer = &Tiny();
  setup->trie = trie;
  setup->tools = {{"get_weather", {"location"}, {"location", "unit"}}, {"note", {}, {"x"}}};
  setup->grammar = CallGrammar::Create(setup->tools, calls).value();
  setup->starts_in_reasoning = reasons;
  setup->demands_calls = wants == Wants::kMust;
  setup->end_think_id = Chat().end_think_id();
  setup->dsml_id = Chat().dsml_id();
  setup->eos_id = Chat().eos_id();
  return GrammarMatcher(setup);
}

std::vector<int32_t> Ids(std::string_view text, SpecialTokens special = SpecialTokens::kParse) {
  return Tiny().Encode(text, special).value();
}
bool Allows(const std::vector<uint32_t>& mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1u) != 0;
}
std::vector<int32_t> Allowed(const std::vector<uint32_t>& mask) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < Tiny().vocab_size(); ++id) {
    if (Allows(mask, id)) ids.push_back(id);
  }
  return ids;
}

constexpr std::string_view kBlock =
    "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n<｜DSML｜ parameter "
    "name=\"location\" string=\"true\">Hà </b> Nội</｜DSML｜ parameter>\n<｜DSML｜ parameter "
    "name=\"unit\" string=\"false\">{}</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n<｜DSML｜ invoke "
    "name=\"note\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

// A token may follow iff what it spells keeps a block possible: tried one by one, without the trie.
void ExpectMaskOf(const GrammarMatcher& matcher, std::string_view so_far) {
  const std::vector<uint32_t> mask = matcher.Mask();
  for (int32_t id = 0; id < Tiny().vocab_size(); ++id) {
    GrammarMatcher next = matcher;
    next.Advance(id);
    const bool goes_on = !Allowed(next.Mask()).empty();
    const bool is_end = id == Chat().eos_id();
    if (is_end) continue;
    ASSERT_EQ(Allows(mask, id), goes_on) << "token " << id << " after " << so_far;
  }
}

// rule: S5, G1
TEST(GrammarMatcherTest, S5AMaskAllowsExactlyTheTokensThatGoOn) {
  GrammarMatcher matcher = Matcher(Wants::kMust);
  const std::vector<int32_t> ids = Ids(kBlock);
  std::string so_far;
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_TRUE(matcher.binds());
    ASSERT_TRUE(Allows(matcher.Mask(), ids[i])) << so_far;
    EXPECT_FALSE(Allows(matcher.Mask(), Chat().eos_id())) << so_far;
    if (i % 5 == 0) ExpectMaskOf(matcher, so_far);
    matcher.Advance(ids[i]);
    so_far += Tiny().TokenBytes(ids[i]);
  }
  EXPECT_THAT(Allowed(matcher.Mask()), ElementsAre(Chat().eos_id())) << "rule S8";
  matcher.Advance(Chat().eos_id());
}

// rule: S5
TEST(GrammarMatcherTest, S5EverySpellingOfABlockIsAllowed) {
  std::mt19937 random(3);
  const std::string mark(Tiny().TokenBytes(Chat().dsml_id()));
  for (int round = 0; round < 20; ++round) {
    GrammarMatcher matcher = Matcher(Wants::kMust);
    std::string_view rest = kBlock;
    while (!rest.empty()) {
      std::vector<int32_t> choices;
      for (int32_t id = 0; id < Tiny().vocab_size(); ++id) {
        const std::string_view bytes = Tiny().TokenBytes(id);
        if (!bytes.empty() && !Tiny().IsSpecial(id) && rest.starts_with(bytes) &&
            rest.substr(0, bytes.size() + mark.size() - 1).find(mark) == std::string_view::npos) {
          choices.push_back(id);
        }
      }
      int32_t id = Chat().dsml_id();
      if (!rest.starts_with(mark)) id = choices[random() % choices.size()];
      ASSERT_TRUE(Allows(matcher.Mask(), id)) << rest;
      matcher.Advance(id);
      rest.remove_prefix(Tiny().TokenBytes(id).size());
    }
    EXPECT_THAT(Allowed(matcher.Mask()), ElementsAre(Chat().eos_id()));
  }
}

// rule: S1, S3, S5
TEST(GrammarMatcherTest, S5NothingBindsBeforeABlockOpens) {
  for (const std::string& text : std::vector<std::string>{
           std::string("Hello."), std::string("a\n\n<b"), std::string("\n\n"),
           std::string("x \n\n<"), std::string("Sure: <｜DSML｜ invoke name=\"note\">\n\n<"),
           std::string("a <｜DSML｜ calls>\n<｜DSML｜ invoke name=\"note\">\n\n")}) {
    GrammarMatcher matcher = Matcher(Wants::kMay);
    for (const int32_t id : Ids(text)) {
      matcher.Advance(id);
      EXPECT_FALSE(matcher.binds()) << text;
    }
    EXPECT_TRUE(matcher.Forced(5).empty());
  }
  GrammarMatcher plain = Matcher(Wants::kMay);
  for (const int32_t id : Ids(kBlock, SpecialTokens::kPlain)) plain.Advance(id);
  EXPECT_FALSE(plain.binds()) << "the same characters of ordinary tokens";
}

// rule: S3, S5
TEST(GrammarMatcherTest, S5ABlockThatOpenedBindsToItsEnd) {
  GrammarMatcher matcher = Matcher(Wants::kMay);
  const std::vector<int32_t> ids = Ids("I look." + std::string(kBlock));
  bool opened = false;
  for (const int32_t id : ids) {
    EXPECT_EQ(matcher.binds(), opened);
    if (opened) {
      ASSERT_TRUE(Allows(matcher.Mask(), id));
    }
    matcher.Advance(id);
    opened = opened || id == Chat().dsml_id();
  }
  EXPECT_THAT(Allowed(matcher.Mask()), ElementsAre(Chat().eos_id()));
}

// rule: S5, G3
TEST(GrammarMatcherTest, S5ADemandedBlockBindsRightAfterTheReasoning) {
  GrammarMatcher matcher = Matcher(Wants::kMust, true);
  for (const int32_t id : Ids("hm \n\n<｜DSML｜ calls>")) {
    EXPECT_FALSE(matcher.binds());
    matcher.Advance(id);
  }
  EXPECT_FALSE(matcher.binds());
  matcher.Advance(Chat().end_think_id());
  ASSERT_TRUE(matcher.binds());
  for (const int32_t id : Allowed(matcher.Mask())) {
    EXPECT_TRUE(std::string_view("\n\n<").starts_with(Tiny().TokenBytes(id))) << id;
  }
}

// rule: G5
TEST(GrammarMatcherTest, G5ForcedTokensSpellWhatMustFollow) {
  GrammarMatcher matcher = Matcher(Wants::kMust, false, CallGrammar::Calls::kOne);
  std::string text;
  const std::vector<int32_t> forced = matcher.Forced(63);
  for (const int32_t id : forced) {
    ASSERT_TRUE(Allows(matcher.Mask(), id)) << text;
    matcher.Advance(id);
    text += Tiny().TokenBytes(id);
  }
  EXPECT_EQ(text, "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"");
  EXPECT_TRUE(matcher.Forced(63).empty()) << "two names may follow";
  EXPECT_EQ(Matcher(Wants::kMust).Forced(3),
            std::vector<int32_t>(forced.begin(), forced.begin() + 3));
}

// rule: G6
TEST(GrammarMatcherTest, G6AfterATokenThatWasNotAllowedNothingIs) {
  GrammarMatcher matcher = Matcher(Wants::kMust);
  matcher.Advance(Ids("x").front());
  EXPECT_TRUE(matcher.binds());
  EXPECT_TRUE(Allowed(matcher.Mask()).empty());
}

// rule: G7
TEST(GrammarMatcherTest, G7TheStateIsAFunctionOfTheTokens) {
  const std::vector<int32_t> ids = Ids(kBlock);
  GrammarMatcher whole = Matcher(Wants::kMust);
  for (size_t cut = 0; cut < ids.size(); ++cut) {
    GrammarMatcher copy = whole;  // goes on by itself
    for (size_t i = cut; i < ids.size(); ++i) copy.Advance(ids[i]);
    EXPECT_THAT(Allowed(copy.Mask()), ElementsAre(Chat().eos_id()));
    whole.Advance(ids[cut]);
  }
}

}  // namespace
}  // namespace skein::coordinator
