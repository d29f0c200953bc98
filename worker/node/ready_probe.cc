// A connection that does not block, one request, the first line of its answer.
// Supervisor's thread. Must never read more than a status line needs.
#include "worker/node/ready_probe.h"

#include <cerrno>
#include <cstring>
#include <string_view>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace skein::worker {
namespace {

constexpr std::string_view kRequest =
    "GET /health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
constexpr std::string_view kGood = "HTTP/1.1 200 ";

// Where a client of this host reaches the socket: loopback instead of any address.
socklen_t AddressOf(int listening, sockaddr_storage& address) {
  socklen_t size = sizeof address;
  if (::getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(address);
    if (v4.sin_addr.s_addr == htonl(INADDR_ANY)) v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  } else if (address.ss_family == AF_INET6) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
    if (IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr)) v6.sin6_addr = in6addr_loopback;
  }
  return size;
}

// Of the operators' listener; 0: it has no address that can be used.
socklen_t AddressOf(const protocol::AdminAddress& operators, sockaddr_storage& address) {
  if (!operators.unix_path.empty()) {
    auto& local = reinterpret_cast<sockaddr_un&>(address);
    if (operators.unix_path.size() >= sizeof local.sun_path) return 0;
    local.sun_family = AF_UNIX;
    std::memcpy(local.sun_path, operators.unix_path.data(), operators.unix_path.size());
    return sizeof local;
  }
  auto& v4 = reinterpret_cast<sockaddr_in&>(address);
  if (::inet_pton(AF_INET, operators.host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(*operators.port);
    return sizeof v4;
  }
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
  if (::inet_pton(AF_INET6, operators.host.c_str(), &v6.sin6_addr) != 1) return 0;
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(*operators.port);
  return sizeof v6;
}

}  // namespace

void ReadyProbe::Begin(int listening, absl::Time now) {
  listening_ = listening;
  Ask(now);
}

void ReadyProbe::Ask(absl::Time now) {
  answer_.clear();
  is_sent_ = false;
  try_end_ = now + kTryMax;
  next_ = now + kStep;
  sockaddr_storage address{};
  const socklen_t size =
      operators_.none() ? AddressOf(listening_, address) : AddressOf(operators_, address);
  connection_ =
      Descriptor(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!connection_.valid()) return;
  const int result =
      ::connect(connection_.get(), reinterpret_cast<const sockaddr*>(&address), size);
  if (result != 0 && errno != EINPROGRESS) connection_.Close();
}

bool ReadyProbe::Step(absl::Time now) {
  if (now < next_) return false;
  if (!connection_.valid()) {  // a pause is over
    Ask(now);
    return false;
  }
  next_ = now + kStep;
  if (!is_sent_) {
    is_sent_ = ::send(connection_.get(), kRequest.data(), kRequest.size(), MSG_NOSIGNAL) ==
               static_cast<ssize_t>(kRequest.size());
  }
  char text[256];
  const ssize_t count = is_sent_ ? ::read(connection_.get(), text, sizeof text) : -1;
  if (count > 0) answer_.append(text, static_cast<size_t>(count));
  if (answer_.size() >= kGood.size() && answer_.compare(0, kGood.size(), kGood) == 0) {
    connection_.Close();
    next_ = absl::InfiniteFuture();
    return true;
  }
  if (answer_.size() >= kGood.size() || count == 0 || now >= try_end_) {
    connection_.Close();
    next_ = now + kAgain;
  }
  return false;
}

}  // namespace skein::worker
