// Tests of the JSON reader: limits, numbers, duplicates, paths, escapes.
// Thread: single.
// Must never: depend on the package behind the reader.
#include "protocol/json/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

using ::testing::HasSubstr;

JsonValue Parsed(std::string_view text) {
  absl::StatusOr<JsonValue> value = ParseJson(text);
  EXPECT_TRUE(value.ok()) << text << ": " << value.status();
  return value.ok() ? *std::move(value) : JsonValue();
}

std::string Error(std::string_view text, const JsonLimits& limits = {}) {
  return std::string(ParseJson(text, limits).status().message());
}

TEST(JsonTest, KeepsKeyOrderAndFindsInSmallAndLargeObjects) {
  const JsonValue value = Parsed(R"({"b":1,"a":{"x":[true,null,"s"]},"c":2.5})");
  ASSERT_EQ(value.members().size(), 3u);
  EXPECT_EQ(value.members()[0].key, "b");
  EXPECT_EQ(value.members()[2].key, "c");
  EXPECT_EQ(value.Find("a")->Find("x")->elements().size(), 3u);
  EXPECT_EQ(value.Find("missing"), nullptr);
  std::string text = "{";
  for (int i = 0; i < 300; ++i)
    text += (i ? ",\"k" : "\"k") + std::to_string(i) + "\":" + std::to_string(i);
  const JsonValue large = Parsed(text + "}");
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(*large.Find("k" + std::to_string(i))->AsInt64("k"), i);
  }
  EXPECT_EQ(large.Find("k300"), nullptr);
}

