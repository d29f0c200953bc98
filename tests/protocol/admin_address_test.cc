// Addresses of the operator listener.
#include "protocol/config/admin_address.h"

#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

TEST(AdminAddressTest, EmptyIsNone) {
  const auto address = ParseAdminAddress("");
  ASSERT_TRUE(address.ok());
  EXPECT_TRUE(address->none());
}

TEST(AdminAddressTest, UnixAndLoopback) {
  EXPECT_EQ(ParseAdminAddress("unix:/run/skein/admin.sock")->unix_path, "/run/skein/admin.sock");
  const auto tcp = ParseAdminAddress("127.0.0.1:9000");
  ASSERT_TRUE(tcp.ok());
  EXPECT_EQ(tcp->host, "127.0.0.1");
  EXPECT_EQ(tcp->port, 9000);
  EXPECT_EQ(ParseAdminAddress("[::1]:0")->host, "::1");
}

TEST(AdminAddressTest, ErrorsSayWhatWouldBeRight) {
  EXPECT_EQ(ParseAdminAddress("unix:admin.sock").status().message(),
            "\"unix:admin.sock\": the path must be absolute, of 107 bytes at most");
  EXPECT_EQ(ParseAdminAddress("9000").status().message(),
            "\"9000\" is neither unix:/path nor 127.0.0.1:port");
  EXPECT_EQ(ParseAdminAddress("127.0.0.1:70000").status().message(),
            "\"127.0.0.1:70000\" is neither unix:/path nor 127.0.0.1:port");
  EXPECT_EQ(ParseAdminAddress("0.0.0.0:9000").status().message(),
            "\"0.0.0.0:9000\": operators are served on this host only; give 127.0.0.1:9000 and "
            "reach it through a tunnel");
}

}  // namespace
}  // namespace skein::protocol
