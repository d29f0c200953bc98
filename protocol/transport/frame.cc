// Layout of the header, little-endian by explicit bytes, and the checksum.
// Must never read past the length that was checked first.
#include "protocol/transport/frame.h"

#include <concepts>
#include <cstring>

#include "protocol/base/crc32c.h"

namespace skein::protocol {
namespace {

// Offsets of the header. The checksum covers header (with this field zero) and body.
constexpr size_t kChecksumAt = 12;

template <std::unsigned_integral T>
void Put(std::byte*& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    *out++ = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i) & 0xFF);
  }
}

template <std::unsigned_integral T>
T Get(const std::byte*& in) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= std::to_integer<uint64_t>(*in++) << (8 * i);
  return static_cast<T>(value);
}

uint32_t FrameChecksum(std::span<const std::byte> frame) {
  const std::byte zero[4] = {};
  uint32_t crc = Crc32c(0, frame.first(kChecksumAt));
  crc = Crc32c(crc, zero);
  return Crc32c(crc, frame.subspan(kChecksumAt + 4));
}

}  // namespace

std::vector<std::byte> EncodeFrame(const FrameHeader& header, std::span<const std::byte> body) {
  std::vector<std::byte> frame(kFrameHeaderBytes + body.size());
  std::byte* out = frame.data();
  Put(out, kFrameMagic);
  Put(out, kFrameVersion);
  Put(out, header.type);
  Put(out, static_cast<uint32_t>(frame.size()));
  Put(out, uint32_t{0});  // checksum, below
  Put(out, header.term.value());
  Put(out, header.incarnation.value());
  Put(out, header.epoch.value());
  Put(out, header.attempt.value());
  Put(out, header.session);
  Put(out, header.ordinal);
  Put(out, header.acknowledged);
  Put(out, header.from.node.value());
  Put(out, header.from.slot);
  Put(out, header.to.node.value());
  Put(out, header.to.slot);
  Put(out, header.flags);
  if (!body.empty()) std::memcpy(out, body.data(), body.size());
  std::byte* checksum = frame.data() + kChecksumAt;
  Put(checksum, FrameChecksum(frame));
  return frame;
}

DecodedFrame DecodeFrame(std::span<const std::byte> frame) {
  DecodedFrame decoded;
  const auto refuse = [](FrameDefect defect) {
    DecodedFrame refused;
    refused.defect = defect;
    return refused;
  };
  if (frame.size() < kFrameHeaderBytes || frame.size() > kFrameBytesMax) {
    return refuse(FrameDefect::kLength);
  }
  const std::byte* in = frame.data();
  if (Get<uint32_t>(in) != kFrameMagic) return refuse(FrameDefect::kMagic);
  if (Get<uint16_t>(in) != kFrameVersion) return refuse(FrameDefect::kVersion);
  FrameHeader& header = decoded.header;
  header.type = Get<uint16_t>(in);
  if (Get<uint32_t>(in) != frame.size()) return refuse(FrameDefect::kLength);
  if (Get<uint32_t>(in) != FrameChecksum(frame)) return refuse(FrameDefect::kChecksum);
  header.term = Term(Get<uint64_t>(in));
  header.incarnation = Incarnation(Get<uint64_t>(in));
  header.epoch = Epoch(Get<uint64_t>(in));
  header.attempt = Attempt(Get<uint64_t>(in));
  header.session = Get<uint64_t>(in);
  header.ordinal = Get<uint64_t>(in);
  header.acknowledged = Get<uint64_t>(in);
  header.from.node = NodeId(Get<uint32_t>(in));
  header.from.slot = Get<uint32_t>(in);
  header.to.node = NodeId(Get<uint32_t>(in));
  header.to.slot = Get<uint32_t>(in);
  header.flags = Get<uint64_t>(in);
  decoded.body = frame.subspan(kFrameHeaderBytes);
  return decoded;
}

}  // namespace skein::protocol
