// The thread behind ParentGuard: poll and read on two descriptors, and the answer.
// Must never log or allocate on the way out: the process may be in any state.
#include "protocol/base/parent_guard.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

constexpr std::string_view kAlive = "alive\n";

}  // namespace

absl::StatusOr<std::unique_ptr<ParentGuard>> ParentGuard::Create(int pipe_fd) {
  if (::fcntl(pipe_fd, F_SETFD, FD_CLOEXEC) != 0) {
    return absl::InvalidArgumentError(
        Concat("--supervisor-fd ", pipe_fd, " is not an open descriptor (", std::strerror(errno),
               "); it is given by the supervisor, leave it out when starting by hand"));
  }
  const int stop_fd = ::eventfd(0, EFD_CLOEXEC);
  if (stop_fd < 0) {
    return absl::InternalError(
        Concat("eventfd for the parent guard failed: ", std::strerror(errno)));
  }
  try {
    return std::unique_ptr<ParentGuard>(new ParentGuard(pipe_fd, stop_fd));
  } catch (const std::system_error& error) {
    ::close(stop_fd);
    return absl::InternalError(Concat("no thread for the parent guard: ", error.what()));
  }
}

ParentGuard::ParentGuard(int pipe_fd, int stop_fd)
    : pipe_fd_(pipe_fd), stop_fd_(stop_fd), thread_([this] { Watch(); }) {}

void ParentGuard::Watch() const {
  uint64_t answered = 0;  // the rounds at the last answer
  while (true) {
    pollfd waits[2] = {{pipe_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    if (::poll(waits, 2, -1) < 0) {
      if (errno == EINTR) continue;
      ::_exit(kExitParentGone);
    }
    if (waits[1].revents != 0) return;
    if (waits[0].revents == 0) continue;
    char byte = 0;
    const ssize_t count = ::read(pipe_fd_, &byte, 1);
    if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) {
      ::_exit(kExitParentGone);
    }
    const uint64_t rounds = rounds_.load(std::memory_order_relaxed);
    if (count < 0 || (rounds != 0 && rounds == answered)) continue;
    answered = rounds;
    // Without Report: it allocates, and the process may be in any state.
    [[maybe_unused]] const ssize_t sent =
        ::send(pipe_fd_, kAlive.data(), kAlive.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

void ParentGuard::Report(std::string_view line) const {
  const std::string text = Concat(line, "\n");
  // A pipe has no way back: then, as with a full buffer, the line is lost by design.
  [[maybe_unused]] const ssize_t sent =
      ::send(pipe_fd_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

ParentGuard::~ParentGuard() {
  const uint64_t one = 1;
  if (::write(stop_fd_, &one, sizeof one) != sizeof one) ::_exit(kExitParentGone);
  thread_.join();
  ::close(stop_fd_);
  ::close(pipe_fd_);
}

}  // namespace skein::protocol
