// The part of a SequenceStep that edits logits, for codec.cc. Any thread.
// Must never read a list before its size was checked.
#pragma once

#include "absl/status/status.h"
#include "protocol/messages/step.h"
#include "protocol/schema/step.capnp.h"

namespace skein::protocol {

// Edits and masks of the step; ResourceExhausted names a list that is too long.
absl::Status WriteEdits(const SequenceStep& in, wire::SequenceStep::Builder out);
// InvalidArgument names the field that is malformed.
absl::Status ReadEdits(wire::SequenceStep::Reader in, SequenceStep& out);

}  // namespace skein::protocol
