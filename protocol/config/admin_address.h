// Where the operator listener is: a Unix socket, or a TCP port of this host; and its token. Pure
// but for reading the file of the token; any thread. Must never accept an address that other hosts
// reach: operators of other hosts use a tunnel.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace skein::protocol {

struct AdminAddress {
  std::string unix_path;         // empty: not a Unix socket
  std::string host;              // of a TCP listener
  std::optional<uint16_t> port;  // of a TCP listener
  bool none() const { return unix_path.empty() && !port.has_value(); }
};

// "::1" or an IPv4 address that begins with 127, in numbers: a name could mean any host.
bool IsLoopback(std::string_view host);

// "" (none), "unix:/path", "127.0.0.1:port" or "[::1]:port". InvalidArgument says what is wrong.
absl::StatusOr<AdminAddress> ParseAdminAddress(std::string_view text);

// The operators' bearer token: the first line of the file, visible ASCII, 1 to 512 bytes. `source`
// names in errors where the path came from. InvalidArgument says what is wrong, never the token.
absl::StatusOr<std::string> ReadAdminToken(std::string_view source, const std::string& path);

}  // namespace skein::protocol
