// Addresses of the operator listener.
#include "protocol/config/admin_address.h"

#include <cstdio>
#include <fstream>
#include <string>

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

TEST(AdminAddressTest, ANameIsNoLoopbackAddress) {
  for (const char* const host : {"127.0.0.1", "127.9.8.7", "::1"}) EXPECT_TRUE(IsLoopback(host));
  for (const char* const host : {"127.example.org", "127.0.0.1:1", "127.1", "128.0.0.1", ""}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
  EXPECT_FALSE(ParseAdminAddress("127.example.org:9000").ok());
}

class AdminTokenTest : public ::testing::Test {
 protected:
  ~AdminTokenTest() override { std::remove(path_.c_str()); }
  absl::StatusOr<std::string> Read(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    return ReadAdminToken("--token-file", path_);
  }
  // Tests of the fixture run beside each other.
  const std::string path_ = ::testing::TempDir() + "admin_token_test." +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(AdminTokenTest, IsTheFirstLine) {
  EXPECT_EQ(*Read("secret\nnotes\n"), "secret");
  EXPECT_EQ(*Read("secret"), "secret");
  EXPECT_EQ(Read(std::string(512, 'x') + "\n")->size(), 512u);
}

TEST_F(AdminTokenTest, WhatCouldBeNoHeaderIsRefusedWithoutShowingIt) {
  for (const std::string& text :
       {std::string(), std::string("\nsecret\n"), std::string("secret\r\n"),
        std::string("sec ret\n"), std::string("sec\0ret", 7),
        std::string("s\xC3\xA9"
                    "cret"),
        std::string(513, 'x')}) {
    const auto token = Read(text);
    ASSERT_FALSE(token.ok()) << text;
    EXPECT_EQ(token.status().message(), "--token-file: the first line of " + path_ +
                                            " is no token: 1 to 512 visible characters without "
                                            "spaces; write one, as openssl rand -hex 32 makes it");
  }
  EXPECT_EQ(ReadAdminToken("--token-file", path_ + ".none").status().message(),
            "--token-file: " + path_ +
                ".none cannot be read: No such file or directory; write the token into its first "
                "line, or name another file");
}

}  // namespace
}  // namespace skein::protocol
