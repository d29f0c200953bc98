// Which addresses may carry control traffic. Pure but for looking at the directory of a socket; any
// thread. Must never allow an address that anybody could reach.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace skein::protocol {

// OK for ipc:///directory/name in an existing directory of ours with mode 0700, and for
// tcp://ADDRESS:PORT (port * takes a free one) with a loopback or private address and keys; else
// InvalidArgument: what is wrong and what is right.
absl::Status CheckControlEndpoint(std::string_view endpoint, bool has_keys);

// The endpoint is tcp and so needs keys.
inline bool NeedsKeys(std::string_view endpoint) { return endpoint.substr(0, 6) == "tcp://"; }

}  // namespace skein::protocol
