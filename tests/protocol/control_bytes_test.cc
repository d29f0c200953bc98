// Tests of protocol/base/control_bytes: what is a control character, and how it is shown.
#include "protocol/base/control_bytes.h"

#include <string>

#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

TEST(ControlBytesTest, CountsC0DelAndC1) {
  EXPECT_EQ(ControlBytes("\x1b[2J"), 1u);
  EXPECT_EQ(ControlBytes("\x7f"), 1u);
  EXPECT_EQ(ControlBytes(std::string(1, '\0')), 1u);
  EXPECT_EQ(ControlBytes("\xC2\x9B"
                         "31m"),
            2u);
  EXPECT_EQ(ControlBytes("\xC2\x80"), 2u);
}

TEST(ControlBytesTest, OtherTextIsNone) {
  for (const char* text : {"", "a", " ", "\xC2\xA0", "\xC2", "\xC2 ", "\xC3\xA9", "\xE2\x82\xAC"}) {
    EXPECT_EQ(ControlBytes(text), 0u) << text;
  }
}

TEST(ControlBytesTest, EscapesAllButWhatIsKept) {
  EXPECT_EQ(EscapeControls("\x1b[2J\ta\r\n\xC2\x9B"
                           "1m\xC3\xA9",
                           "\n\t"),
            "\\x1b[2J\ta\\x0d\n\\xc2\\x9b1m\xC3\xA9");
  EXPECT_EQ(EscapeControls("a\nb", ""), "a\\x0ab");
}

}  // namespace
}  // namespace skein::protocol
