// The two messages of a block transfer, for codec.cc. Any thread.
// Must never read a list before its size was checked.
#pragma once

#include "absl/status/status.h"
#include "protocol/messages/move.h"
#include "protocol/schema/control.capnp.h"

namespace skein::protocol {

// ResourceExhausted: there are too many blocks for a message.
absl::Status Write(const MoveBlocks& in, wire::MoveBlocks::Builder out);
absl::Status Write(const BlocksMoved& in, wire::BlocksMoved::Builder out);
// InvalidArgument names the field that is malformed.
absl::Status Read(wire::MoveBlocks::Reader in, MoveBlocks& out);
absl::Status Read(wire::BlocksMoved::Reader in, BlocksMoved& out);

}  // namespace skein::protocol
