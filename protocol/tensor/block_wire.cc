#include "protocol/tensor/block_wire.h"

#include <array>
#include <charconv>

#include <arpa/inet.h>

#include "protocol/base/strings.h"

namespace skein::protocol {

absl::StatusOr<sockaddr_in> ParseBlockAddress(std::string_view text) {
  const size_t colon = text.rfind(':');
  sockaddr_in out{};
  out.sin_family = AF_INET;
  uint16_t port = 0;
  const std::string host(text.substr(0, colon));
  bool ok = ::inet_pton(AF_INET, host.c_str(), &out.sin_addr) == 1;
  if (colon != std::string_view::npos) {
    const char* end = text.data() + text.size();
    const auto read = std::from_chars(text.data() + colon + 1, end, port);
    ok = ok && read.ec == std::errc() && read.ptr == end && port != 0;
  }
  if (!ok) {
    return absl::InvalidArgumentError(
        Concat("\"", text, "\" is no IPv4 address of a worker, as 10.0.0.1:4000"));
  }
  out.sin_port = htons(port);
  return out;
}

std::string BlockAddressText(const sockaddr_in& address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
  return Concat(text.data(), ":", ntohs(address.sin_port));
}

}  // namespace skein::protocol
