// Tests of worker/node/containment: the cgroup directory from texts, probing, leaves, the sweep.
#include "worker/node/containment.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using protocol::Concat;
using ::testing::HasSubstr;

TEST(CgroupDirectoryTest, ReadsUnifiedHybridAndContainerMounts) {
  const std::string unified = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
  EXPECT_EQ(CgroupDirectory(unified, "0::/system.slice/skein.service\n"),
            "/sys/fs/cgroup/system.slice/skein.service");
  EXPECT_EQ(CgroupDirectory(unified, "0::/\n"), "/sys/fs/cgroup");
  const std::string hybrid =
      "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
  EXPECT_EQ(CgroupDirectory(hybrid, "4:memory:/x\n0::/y\n"), "/sys/fs/cgroup/unified/y");
  const std::string container = "30 23 0:26 /pods/a /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
  EXPECT_EQ(CgroupDirectory(container, "0::/pods/a/b\n"), "/sys/fs/cgroup/b");
  EXPECT_EQ(CgroupDirectory(container, "0::/pods/a\n"), "/sys/fs/cgroup");
  EXPECT_EQ(CgroupDirectory(container, "0::/pods/abc\n"), "");
  EXPECT_EQ(CgroupDirectory(unified, "0::/../outside\n"), "");
  EXPECT_EQ(CgroupDirectory("", "0::/\n"), "");
  EXPECT_EQ(CgroupDirectory(unified, "4:memory:/x\n"), "");
}

TEST(ContainmentTest, WithoutLeavesTheRungSaysWhy) {
  const auto containment = Containment::Probe({.cgroup_directory = "/no/such/cgroup"});
  EXPECT_FALSE(containment->leaves());
  EXPECT_EQ(containment->rung(), containment->pid_namespaces() ? 2 : 3);
  EXPECT_THAT(containment->description(), HasSubstr("no cgroup leaf: /no/such/cgroup/skein."));
  EXPECT_THAT(containment->description(), HasSubstr("No such file or directory"));
  const auto leaf = containment->MakeLeaf("worker.0.1");
  EXPECT_EQ(leaf.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ContainmentTest, APlainDirectoryIsNoCgroup) {
  char path[] = "/tmp/skein_cgroup_XXXXXX";
  ASSERT_NE(::mkdtemp(path), nullptr);
  EXPECT_FALSE(Containment::Probe({.cgroup_directory = path})->leaves());
  EXPECT_TRUE(std::filesystem::is_empty(path)) << "what the probe made is gone";
  std::filesystem::remove_all(path);
}

TEST(ContainmentTest, ALeafOutOfMemoryIsToldByItsEvents) {
  char path[] = "/tmp/skein_cgroup_XXXXXX";
  ASSERT_NE(::mkdtemp(path), nullptr);
  const auto leaf = Leaf::Create(path, "worker.0.1");
  ASSERT_TRUE(leaf.ok());
  EXPECT_FALSE(leaf->OomKilled()) << "without the memory controller there are no events";
  std::ofstream(leaf->path() + "/memory.events")
      << "low 0\nhigh 0\nmax 9\noom 1\noom_kill 0\noom_group_kill 0\n";
  EXPECT_FALSE(leaf->OomKilled());
  std::ofstream(leaf->path() + "/memory.events")
      << "low 0\nhigh 0\nmax 9\noom 1\noom_kill 2\noom_group_kill 0\n";
  EXPECT_TRUE(leaf->OomKilled());
  std::filesystem::remove_all(path);
}

// A directory of leaves like those of a supervisor that died, with a stopped process in it.
TEST(ContainmentTest, TheNextStartSweepsWhatADeadSupervisorLeft) {
  // A base of our own: other tests sweep the usual one.
  const std::string usual =
      CgroupDirectory(ReadKernelFile("/proc/self/mountinfo"), ReadKernelFile("/proc/self/cgroup"));
  const std::string base = Concat(usual, "/skeintest-", ::getpid());
  if (::mkdir(base.c_str(), 0755) != 0) GTEST_SKIP() << "no cgroup can be made: " << base;
  auto first = Containment::Probe({.cgroup_directory = base});
  if (!first->leaves()) {
    ::rmdir(base.c_str());
    GTEST_SKIP() << first->description();
  }
  const std::string dead = base + "/skein.dead";
  ASSERT_EQ(::mkdir(dead.c_str(), 0755), 0);
  auto planted = Leaf::Create(dead, "worker.0.1");
  ASSERT_TRUE(planted.ok()) << planted.status();
  const pid_t orphan = ::fork();
  if (orphan == 0) {
    ::setsid();
    ::raise(SIGSTOP);
    while (true) ::pause();
  }
  int status = 0;
  ASSERT_EQ(::waitpid(orphan, &status, WUNTRACED), orphan);
  std::ofstream(planted->path() + "/cgroup.procs") << orphan;
  EXPECT_FALSE(planted->empty());
  auto second = Containment::Probe({.cgroup_directory = base});
  EXPECT_EQ(second->orphans_swept(), 1);
  if (second->orphans_swept() != 1) ::kill(orphan, SIGKILL);  // a failure leaves nothing either
  ASSERT_EQ(::waitpid(orphan, &status, 0), orphan);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_FALSE(std::filesystem::exists(dead));
  EXPECT_TRUE(first->MakeLeaf("again").ok()) << "the leaves of a living supervisor stay";
  first.reset();
  second.reset();
  EXPECT_EQ(::rmdir(base.c_str()), 0) << "nothing is left";
}

}  // namespace
}  // namespace skein::worker
