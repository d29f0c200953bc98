// Tests of the UTF-8 checks, with the boundary of every sequence form.
// Thread: single.
// Must never: depend on a locale.
#include "protocol/json/utf8.h"

#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

TEST(Utf8Test, AcceptsTheEdgesOfEveryLength) {
  EXPECT_EQ(Utf8SequenceLength(std::string_view("\0", 1)), 1u);
  EXPECT_EQ(Utf8SequenceLength("\x7F"), 1u);
  EXPECT_EQ(Utf8SequenceLength("\xC2\x80"), 2u);
  EXPECT_EQ(Utf8SequenceLength("\xDF\xBF"), 2u);
  EXPECT_EQ(Utf8SequenceLength("\xE0\xA0\x80"), 3u);
  EXPECT_EQ(Utf8SequenceLength("\xED\x9F\xBF"), 3u);
  EXPECT_EQ(Utf8SequenceLength("\xEE\x80\x80"), 3u);
  EXPECT_EQ(Utf8SequenceLength("\xF0\x90\x80\x80"), 4u);
  EXPECT_EQ(Utf8SequenceLength("\xF4\x8F\xBF\xBFtail"), 4u);
  EXPECT_TRUE(IsValidUtf8(""));
  EXPECT_TRUE(IsValidUtf8("aé中😀"));
}

TEST(Utf8Test, RefusesOverlongSurrogateTruncatedAndTooLarge) {
  for (std::string_view bad :
       {"\x80", "\xBF", "\xC0\xAF", "\xC1\xBF", "\xC2", "\xC2\x7F", "\xE0\x9F\xBF", "\xE4\xBD",
        "\xED\xA0\x80", "\xED\xBF\xBF", "\xF0\x8F\xBF\xBF", "\xF0\x9F\x98", "\xF4\x90\x80\x80",
        "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_EQ(Utf8SequenceLength(bad), 0u) << bad.size();
    EXPECT_FALSE(IsValidUtf8("ok" + std::string(bad))) << bad.size();
  }
}

}  // namespace
}  // namespace skein::protocol
