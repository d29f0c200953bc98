// ADDRESS:PORT of a listener whose address is a number, since a name could mean any host. Pure, any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace skein::protocol {

struct ListenAddress {
  std::string host;  // an IPv4 address, or an IPv6 one without its brackets
  uint16_t port = 0;
};

// "127.0.0.1:9400" or "[::1]:9400". InvalidArgument says what is wrong.
absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text);

// The same written out.
std::string ListenText(const ListenAddress& address);

}  // namespace skein::protocol
