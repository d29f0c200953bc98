// Addresses of workers, as they are registered and read back.
#include "protocol/tensor/block_wire.h"

#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

TEST(BlockWireTest, AddressesReadBack) {
  for (const char* text : {"127.0.0.1:1", "10.2.3.4:65535", "192.168.0.9:4000"}) {
    const auto address = ParseBlockAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(BlockAddressText(*address), text);
  }
  const auto host = ParseBlockAddress("127.0.0.1");
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_EQ(BlockAddressText(*host), "127.0.0.1:0");
}

TEST(BlockWireTest, WhatIsNoneIsNamed) {
  for (const char* text : {"", "here:1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536",
                           "127.0.0.1:1x", "1.2.3:4", ":80", "[::1]:80"}) {
    const auto address = ParseBlockAddress(text);
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(address.status().message().find(text), absl::string_view::npos) << text;
  }
}

}  // namespace
}  // namespace skein::protocol
