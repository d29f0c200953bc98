// Progress of a start: a line that is drawn over on a terminal, which is a real pseudo-terminal
// here, and plain lines elsewhere.
#include "worker/node/progress_bar.h"

#include <array>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace skein::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A terminal of so many columns, and what was written to it.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) {
    winsize size{};
    size.ws_col = columns;
    size.ws_row = 25;
    EXPECT_EQ(::openpty(&master_, &slave_, nullptr, nullptr, &size), 0);
  }
  ~Terminal() {
    ::close(slave_);
    ::close(master_);
  }
  int fd() const { return slave_; }
  std::string Take() const {
    std::string out;
    std::array<char, 4096> bytes{};
    pollfd wait{master_, POLLIN, 0};
    while (::poll(&wait, 1, 50) == 1) {
      const ssize_t count = ::read(master_, bytes.data(), bytes.size());
      if (count <= 0) break;
      out.append(bytes.data(), static_cast<size_t>(count));
    }
    return out;
  }

 private:
  int master_ = -1;
  int slave_ = -1;
};

const absl::Time kNow = absl::FromUnixSeconds(1000);

TEST(ProgressBarTest, ATerminalHasOneLineThatIsDrawnOver) {
  const Terminal terminal(120);
  ProgressBar bar({terminal.fd(), true, nullptr});
  bar.Update("worker.0", "weights", 0, kNow);
  EXPECT_EQ(terminal.Take(), "\r\033[Kworker.0 weights [....................]   0 %");
  bar.Update("worker.0", "weights", 55, kNow);
  EXPECT_EQ(terminal.Take(), "\r\033[Kworker.0 weights [###########.........]  55 %");
  bar.Update("worker.1", "warmup", 100, kNow);
  EXPECT_EQ(terminal.Take(),
            "\r\033[Kworker.0 weights [###########.........]  55 %   "
            "worker.1 warmup [####################] 100 %");
}

TEST(ProgressBarTest, OtherLinesTakeItsPlaceAndItComesBack) {
  const Terminal terminal(120);
  ProgressBar bar({terminal.fd(), true, nullptr});
  bar.Hide();
  EXPECT_THAT(terminal.Take(), IsEmpty()) << "nothing is drawn before there is something";
  bar.Update("worker.0", "weights", 50, kNow);
  terminal.Take();
  bar.Hide();
  EXPECT_EQ(terminal.Take(), "\r\033[K");
  bar.Hide();
  EXPECT_THAT(terminal.Take(), IsEmpty());
  bar.Show();
  EXPECT_THAT(terminal.Take(), HasSubstr(" 50 %"));
  bar.Done("worker.0");
  EXPECT_EQ(terminal.Take(), "\r\033[K");
  bar.Show();
  EXPECT_THAT(terminal.Take(), IsEmpty());
}

TEST(ProgressBarTest, ItNeverTakesASecondLine) {
  const Terminal terminal(30);
  ProgressBar bar({terminal.fd(), true, nullptr});
  bar.Update("worker.0", "weights", 50, kNow);
  EXPECT_EQ(terminal.Take(), "\r\033[Kworker.0 weights [##########.");
}

TEST(ProgressBarTest, ElsewhereThereArePlainLinesNowAndThen) {
  std::vector<std::string> lines;
  const Terminal terminal(80);
  ProgressBar bar(
      {terminal.fd(), false, [&lines](std::string_view line) { lines.emplace_back(line); }});
  for (int second = 0; second <= 12; ++second) {
    bar.Update("worker.0", "weights", 8 * second, kNow + absl::Seconds(second));
  }
  EXPECT_THAT(lines, ElementsAre("worker.0: weights 40 %", "worker.0: weights 80 %"));
  bar.Hide();
  bar.Show();
  bar.Done("worker.0");
  EXPECT_THAT(terminal.Take(), IsEmpty());
}

TEST(ProgressBarTest, OnlyProgressIsReadAsSuch) {
  std::string_view phase;
  int percent = -1;
  EXPECT_TRUE(ReadProgress("graph_capture 7", phase, percent));
  EXPECT_EQ(phase, "graph_capture");
  EXPECT_EQ(percent, 7);
  for (const char* text :
       {"", "weights", "weights ", "weights 101", "weights -1", "weights x", " 5",
        "we\033[2Jights 5", "WEIGHTS 5", "weights 5 5", "weightsweightsweightsweights 5"}) {
    EXPECT_FALSE(ReadProgress(text, phase, percent)) << text;
  }
}

}  // namespace
}  // namespace skein::worker
