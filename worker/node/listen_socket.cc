// bind and listen on a numeric address.
// Supervisor's thread. Must never resolve a name: that could wait for the network.
#include "worker/node/listen_socket.h"

#include <cerrno>
#include <cstring>
#include <memory>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "absl/status/status.h"
#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using protocol::Concat;

constexpr int kBacklog = 4096;

uint16_t PortOf(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

absl::StatusOr<ListenSocket> OpenListenSocket(const std::string& host, uint16_t port,
                                              std::string_view host_flag,
                                              std::string_view port_flag) {
  const std::string where = Concat("cannot listen on ", host, ":", port, ": ");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), Concat(port).c_str(), &hints, &found) != 0) {
    return absl::FailedPreconditionError(
        Concat(where, "the host must be a numeric IPv4 or IPv6 address (", host_flag, ")"));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> address(found, &::freeaddrinfo);
  ListenSocket listening;
  listening.socket = Descriptor(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(listening.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!listening.socket.valid() ||
      ::bind(listening.socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(listening.socket.get(), kBacklog) != 0) {
    return absl::FailedPreconditionError(
        Concat(where, std::strerror(errno),
               "; end what listens there (ss -ltnp shows it), or give another ", port_flag));
  }
  listening.port = PortOf(listening.socket.get());
  return listening;
}

}  // namespace skein::worker
