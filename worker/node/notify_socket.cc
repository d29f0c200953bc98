// One datagram per message.
// Supervisor's thread. Must never raise SIGPIPE.
#include "worker/node/notify_socket.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include <sys/socket.h>
#include <sys/un.h>

#include "absl/status/status.h"
#include "protocol/base/strings.h"

namespace skein::worker {

absl::StatusOr<NotifySocket> NotifySocket::Open(std::string_view address) {
  NotifySocket notify;
  if (address.empty()) return notify;
  const bool known = address[0] == '/' || address[0] == '@';
  if (!known || address.size() < 2 || address.size() >= sizeof(sockaddr_un::sun_path)) {
    return absl::InvalidArgumentError(protocol::Concat(
        "node.notify_socket (--notify-socket): ", address,
        " is neither /path nor @name of at most ", sizeof(sockaddr_un::sun_path) - 1, " bytes"));
  }
  notify.address_ = address;
  notify.socket_ = Descriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!notify.socket_.valid()) {
    return absl::InternalError(protocol::Concat("no socket: ", std::strerror(errno)));
  }
  return notify;
}

bool NotifySocket::Send(std::string_view text) const {
  if (!socket_.valid()) return false;
  sockaddr_un target{};
  target.sun_family = AF_UNIX;
  std::copy(address_.begin(), address_.end(), target.sun_path);
  if (target.sun_path[0] == '@') target.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  return ::sendto(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL,
                  reinterpret_cast<const sockaddr*>(&target),
                  size) == static_cast<ssize_t>(text.size());
}

}  // namespace skein::worker
