// Tests of the tool call syntax: what becomes a call, what stays content, and that cuts of the
// input do not matter.
// Thread: single.
// Must never: need a file outside the tree.
#include "coordinator/text/tool_call_parser.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/json/json.h"
#include "tests/coordinator/tool_transcripts.h"

namespace skein::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using tests::kTranscriptMark;
using tests::Transcript;
using tests::Transcripts;

struct Call {
  std::string id, name, arguments;
  bool closed = false;
  friend bool operator==(const Call&, const Call&) = default;
};
struct Result {
  std::string content;
  std::vector<Call> calls;
  ParseCounts counts = {};
  bool done = false;
  friend bool operator==(const Result&, const Result&) = default;
};
void PrintTo(const Result& result, std::ostream* out) {
  *out << "content {" << result.content << "}";
  for (const Call& call : result.calls) {
    *out << " call {" << call.name << " " << call.arguments << " " << call.closed << "}";
  }
}

ToolCallOptions Options() {
  return {tests::TranscriptTools(), [](size_t index) { return "id" + std::to_string(index); }};
}

void Add(const ToolCallParser::Output& out, Result* result) {
  result->content += out.content;
  for (const ToolCallDelta& delta : out.calls) {
    if (!delta.id.empty()) {
      EXPECT_EQ(delta.index, result->calls.size()) << "indices count from 0 without gaps";
      EXPECT_EQ(delta.arguments, "");
      result->calls.push_back({delta.id, delta.name, {}, false});
    }
    ASSERT_EQ(delta.index + 1, result->calls.size());
    result->calls.back().arguments += delta.arguments;
    result->calls.back().closed |= delta.closes;
  }
}

// Feeds plain text in pieces of at most `step` bytes that end at `cut` too.
Result Parse(std::string_view text, size_t step, size_t cut = std::string_view::npos) {
  ToolCallParser parser(Options());
  Result result;
  for (size_t at = 0; at < text.size();) {
    ToolCallParser::Output out;
    if (text.substr(at).starts_with(kTranscriptMark)) {
      parser.Mark(&out);
      at += kTranscriptMark.size();
    } else {
      size_t end = std::min({text.size(), at + step, text.find(kTranscriptMark, at)});
      if (at < cut && cut < end) end = cut;
      parser.Text(text.substr(at, end - at), &out);
      at = end;
    }
    Add(out, &result);
  }
  result.done = parser.done();
  ToolCallParser::Output out;
  parser.Finish(&out);
  Add(out, &result);
  result.counts = parser.counts();
  return result;
}

std::string TextOf(std::string_view name) {
  for (const Transcript& transcript : Transcripts()) {
    if (transcript.name == name) return transcript.text;
  }
  ADD_FAILURE() << "no transcript " << name;
  return {};
}
Result ParseOf(std::string_view name) { return Parse(TextOf(name), 1); }

constexpr size_t kWhole = 1 << 20;
const Call kParis = {"id0", "get_weather", R"({"location":"Paris"})", true};

// rule: S9
TEST(ToolCallParserTest, S9AnyCutGivesTheSameDeltas) {
  const std::vector<Transcript> transcripts = Transcripts();
  ASSERT_GE(transcripts.size(), 200u);
  size_t num_calls = 0;
  for (const Transcript& transcript : transcripts) {
    const Result whole = Parse(transcript.text, kWhole);
    num_calls += whole.calls.size();
    for (size_t step = 1; step <= 9; ++step) {
      ASSERT_EQ(Parse(transcript.text, step), whole) << transcript.name << " step " << step;
    }
    for (size_t cut = 1; cut < transcript.text.size(); ++cut) {
      ASSERT_EQ(Parse(transcript.text, kWhole, cut), whole) << transcript.name << " cut " << cut;
    }
  }
  EXPECT_GT(num_calls, 150u) << "the transcripts have calls";
}

// rule: S9, TC1
TEST(ToolCallParserTest, TC1ClosedCallsAreJsonObjectsWithoutTags) {
  for (const Transcript& transcript : Transcripts()) {
    const Result result = Parse(transcript.text, kWhole);
    for (const Call& call : result.calls) {
      EXPECT_THAT(call.arguments, Not(HasSubstr(kTranscriptMark))) << transcript.name;
      if (!call.closed) continue;
      const auto parsed = protocol::ParseJson(call.arguments);
      ASSERT_TRUE(parsed.ok()) << transcript.name << ": " << call.arguments;
      EXPECT_TRUE(parsed->IsObject()) << transcript.name;
    }
  }
}

// rule: S3
TEST(ToolCallParserTest, S3TheBlankLineBelongsToTheBlock) {
  EXPECT_EQ(ParseOf("text_then_call"),
            (Result{"I look it up.", {kParis}, ParseCounts{1, 0, 0, 0}, true}));
  EXPECT_EQ(ParseOf("one_call"), (Result{"", {kParis}, ParseCounts{1, 0, 0, 0}, true}));
  EXPECT_EQ(ParseOf("three_newlines").content, "Sure.\n");
  EXPECT_EQ(ParseOf("newlines_only").content, "\n\n\n");
  EXPECT_EQ(ParseOf("angle").content, TextOf("angle"));
}

