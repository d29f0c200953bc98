// Tests of worker/node/log_files: the cap, rotation, modes, and a disk that runs full.
#include "worker/node/log_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

const absl::Time kNow = absl::UnixEpoch();

class LogFilesTest : public ::testing::Test {
 protected:
  LogFilesTest() {
    char path[] = "/tmp/skein_logs_XXXXXX";
    options_.directory = std::string(::mkdtemp(path)) + "/log";
    options_.file_bytes_max = 100;
    options_.files_max = 3;
    options_.disk_space = [this](const std::string&) { return space_; };
  }
  ~LogFilesTest() override { fs::remove_all(fs::path(options_.directory).parent_path()); }

  std::unique_ptr<LogFiles> Create() {
    auto files = LogFiles::Create(options_);
    EXPECT_TRUE(files.ok()) << files.status();
    return files.ok() ? *std::move(files) : nullptr;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(options_.directory)) {
      if (entry.path().extension() != ".lock") names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  std::string Text(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(options_.directory + "/" + name).rdbuf();
    return text.str();
  }

  DiskSpace space_ = {1 << 30, 1 << 29};
  LogFilesOptions options_;
};

TEST_F(LogFilesTest, FilesRotateAndNeverExceedTheCap) {
  const auto files = Create();
  for (int i = 10; i < 60; ++i) {
    EXPECT_TRUE(files->Write("a line with the number " + std::to_string(i) + "\n", kNow));
  }
  EXPECT_THAT(Names(), ElementsAre("skein.log", "skein.log.1", "skein.log.2"));
  EXPECT_THAT(Text("skein.log"), HasSubstr("number 59\n"));
  EXPECT_GT(Text("skein.log.1"), Text("skein.log.2")) << "the larger age is older";
  uint64_t bytes = 0;
  for (const std::string& name : Names()) bytes += fs::file_size(options_.directory + "/" + name);
  EXPECT_LE(bytes, 300u);
  EXPECT_GT(files->rotations(), 3u);
  struct stat status {};
  ASSERT_EQ(::stat((options_.directory + "/skein.log").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(LogFilesTest, ANewStartAppends) {
  Create()->Write("first\n", kNow);
  Create()->Write("second\n", kNow);
  EXPECT_EQ(Text("skein.log"), "first\nsecond\n");
}

TEST_F(LogFilesTest, FewerFilesThanBeforeLeaveNone) {
  auto files = Create();
  for (int i = 0; i < 30; ++i) files->Write("a line of some length for rotation\n", kNow);
  files.reset();
  options_.files_max = 1;
  files = Create();
  EXPECT_THAT(Names(), ElementsAre("skein.log"));
  for (int i = 0; i < 30; ++i) files->Write("a line of some length for rotation\n", kNow);
  EXPECT_THAT(Names(), ElementsAre("skein.log"));
  EXPECT_LE(Text("skein.log").size(), 100u);
}

TEST_F(LogFilesTest, LogsGiveWayWhenTheDiskIsShortAndResume) {
  const auto files = Create();
  for (int i = 0; i < 12; ++i) files->Write("a line of some length for rotation\n", kNow);
  EXPECT_EQ(Names().size(), 3u);
  space_.free_bytes = 1000;
  files->CheckDisk();
  EXPECT_THAT(Names(), ElementsAre("skein.log"));
  EXPECT_FALSE(files->Write("lost\n", kNow));
  space_.free_bytes = 1 << 29;
  files->CheckDisk();
  EXPECT_TRUE(files->Write("back\n", kNow));
  EXPECT_THAT(Text("skein.log"), HasSubstr("back\n"));
  EXPECT_THAT(Text("skein.log"), ::testing::Not(HasSubstr("lost")));
}

TEST_F(LogFilesTest, AWriteThatFailsLeavesNoHalfLineAndIsTriedAgainLater) {
  options_.file_bytes_max = 1 << 20;
  const auto files = Create();
  ASSERT_TRUE(files->Write("whole\n", kNow));
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{10, limit.rlim_max};  // the second line does not fit
  ::setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_FALSE(files->Write("does not fit\n", kNow));
  ::setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT_EQ(Text("skein.log"), "whole\n");
  EXPECT_FALSE(files->Write("too early\n", kNow + absl::Milliseconds(10)));
  EXPECT_TRUE(files->Write("again\n", kNow + LogFiles::kRetryAfter));
  EXPECT_EQ(Text("skein.log"), "whole\nagain\n");
}

TEST_F(LogFilesTest, ADirectoryOfAnotherAndOneThatCannotBeMadeAreRefused) {
  const auto first = Create();
  const auto second = LogFiles::Create(options_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(protocol::StatusText(second.status())),
              HasSubstr("another supervisor writes there; give each one a directory"));
  options_.directory = "/no/such/place";
  EXPECT_THAT(std::string(protocol::StatusText(LogFiles::Create(options_).status())),
              HasSubstr("log.directory (--log-directory): /no/such/place: cannot be made"));
}

}  // namespace
}  // namespace skein::worker
