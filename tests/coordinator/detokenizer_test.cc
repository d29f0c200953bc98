// Tests of streaming text: every split of every text gives the same whole.
// Thread: single.
// Must never: depend on a tokenizer file.
#include "coordinator/text/detokenizer.h"

#include <gtest/gtest.h>

#include "protocol/json/utf8.h"

namespace skein::coordinator {
namespace {

struct Case {
  std::string input;
  StopStrings stop;
  std::string expected;
};

std::string Joined(const Case& test, const std::vector<std::string_view>& parts) {
  Detokenizer detokenizer(test.stop);
  std::string whole;
  for (std::string_view part : parts) {
    const std::string text = detokenizer.Append(part);
    EXPECT_TRUE(protocol::IsValidUtf8(text)) << "a code point was split";
    whole += text;
  }
  return whole + detokenizer.Finish();
}

TEST(DetokenizerTest, EverySplitGivesTheSameText) {
  const std::vector<Case> cases = {
      {"hello", {}, "hello"},
      {"aé中😀z", {}, "aé中😀z"},
      {"a\xff\xe4\xbd"
       "b\xf0\x9f\x98",
       {},
       "a\xEF\xBF\xBD\xEF\xBF\xBD"
       "b\xEF\xBF\xBD"},
      {"\xed\xa0\x80", {}, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
      {"one STOP two", {{"STOP"}}, "one "},
      {"one STOP two", {{"STOP"}, true}, "one STOP"},
      {"aaab", {{"aab"}}, "a"},
      {"ababac", {{"abac"}}, "ab"},
      {"xxab", {{"b", "ab"}}, "xx"},
      {"abc", {{"abc", "b"}}, "a"},
      {"中文。好", {{"。"}}, "中文"},
      {"中文、好", {{"。"}}, "中文、好"},
      {"end ST", {{"STOP"}}, "end ST"},
      {"\n\nQ:", {{"\n\nQ", "\n\n\n"}}, ""},
  };
  for (const Case& test : cases) {
    const std::string_view input = test.input;
    std::vector<std::string_view> bytes;
    for (size_t i = 0; i < input.size(); ++i) bytes.push_back(input.substr(i, 1));
    EXPECT_EQ(Joined(test, bytes), test.expected) << test.input;
    for (size_t a = 0; a <= input.size(); ++a) {
      for (size_t b = a; b <= input.size(); ++b) {
        EXPECT_EQ(Joined(test, {input.substr(0, a), input.substr(a, b - a), input.substr(b)}),
                  test.expected)
            << test.input << " at " << a << "," << b;
      }
    }
  }
}

TEST(DetokenizerTest, HoldsOnlyWhatMayBecomeAStop) {
  Detokenizer detokenizer({{"STOP", "\n\n"}});
  EXPECT_EQ(detokenizer.Append("ab S"), "ab ");
  EXPECT_EQ(detokenizer.Append("TO"), "");
  EXPECT_EQ(detokenizer.Append("X"), "STOX");
  EXPECT_EQ(detokenizer.Append("\n"), "");
  EXPECT_EQ(detokenizer.Append("y"), "\ny");
  EXPECT_EQ(detokenizer.Append("\xe4\xb8"), "");
  EXPECT_EQ(detokenizer.Append("\xad"), "中");
  EXPECT_FALSE(detokenizer.matched().has_value());
}

TEST(DetokenizerTest, ReportsTheMatchAndStaysSilentAfterIt) {
  Detokenizer detokenizer({{"b", "ab"}});
  EXPECT_EQ(detokenizer.Append("xab tail"), "x");
  EXPECT_EQ(detokenizer.matched(), "ab");
  EXPECT_EQ(detokenizer.Append("more"), "");
  EXPECT_EQ(detokenizer.Finish(), "");
}

TEST(DetokenizerTest, StopsThatAreNotHonouredPassThrough) {
  Detokenizer detokenizer({{"ab"}});
  EXPECT_EQ(detokenizer.Append("xab", Detokenizer::Honour::kNoStops), "xab");
  EXPECT_FALSE(detokenizer.matched().has_value());
  EXPECT_EQ(detokenizer.Append("a", Detokenizer::Honour::kNoStops), "");
  EXPECT_EQ(detokenizer.Append("b!"), "");
  EXPECT_EQ(detokenizer.matched(), "ab");
}

TEST(DetokenizerTest, LongRepetitiveStopIsLinear) {
  const std::string stop = std::string(255, 'a') + "b";
  Detokenizer detokenizer({{stop}});
  std::string whole;
  for (int i = 0; i < 1000; ++i) whole += detokenizer.Append(std::string(100, 'a'));
  EXPECT_EQ(whole.size(), 100'000u - 255);
  EXPECT_EQ(detokenizer.Append("b"), "");
  EXPECT_EQ(detokenizer.matched(), stop);
}

}  // namespace
}  // namespace skein::coordinator