TEST(JsonTest, ClassifiesNumbersWithoutNarrowing) {
  EXPECT_EQ(*Parsed("2147483648").AsInt64("v"), 2147483648);
  EXPECT_EQ(*Parsed("9007199254740993").AsInt64("v"), 9007199254740993);
  EXPECT_EQ(Parsed("9223372036854775807").kind(), JsonKind::kInt64);
  EXPECT_EQ(Parsed("9223372036854775808").kind(), JsonKind::kUint64);
  EXPECT_EQ(*Parsed("18446744073709551615").AsUint64("v"), 18446744073709551615u);
  EXPECT_EQ(Parsed("18446744073709551616").kind(), JsonKind::kDouble);
  EXPECT_EQ(*Parsed("-9223372036854775808").AsInt64("v"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(*Parsed("-0").AsInt64("v"), 0);
  EXPECT_EQ(*Parsed("-0.0").AsDouble("v"), 0.0);
  EXPECT_EQ(*Parsed("0.1").AsDouble("v"), 0.1);
  EXPECT_EQ(*Parsed("1e-400").AsDouble("v"), 0.0);
  EXPECT_EQ(*Parsed("123456789.123456789e-5").AsDouble("v"), 1234.56789123456789);
  EXPECT_EQ(*Parsed("1.7976931348623157e308").AsDouble("v"), 1.7976931348623157e308);
}

TEST(JsonTest, GettersNamePathValueAndRange) {
  const auto message = [](const auto& result) { return std::string(result.status().message()); };
  EXPECT_EQ(message(Parsed("2147483648").AsInt64("max_tokens", 1, 4096)),
            "max_tokens is 2147483648; accepted: 1 to 4096");
  EXPECT_EQ(message(Parsed("18446744073709551615").AsInt64("seed", 0, 10)),
            "seed is 18446744073709551615; accepted: 0 to 10");
  EXPECT_EQ(message(Parsed("18446744073709551616").AsUint64("seed")),
            "seed is 1.8446744073709552e+19; expected an integer");
  EXPECT_EQ(message(Parsed("-1").AsUint64("seed")),
            "seed is -1; accepted: 0 to 18446744073709551615");
  EXPECT_EQ(message(Parsed("1.0").AsInt64("n")), "n is 1.0; expected an integer");
  EXPECT_EQ(message(Parsed("9007199254740993").AsDouble("t", 0, 2)),
            "t is 9007199254740993; accepted: 0.0 to 2.0");
  EXPECT_EQ(message(Parsed("2.5").AsDouble("t", 0, 2)), "t is 2.5; accepted: 0.0 to 2.0");
  EXPECT_EQ(message(Parsed("\"x\"").AsDouble("t")), "t is \"x\"; expected a number");
  EXPECT_EQ(message(Parsed("null").AsBool("stream")), "stream is null; expected true or false");
  EXPECT_EQ(message(Parsed("[1,2]").AsString("model")),
            "model is an array of 2; expected a string");
  EXPECT_EQ(message(Parsed("{}").AsArray("stop")), "stop is an object of 0; expected an array");
  EXPECT_EQ(message(Parsed("3").AsObject("o")), "o is 3; expected an object");
  EXPECT_EQ(message(Parsed("{}").Require("model", "request")),
            "request lacks the required key \"model\"");
  EXPECT_EQ(message(Parsed("[]").Require("model", "request")),
            "request is an array of 0; expected an object");
}

TEST(JsonTest, RefusesNumbersThatAreNotJsonOrNotFinite) {
  for (const char* text : {"NaN", "Infinity", "-Infinity", "01", "+1", ".5", "1.", "0x10", "1e"}) {
    EXPECT_THAT(Error(text), HasSubstr("invalid JSON at byte ")) << text;
  }
  EXPECT_EQ(Error("[1e400]"), "invalid JSON at byte 6 ($[0]): number beyond the range of a double");
  EXPECT_THAT(Error("-1e99999999999"), HasSubstr("number beyond the range of a double"));
  const std::string digits(400, '9');
  EXPECT_THAT(Error(digits), HasSubstr("number beyond the range of a double"));
}

// rule: R2.3
TEST(JsonTest, RefusesDuplicateKeysAtAnyDepthWithPath) {
  EXPECT_EQ(Error(R"({"a":1,"a":2})"), "invalid JSON at byte 12 ($.a): duplicate key");
  EXPECT_THAT(Error(R"([{"m":{"x":1,"y":2,"x":3}}])"), HasSubstr("($[0].m.x): duplicate key"));
  EXPECT_THAT(Error(R"({"a":1,"\u0061":2})"), HasSubstr("duplicate key"));
}

TEST(JsonTest, RefusesBrokenText) {
  EXPECT_EQ(Error(""), "invalid JSON at byte 0 ($): the text ends inside a value");
  EXPECT_EQ(Error("{\"a\":"), "invalid JSON at byte 5 ($.a): the text ends inside a value");
  EXPECT_EQ(Error("[1,]"), "invalid JSON at byte 3 ($[1]): syntax error");
  EXPECT_EQ(Error("1 2"), "invalid JSON at byte 2 ($): text after the end of the value");
  EXPECT_THAT(Error("/* c */ 1"), HasSubstr("syntax error"));
  EXPECT_THAT(Error("[\"a\nb\"]"), HasSubstr("at byte 3 ($[0]): syntax error"));
  EXPECT_THAT(Error("\"\\ud800\""), HasSubstr("at byte 7 ($): syntax error"));
  EXPECT_THAT(Error("\xEF\xBB\xBF{}"), HasSubstr("syntax error"));
}

// rule: R2.3
TEST(JsonTest, RefusesInvalidUtf8WithOffset) {
  for (const char* bytes : {"\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xFF", "\xE4\xBD"}) {
    EXPECT_EQ(Error("[\"" + std::string(bytes) + "\"]"),
              "invalid JSON at byte 2 ($): invalid UTF-8");
  }
}

// rule: R2.3
TEST(JsonTest, EnforcesEveryLimit) {
  std::string deep(65, '[');
  deep += std::string(65, ']');
  EXPECT_THAT(Error(deep), HasSubstr("nesting deeper than 64"));
  EXPECT_TRUE(ParseJson(std::string(64, '[') + std::string(64, ']')).ok());
  EXPECT_THAT(Error(std::string(100'000, '[')), HasSubstr("nesting deeper than 64"));
  EXPECT_EQ(Error("[1,2,3]", {.values_max = 3}),
            "invalid JSON at byte 6 ($[2]): more than 3 values");
  EXPECT_THAT(Error("[\"abcd\"]", {.string_bytes_max = 3}),
              HasSubstr("string longer than 3 bytes"));
  const auto over = ParseJson("[1,2]", {.bytes_max = 4});
  EXPECT_EQ(over.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(over.status().message(), "JSON text of 5 bytes; at most 4 are accepted");
}

TEST(JsonTest, EveryTruncationOfADocumentFails) {
  const std::string text = R"({"a":[1,-2.5e3,{"b":"x\u00e9\ud83d\ude00"}],"c":true})";
  ASSERT_TRUE(ParseJson(text).ok());
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(ParseJson(std::string_view(text).substr(0, length)).ok()) << length;
  }
}

TEST(JsonTest, DecodesEscapes) {
  EXPECT_EQ(Parsed(R"("\u00e9\ud83d\ude00\n\"\\\/\u0000")").string(),
            std::string_view("é😀\n\"\\/\0", 11));
}

TEST(JsonTest, RawMembersKeepTheSourceText) {
  const auto members =
      ParseRawMembers("{ \"a\" : 1.50 , \"b\\\"\":\"x\\ny\",\"c\": [ 1, {\"d\":\"}\"} ] }");
  ASSERT_TRUE(members.ok()) << members.status();
  ASSERT_EQ(members->size(), 3u);
  EXPECT_EQ((*members)[0].raw, "1.50");
  EXPECT_FALSE((*members)[0].is_string);
  EXPECT_EQ((*members)[1].key, "b\"");
  EXPECT_EQ((*members)[1].text, "x\ny");
  EXPECT_TRUE((*members)[1].is_string);
  EXPECT_EQ((*members)[2].raw, "[ 1, {\"d\":\"}\"} ]");
  EXPECT_TRUE(ParseRawMembers(" {} ")->empty());
  EXPECT_EQ(ParseRawMembers("[1]").status().message(),
            "the text is an array of 1; expected a JSON object");
}

}  // namespace
}  // namespace skein::protocol
