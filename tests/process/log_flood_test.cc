// Acceptance check 15, what two processors allow: a worker whose helper prints a million lines a
// second fills no disk, is told with its number, and leaves the streams exact. Prints figures;
// arguments of the process: --flood-seconds=N --flood-logs=DIRECTORY (a small file system).
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "tests/process/chat_client.h"
#include "tests/process/live_server.h"
#include "tests/process/process_tree.h"

namespace skein::tests {

struct FloodOptions {
  int seconds = 2;   // of streams, with the flood and without
  std::string logs;  // directory for log files; empty: one of the test's own
};

// What the arguments of the process say; set before the tests begin.
FloodOptions& Flood() {
  static FloodOptions options;
  return options;
}

namespace {

using protocol::Concat;
using protocol::MonotonicNow;
namespace fs = std::filesystem;

constexpr char kModel[] = "deploy/models/tiny-v41";
constexpr uint64_t kCapBytes = 8 << 20;

struct Streams {
  std::vector<double> loud_ms, silent_ms;  // gaps while the helper prints, and while it does not
  int count = 0;
  int inexact = 0;
};

// One stream after the other until `end`, each compared with the first ever.
Streams RunStreams(uint16_t port, absl::Time end, ChatAnswer& expected) {
  const ChatCall call = {.content = "Tell me about rivers.", .max_tokens = 200};
  Streams streams;
  while (MonotonicNow() < end || streams.count == 0) {
    ChatStream stream(port, call);
    absl::Time last = absl::InfinitePast();
    for (size_t tokens = 1; stream.WaitTokens(tokens); tokens = stream.num_tokens() + 1) {
      const absl::Time now = MonotonicNow();
      if (last != absl::InfinitePast()) {
        auto& gaps = absl::ToUnixMillis(last) / 500 % 2 == 0 ? streams.silent_ms : streams.loud_ms;
        gaps.push_back(absl::ToDoubleMilliseconds(now - last));
      }
      last = now;
    }
    const ChatAnswer answer = stream.Join();
    if (expected.entries.empty()) expected = answer;
    streams.inexact += answer.is_done && SameAnswer(answer, expected) ? 0 : 1;
    ++streams.count;
  }
  std::sort(streams.loud_ms.begin(), streams.loud_ms.end());
  std::sort(streams.silent_ms.begin(), streams.silent_ms.end());
  return streams;
}

double P99(const std::vector<double>& gaps_ms) {
  return gaps_ms.empty() ? 0 : gaps_ms[gaps_ms.size() * 99 / 100];
}

uint64_t BytesOf(const std::string& directory) {
  uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(directory)) bytes += entry.file_size();
  return bytes;
}

// The value of a counter in supervisor.prom of the one run directory.
double Counter(const ProcessTree& tree, const std::string& name) {
  for (const auto& run : fs::directory_iterator(tree.directory() + "/run")) {
    std::ifstream file(run.path() / "supervisor.prom");
    for (std::string line; std::getline(file, line);) {
      if (line.rfind(name, 0) == 0) return std::stod(line.substr(line.rfind(' ')));
    }
  }
  return -1;
}

// Where the helper's lines go: into the worker's log, or nowhere, which costs the same processor
// time of the helper and nothing else.
enum class Lines { kLogged, kMute };

// The worker becomes a script that starts the flood and then is the worker.
void WrapWorker(const ProcessTree& tree, int seconds, Lines lines) {
  const std::string worker = tree.directory() + "/skein-worker";
  fs::rename(worker, worker + ".real");
  fs::copy_file(SKEIN_PROGRAM_DIRECTORY "/flood", tree.directory() + "/flood");
  std::ofstream(worker) << "#!/bin/sh\n"
                        << tree.directory() << "/flood 1000000 " << seconds
                        << (lines == Lines::kMute ? " >/dev/null" : "") << " &\nexec " << worker
                        << ".real \"$@\"\n";
  fs::permissions(worker, fs::perms::owner_all);
}

struct Figures {
  double suppressed = 0;
  double lost = 0;
  uint64_t bytes = 0;
};

// Streams of a server whose worker has a helper that prints.
Streams Serve(Lines lines, ChatAnswer& expected, Figures& figures) {
  ProcessTree tree(SKEIN_PROGRAM_DIRECTORY, Children::kReal);
  WrapWorker(tree, Flood().seconds + 5, lines);
  const std::string logs = Flood().logs.empty() ? tree.directory() + "/logs" : Flood().logs;
  const uint16_t port = FreePort();
  tree.Start({"serve", kModel, "--port", std::to_string(port), "--log-directory", logs,
              "--log-file-bytes", std::to_string(kCapBytes / 8), "--log-files", "8"});
  EXPECT_TRUE(tree.WaitForOutput("worker.0: ready", kLimit)) << tree.output();
  EXPECT_TRUE(tree.WaitForOutput("coordinator: ready", kLimit)) << tree.output();
  EXPECT_TRUE(
      WaitUntil([&] { return Ask(port, {.content = "Hi", .max_tokens = 1}).status == 200; }));
  const absl::Duration length = absl::Seconds(Flood().seconds);
  Streams streams = RunStreams(port, MonotonicNow() + length, expected);
  figures.bytes = BytesOf(logs);
  const std::string name = "skein_child_lines_suppressed_total{child=\"worker.0\"}";
  if (lines == Lines::kLogged)
    WaitUntil([&] { return Counter(tree, name) > 0; }, absl::Seconds(10));
  figures.suppressed = Counter(tree, name);
  figures.lost = Counter(tree, "skein_log_lines_lost_total");
  tree.Signal(SIGTERM);
  EXPECT_EQ(tree.WaitForExit(kLimit), 0) << tree.output();
  return streams;
}

TEST(LogFloodTest, AFloodOfLinesFillsNoDiskAndHarmsNoStream) {
  ChatAnswer expected;
  Figures mute, flood;
  const Streams beside = Serve(Lines::kMute, expected, mute);
  const Streams flooded = Serve(Lines::kLogged, expected, flood);
  std::printf(
      "flood_s=%d files_bytes=%lu cap_bytes=%lu suppressed=%.0f lost=%.0f streams=%d inexact=%d "
      "p99_gap_ms silent=%.2f flood=%.2f, of a helper that prints nowhere silent=%.2f loud=%.2f\n",
      Flood().seconds, flood.bytes, kCapBytes, flood.suppressed, flood.lost,
      beside.count + flooded.count, beside.inexact + flooded.inexact, P99(flooded.silent_ms),
      P99(flooded.loud_ms), P99(beside.silent_ms), P99(beside.loud_ms));
  EXPECT_EQ(mute.suppressed, 0);
  EXPECT_GT(flood.suppressed, 100'000);
  EXPECT_LE(flood.bytes, kCapBytes);
  EXPECT_EQ(beside.inexact + flooded.inexact, 0);
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  skein::tests::FloodOptions& options = skein::tests::Flood();
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag.rfind("--flood-seconds=", 0) == 0) {
      std::from_chars(flag.data() + 16, flag.data() + flag.size(), options.seconds);
    }
    if (flag.rfind("--flood-logs=", 0) == 0) options.logs = flag.substr(13);
  }
  return RUN_ALL_TESTS();
}
