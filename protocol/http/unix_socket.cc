#include "protocol/http/unix_socket.h"

#include <cerrno>
#include <cstring>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "absl/status/status.h"

namespace skein::protocol {
namespace {

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(path + ": longer than a socket's path may be");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::Status Failed(const std::string& path, const char* what, const char* remedy = "") {
  return absl::UnavailableError("cannot " + std::string(what) + " " + path + ": " +
                                std::strerror(errno) + remedy);
}

// What helps against a failed bind.
const char* Remedy(int error) {
  switch (error) {
    case EADDRINUSE:
      return "; a file that is no socket is there: remove it or choose another path";
    case ENOENT:
    case ENOTDIR:
      return "; make its directory or choose another path";
    default:
      return "; choose another path";
  }
}

int Open() { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

bool Connects(int fd, const sockaddr_un& address) {
  return ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

// Whether nobody listens: only a refusal says so. One with a full backlog lives.
bool IsDead(const sockaddr_un& address) {
  const int fd = Open();
  const bool dead = fd >= 0 && !Connects(fd, address) && errno == ECONNREFUSED;
  ::close(fd);
  return dead;
}

bool IsSocket(const std::string& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode);
}

}  // namespace

absl::StatusOr<int> ConnectUnix(const std::string& path) {
  const absl::StatusOr<sockaddr_un> address = AddressOf(path);
  if (!address.ok()) return address.status();
  const int fd = Open();
  if (fd < 0) return Failed(path, "make a socket for");
  if (Connects(fd, *address)) return fd;
  const absl::Status failed = Failed(path, "connect to");
  ::close(fd);
  return failed;
}

absl::StatusOr<int> ListenUnix(const std::string& path, int backlog) {
  const absl::StatusOr<sockaddr_un> address = AddressOf(path);
  if (!address.ok()) return address.status();
  if (IsSocket(path)) {
    if (!IsDead(*address)) {
      return absl::AlreadyExistsError("somebody listens on " + path +
                                      " already; stop that server or choose another path");
    }
    ::unlink(path.c_str());
  }
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Failed(path, "make a socket for");
  // The mode of the descriptor becomes that of the file.
  if (::fchmod(fd, S_IRUSR | S_IWUSR) == 0 &&
      ::bind(fd, reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) == 0 &&
      ::listen(fd, backlog) == 0) {
    return fd;
  }
  const absl::Status failed = Failed(path, "listen on", Remedy(errno));
  ::close(fd);
  return failed;
}

void RemoveUnix(const std::string& path) {
  if (IsSocket(path)) ::unlink(path.c_str());
}

std::string PeerUser(int descriptor) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return "uid:unknown";
  return "uid:" + std::to_string(peer.uid);
}

}  // namespace skein::protocol
