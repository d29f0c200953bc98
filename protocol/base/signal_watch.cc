// A signalfd and the thread that reads it.
// Must never be created after other threads: a signal would reach the one that did not block it.
#include "protocol/base/signal_watch.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <utility>

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "protocol/base/exit_codes.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

// As shells show an abort. Not 70, which says that the parent is gone and nothing of this process.
constexpr int kExitAborted = 128 + SIGABRT;

// As init of a namespace the default of SIGABRT would be ignored and abort() end as a SIGSEGV.
void OnAbort(int) { ::_exit(kExitAborted); }

void ReapOrphans() {
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<SignalWatch>> SignalWatch::Create(std::function<void(int)> on_stop) {
  const bool is_init = ::getpid() == 1;
  sigset_t watched;
  ::sigemptyset(&watched);
  ::sigaddset(&watched, SIGTERM);
  ::sigaddset(&watched, SIGINT);
  if (is_init) {
    ::sigaddset(&watched, SIGCHLD);
    struct sigaction action {};
    action.sa_handler = OnAbort;
    ::sigaction(SIGABRT, &action, nullptr);
  }
  ::signal(SIGPIPE, SIG_IGN);
  if (const int error = ::pthread_sigmask(SIG_BLOCK, &watched, nullptr); error != 0) {
    return absl::InternalError(Concat("cannot block signals: ", std::strerror(error)));
  }
  const int signal_fd = ::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signal_fd < 0) return absl::InternalError(Concat("signalfd: ", std::strerror(errno)));
  const int stop_fd = ::eventfd(0, EFD_CLOEXEC);
  if (stop_fd < 0) {
    ::close(signal_fd);
    return absl::InternalError(Concat("eventfd: ", std::strerror(errno)));
  }
  try {
    return std::unique_ptr<SignalWatch>(new SignalWatch(signal_fd, stop_fd, std::move(on_stop)));
  } catch (const std::system_error& error) {
    return absl::InternalError(Concat("no thread for the signals: ", error.what()));
  }
}

SignalWatch::SignalWatch(int signal_fd, int stop_fd, std::function<void(int)> on_stop)
    : signal_fd_(signal_fd),
      stop_fd_(stop_fd),
      on_stop_(std::move(on_stop)),
      thread_([this] { Loop(); }) {}

SignalWatch::~SignalWatch() {
  const uint64_t one = 1;
  if (::write(stop_fd_, &one, sizeof one) != sizeof one) ::_exit(kExitInternal);
  thread_.join();
  ::close(signal_fd_);
  ::close(stop_fd_);
}

void SignalWatch::Loop() {
  int stops = 0;
  while (true) {
    pollfd waits[2] = {{signal_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    if (::poll(waits, 2, -1) < 0 && errno != EINTR) ::_exit(kExitInternal);
    if (waits[1].revents != 0) return;
    signalfd_siginfo info{};
    while (::read(signal_fd_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      if (info.ssi_signo == SIGCHLD) {
        ReapOrphans();
      } else {
        on_stop_(++stops);
      }
    }
  }
}

}  // namespace skein::protocol
