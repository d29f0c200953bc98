// Tests of worker/node/orphan_sweep: who counts as left behind, and that only they are ended.
#include "worker/node/orphan_sweep.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/worker/node/fake_proc.h"

namespace skein::worker {
namespace {

using ::testing::ElementsAre;

std::vector<int> Pids(const std::vector<ProcessEntry>& processes) {
  std::vector<int> pids;
  for (const ProcessEntry& process : processes) pids.push_back(process.pid);
  return pids;
}

TEST(OrphanSweepTest, TheMarkOfADeadSupervisorMakesAnOrphan) {
  FakeProc proc;
  proc.Add({.pid = 10, .start_ticks = 500});  // a living supervisor
  proc.Add({.pid = 11, .parent = 10, .environment = MarkedEnvironment(10, 500)});
  proc.Add({.pid = 12, .state = 'T', .environment = MarkedEnvironment(9, 500)});  // dead
  proc.Add({.pid = 13, .environment = MarkedEnvironment(10, 499)});  // the number was reused
  proc.Add({.pid = 14});                                             // not ours
  proc.Add({.pid = 15, .state = 'Z', .environment = MarkedEnvironment(9, 500)});  // ended
  // A supervisor that is init of a container, seen from outside.
  proc.Add({.pid = 20, .start_ticks = 700, .namespace_pids = {20, 1}});
  proc.Add({.pid = 21, .namespace_pids = {21, 5}, .environment = MarkedEnvironment(1, 700)});
  EXPECT_THAT(Pids(FindOrphans(proc.proc())), ElementsAre(12, 13));
}

TEST(OrphanSweepTest, ASupervisorThatIsAZombieIsDead) {
  FakeProc proc;
  proc.Add({.pid = 10, .state = 'Z', .start_ticks = 500});
  proc.Add({.pid = 11, .environment = MarkedEnvironment(10, 500)});
  EXPECT_THAT(Pids(FindOrphans(proc.proc())), ElementsAre(11));
}

// A child of ours with this environment, stopped, in a session of its own.
pid_t StartStopped(const std::string& variable) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::setsid();
  std::string text = variable;
  char* const environment[] = {text.data(), nullptr};
  char program[] = "/bin/sh", option[] = "-c", script[] = "kill -STOP $$; sleep 1000";
  char* const arguments[] = {program, option, script, nullptr};
  ::execve(program, arguments, environment);
  ::_exit(127);
}

TEST(OrphanSweepTest, AStoppedOrphanIsEndedAndAnotherProcessIsNot) {
  // No process has this start time.
  const pid_t orphan = StartStopped("SKEIN_SUPERVISOR=1.18446744073709551615");
  const pid_t other = StartStopped("NAME=value");
  int status = 0;
  ASSERT_EQ(::waitpid(orphan, &status, WUNTRACED), orphan);
  ASSERT_EQ(::waitpid(other, &status, WUNTRACED), other);
  std::vector<ProcessEntry> found;
  for (const pid_t pid : {orphan, other}) {
    const auto process = ReadProcess("/proc", pid);
    ASSERT_TRUE(process.has_value());
    found.push_back(*process);
  }
  EXPECT_TRUE(found[0].mark.has_value());
  found[1].start_ticks += 1;  // as if the number had been given to another process since
  EXPECT_EQ(EndOrphans(found), 1);
  ASSERT_EQ(::waitpid(orphan, &status, 0), orphan);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_EQ(::waitpid(other, &status, WNOHANG), 0) << "it lives";
  ::kill(other, SIGKILL);
  ::waitpid(other, &status, 0);
}

}  // namespace
}  // namespace skein::worker
