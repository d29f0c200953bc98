// Tests of worker/node/program_history: which program is started after one that does not work.
#include "worker/node/program_history.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

namespace skein::worker {
namespace {

namespace fs = std::filesystem;

class ProgramHistoryTest : public ::testing::Test {
 protected:
  ProgramHistoryTest() {
    char path[] = "/tmp/skein_program_XXXXXX";
    directory_ = ::mkdtemp(path);
  }
  ~ProgramHistoryTest() override { fs::remove_all(directory_); }

  std::string path() const { return directory_ + "/worker"; }
  void Install(const std::string& text) const {
    std::ofstream(directory_ + "/next") << text;
    fs::rename(directory_ + "/next", path());
  }
  // What would be executed.
  std::string Started() const {
    const std::string file =
        history_.fd() < 0 ? path() : "/proc/self/fd/" + std::to_string(history_.fd());
    std::string text;
    std::ifstream(file) >> text;
    return text;
  }
  // A start that was ready.
  void Run() {
    history_.Look(path());
    history_.OnReady();
  }

  std::string directory_;
  ProgramHistory history_;
};

TEST_F(ProgramHistoryTest, OnlyANewProgramIsOnTrialAndOnlyUntilItIsReady) {
  Install("old");
  history_.Look(path());
  EXPECT_FALSE(history_.on_trial()) << "there is none before it";
  history_.OnReady();
  EXPECT_FALSE(history_.IsReplaced(path()));
  Install("new");
  EXPECT_TRUE(history_.IsReplaced(path()));
  history_.Look(path());
  EXPECT_FALSE(history_.IsReplaced(path()));
  EXPECT_TRUE(history_.on_trial());
  history_.OnReady();
  EXPECT_FALSE(history_.on_trial());
  fs::remove(path());
  EXPECT_FALSE(history_.IsReplaced(path())) << "nothing is there";
}

TEST_F(ProgramHistoryTest, AfterGoingBackWhatIsAtThePathDoesNotCount) {
  Install("old");
  Run();
  Install("new");
  history_.Look(path());
  EXPECT_TRUE(history_.GoBack());
  EXPECT_FALSE(history_.on_trial());
  EXPECT_FALSE(history_.IsReplaced(path()));
}

TEST_F(ProgramHistoryTest, ARefusedProgramGivesWayToTheOneBefore) {
  Install("old");
  Run();
  history_.OnOrderedEnd();
  Install("new");
  Run();
  EXPECT_EQ(Started(), "new");
  EXPECT_TRUE(history_.GoBack());
  EXPECT_EQ(Started(), "old") << "although no path leads to it";
  Run();
  EXPECT_EQ(Started(), "old") << "as long as it is not told to end";
  EXPECT_FALSE(history_.GoBack()) << "there is none before it";
  history_.OnOrderedEnd();
  Install("newer");
  Run();
  EXPECT_EQ(Started(), "newer");
  EXPECT_TRUE(history_.GoBack());
  EXPECT_EQ(Started(), "old");
}

TEST_F(ProgramHistoryTest, TwoFailedStartsOfANewProgramAreEnough) {
  Install("old");
  Run();
  Install("new");
  history_.Look(path());
  EXPECT_FALSE(history_.OnFailedStart());
  history_.Look(path());
  EXPECT_TRUE(history_.OnFailedStart());
  EXPECT_EQ(Started(), "old");
}

TEST_F(ProgramHistoryTest, AProgramThatWasReadyOnceMayFail) {
  Install("old");
  Run();
  Install("new");
  Run();
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(history_.OnFailedStart());
  EXPECT_EQ(Started(), "new");
}

TEST_F(ProgramHistoryTest, WithoutAnotherProgramThereIsNoWayBack) {
  EXPECT_FALSE(history_.GoBack());
  Install("only");
  Run();
  Run();
  EXPECT_FALSE(history_.GoBack());
  Install("never_ready");
  history_.Look(path());
  Install("new");
  Run();
  EXPECT_TRUE(history_.GoBack());
  EXPECT_EQ(Started(), "only") << "not the one that never was";
}

}  // namespace
}  // namespace skein::worker
