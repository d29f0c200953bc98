// The frame: a fixed header with counters, ordinals and CRC32C, and the body of one message.
// Pure functions, any thread. Must never hand out a body whose checksum was not verified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "protocol/actor/actor.h"
#include "protocol/base/ids.h"

namespace skein::protocol {

inline constexpr uint32_t kFrameMagic = 0x314E4B53;  // "SKN1" in memory
inline constexpr uint16_t kFrameVersion = 1;
inline constexpr size_t kFrameHeaderBytes = 96;
inline constexpr size_t kFrameBytesMax = 1 << 20;

// Type of a frame without a message: sign of life and acknowledgement.
inline constexpr uint16_t kFrameTypeBeat = 0;

// Flags.
inline constexpr uint64_t kFrameResend =
    1;  // frames after `acknowledged` were lost: send them again
inline constexpr uint64_t kFrameReset = 2;  // the session of this number is over: begin the next

struct FrameHeader {
  uint16_t type = kFrameTypeBeat;  // MessageType, or kFrameTypeBeat
  Term term;                       // of the coordinator; zero while the worker does not know it
  Incarnation incarnation;         // of the worker
  Epoch epoch;
  Attempt attempt;            // zero in frames that serve many requests
  uint64_t session = 0;       // counted by the connecting side, within an incarnation
  uint64_t ordinal = 0;       // zero: not numbered (beats)
  uint64_t acknowledged = 0;  // every ordinal up to this one arrived
  ActorId from;
  ActorId to;
  uint64_t flags = 0;
  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

// Why bytes are no frame; the reasons of skein_bad_frames_total.
enum class FrameDefect { kNone, kLength, kMagic, kVersion, kChecksum };

std::vector<std::byte> EncodeFrame(const FrameHeader& header, std::span<const std::byte> body);

struct DecodedFrame {
  FrameDefect defect = FrameDefect::kNone;
  FrameHeader header;
  std::span<const std::byte> body;  // borrowed from the frame
};

// Exact length, magic, version and checksum are verified; header and body are empty on a defect.
DecodedFrame DecodeFrame(std::span<const std::byte> frame);

}  // namespace skein::protocol
