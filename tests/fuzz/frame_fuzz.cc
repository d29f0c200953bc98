// Frames: bytes that are one encode to themselves again, a frame made of the input's fields and
// body reads back, and no changed bit of it passes.
// Thread: one.
// Must never: depend on anything but the input.
#include "protocol/transport/frame.h"
#include "tests/fuzz/fuzz_target.h"

namespace skein::tests {
namespace {

using protocol::DecodedFrame;
using protocol::DecodeFrame;
using protocol::EncodeFrame;
using protocol::FrameDefect;
using protocol::FrameHeader;

std::span<const std::byte> AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

bool Same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

void CheckForeign(std::string_view text) {
  const DecodedFrame frame = DecodeFrame(AsBytes(text));
  if (frame.defect != FrameDefect::kNone) {
    return Require(frame.body.empty() && frame.header == FrameHeader(), "a defect has no content");
  }
  Require(Same(EncodeFrame(frame.header, frame.body), AsBytes(text)), "a frame is its encoding");
}

FrameHeader HeaderOf(Bytes& bytes) {
  FrameHeader header;
  header.type = static_cast<uint16_t>(bytes.Number(2));
  header.term = protocol::Term(bytes.Number(8));
  header.incarnation = protocol::Incarnation(bytes.Number(8));
  header.epoch = protocol::Epoch(bytes.Number(8));
  header.attempt = protocol::Attempt(bytes.Number(8));
  header.session = bytes.Number(8);
  header.ordinal = bytes.Number(8);
  header.acknowledged = bytes.Number(8);
  header.from.node = protocol::NodeId(static_cast<uint32_t>(bytes.Number(4)));
  header.to.node = protocol::NodeId(static_cast<uint32_t>(bytes.Number(4)));
  header.flags = bytes.Number(8);
  return header;
}

void CheckOwn(std::string_view text) {
  Bytes bytes(text);
  const FrameHeader header = HeaderOf(bytes);
  std::vector<std::byte> frame = EncodeFrame(header, AsBytes(bytes.Rest()));
  const DecodedFrame read = DecodeFrame(frame);
  Require(read.defect == FrameDefect::kNone && read.header == header, "a header reads back");
  Require(Same(read.body, AsBytes(bytes.Rest())), "a body reads back");
  Decisions decisions(text);
  const size_t at = decisions.Below(frame.size());
  frame[at] ^= std::byte(1 << decisions.Below(8));
  Require(DecodeFrame(frame).defect != FrameDefect::kNone, "a changed bit is seen");
  frame.resize(decisions.Below(frame.size()));
  Require(DecodeFrame(frame).defect != FrameDefect::kNone, "a cut frame is seen");
}

}  // namespace
}  // namespace skein::tests

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  skein::tests::CheckForeign(skein::tests::TextOf(data, size));
  skein::tests::CheckOwn(skein::tests::TextOf(data, size));
  return 0;
}
