// Tests of protocol/transport/frame: round trip, and that no damaged frame passes.
#include "protocol/transport/frame.h"

#include <string_view>

#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

FrameHeader SampleHeader() {
  FrameHeader header;
  header.type = 7;
  header.term = Term(1);
  header.incarnation = Incarnation(0x1122334455667788);
  header.epoch = Epoch(3);
  header.attempt = MakeAttempt(Term(1), 4);
  header.session = 5;
  header.ordinal = 6;
  header.acknowledged = 7;
  header.from = {NodeId(8), 9};
  header.to = {NodeId(10), 11};
  header.flags = kFrameResend;
  return header;
}

TEST(FrameTest, RoundTripKeepsEveryField) {
  const std::vector<std::byte> frame = EncodeFrame(SampleHeader(), Bytes("body"));
  ASSERT_EQ(frame.size(), kFrameHeaderBytes + 4);
  const DecodedFrame decoded = DecodeFrame(frame);
  ASSERT_EQ(decoded.defect, FrameDefect::kNone);
  EXPECT_EQ(decoded.header, SampleHeader());
  ASSERT_EQ(decoded.body.size(), 4u);
  EXPECT_EQ(static_cast<char>(decoded.body[3]), 'y');
}

TEST(FrameTest, EverySingleBitFlipIsFound) {
  const std::vector<std::byte> good = EncodeFrame(SampleHeader(), Bytes("some body text"));
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    const DecodedFrame decoded = DecodeFrame(bad);
    EXPECT_NE(decoded.defect, FrameDefect::kNone) << bit;
    EXPECT_TRUE(decoded.body.empty());
    EXPECT_EQ(decoded.header, FrameHeader());
  }
}

TEST(FrameTest, DefectsAreToldApart) {
  const std::vector<std::byte> good = EncodeFrame(SampleHeader(), Bytes("x"));
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(DecodeFrame(std::span(good).first(size)).defect, FrameDefect::kLength) << size;
  }
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  EXPECT_EQ(DecodeFrame(longer).defect, FrameDefect::kLength);
  std::vector<std::byte> bad = good;
  bad[0] = std::byte{0};
  EXPECT_EQ(DecodeFrame(bad).defect, FrameDefect::kMagic);
  bad = good;
  bad[4] = std::byte{9};
  EXPECT_EQ(DecodeFrame(bad).defect, FrameDefect::kVersion);
  bad = good;
  bad.back() ^= std::byte{1};
  EXPECT_EQ(DecodeFrame(bad).defect, FrameDefect::kChecksum);
  EXPECT_EQ(DecodeFrame(std::vector<std::byte>(kFrameBytesMax + 1)).defect, FrameDefect::kLength);
}

}  // namespace
}  // namespace skein::protocol
