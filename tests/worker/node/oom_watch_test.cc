// Tests of worker/node/oom_watch: counters of both cgroup versions, and where they are.
#include "worker/node/oom_watch.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace skein::worker {
namespace {

namespace fs = std::filesystem;

constexpr char kV2[] = "low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 0\n";
constexpr char kV1[] = "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n";

TEST(OomWatchTest, ReadsBothVersions) {
  EXPECT_EQ(LimitKills(kV2), 2u) << "one kill was for lack of memory of the host";
  EXPECT_EQ(LimitKills(kV1), 4u);
  for (const char* none : {"", "oom_kill\n", "oom_kill x\noom 1\n", "oom_kill 3\n", "oom 3\n"}) {
    EXPECT_FALSE(LimitKills(none).has_value()) << none;
  }
}

class OomFileTest : public ::testing::Test {
 protected:
  OomFileTest() {
    char path[] = "/tmp/skein_oom_XXXXXX";
    root_ = ::mkdtemp(path);
    fs::create_directories(root_ + "/unified/unit/node");
    fs::create_directories(root_ + "/memory/unit");
    for (const char* place : {"", "/unit", "/unit/node"}) {
      std::ofstream(root_ + "/unified" + place + "/cgroup.controllers") << "memory\n";
    }
  }
  ~OomFileTest() override { fs::remove_all(root_); }
  void Write(const std::string& file, const std::string& text) const {
    std::ofstream(root_ + file) << text;
  }
  std::string Mounts() const {
    return "31 23 0:28 / " + root_ + "/unified rw - cgroup2 cgroup2 rw\n35 31 0:32 / " + root_ +
           "/memory rw,relatime - cgroup cgroup rw,memory\n";
  }
  std::string root_;
};

TEST_F(OomFileTest, TheNearestWithCountersIsTaken) {
  EXPECT_EQ(LimitKillsFile(Mounts(), "0::/unit/node\n"), "");
  Write("/unified/unit/memory.events", kV2);
  EXPECT_EQ(LimitKillsFile(Mounts(), "0::/unit/node\n"), root_ + "/unified/unit/memory.events");
  Write("/unified/unit/node/memory.events", kV2);
  EXPECT_EQ(LimitKillsFile(Mounts(), "0::/unit/node\n"),
            root_ + "/unified/unit/node/memory.events");
}

TEST_F(OomFileTest, WithoutThemTheFirstVersionIsTaken) {
  EXPECT_EQ(LimitKillsFile(Mounts(), "4:memory:/unit\n0::/\n"),
            root_ + "/memory/unit/memory.oom_control");
  EXPECT_EQ(LimitKillsFile(Mounts(), "4:memory:/\n0::/\n"), root_ + "/memory/memory.oom_control");
  EXPECT_EQ(LimitKillsFile("", ""), "");
}

TEST_F(OomFileTest, AKillIsTakenOnce) {
  Write("/memory/unit/memory.oom_control", kV1);
  OomWatch watch(root_ + "/memory/unit/memory.oom_control");
  EXPECT_FALSE(watch.TakeKill());
  Write("/memory/unit/memory.oom_control", "oom_kill_disable 0\nunder_oom 1\noom_kill 5\n");
  EXPECT_TRUE(watch.TakeKill());
  EXPECT_FALSE(watch.TakeKill());
  OomWatch none("");
  EXPECT_FALSE(none.TakeKill());
}

}  // namespace
}  // namespace skein::worker
