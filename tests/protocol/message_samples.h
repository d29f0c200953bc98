// One message of every kind with every field set, for tests of the wire and its corpus. Pure.
// Thread: any. Must never: change what an earlier corpus was written from; add fields instead.
#pragma once

#include <vector>

#include "protocol/messages/message.h"

namespace skein::tests {

protocol::StepPlan SamplePlan();
protocol::StepResult SampleResult();
// One of each alternative of Message, in its order.
std::vector<protocol::Message> SampleMessages();

}  // namespace skein::tests
