// Tests of worker/node/process_entry: names with parentheses, escapes, marks, reused numbers.
#include "worker/node/process_entry.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/worker/node/fake_proc.h"

namespace skein::worker {
namespace {

using ::testing::ElementsAre;

TEST(ProcessEntryTest, ReadsWhatTheFilesSay) {
  FakeProc proc;
  proc.Add({.pid = 42,
            .parent = 7,
            .state = 'R',
            .start_ticks = 12345,
            .cpu_ticks = 99,
            .namespace_pids = {42, 3, 1},
            .arguments = {"evil\x1b[2J", "back\\slash", "tab\t"},
            .cgroup = "0::/system.slice/a.service\n"});
  const auto process = ReadProcess(proc.proc(), 42);
  ASSERT_TRUE(process.has_value());
  EXPECT_EQ(process->parent, 7);
  EXPECT_EQ(process->state, 'R');
  EXPECT_EQ(process->start_ticks, 12345u);
  EXPECT_EQ(process->cpu_ticks, 99u);
  EXPECT_THAT(process->namespace_pids, ElementsAre(42, 3, 1));
  EXPECT_EQ(process->command, "evil\\x1b[2J back\\x5cslash tab\\x09");
  EXPECT_EQ(process->cgroup, "0::/system.slice/a.service\n");
  EXPECT_FALSE(process->mark.has_value());
}

TEST(ProcessEntryTest, CutsLongCommands) {
  FakeProc proc;
  proc.Add({.pid = 42, .arguments = {std::string(5000, 'x')}});
  EXPECT_EQ(ReadProcess(proc.proc(), 42)->command, std::string(200, 'x') + "...");
}

TEST(ProcessEntryTest, AProcessThatIsGoneIsNothing) {
  FakeProc proc;
  proc.Add({.pid = 42});
  proc.Write("proc/43/stat", "43 (cut");
  EXPECT_FALSE(ReadProcess(proc.proc(), 41).has_value());
  EXPECT_FALSE(ReadProcess(proc.proc(), 43).has_value());
  EXPECT_THAT(ListProcesses(proc.proc()), ElementsAre(42, 43));
}

TEST(ProcessEntryTest, TheFirstMarkThatParsesCounts) {
  const std::string nested =
      MarkedEnvironment(9, 800) + "SKEIN_SUPERVISOR=1.5" + '\0' + "LAST=1" + '\0';
  EXPECT_EQ(FindMark(nested), (SupervisorMark{9, 800}));
  for (const char* text : {"", "SKEIN_SUPERVISOR=", "SKEIN_SUPERVISOR=7", "SKEIN_SUPERVISOR=7.x",
                           "SKEIN_SUPERVISOR=.8", "XSKEIN_SUPERVISOR=7.8"}) {
    EXPECT_FALSE(FindMark(text).has_value()) << text;
  }
}

TEST(ProcessEntryTest, OwnMarkNamesThisProcess) {
  const auto own = ReadProcess("/proc", ::getpid());
  ASSERT_TRUE(own.has_value());
  const auto mark = FindMark(OwnMarkVariable());
  ASSERT_TRUE(mark.has_value());
  EXPECT_TRUE(IsMarked(*mark, *own));
  ProcessEntry reused = *own;  // the same number, another process
  reused.start_ticks += 1;
  EXPECT_FALSE(IsMarked(*mark, reused));
}

}  // namespace
}  // namespace skein::worker
