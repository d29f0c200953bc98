// Tests of worker/node/child_output and worker/node/line_output over real pipes.
#include "worker/node/child_output.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <stdlib.h>
#include <unistd.h>

#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "worker/node/descriptor.h"

namespace skein::worker {
namespace {

using protocol::MonotonicNow;
using ::testing::HasSubstr;

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    out = Descriptor(ends[0]);
    in = Descriptor(ends[1]);
  }
  void Write(std::string_view text) const {
    EXPECT_EQ(::write(in.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  std::string Read() const {
    std::string text;
    char piece[4096];
    for (ssize_t count = 0; (count = ::read(out.get(), piece, sizeof piece)) > 0;) {
      text.append(piece, static_cast<size_t>(count));
    }
    return text;
  }
  Descriptor out;
  Descriptor in;
};

TEST(ChildOutputTest, LinesComeWholeAndTheUnfinishedOneAtTheEnd) {
  const Pipe child, shown;
  LineOutput to(shown.in.get(), nullptr);
  ChildOutput output("worker.0", to);
  const absl::Time now = MonotonicNow();
  child.Write("one\ntw");
  EXPECT_TRUE(output.Read(child.out.get(), now));
  EXPECT_EQ(shown.Read(), "one\n");
  child.Write("o\nrest");
  EXPECT_TRUE(output.Read(child.out.get(), now));
  EXPECT_EQ(shown.Read(), "two\n");
  output.End(now);
  EXPECT_EQ(shown.Read(), "rest\n");
}

TEST(ChildOutputTest, TheEndOfThePipeIsTold) {
  Pipe child;
  const Pipe shown;
  LineOutput to(shown.in.get(), nullptr);
  ChildOutput output("worker.0", to);
  child.in.Close();
  EXPECT_FALSE(output.Read(child.out.get(), MonotonicNow()));
}

TEST(ChildOutputTest, ControlBytesAreEscapedAndLongLinesCut) {
  const Pipe child, shown;
  LineOutput to(shown.in.get(), nullptr);
  ChildOutput output("worker.0", to);
  child.Write("\x1b[2J\ttab\xC2\x9B\r\n" + std::string(5000, 'x'));
  EXPECT_TRUE(output.Read(child.out.get(), MonotonicNow()));
  EXPECT_EQ(shown.Read(), "\\x1b[2J\ttab\\xc2\\x9b\\x0d\n" + std::string(5000, 'x') + "\n");
}

TEST(ChildOutputTest, AFloodIsSuppressedWithItsNumberAndItsLastLine) {
  const Pipe child, shown;
  LineOutput to(shown.in.get(), nullptr);
  protocol::LogOptions log;
  log.sink = [&](std::string_view line) { to.Write(line); };
  protocol::InstallLog(log);
  ChildOutput output("worker.0", to);
  const absl::Time now = MonotonicNow();
  std::string text;
  std::string all;
  for (int i = 0; i < 6000; ++i) {
    text += "l" + std::to_string(i) + "\n";
    if (text.size() < 20'000 && i != 5999) continue;
    child.Write(text);
    EXPECT_TRUE(output.Read(child.out.get(), now));
    all += shown.Read();
    text.clear();
  }
  output.Settle(output.settle_at());
  all += shown.Read();
  protocol::InstallLog({});
  EXPECT_THAT(all, HasSubstr("l1999\n"));
  EXPECT_THAT(all, ::testing::Not(HasSubstr("l2000\n")));
  EXPECT_THAT(all, HasSubstr("lines of a child suppressed: it prints too many\" child=worker.0"));
  EXPECT_THAT(all, HasSubstr("lines_in_all=4000\n"));
  EXPECT_TRUE(all.ends_with("l5999\n")) << all.substr(all.size() - 200);
  EXPECT_EQ(output.lines_suppressed(), 4000u);
}

TEST(LineOutputTest, AReaderThatDoesNotReadLosesLinesAndIsToldLater) {
  const Pipe shown;
  LineOutput to(shown.in.get(), nullptr);
  protocol::LogOptions log;
  log.sink = [&](std::string_view line) { to.Write(line); };
  protocol::InstallLog(log);
  const std::string line(999, 'x');
  while (to.lines_lost() == 0) to.Write(line + "\n");
  to.Write("a\nb\n");
  EXPECT_EQ(to.lines_lost(), 3u);
  shown.Read();
  to.Write("works\n");
  to.Tick(MonotonicNow());
  protocol::InstallLog({});
  const std::string text = shown.Read();
  EXPECT_THAT(text, HasSubstr("works\n"));
  EXPECT_THAT(text, HasSubstr("lines were lost: the log could not be written\" lines=3"));
}

// From the first line on: nothing in the log could tell of it.
TEST(LineOutputTest, ATerminalThatNobodyReadsLosesLinesToo) {
  int master = -1;
  int slave = -1;
  ASSERT_EQ(::openpty(&master, &slave, nullptr, nullptr, nullptr), 0);
  LineOutput to(slave, nullptr);
  // The pieces are larger than what a terminal has left when it says that it is ready.
  const std::string lines = std::string(2999, 'x') + "\n";
  for (int i = 0; i < 100; ++i) to.Write(lines);
  EXPECT_GT(to.lines_lost(), 0u);
  EXPECT_EQ(::fcntl(slave, F_GETFL) & O_NONBLOCK, 0);  // the others' writes wait as before
  ::close(slave);
  ::close(master);
}

TEST(LineOutputTest, AFullDiskIsToldOnceOnStandardError) {
  char path[] = "/tmp/skein_output_XXXXXX";
  DiskSpace space = {1 << 30, 1 << 20};
  LogFilesOptions options;
  options.directory = ::mkdtemp(path);
  options.disk_space = [&space](const std::string&) { return space; };
  auto files = LogFiles::Create(options);
  ASSERT_TRUE(files.ok()) << files.status();
  const Pipe shown;
  LineOutput to(shown.in.get(), *std::move(files));
  for (int i = 0; i < 3; ++i) to.Write("lost\n");
  const std::string told = shown.Read();
  EXPECT_EQ(
      told,
      "skein: log.directory (--log-directory): " + options.directory +
          ": 1024 KiB of its disk are free, and logs leave 52428 KiB to others; lines are lost "
          "until there is room\n");
  absl::Time now = MonotonicNow();
  space.free_bytes = 1 << 29;
  to.Tick(now);
  to.Write("kept\n");
  EXPECT_EQ(shown.Read(), "") << "from here on the log tells";
  space.free_bytes = 0;
  to.Tick(now + LineOutput::kCheckEvery);
  to.Write("lost\n");
  EXPECT_THAT(shown.Read(), HasSubstr(": 0 KiB of its disk are free")) << "another outage";
  std::filesystem::remove_all(path);
}

TEST(LineOutputTest, FilesGetTheLines) {
  char path[] = "/tmp/skein_output_XXXXXX";
  LogFilesOptions options;
  options.directory = ::mkdtemp(path);
  auto files = LogFiles::Create(options);
  ASSERT_TRUE(files.ok()) << files.status();
  LineOutput to(2, *std::move(files));
  to.Write("kept\n");
  std::ostringstream text;
  text << std::ifstream(options.directory + "/skein.log").rdbuf();
  EXPECT_EQ(text.str(), "kept\n");
  EXPECT_EQ(to.lines_lost(), 0u);
  std::filesystem::remove_all(path);
}

}  // namespace
}  // namespace skein::worker
