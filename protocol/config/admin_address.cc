#include "protocol/config/admin_address.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include <arpa/inet.h>

#include "absl/strings/numbers.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

constexpr size_t kUnixPathBytesMax = 107;  // of sockaddr_un
constexpr size_t kTokenBytesMax = 512;

}  // namespace

bool IsLoopback(std::string_view host) {
  in_addr address{};
  return host == "::1" || (host.starts_with("127.") &&
                           ::inet_pton(AF_INET, std::string(host).c_str(), &address) == 1);
}

absl::StatusOr<AdminAddress> ParseAdminAddress(std::string_view text) {
  AdminAddress address;
  if (text.empty()) return address;
  if (text.starts_with("unix:")) {
    const std::string_view path = text.substr(5);
    if (!path.starts_with('/') || path.size() > kUnixPathBytesMax) {
      return absl::InvalidArgumentError(Concat("\"", text, "\": the path must be absolute, of ",
                                               kUnixPathBytesMax, " bytes at most"));
    }
    address.unix_path = path;
    return address;
  }
  const size_t colon = text.rfind(':');
  std::string_view host = text.substr(0, colon == std::string_view::npos ? 0 : colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  uint32_t port = 0;
  if (host.empty() || !absl::SimpleAtoi(ToAbsl(text.substr(colon + 1)), &port) || port > 65535) {
    return absl::InvalidArgumentError(
        Concat("\"", text, "\" is neither unix:/path nor 127.0.0.1:port"));
  }
  if (!IsLoopback(host)) {
    return absl::InvalidArgumentError(
        Concat("\"", text, "\": operators are served on this host only; give 127.0.0.1:", port,
               " and reach it through a tunnel"));
  }
  address.host = host;
  address.port = static_cast<uint16_t>(port);
  return address;
}

absl::StatusOr<std::string> ReadAdminToken(std::string_view source, const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::InvalidArgumentError(
        Concat(source, ": ", path, " cannot be read: ", std::strerror(errno),
               "; write the token into its first line, or name another file"));
  }
  std::string token(kTokenBytesMax + 1, '\0');
  file.read(token.data(), static_cast<std::streamsize>(token.size()));
  token.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  token.resize(std::min(token.size(), token.find('\n')));
  const bool visible =
      std::all_of(token.begin(), token.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  if (token.empty() || token.size() > kTokenBytesMax || !visible) {
    return absl::InvalidArgumentError(
        Concat(source, ": the first line of ", path, " is no token: 1 to ", kTokenBytesMax,
               " visible characters without spaces; write one, as openssl rand -hex 32 "
               "makes it"));
  }
  return token;
}

}  // namespace skein::protocol
