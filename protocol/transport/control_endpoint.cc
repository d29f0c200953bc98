#include "protocol/transport/control_endpoint.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>

#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

constexpr size_t kIpcPathMax = 107;  // of sockaddr_un

absl::Status CheckIpcPath(std::string_view path, std::string_view endpoint) {
  if (path.size() < 2 || path[0] != '/') {
    return absl::InvalidArgumentError(
        Concat(endpoint, ": an ipc endpoint is ipc:///directory/name with an absolute path"));
  }
  if (path.size() > kIpcPathMax) {
    return absl::InvalidArgumentError(Concat(endpoint, ": the path has ", path.size(),
                                             " bytes; a socket path has at most ", kIpcPathMax,
                                             ": choose a shorter run directory"));
  }
  const std::string directory(path.substr(0, std::max<size_t>(path.rfind('/'), 1)));
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0) {
    return absl::InvalidArgumentError(Concat(endpoint, ": directory ", directory, ": ",
                                             std::strerror(errno),
                                             "; make it, with mode 0700, or choose another"));
  }
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 0077) != 0) {
    return absl::InvalidArgumentError(
        Concat(endpoint, ": ", directory,
               " must be a directory of this user with mode 0700: control traffic is private"));
  }
  return absl::OkStatus();
}

// The four numbers of an IPv4 address; names are not looked up.
std::optional<std::array<int, 4>> ParseIpv4(std::string_view host) {
  std::array<int, 4> octets{};
  size_t at = 0;
  for (size_t i = 0; i < octets.size(); ++i) {
    const size_t dot = std::min(host.find('.', at), host.size());
    if (dot - at < 1 || dot - at > 3 || (i < 3) != (dot < host.size()) ||
        !std::all_of(host.begin() + static_cast<ptrdiff_t>(at),
                     host.begin() + static_cast<ptrdiff_t>(dot),
                     [](char c) { return c >= '0' && c <= '9'; }) ||
        !absl::SimpleAtoi(ToAbsl(host.substr(at, dot - at)), &octets[i]) || octets[i] > 255) {
      return std::nullopt;
    }
    at = dot + 1;
  }
  return octets;
}

// Loopback, or of a network that is not routed in the internet.
bool IsPrivate(const std::array<int, 4>& octets) {
  return octets[0] == 127 || octets[0] == 10 || (octets[0] == 192 && octets[1] == 168) ||
         (octets[0] == 172 && octets[1] >= 16 && octets[1] < 32);
}

absl::Status CheckTcpAddress(std::string_view address, std::string_view endpoint, bool has_keys) {
  const size_t colon = address.rfind(':');
  const std::string_view host = address.substr(0, colon);
  if (colon == std::string_view::npos || host.empty()) {
    return absl::InvalidArgumentError(
        Concat(endpoint, ": a tcp endpoint is tcp://ADDRESS:PORT, as tcp://10.0.0.1:7000"));
  }
  const std::string_view port = address.substr(colon + 1);
  int number = 0;
  if (port != "*" && (!absl::SimpleAtoi(ToAbsl(port), &number) || number < 1 || number > 65535)) {
    return absl::InvalidArgumentError(
        Concat(endpoint, ": \"", port, "\" is not a port; give 1 to 65535, or * for a free one"));
  }
  const std::optional<std::array<int, 4>> octets = ParseIpv4(host);
  if (!octets || !IsPrivate(*octets)) {
    return absl::InvalidArgumentError(
        Concat(endpoint, ": ", host,
               " is no private IPv4 address; control traffic stays on one named private interface: "
               "use 10/8, 172.16/12, 192.168/16 or 127/8, or ipc:///path inside a node"));
  }
  if (has_keys) return absl::OkStatus();
  return absl::InvalidArgumentError(
      Concat(endpoint,
             ": a tcp endpoint needs transport.curve_secret_key_file; make one with skein "
             "keygen FILE, or use ipc:///path inside a node"));
}

}  // namespace

absl::Status CheckControlEndpoint(std::string_view endpoint, bool has_keys) {
  absl::Status status = absl::InvalidArgumentError(
      Concat("\"", endpoint, "\" is no control endpoint; use ipc:///path or tcp://ADDRESS:PORT"));
  if (endpoint.starts_with("ipc://")) {
    status = CheckIpcPath(endpoint.substr(6), endpoint);
  } else if (NeedsKeys(endpoint)) {
    status = CheckTcpAddress(endpoint.substr(6), endpoint, has_keys);
  }
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      Concat("transport.control_endpoint (--control-endpoint): ", StatusText(status)));
}

}  // namespace skein::protocol
