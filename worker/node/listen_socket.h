// The listening socket of the API. The supervisor makes it and every coordinator gets it, so new
// connections wait in its backlog while a coordinator is replaced, and port 0 stays one port.
// Supervisor's thread. Must never accept a connection: the coordinator does.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/node/descriptor.h"

namespace skein::worker {

struct ListenSocket {
  Descriptor socket;
  uint16_t port = 0;  // the one that was bound
};

// Binds and listens; `port` 0 takes a free one. FailedPrecondition names the address and why.
absl::StatusOr<ListenSocket> OpenListenSocket(const std::string& host, uint16_t port);

}  // namespace skein::worker
