// Messages between hosts of a group: what is packed is unpacked, and what does not go together is
// refused before anything is written beyond its place.
#include "protocol/tensor/group_wire.h"

#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::tests {
namespace {

using protocol::ForEachWrite;
using protocol::GroupHeader;
using protocol::WindowWrite;
using protocol::WriteBatch;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// "window@offset:text" of each write.
std::vector<std::string> Unpacked(const GroupHeader& header, std::span<const std::byte> payload,
                                  absl::Status* status = nullptr) {
  std::vector<std::string> found;
  const absl::Status result = ForEachWrite(
      header, payload, [&](const WindowWrite& write, std::span<const std::byte> bytes) {
        found.push_back(std::to_string(write.window) + "@" + std::to_string(write.offset) + ":" +
                        std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
        return absl::OkStatus();
      });
  if (status != nullptr) *status = result;
  return found;
}

TEST(GroupWire, WhatIsPackedIsUnpacked) {
  WriteBatch batch(64, 4);
  ASSERT_TRUE(batch.Add(1, 10, Bytes("abc")).ok());
  ASSERT_TRUE(batch.Add(1, 13, Bytes("de")).ok()) << "it continues the one before";
  ASSERT_TRUE(batch.Add(2, 15, Bytes("f")).ok());
  ASSERT_TRUE(batch.Add(2, 0, {}).ok());
  GroupHeader header;
  const auto payload = batch.Seal();
  header.writes = batch.writes();
  EXPECT_EQ(header.writes, 2u);
  EXPECT_THAT(Unpacked(header, payload), ElementsAre("1@10:abcde", "2@15:f"));
  batch.Clear();
  header.writes = batch.writes();
  EXPECT_THAT(Unpacked(header, batch.Seal()), ElementsAre());
}

TEST(GroupWire, ABatchIsNeverLargerThanItsMemory) {
  WriteBatch batch(8, 2);
  EXPECT_TRUE(batch.Add(0, 0, Bytes("12345678")).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(batch.Add(0, 8, Bytes("9"))));
  batch.Clear();
  EXPECT_TRUE(batch.Add(0, 0, Bytes("1")).ok());
  EXPECT_TRUE(batch.Add(0, 2, Bytes("1")).ok());
  const absl::Status third = batch.Add(0, 4, Bytes("1"));
  EXPECT_TRUE(absl::IsResourceExhausted(third));
  EXPECT_THAT(std::string(third.message()), HasSubstr("at most 2 of 8"));
}

TEST(GroupWire, WhatDoesNotGoTogetherIsRefused) {
  WriteBatch batch(64, 4);
  ASSERT_TRUE(batch.Add(1, 10, Bytes("abc")).ok());
  ASSERT_TRUE(batch.Add(3, 10, Bytes("de")).ok());
  const auto sealed = batch.Seal();
  const std::vector<std::byte> payload(sealed.begin(), sealed.end());
  absl::Status status;
  for (const uint64_t writes : {uint64_t{0}, uint64_t{1}, uint64_t{3}, UINT64_MAX}) {
    GroupHeader header;
    header.writes = writes;
    Unpacked(header, payload, &status);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << writes << status;
  }
  // An entry that says more than there is.
  GroupHeader header;
  header.writes = 2;
  std::vector<std::byte> longer = payload;
  WindowWrite write;
  std::memcpy(&write, longer.data() + 5, sizeof(write));
  write.bytes = UINT64_MAX;
  std::memcpy(longer.data() + 5, &write, sizeof(write));
  EXPECT_THAT(Unpacked(header, longer, &status), ElementsAre());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

TEST(GroupWire, TheChecksumCoversHeaderAndPayload) {
  GroupHeader header;
  header.epoch = 7;
  header.crc = protocol::GroupCrc(header, Bytes("words"));
  EXPECT_EQ(protocol::GroupCrc(header, Bytes("words")), header.crc);
  EXPECT_NE(protocol::GroupCrc(header, Bytes("wordz")), header.crc);
  GroupHeader other = header;
  other.announcement.number = 3;
  EXPECT_NE(protocol::GroupCrc(other, Bytes("words")), header.crc);
  const auto read = protocol::ReadGroupHeader(std::as_bytes(std::span(&header, 1)));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->epoch, 7u);
  other.magic = 1;
  EXPECT_FALSE(protocol::ReadGroupHeader(std::as_bytes(std::span(&other, 1))).has_value());
  EXPECT_FALSE(protocol::ReadGroupHeader(Bytes("short")).has_value());
}

}  // namespace
}  // namespace skein::tests
