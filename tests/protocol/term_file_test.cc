// Tests of protocol/base/term_file: terms never repeat, a torn file is no absent one.
#include "protocol/base/term_file.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "protocol/base/strings.h"
#include "worker/node/descriptor.h"

namespace skein::protocol {
namespace {

using protocol::Concat;
using ::testing::HasSubstr;

class TermFileTest : public ::testing::Test {
 protected:
  TermFileTest() {
    char path[] = "/tmp/skein_term_XXXXXX";
    directory_ = ::mkdtemp(path);
  }
  ~TermFileTest() override { std::filesystem::remove_all(directory_); }
  std::string Text() const {
    std::ostringstream text;
    text << std::ifstream(directory_ + "/term").rdbuf();
    return text.str();
  }
  static std::string Reason(const absl::Status& status) {
    return std::string(protocol::StatusText(status));
  }
  std::string directory_;
};

TEST_F(TermFileTest, EachTermIsLargerThanTheLastWhateverTheFloor) {
  EXPECT_EQ(*TermFile(directory_).Next(500), 500u);
  EXPECT_EQ(*TermFile(directory_).Next(500), 501u);
  EXPECT_EQ(*TermFile(directory_).Next(3), 502u) << "the machine was started again";
  EXPECT_EQ(*TermFile(directory_).Next(900), 900u);
  EXPECT_THAT(Text(), HasSubstr("skein term 900 "));
  struct stat status {};
  ASSERT_EQ(::stat((directory_ + "/term").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(TermFileTest, EveryCutOrChangedFileIsRefused) {
  ASSERT_TRUE(TermFile(directory_).Next(1234).ok());
  const std::string good = Text();
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    std::ofstream(directory_ + "/term") << good.substr(0, bytes);
    EXPECT_EQ(TermFile(directory_).Next(1).status().code(), absl::StatusCode::kFailedPrecondition)
        << bytes;
    std::string changed = good;
    changed[bytes] = static_cast<char>(changed[bytes] ^ 1);
    std::ofstream(directory_ + "/term") << changed;
    EXPECT_FALSE(TermFile(directory_).Next(1).ok()) << changed;
  }
  EXPECT_THAT(Reason(TermFile(directory_).Next(1).status()),
              HasSubstr("a term must never repeat: end every worker of this cluster"));
  std::ofstream(directory_ + "/term") << good;
  EXPECT_EQ(*TermFile(directory_).Next(1), 1235u);
}

TEST_F(TermFileTest, ADirectoryThatCannotBeWrittenIsNoTerm) {
  const auto none = TermFile("/no/such/directory").Next(1);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Reason(none.status()), HasSubstr("cannot write /no/such/directory/term.lock"));
}

TEST_F(TermFileTest, AnotherSupervisorIsNotWaitedFor) {
  ASSERT_TRUE(TermFile(directory_).Next(7).ok());
  const int lock = ::open((directory_ + "/term.lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0);
  const auto busy = TermFile(directory_).Next(7);
  EXPECT_EQ(busy.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Reason(busy.status()), HasSubstr("another supervisor takes a term this moment"));
  ::close(lock);
}

TEST_F(TermFileTest, ALookChangesNothing) {
  EXPECT_EQ(*TryStateDirectory(directory_ + "/mine", "/tmp", "/no/such"), directory_ + "/mine");
  EXPECT_TRUE(TermFile(directory_).Check().ok()) << "there is none yet";
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
  ASSERT_TRUE(TermFile(directory_).Next(7).ok());
  EXPECT_TRUE(TermFile(directory_).Check().ok());
  std::ofstream(directory_ + "/term") << "skein ter";
  EXPECT_THAT(Reason(TermFile(directory_).Check()), HasSubstr("is torn"));
}

TEST_F(TermFileTest, TheStateDirectoryIsTheConfiguredTheUsualOrAPrivateOne) {
  EXPECT_EQ(*ChooseStateDirectory(directory_ + "/mine", "/tmp", "/no/such"), directory_ + "/mine");
  EXPECT_EQ(*ChooseStateDirectory("", "/no/such", directory_), directory_) << "the usual one";
  const std::string fallback = Concat(directory_, "/skein-state.", ::geteuid());
  EXPECT_EQ(*ChooseStateDirectory("", directory_, "/no/such"), fallback);
  ASSERT_EQ(::chmod(fallback.c_str(), 0777), 0);
  const auto open = ChooseStateDirectory("", directory_, "/no/such");
  EXPECT_THAT(Reason(open.status()), HasSubstr("that nobody else can write"));
  EXPECT_THAT(Reason(ChooseStateDirectory("/no/such/x", "/tmp", "").status()),
              HasSubstr("(--state-directory): /no/such/x: cannot be made: "));
  // Of root, closed to others, and yet nothing can be written there.
  if (::geteuid() == 0) {
    EXPECT_THAT(Reason(ChooseStateDirectory("/proc", "/tmp", "").status()),
                HasSubstr("(--state-directory): /proc: nothing can be written there: "));
  }
}

}  // namespace
}  // namespace skein::protocol
