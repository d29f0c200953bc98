// What the ranks of a group are told of their epoch, and what they say of their experts, for
// codec.cc. Any thread. Must never read a list before its size was checked.
#pragma once

#include "absl/status/status.h"
#include "protocol/messages/control.h"
#include "protocol/messages/step.h"
#include "protocol/schema/control.capnp.h"
#include "protocol/schema/step.capnp.h"

namespace skein::protocol {

// ResourceExhausted names the list that is too long; InvalidArgument the field that is malformed.
absl::Status Write(const FormGroup& in, wire::FormGroup::Builder out);
absl::Status Read(wire::FormGroup::Reader in, FormGroup& out);

// Nothing is written of a step that was not counted.
absl::Status WriteLoad(const ExpertLoad& in, wire::StepResult::Builder out);
absl::Status ReadLoad(wire::StepResult::Reader in, ExpertLoad& out);

}  // namespace skein::protocol
