// Tests of worker/node/live_nodes: who lives is told by the lock, not by the name.
#include "worker/node/live_nodes.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "worker/node/run_directory.h"

namespace skein::worker {
namespace {

using ::testing::HasSubstr;

class LiveNodesTest : public ::testing::Test {
 protected:
  LiveNodesTest() {
    char path[] = "/tmp/skein_base_XXXXXX";
    base_ = ::mkdtemp(path);
  }
  ~LiveNodesTest() override { std::filesystem::remove_all(base_); }
  std::string base_;
};

TEST_F(LiveNodesTest, FindsTheOneThatLives) {
  EXPECT_TRUE(absl::IsNotFound(FindRunDirectory(base_).status()));
  const std::string dead = base_ + "/skein-run.dead";
  std::filesystem::create_directories(dead);
  std::ofstream(dead + "/lock") << "";
  EXPECT_TRUE(absl::IsNotFound(FindRunDirectory(base_).status())) << "its owner is gone";
  const auto first = RunDirectory::Create(base_);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*FindRunDirectory(base_), (*first)->path());
  const auto second = RunDirectory::Create(base_);
  ASSERT_TRUE(second.ok()) << second.status();
  const absl::Status several = FindRunDirectory(base_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(several)) << "which one is for the caller to say";
  EXPECT_THAT(std::string(several.message()), HasSubstr((*second)->path()));
  EXPECT_THAT(std::string(several.message()), HasSubstr("name one of them with --run-directory"));
  EXPECT_EQ(*FindRunDirectory((*second)->path()), (*second)->path()) << "and this is how";
}

TEST_F(LiveNodesTest, ARelativePathCountsFromTheWorkingDirectory) {
  const auto run = RunDirectory::Create(base_);
  ASSERT_TRUE(run.ok()) << run.status();
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(base_ + "/..");
  const std::string relative = base_.substr(base_.rfind('/') + 1);
  EXPECT_EQ(FindRunDirectory(relative).value_or("none"), (*run)->path());
  EXPECT_EQ(FindRunDirectory("./" + relative + "/").value_or("none"), (*run)->path());
  std::filesystem::current_path(before);
}

TEST_F(LiveNodesTest, TheLoopMustShowLife) {
  EXPECT_TRUE(absl::IsUnavailable(CheckSupervisorLoop(base_)));
  std::ofstream(base_ + "/alive") << "";
  EXPECT_TRUE(CheckSupervisorLoop(base_).ok());
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  now.tv_sec -= 60;
  const timespec times[] = {now, now};
  ASSERT_EQ(::utimensat(AT_FDCWD, (base_ + "/alive").c_str(), times, 0), 0);
  EXPECT_THAT(std::string(CheckSupervisorLoop(base_).message()), HasSubstr("no life for 60 s"));
}

}  // namespace
}  // namespace skein::worker
