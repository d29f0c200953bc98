// Tests of the JSON writer: styles, escapes, number forms.
// Thread: single.
// Must never: depend on the package behind the reader.
#include "protocol/json/json_writer.h"

#include <cmath>

#include <gtest/gtest.h>

#include "protocol/json/utf8.h"

namespace skein::protocol {
namespace {

TEST(JsonWriterTest, WritesBothStyles) {
  const auto write = [](JsonStyle style) {
    std::string out;
    JsonWriter writer(&out, style);
    writer.BeginObject();
    writer.Key("a");
    writer.BeginArray();
    writer.Int(-1);
    writer.Uint(18446744073709551615u);
    writer.Bool(true);
    writer.Null();
    writer.EndArray();
    writer.Key("b");
    writer.BeginObject();
    writer.EndObject();
    writer.Key("c");
    writer.Raw("[1]");
    writer.EndObject();
    return out;
  };
  EXPECT_EQ(write(JsonStyle::kCompact),
            R"({"a":[-1,18446744073709551615,true,null],"b":{},"c":[1]})");
  EXPECT_EQ(write(JsonStyle::kSpaced),
            R"({"a": [-1, 18446744073709551615, true, null], "b": {}, "c": [1]})");
}

TEST(JsonWriterTest, EscapesAndRepairs) {
  std::string out;
  AppendJsonString(std::string_view("q\"\\\b\t\n\f\r\x01\x0b\x1f\x7f\0é\xff\xe4\xbd", 18), &out);
  EXPECT_EQ(out,
            "\"q\\\"\\\\\\b\\t\\n\\f\\r\\u0001\\u000b\\u001f\x7f\\u0000é\xEF\xBF\xBD"
            "\xEF\xBF\xBD\xEF\xBF\xBD\"");
  EXPECT_TRUE(IsValidUtf8(out));
}

TEST(JsonWriterTest, DoublesRoundTripInShortestForm) {
  const auto text = [](double value) {
    std::string out;
    JsonWriter(&out).Double(value);
    return out;
  };
  EXPECT_EQ(text(0.1), "0.1");
  EXPECT_EQ(text(-9999), "-9999.0");
  EXPECT_EQ(text(100000), "100000.0");
  EXPECT_EQ(text(1e16), "1e+16");
  EXPECT_EQ(text(0.00001), "1e-05");
  EXPECT_EQ(text(std::nan("")), "null");
  for (double value : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.6931471805599453}) {
    EXPECT_EQ(*ParseJson(text(value))->AsDouble("v"), value);
  }
}

TEST(JsonWriterTest, ValueWritesWhatWasRead) {
  const std::string text = R"({"z":[1,2.5,"a\nb",null,false],"a":{"k":18446744073709551615}})";
  EXPECT_EQ(WriteJson(*ParseJson(text)), text);
}

}  // namespace
}  // namespace skein::protocol