// rule: S1
TEST(ToolCallParserTest, S1TheTokenAloneBeginsATag) {
  const Result prose = ParseOf("prose_without_token");
  EXPECT_EQ(prose.content, TextOf("prose_without_token"));
  EXPECT_THAT(prose.calls, IsEmpty());
  // The characters of the token as ordinary text, fed past the helper that would mark them.
  ToolCallParser parser(Options());
  ToolCallParser::Output out;
  parser.Text(TextOf("one_call"), &out);
  parser.Finish(&out);
  EXPECT_EQ(out.content, TextOf("one_call"));
  EXPECT_THAT(out.calls, IsEmpty());
}

// rule: S6
TEST(ToolCallParserTest, S6StringsAreEscapedAsTheyComeAndJsonIsPasted) {
  EXPECT_EQ(ParseOf("unicode").calls[0].arguments,
            "{\"location\":\"Hà Nội 🏛️\\n\\\\\\\"\"}");
  EXPECT_EQ(ParseOf("json_value").calls[0].arguments, R"({"x":{"a": [1.50, null]}})");
  const Result broken = ParseOf("broken_json_value");
  EXPECT_EQ(broken.calls[0].arguments, R"({"x":"{\"a\": "})");
  EXPECT_EQ(broken.counts, (ParseCounts{0, 1, 0, 0}));
  EXPECT_EQ(ParseOf("two_calls").calls[1].arguments, R"({"expression":"1 < 2 </b> \"q\""})");
  EXPECT_EQ(ParseOf("no_parameters").calls[0].arguments, "{}");
}

std::string NoteBlock(std::string_view parameters) {
  const std::string mark(kTranscriptMark);
  std::string text = "\n\n<" + mark + " calls>\n<" + mark + " invoke name=\"note\">\n";
  return (text += parameters) + "</" + mark + " invoke>\n</" + mark + " calls>";
}
std::string NoteParameter(std::string_view name, const char* is_string, std::string_view value) {
  const std::string mark(kTranscriptMark);
  std::string text = "<" + mark + " parameter name=\"";
  text.append(name).append("\" string=\"").append(is_string).append("\">").append(value);
  return text + "</" + mark + " parameter>\n";
}

// rule: S6
TEST(ToolCallParserTest, S6ArgumentsAreWithinTheDepthThatIsReadAgain) {
  const auto value = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  const Result deepest = Parse(NoteBlock(NoteParameter("x", "false", value(63))), kWhole);
  EXPECT_EQ(deepest.counts, (ParseCounts{1, 0, 0, 0}));
  EXPECT_TRUE(protocol::ParseJson(deepest.calls[0].arguments).ok());
  const Result deeper = Parse(NoteBlock(NoteParameter("x", "false", value(64))), kWhole);
  EXPECT_EQ(deeper.counts, (ParseCounts{0, 1, 0, 0}));
  EXPECT_TRUE(protocol::ParseJson(deeper.calls[0].arguments).ok());
}

TEST(ToolCallParserTest, NamesThatLookAlikeOnceTheyAreTextAreOne) {
  const Result result = Parse(
      NoteBlock(NoteParameter("\xFE", "true", "1") + NoteParameter("\xC0", "true", "2")), kWhole);
  ASSERT_EQ(result.calls.size(), 1u);
  EXPECT_FALSE(result.calls[0].closed);
  EXPECT_EQ(result.calls[0].arguments, "{\"\xEF\xBF\xBD\":\"1\"");
  EXPECT_EQ(result.counts, (ParseCounts{0, 0, 1, 0}));
}

// rule: S6
TEST(ToolCallParserTest, S6StringValuesStreamWithinACall) {
  ToolCallParser parser(Options());
  ToolCallParser::Output out;
  parser.Text("\n\n<", &out);
  parser.Mark(&out);
  parser.Text(" calls>\n<", &out);
  parser.Mark(&out);
  parser.Text(" invoke name=\"note\">\n<", &out);
  parser.Mark(&out);
  parser.Text(" parameter name=\"x\" string=\"true\">Once upon", &out);
  ASSERT_EQ(out.calls.size(), 2u);
  EXPECT_EQ(out.calls[0].name, "note");
  EXPECT_EQ(out.calls[1].arguments, "{\"x\":\"Once upon");
  EXPECT_FALSE(parser.done());
}

