#include "protocol/config/listen_address.h"

#include <algorithm>

#include <arpa/inet.h>

#include "absl/strings/numbers.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

bool IsAddress(int family, const std::string& host) {
  in6_addr address{};
  return ::inet_pton(family, host.c_str(), &address) == 1;
}

bool IsNumber(std::string_view text) {
  return !text.empty() && text.size() <= 5 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text) {
  const absl::Status bad = absl::InvalidArgumentError(
      Concat("\"", text.substr(0, 128),
             "\" is no ADDRESS:PORT, such as 127.0.0.1:9400 or "
             "[::1]:9400: the address in numbers, the port from 0 to 65535"));
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad;
  const std::string_view port = text.substr(colon + 1);
  std::string_view host = text.substr(0, colon);
  const bool in_brackets = host.starts_with('[') && host.ends_with(']') && host.size() > 2;
  if (in_brackets) host = host.substr(1, host.size() - 2);
  ListenAddress address;
  address.host = host;
  uint32_t number = 0;
  if (!IsAddress(in_brackets ? AF_INET6 : AF_INET, address.host) || !IsNumber(port) ||
      !absl::SimpleAtoi(ToAbsl(port), &number) || number > 65535) {
    return bad;
  }
  address.port = static_cast<uint16_t>(number);
  return address;
}

std::string ListenText(const ListenAddress& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return v6 ? Concat("[", address.host, "]:", address.port)
            : Concat(address.host, ":", address.port);
}

}  // namespace skein::protocol
