// Unix sockets of the operator listener and its clients: bind, connect, and who the peer is.
// Owns nothing; descriptors go to the caller. Any thread. Must never remove a file that is no
// socket, or one that somebody listens on.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace skein::protocol {

// A listening socket at `path` that only this user may open. AlreadyExists when somebody listens
// there; Unavailable names path and reason.
absl::StatusOr<int> ListenUnix(const std::string& path, int backlog);

// A connected, non-blocking socket. Unavailable names path and reason.
absl::StatusOr<int> ConnectUnix(const std::string& path);

// Removes the socket file of a listener that ended; nothing else.
void RemoveUnix(const std::string& path);

// "uid:N" of the process at the other end, as the kernel noted it when it connected.
std::string PeerUser(int descriptor);

}  // namespace skein::protocol
