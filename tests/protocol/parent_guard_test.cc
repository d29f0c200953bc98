// Tests of protocol/base/parent_guard: the process ends with 70 when the pipe closes, lives on when
// the guard is destroyed first, a wrong descriptor is an error, and questions are answered.
#include "protocol/base/parent_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/match.h"

namespace skein::protocol {
namespace {

// Runs `body` in a forked child and returns its exit code, or -1 when a signal ended it.
template <typename Body>
int ExitCodeOf(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ParentGuardTest, EndOfFileEndsTheProcessWith70) {
  const int code = ExitCodeOf([] {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return 1;
    auto guard = ParentGuard::Create(ends[0]);
    if (!guard.ok()) return 2;
    ::close(ends[1]);
    while (true) ::pause();
    return 3;
  });
  EXPECT_EQ(code, kExitParentGone);
}

TEST(ParentGuardTest, DestructionEndsTheWatch) {
  const int code = ExitCodeOf([] {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return 1;
    {
      auto guard = ParentGuard::Create(ends[0]);
      if (!guard.ok()) return 2;
      const char byte = 'x';  // bytes on the pipe are ignored
      if (::write(ends[1], &byte, 1) != 1) return 3;
    }
    ::close(ends[1]);
    return 0;
  });
  EXPECT_EQ(code, 0);
}

TEST(ParentGuardTest, ReportsAreLinesOnTheSupervisorsSocket) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  {
    auto guard = ParentGuard::Create(ends[0]);
    ASSERT_TRUE(guard.ok()) << guard.status();
    (*guard)->Report("ready http://127.0.0.1:8000");
    char text[64] = {};
    EXPECT_EQ(::read(ends[1], text, sizeof text), 28);
    EXPECT_STREQ(text, "ready http://127.0.0.1:8000\n");
  }
  ::close(ends[1]);
}

// Asks once and reads what comes; empty when nothing does within the time.
std::string Ask(int fd, int wait_ms) {
  const char question = '?';
  if (::write(fd, &question, 1) != 1) return "not asked";
  pollfd wait{fd, POLLIN, 0};
  if (::poll(&wait, 1, wait_ms) != 1) return "";
  char text[64] = {};
  return ::read(fd, text, sizeof text) > 0 ? text : "";
}

TEST(ParentGuardTest, AnswersWhileTheLoopGoesRound) {
  constexpr int kLimitMs = 60'000;
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  {
    auto guard = ParentGuard::Create(ends[0]);
    ASSERT_TRUE(guard.ok()) << guard.status();
    EXPECT_EQ(Ask(ends[1], kLimitMs), "alive\n") << "there is no loop yet";
    EXPECT_EQ(Ask(ends[1], kLimitMs), "alive\n");
    (*guard)->OnRound();
    EXPECT_EQ(Ask(ends[1], kLimitMs), "alive\n");
    EXPECT_EQ(Ask(ends[1], 50), "") << "the loop stands still";
    (*guard)->OnRound();
    EXPECT_EQ(Ask(ends[1], kLimitMs), "alive\n");
  }
  ::close(ends[1]);
}

TEST(ParentGuardTest, RefusesADescriptorThatIsNotOpen) {
  const auto guard = ParentGuard::Create(987);
  ASSERT_FALSE(guard.ok());
  EXPECT_EQ(guard.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(guard.status().message(), "--supervisor-fd 987"));
}

}  // namespace
}  // namespace skein::protocol
