// The parts of control_bench that need no other process: encoding and reading of step messages,
// and round trips of a small frame between two threads.
// Owns: nothing. Thread: main's, and one that echoes. Must never outlive its echo.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace skein::bench {

struct CodecTimes {
  double encode_ns = 0;  // of one sequence of a decode plan of `live` sequences
  double decode_ns = 0;  // the same, read back and compared
  bool equal = false;    // what was read is what was written
};
CodecTimes MeasureCodec(uint32_t live);

struct RoundTrip {
  double p50_us = 0;
  double p99_us = 0;
};
// 64-byte frames between two ZeroMQ transports on two threads.
absl::StatusOr<RoundTrip> MeasureTransport(const std::string& endpoint, int rounds);
// A mailbox and a wake-up there, the same back: how the HTTP thread and the control loop talk.
absl::StatusOr<RoundTrip> MeasureMailbox(int rounds);

}  // namespace skein::bench
