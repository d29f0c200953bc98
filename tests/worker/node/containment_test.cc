// Tests of worker/node/containment: the cgroup directory from texts, probing, leaves, the sweep.
#include "worker/node/containment.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <fcntl.h>
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
  const auto containment = Containment::Probe("/no/such/cgroup");
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
  EXPECT_FALSE(Containment::Probe(path)->leaves());
  EXPECT_TRUE(std::filesystem::is_empty(path)) << "what the probe made is gone";
  std::filesystem::remove_all(path);
}

// A directory of leaves like those of a supervisor that died, with a stopped process in it.
TEST(ContainmentTest, TheNextStartSweepsWhatADeadSupervisorLeft) {
  const auto first = Containment::Probe();
  if (!first->leaves()) GTEST_SKIP() << first->description();
  auto leaf = first->MakeLeaf("probe");
  ASSERT_TRUE(leaf.ok()) << leaf.status();
  const std::filesystem::path base =
      std::filesystem::path(leaf->path()).parent_path().parent_path();
  EXPECT_TRUE(leaf->Remove());
  const std::string dead = Concat(base.string(), "/skein.dead.", ::getpid());
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
  const auto second = Containment::Probe();
  EXPECT_GE(second->orphans_swept(), 1);
  ASSERT_EQ(::waitpid(orphan, &status, 0), orphan);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_FALSE(std::filesystem::exists(dead));
  EXPECT_TRUE(first->MakeLeaf("again").ok()) << "the leaves of a living supervisor stay";
}

TEST(DescriptorTest, ClosesOnceAndMoves) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  {
    Descriptor first(ends[0]);
    Descriptor second(std::move(first));
    EXPECT_FALSE(first.valid());
    EXPECT_EQ(second.get(), ends[0]);
    EXPECT_EQ(::fcntl(ends[0], F_GETFD), 0);
  }
  EXPECT_EQ(::fcntl(ends[0], F_GETFD), -1);
  ::close(ends[1]);
}

}  // namespace
}  // namespace skein::worker
