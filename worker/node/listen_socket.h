// A listening socket of the API or of a worker's metrics. The supervisor makes it and each child in
// its turn gets it, so new connections wait in its backlog while a child is replaced, and port 0
// stays one port.
// Supervisor's thread. Must never accept a connection: the child does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/node/descriptor.h"

namespace skein::worker {

struct ListenSocket {
  Descriptor socket;
  uint16_t port = 0;  // the one that was bound
};

// Binds and listens; `port` 0 takes a free one. FailedPrecondition names the address, why, and the
// flags to change: those of the host and of the port.
absl::StatusOr<ListenSocket> OpenListenSocket(const std::string& host, uint16_t port,
                                              std::string_view host_flag = "--host",
                                              std::string_view port_flag = "--port");

}  // namespace skein::worker
