// Tests of worker/node/run_directory: private, removed at the end, swept when its owner died.
#include "worker/node/run_directory.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using ::testing::HasSubstr;

class RunDirectoryTest : public ::testing::Test {
 protected:
  RunDirectoryTest() {
    char path[] = "/tmp/skein_base_XXXXXX";
    base_ = ::mkdtemp(path);
  }
  ~RunDirectoryTest() override { std::filesystem::remove_all(base_); }

  std::string base_;
};

TEST_F(RunDirectoryTest, IsPrivateAndGoneAtTheEnd) {
  std::string path;
  {
    const auto run = RunDirectory::Create(base_ + "/made");
    ASSERT_TRUE(run.ok()) << run.status();
    path = (*run)->path();
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u);
    const auto file = (*run)->WriteFile("node.yaml", "a: 1\n");
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_EQ(::stat(file->c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    std::ifstream text(*file);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(text), {}), "a: 1\n");
    EXPECT_FALSE((*run)->WriteFile("no/such", "x").ok());
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(RunDirectoryTest, TheCleanerOfTheTemporaryDirectoryStaysOut) {
  const auto run = RunDirectory::Create(base_);
  ASSERT_TRUE(run.ok());
  // It passes over directories that are locked.
  const Descriptor directory(::open((*run)->path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_TRUE(directory.valid());
  EXPECT_NE(::flock(directory.get(), LOCK_SH | LOCK_NB), 0);
}

TEST_F(RunDirectoryTest, WhatWasNeverFinishedGoesOnceItIsOld) {
  const std::string old = base_ + "/skein-run.older", young = base_ + "/skein-run.young";
  ASSERT_EQ(::mkdir(old.c_str(), 0700), 0);
  ASSERT_EQ(::mkdir(young.c_str(), 0700), 0);
  const timespec long_ago[2] = {{1'000'000, 0}, {1'000'000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, old.c_str(), long_ago, 0), 0);
  ASSERT_TRUE(RunDirectory::Create(base_).ok());
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_TRUE(std::filesystem::exists(young)) << "it is being made this moment";
}

TEST_F(RunDirectoryTest, TheNextStartRemovesThatOfADeadOwnerOnly) {
  const auto living = RunDirectory::Create(base_);
  ASSERT_TRUE(living.ok());
  const pid_t child = ::fork();
  if (child == 0) {
    const auto dying = RunDirectory::Create(base_);
    ::_exit(dying.ok() && (*dying)->WriteFile("left", "x").ok() ? 0 : 1);  // no destructor runs
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const auto count = [this] {
    return std::distance(std::filesystem::directory_iterator(base_), {});
  };
  EXPECT_EQ(count(), 2);
  const auto next = RunDirectory::Create(base_);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(count(), 2) << "the living one and the new one";
  EXPECT_TRUE(std::filesystem::exists((*living)->path()));
}

TEST_F(RunDirectoryTest, AnImpossibleBaseNamesTheKey) {
  std::ofstream(base_ + "/file") << "x";
  const auto run = RunDirectory::Create(base_ + "/file/below");
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(protocol::StatusText(run.status()),
            protocol::Concat("node.run_directory (--run-directory): ", base_,
                             "/file/below: cannot be made: Not a directory; make room there or "
                             "give a directory that can be written"));
}

// Found before a child would fail at its socket.
TEST_F(RunDirectoryTest, ABaseThatIsTooLongForSocketsNamesTheLimit) {
  const std::string longest = base_ + "/" + std::string(80 - base_.size() - 1, 'a');
  EXPECT_TRUE(RunDirectory::Create(longest.substr(0, 79)).ok());
  const auto run = RunDirectory::Create(longest);
  EXPECT_EQ(protocol::StatusText(run.status()),
            protocol::Concat("node.run_directory (--run-directory): ", longest,
                             ": has 80 bytes, and sockets there allow 79; give a shorter path, "
                             "such as /run/skein"));
}

}  // namespace
}  // namespace skein::worker
