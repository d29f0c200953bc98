// Tests of protocol/base/signal_watch: stop signals are counted; an init reaps and survives TERM.
#include "protocol/base/signal_watch.h"

#include <future>

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace skein::protocol {
namespace {

template <typename Body>
int ExitCodeOf(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(SignalWatchTest, StopSignalsAreCounted) {
  const int code = ExitCodeOf([] {
    std::promise<int> second;
    auto watch = SignalWatch::Create([&second](int count) {
      if (count == 1) ::kill(::getpid(), SIGINT);
      if (count == 2) second.set_value(count);
    });
    if (!watch.ok()) return 1;
    ::kill(::getpid(), SIGTERM);
    return second.get_future().get() == 2 ? 0 : 2;
  });
  EXPECT_EQ(code, 0);
}

// Runs `body` as init of a PID namespace; -100 when the kernel does not allow one.
template <typename Body>
int ExitCodeOfInit(Body body) {
  return ExitCodeOf([&body] {
    if (::unshare(CLONE_NEWPID) != 0) return 100;
    const pid_t init = ::fork();
    if (init == 0) ::_exit(body());
    int status = 0;
    ::waitpid(init, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 101;
  });
}

TEST(SignalWatchTest, AnInitEndsOnAbortWithACode) {
  const int code = ExitCodeOfInit([] {
    auto watch = SignalWatch::Create([](int) {});
    if (!watch.ok() || ::getpid() != 1) return 1;
    ::abort();
    return 2;
  });
  if (code == 100) GTEST_SKIP() << "PID namespaces are not allowed here";
  EXPECT_EQ(code, 134);
}

TEST(SignalWatchTest, AnInitReapsAndHearsTerm) {
  const int code = ExitCodeOfInit([] {
    std::promise<void> stopped;
    auto watch = SignalWatch::Create([&stopped](int) { stopped.set_value(); });
    if (!watch.ok()) return 1;
    const pid_t helper = ::fork();
    if (helper == 0) {
      // The grandchild is an orphan of init; it ends after its parent and then asks init to stop.
      if (::fork() == 0) {
        ::kill(1, SIGTERM);
        ::_exit(0);
      }
      ::_exit(0);
    }
    stopped.get_future().wait();
    // Every child gets reaped by the watch: at the end nothing is left to wait for.
    while (::kill(-1, 0) == 0) ::sched_yield();
    return 0;
  });
  if (code == 100) GTEST_SKIP() << "PID namespaces are not allowed here";
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace skein::protocol
