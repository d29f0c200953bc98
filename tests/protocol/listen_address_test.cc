// ADDRESS:PORT: what is one, and that nothing else is.
#include "protocol/config/listen_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

using ::testing::HasSubstr;

TEST(ListenAddressTest, NumbersAreRead) {
  for (const char* text : {"127.0.0.1:9400", "0.0.0.0:0", "[::1]:65535", "[fe80::1]:80"}) {
    const auto address = ParseListenAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(ListenText(*address), text);
  }
  EXPECT_EQ(ParseListenAddress("[::1]:7")->host, "::1");
}

TEST(ListenAddressTest, AnythingElseIsRefusedWithTheForm) {
  for (const char* text : {"",
                           ":",
                           "127.0.0.1",
                           "127.0.0.1:",
                           ":9400",
                           "localhost:9400",
                           "*:9400",
                           "::1:9400",
                           "[127.0.0.1]:9400",
                           "127.0.0.1:65536",
                           "127.0.0.1:-1",
                           "127.0.0.1:+1",
                           "127.0.0.1: 1",
                           "127.0.0.1:0x10",
                           "127.0.0.1:1e3",
                           "127.0.0.1:000080",
                           "127.0.0.1:9400 ",
                           " 127.0.0.1:1",
                           "127.1:9400",
                           "[::1%lo]:9400",
                           "[]:9400",
                           "[::1:9400",
                           "unix:/tmp/x",
                           "http://1.2.3.4:5"}) {
    const auto address = ParseListenAddress(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_THAT(std::string(address.status().message()), HasSubstr("127.0.0.1:9400")) << text;
  }
}

}  // namespace
}  // namespace skein::protocol
