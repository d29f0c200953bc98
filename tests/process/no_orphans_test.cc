// Acceptance check 2 with stand-in children: SIGKILL of supervisors, coordinators and workers,
// alone and together, at random moments, start included; workers have helpers that left the session
// and that are stopped. Then the next start sweeps what a tree without containment left. The number
// of rounds is the argument --rounds=N. Prints its figures last; the check
// judges how long it took, on a quiet machine.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <signal.h>

#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "tests/process/process_tree.h"

namespace skein::tests {
namespace {

using protocol::Concat;

constexpr char kPrograms[] = SKEIN_PROGRAM_DIRECTORY;
constexpr char kModel[] = "deploy/models/tiny-v41";
constexpr absl::Duration kLimit = absl::Seconds(20);

uint32_t rounds = 10;

enum Victim { kWorker = 1, kCoordinator = 2, kSupervisor = 4 };

struct Figures {
  int survivors = 0;
  absl::Duration clear_max;
  absl::Duration sweep_max;
  std::string rung;
};

std::string RungOf(const std::string& output) {
  const size_t at = output.find("  containment  ");
  return at == std::string::npos ? "" : output.substr(at + 15, output.find('\n', at) - at - 15);
}

bool WaitReady(ProcessTree& tree, bool node) {
  return tree.WaitForOutput("worker.0: ready worker", kLimit) &&
         (node || tree.WaitForOutput("coordinator: ready coordinator", kLimit));
}

bool AnyOf(const ProcessTree& tree, const std::vector<int>& pids) {
  for (const int pid : tree.Pids("")) {
    if (std::find(pids.begin(), pids.end(), pid) != pids.end()) return true;
  }
  return false;
}

// Waits until none of `pids` lives any more; counts those that do.
void AwaitCleared(const ProcessTree& tree, const std::vector<int>& pids, absl::Time killed,
                  Figures& figures) {
  tree.WaitUntil([&] { return !AnyOf(tree, pids); }, kLimit);
  figures.clear_max = std::max(figures.clear_max, protocol::MonotonicNow() - killed);
  for (const int pid : tree.Pids("")) {
    figures.survivors += static_cast<int>(std::count(pids.begin(), pids.end(), pid));
  }
}

std::vector<std::string> ArgumentsOf(bool node, uint32_t workers) {
  std::vector<std::string> arguments = {"serve", kModel, "--port", "0"};
  if (node) {
    arguments = {"node",
                 "--model",
                 kModel,
                 "--backend",
                 "cpu",
                 "--control-endpoint",
                 "ipc:///tmp/skein-nobody"};
  }
  arguments.insert(arguments.end(),
                   {"--restart-backoff-min", "0.01", "-dp", std::to_string(workers)});
  return arguments;
}

// One round. Victims are taken in random order within a few milliseconds; when the supervisor is
// none of them, what died is replaced, the rest goes on, and the supervisor is killed at the end.
void RunRound(uint32_t seed, Figures& figures) {
  std::mt19937 random(seed);
  const bool node = random() % 4 == 0;
  ProcessTree tree(kPrograms);
  tree.SetBehavior("skein-worker", "helpers");
  const uint32_t victims = 1 + seed % 7;  // each set of the three in turn
  // With one worker every process of that name before its death is it or its helper.
  const bool many = random() % 2 == 0 && (victims & kSupervisor) != 0;
  tree.Start(ArgumentsOf(node, many ? 2 : 1));
  if (random() % 2 == 0) {
    ASSERT_TRUE(WaitReady(tree, node)) << "seed " << seed << "\n" << tree.output();
    figures.rung = RungOf(tree.output());
  } else {
    tree.WaitForOutput("never printed", absl::Milliseconds(random() % 80));
  }
  if ((victims & kSupervisor) == 0) {
    std::vector<int> before;
    if ((victims & kWorker) != 0) before = tree.Pids("skein-worker");
    const absl::Time killed = protocol::MonotonicNow();
    if ((victims & kWorker) != 0) tree.KillOldest("skein-worker");
    if ((victims & kCoordinator) != 0) tree.KillOldest("skein-coordinator");
    AwaitCleared(tree, before, killed, figures);
    tree.WaitForOutput("never printed", absl::Milliseconds(random() % 60));
  }
  if ((victims & kWorker) != 0) tree.KillOldest("skein-worker");
  if ((victims & kCoordinator) != 0) tree.KillOldest("skein-coordinator");
  tree.Signal(SIGKILL);
  const absl::Time killed = protocol::MonotonicNow();
  EXPECT_EQ(tree.WaitForExit(kLimit), -SIGKILL);
  tree.WaitUntil([&] { return tree.Alive().empty(); }, kLimit);
  figures.clear_max = std::max(figures.clear_max, protocol::MonotonicNow() - killed);
  figures.survivors += static_cast<int>(tree.Alive().size());
  EXPECT_TRUE(tree.Alive().empty()) << "seed " << seed << "\n" << tree.output();
}

// rule: OR1
TEST(NoOrphansTest, NothingSurvivesAKillAtAnyMoment) {
  Figures figures;
  for (uint32_t seed = 1; seed <= rounds; ++seed) RunRound(seed, figures);
  std::printf("%s\nrounds=%u survivors=%d max_clear_ms=%ld\n", figures.rung.c_str(), rounds,
              figures.survivors, absl::ToInt64Milliseconds(figures.clear_max));
  EXPECT_EQ(figures.survivors, 0);
}

// What a killed tree left, without the containment named, is gone before the next one is ready.
void RunSweep(const std::vector<std::string>& without, Figures& figures) {
  ProcessTree tree(kPrograms);
  tree.SetBehavior("skein-worker", "helpers");
  std::vector<std::string> arguments = ArgumentsOf(false, 1);
  arguments.insert(arguments.end(), without.begin(), without.end());
  tree.Start(arguments);
  ASSERT_TRUE(WaitReady(tree, false)) << tree.output();
  figures.rung = RungOf(tree.output());
  tree.Signal(SIGKILL);
  EXPECT_EQ(tree.WaitForExit(kLimit), -SIGKILL);
  ASSERT_TRUE(tree.WaitUntil([&] { return tree.Pids("").size() == 2; }, kLimit))
      << "two helpers are planted: " << tree.Pids("").size();
  const std::vector<int> planted = tree.Pids("");
  const absl::Time started = protocol::MonotonicNow();
  tree.Start(arguments);
  AwaitCleared(tree, planted, started, figures);
  figures.sweep_max = std::max(figures.sweep_max, protocol::MonotonicNow() - started);
  EXPECT_TRUE(WaitReady(tree, false)) << tree.output();
  EXPECT_NE(tree.output().find("orphans_swept=2"), std::string::npos) << tree.output();
}

TEST(NoOrphansTest, TheNextStartSweepsWhatIsPlanted) {
  Figures figures;
  RunSweep({"--feature-pid-namespace", "off"}, figures);
  std::printf("%s\n", figures.rung.c_str());
  RunSweep({"--feature-pid-namespace", "off", "--feature-cgroup-leaf", "off"}, figures);
  std::printf("%s\nplanted_survivors=%d max_sweep_ms=%ld\n", figures.rung.c_str(),
              figures.survivors, absl::ToInt64Milliseconds(figures.sweep_max));
  EXPECT_EQ(figures.survivors, 0);
}

}  // namespace

void SetRounds(std::string_view text) {
  std::from_chars(text.data(), text.data() + text.size(), rounds);
}

}  // namespace skein::tests

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::string_view flag = argc > 1 ? argv[1] : "";
  if (flag.substr(0, 9) == "--rounds=") skein::tests::SetRounds(flag.substr(9));
  return RUN_ALL_TESTS();
}
