// Tests of the grammar of calls: what it allows is what the parser reads as calls, and the layout
// that the chat encoding writes is allowed. Thread: the test's. Must never: need a file outside the
// tree.
#include "coordinator/text/call_grammar.h"

#include <random>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/json/json.h"

namespace skein::coordinator {
namespace {

using ::testing::HasSubstr;
using Place = CallGrammar::Place;
using State = CallGrammar::State;

const std::vector<DeclaredTool>& Tools() {
  static const auto* tools = new std::vector<DeclaredTool>{
      {"get", {"a"}, {"a", "ab", "b"}},
      {"get_all", {}, {}},
      {"note", {}, {"text", "quote\"", "line\n"}},
  };
  return *tools;
}

std::shared_ptr<const CallGrammar> Grammar(CallGrammar::Calls calls = CallGrammar::Calls::kSeveral,
                                           const std::vector<DeclaredTool>& tools = Tools()) {
  return CallGrammar::Create(tools, calls).value();
}

// Steps over `text`, in which the byte FF stands for the DSML token.
State After(const CallGrammar& grammar, std::string_view text, State state) {
  for (const char byte : text) {
    const int symbol = static_cast<uint8_t>(byte);
    grammar.Step(symbol == 0xFF ? CallGrammar::kMark : symbol, &state);
  }
  return state;
}
State After(const CallGrammar& grammar, std::string_view text) {
  return After(grammar, text, grammar.Begin());
}
Place PlaceOf(const CallGrammar& grammar, std::string_view text) {
  return After(grammar, text).place;
}

constexpr std::string_view kHead = "\n\n<\xFF calls>\n<\xFF invoke name=\"";
constexpr std::string_view kTail = "</\xFF invoke>\n</\xFF calls>";

std::string Block(std::string_view calls) { return std::string(kHead) + std::string(calls); }
std::string Parameter(std::string_view name, std::string_view value,
                      std::string_view is_string = "true") {
  return "<\xFF parameter name=\"" + std::string(name) + "\" string=\"" + std::string(is_string) +
         "\">" + std::string(value) + "</\xFF parameter>\n";
}

// rule: S5
TEST(CallGrammarTest, S5AllowsTheLayoutOfTheEncoding) {
  const auto grammar = Grammar();
  const std::string two = Parameter("b", "x</b>") + Parameter("ab", "[1]", "false");
  for (const std::string& calls : std::vector<std::string>{
           "get_all\">\n\n" + std::string(kTail), "get\">\n" + two + std::string(kTail),
           "get\">\n" + Parameter("a", "") + "</\xFF invoke>\n<\xFF invoke name=\"note\">\n" +
               Parameter("text", "<</ < \n é \xF0\x9F") + std::string(kTail)}) {
    EXPECT_EQ(PlaceOf(*grammar, Block(calls)), Place::kEnd) << calls;
    for (size_t cut = 0; cut < Block(calls).size(); ++cut) {
      const Place place = PlaceOf(*grammar, Block(calls).substr(0, cut));
      EXPECT_TRUE(place == Place::kTag || place == Place::kValue) << calls.substr(0, cut);
    }
  }
  const std::string opened = Block("get_all\">\n\n" + std::string(kTail)).substr(4);
  EXPECT_EQ(After(*grammar, opened, grammar->Opened()).place, Place::kEnd);
}

// rule: S5
TEST(CallGrammarTest, S5RefusesWhatIsNotDeclared) {
  const auto grammar = Grammar();
  for (const std::string& calls : std::vector<std::string>{
           std::string("set"), std::string("get_al\""), std::string("get\"> "),
           "get\">\n" + Parameter("c", ""), "get\">\n" + Parameter("text", ""),
           "get\">\n" + Parameter("a", "1") + Parameter("a", "2"),
           "get\">\n" + Parameter("a", "1") + "\n</\xFF", "get\">\n</\xFF",
           "get_all\">\n<\xFF parameter", "get\">\n" + Parameter("a", "x", "maybe"),
           "get\">\n<\xFF parameter name=\"a\" string=\"true\">x\xFF",
           "note\">\n<\xFF parameter name=\"q", "get_all\">\n\n" + std::string(kTail) + "\n"}) {
    EXPECT_EQ(PlaceOf(*grammar, Block(calls)), Place::kDead) << calls;
  }
  EXPECT_EQ(PlaceOf(*grammar, "\n<"), Place::kDead);
  State state = After(*grammar, "\n\n<");
  grammar->Step(0xFF, &state);
  EXPECT_EQ(state.place, Place::kDead) << "the byte FF is not the token";
}

// rule: S5
TEST(CallGrammarTest, S5OneCallIsFollowedByTheEndOfTheBlock) {
  const auto grammar = Grammar(CallGrammar::Calls::kOne);
  EXPECT_EQ(PlaceOf(*grammar, Block("get_all\">\n\n" + std::string(kTail))), Place::kEnd);
  EXPECT_EQ(PlaceOf(*grammar, Block("get_all\">\n\n</\xFF invoke>\n<\xFF")), Place::kDead);
}

TEST(CallGrammarTest, AFunctionWithoutDeclaredNamesIsFreeUntilItsCloseTag) {
  const auto grammar = Grammar(CallGrammar::Calls::kOne, {{"any", {}, {}, true}, {"note", {}, {}}});
  const std::string call = Block("any\">\n" + Parameter("whatever", "</ \xFF x"));
  EXPECT_EQ(PlaceOf(*grammar, call), Place::kUnbound);
  EXPECT_EQ(PlaceOf(*grammar, call + "<</\xFF invoke>"), Place::kTag);
  EXPECT_EQ(PlaceOf(*grammar, call + std::string(kTail)), Place::kEnd);
  EXPECT_EQ(PlaceOf(*grammar, call + "</\xFF invoke>\n<\xFF"), Place::kDead);
}

TEST(CallGrammarTest, ForcesWhatHasNoChoice) {
  const auto grammar = Grammar();
  State state = grammar->Begin();
  std::string forced;
  for (int symbol = grammar->Forced(state); symbol >= 0; symbol = grammar->Forced(state)) {
    forced.push_back(symbol == CallGrammar::kMark ? '\xFF' : static_cast<char>(symbol));
    grammar->Step(symbol, &state);
  }
  EXPECT_EQ(forced, kHead);
  EXPECT_EQ(grammar->Forced(After(*grammar, Block("get_"))), 'a');
  EXPECT_EQ(grammar->Forced(After(*grammar, Block("get"))), -1);
  EXPECT_EQ(grammar->Forced(After(*grammar, Block("get\">\n" + Parameter("a", "")))), '<');
  EXPECT_EQ(grammar->Forced(After(*grammar, Block("get\">\n" + Parameter("a", "") + "<\xFF"))),
            ' ');
  // Only "ab" and "b" are left.
  const std::string used = Block("get\">\n" + Parameter("a", "") + "<\xFF parameter name=\"a");
  EXPECT_EQ(grammar->Forced(After(*grammar, used)), 'b');
}

TEST(CallGrammarTest, TooManyParametersAreRefusedByName) {
  DeclaredTool tool{"wide", {}, {}};
  for (size_t i = 0; i <= CallGrammar::kParametersMax; ++i) {
    tool.parameters.push_back("p" + std::to_string(i));
  }
  const auto grammar = CallGrammar::Create({&tool, 1}, CallGrammar::Calls::kSeveral);
  EXPECT_EQ(grammar.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(grammar.status().message()), HasSubstr("wide declares 257 parameters"));
}

// A walk through the grammar: random symbols of those that it allows, forced ones by preference.
std::string Walk(const CallGrammar& grammar, std::mt19937* random) {
  std::string text;
  State state = grammar.Begin();
  while (state.place != Place::kEnd) {
    int symbol = grammar.Forced(state);
    while (symbol < 0) {
      static constexpr std::string_view kValueBytes = "ab<</\n\" \\1\xC3\xA9>";
      const bool in_value = state.place == Place::kValue;
      int next = static_cast<uint8_t>(kValueBytes[(*random)() % kValueBytes.size()]);
      if (!in_value) next = static_cast<int>((*random)() % 257);
      if (in_value && state.num_held == 2) next = CallGrammar::kMark;
      State after = state;
      grammar.Step(next, &after);
      if (after.place != Place::kDead) symbol = next;
    }
    text.push_back(symbol == CallGrammar::kMark ? '\xFF' : static_cast<char>(symbol));
    grammar.Step(symbol, &state);
  }
  return text;
}

// rule: S5, TC1
TEST(CallGrammarTest, S5WhateverItAllowsIsReadAsWholeCalls) {
  std::mt19937 random(7);
  size_t num_calls = 0;
  for (int i = 0; i < 300; ++i) {
    const auto grammar =
        Grammar(i % 2 == 0 ? CallGrammar::Calls::kSeveral : CallGrammar::Calls::kOne);
    const std::string text = Walk(*grammar, &random);
    ToolCallParser parser({Tools(), [](size_t index) { return "c" + std::to_string(index); }});
    ToolCallParser::Output out;
    for (const char byte : text) {
      if (byte == '\xFF') {
        parser.Mark(&out);
      } else {
        parser.Text(std::string_view(&byte, 1), &out);
      }
    }
    EXPECT_TRUE(parser.done()) << text;
    parser.Finish(&out);
    EXPECT_EQ(out.content, "") << text;
    EXPECT_EQ(parser.counts()[static_cast<size_t>(ParseResult::kMalformed)], 0u) << text;
    EXPECT_EQ(parser.counts()[static_cast<size_t>(ParseResult::kUnclosed)], 0u) << text;
    if (i % 2 == 1) {
      EXPECT_EQ(parser.num_closed(), 1u);
    }
    num_calls += parser.num_closed();
    std::string arguments;
    for (const ToolCallDelta& delta : out.calls) {
      arguments += delta.arguments;
      if (!delta.closes) continue;
      EXPECT_TRUE(protocol::ParseJson(std::exchange(arguments, {})).ok()) << text;
    }
  }
  EXPECT_GT(num_calls, 400u);
}

}  // namespace
}  // namespace skein::coordinator