// rule: S7, TC2
TEST(ToolCallParserTest, S7WholeCallsOfDeclaredToolsAreRecovered) {
  const ParseCounts recovered = {0, 1, 0, 0};
  EXPECT_EQ(ParseOf("no_wrapper"), (Result{"", {kParis}, recovered, false}));
  EXPECT_EQ(ParseOf("no_wrapper_after_text"),
            (Result{"Sure:  that was it", {kParis}, recovered, false}));
  const Result garbage = ParseOf("garbage_in_block");
  EXPECT_THAT(garbage.calls, ElementsAre(kParis));
  EXPECT_EQ(garbage.counts, (ParseCounts{0, 1, 2, 0}));
  EXPECT_EQ(ParseOf("no_blank_line"), (Result{"Sure.\n", {kParis}, recovered, true}));
}

// rule: S7, TC2
TEST(ToolCallParserTest, TC2WhatIsNoWholeCallStaysContent) {
  for (const char* name :
       {"no_wrapper_undeclared", "no_wrapper_required_missing", "no_wrapper_unclosed",
        "undeclared_in_block", "prose_tag", "empty_block"}) {
    const Result result = ParseOf(name);
    EXPECT_THAT(result.calls, IsEmpty()) << name;
    EXPECT_EQ(result.content, TextOf(name)) << name;
    EXPECT_FALSE(result.done) << name;
    EXPECT_GT(result.counts[2] + result.counts[3], 0u) << name;
  }
}

// rule: S7
TEST(ToolCallParserTest, S7WhatBreaksOffIsNeverClosed) {
  for (const char* name : {"duplicate_parameter", "token_in_value", "open_tag_in_value"}) {
    const Result result = ParseOf(name);
    ASSERT_EQ(result.calls.size(), 1u) << name;
    EXPECT_FALSE(result.calls[0].closed) << name;
    EXPECT_GT(result.counts[2], 0u) << name;
  }
  const Result later = ParseOf("undeclared_after_call");
  EXPECT_THAT(later.calls, ElementsAre(kParis));
  EXPECT_EQ(later.counts[0], 1u);
  EXPECT_EQ(later.counts[2], 1u);
}

TEST(ToolCallParserTest, ABlockMayFollowATagThatBreaks) {
  EXPECT_THAT(ParseOf("broken_tag_then_block").calls, ElementsAre(kParis));
  EXPECT_THAT(ParseOf("broken_tag_then_call").calls, ElementsAre(kParis));
  const Result inner = ParseOf("block_in_broken_value");
  ASSERT_EQ(inner.calls.size(), 2u);
  EXPECT_FALSE(inner.calls[0].closed);
  EXPECT_TRUE(inner.calls[1].closed);
}

// rule: S8
TEST(ToolCallParserTest, S8NothingFollowsABlock) {
  const Result result = ParseOf("after_block");
  EXPECT_TRUE(result.done);
  EXPECT_EQ(result.content, "");
}

// rule: S8
TEST(ToolCallParserTest, S8ABlockThatIsCutShowsNoHalfTag) {
  const std::string text = TextOf("text_then_call");
  for (size_t end = text.find('<') + 1 + kTranscriptMark.size(); end < text.size(); ++end) {
    if (text.substr(0, end + kTranscriptMark.size()).ends_with(kTranscriptMark)) {
      end += kTranscriptMark.size();
    }
    const Result cut = Parse(std::string_view(text).substr(0, end), 1);
    if (cut.done) break;
    EXPECT_EQ(cut.content, "I look it up.") << end;
    EXPECT_EQ(cut.counts[3], 1u) << end;
  }
}

// rule: S4
TEST(ToolCallParserTest, S4WithoutToolsNothingIsHeldBackOrCalled) {
  ToolCallParser parser({});
  ToolCallParser::Output out;
  parser.Text("a\n\n<", &out);
  EXPECT_EQ(out.content, "a\n\n<");
  EXPECT_THAT(out.calls, IsEmpty());
}

TEST(ToolCallParserTest, NothingLongerThanTheBeginOfABlockIsHeldBack) {
  ToolCallParser parser(Options());
  const auto shown = [&](std::string_view text) {
    ToolCallParser::Output out;
    parser.Text(text, &out);
    return out.content;
  };
  EXPECT_EQ(shown("a"), "a");
  EXPECT_EQ(shown("\n"), "");
  EXPECT_EQ(shown("\n"), "");
  EXPECT_EQ(shown("\n"), "\n");
  EXPECT_EQ(shown("<"), "");
  EXPECT_EQ(shown("x"), "\n\n<x");
}

TEST(ToolCallParserTest, ClosedCallsTellTheirOriginalText) {
  ToolCallParser parser(Options());
  ToolCallParser::Output out;
  parser.Text("\n\n<", &out);
  parser.Mark(&out);
  parser.Text(" calls>\n<", &out);
  parser.Mark(&out);
  parser.Text(" invoke name=\"note\">\n\n</", &out);
  parser.Mark(&out);
  parser.Text(" invoke>", &out);
  ASSERT_TRUE(out.calls.back().closes);
  EXPECT_THAT(out.calls.back().original,
              ElementsAre("<", " invoke name=\"note\">\n\n</", " invoke>"));
}

}  // namespace
}  // namespace skein::coordinator
