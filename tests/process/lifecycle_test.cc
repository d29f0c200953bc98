// Process tests with real processes and stand-in children: nothing survives a SIGKILL of any of
// them at any moment; stop, restart and refusal follow the rules of the supervisor.
#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "protocol/base/clock.h"
#include "tests/process/process_tree.h"

namespace skein::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kPrograms[] = SKEIN_PROGRAM_DIRECTORY;
constexpr char kModel[] = "deploy/models/tiny-v41";
constexpr absl::Duration kLimit = absl::Seconds(20);

bool WaitReady(ProcessTree& tree) {
  return tree.WaitForOutput("worker.0: ready worker", kLimit) &&
         tree.WaitForOutput("coordinator: ready coordinator", kLimit);
}

long CountProgram(const ProcessTree& tree, std::string_view program) {
  const std::vector<std::string> alive = tree.Alive();
  return std::count(alive.begin(), alive.end(), program);
}

TEST(LifecycleTest, ServeStartsAndDrainsInOrder) {
  ProcessTree tree(kPrograms);
  tree.SetBehavior("skein-worker", "helpers");
  tree.Start({"serve", kModel});
  ASSERT_TRUE(WaitReady(tree)) << tree.output();
  EXPECT_THAT(tree.output(), HasSubstr("  backend      cpu: "));
  EXPECT_THAT(tree.output(), HasSubstr("  containment  rung "));
  EXPECT_EQ(CountProgram(tree, "skein-worker"), 3) << "the worker and its two helpers";
  tree.Signal(SIGINT);
  EXPECT_EQ(tree.WaitForExit(kLimit), 0) << tree.output();
  const size_t coordinator = tree.output().find("coordinator stopped in order");
  const size_t worker = tree.output().find("worker stopped in order");
  EXPECT_NE(worker, std::string::npos);
  EXPECT_LT(coordinator, worker) << "the coordinator drains first";
  EXPECT_TRUE(tree.WaitUntil([&] { return tree.Alive().empty(); }, absl::Seconds(1)));
}

TEST(LifecycleTest, TheSecondSignalStopsNow) {
  ProcessTree tree(kPrograms);
  tree.SetBehavior("skein-coordinator", "ignore_term");
  tree.Start({"serve", kModel, "--shutdown-timeout", "300"});
  ASSERT_TRUE(WaitReady(tree)) << tree.output();
  tree.Signal(SIGINT);
  ASSERT_TRUE(tree.WaitForOutput("draining", kLimit));
  EXPECT_EQ(CountProgram(tree, "skein-coordinator"), 1);
  tree.Signal(SIGINT);
  EXPECT_EQ(tree.WaitForExit(absl::Seconds(5)), 0) << tree.output();
  EXPECT_THAT(tree.Alive(), IsEmpty());
}

TEST(LifecycleTest, ADrainThatTakesTooLongIsCut) {
  ProcessTree tree(kPrograms);
  tree.SetBehavior("skein-coordinator", "ignore_term");
  tree.SetBehavior("skein-worker", "ignore_term helpers");
  tree.Start({"serve", kModel, "--shutdown-timeout", "0.2", "--stop-timeout", "0.2"});
  ASSERT_TRUE(WaitReady(tree)) << tree.output();
  tree.Signal(SIGTERM);
  EXPECT_EQ(tree.WaitForExit(absl::Seconds(5)), 0) << tree.output();
  EXPECT_THAT(tree.Alive(), IsEmpty());
}

TEST(LifecycleTest, AChildThatEndsIsStartedAgainWithoutItsHelpers) {
  ProcessTree tree(kPrograms);
  tree.SetBehavior("skein-worker", "helpers");
  tree.Start({"serve", kModel});
  ASSERT_TRUE(WaitReady(tree)) << tree.output();
  tree.SetBehavior("skein-worker", "");
  EXPECT_EQ(CountProgram(tree, "skein-worker"), 3);
  EXPECT_TRUE(tree.KillOldest("skein-worker"));
  ASSERT_TRUE(tree.WaitForOutput("child=worker.0 end=\"signal 9 (Killed)\"", kLimit))
      << tree.output();
  EXPECT_TRUE(tree.WaitUntil([&] { return CountProgram(tree, "skein-worker") == 1; }, kLimit));
  EXPECT_EQ(CountProgram(tree, "skein-coordinator"), 1) << "only the dead child is replaced";
}

TEST(LifecycleTest, ACrashLoopIsBoundedAndACoordinatorsEndsTheNode) {
  ProcessTree tree(kPrograms);
  tree.SetBehavior("skein-coordinator", "exit=70");
  tree.Start({"serve", kModel, "--restarts-max", "3", "--restart-backoff-min", "0.01",
              "--restart-backoff-max", "0.02"});
  EXPECT_EQ(tree.WaitForExit(kLimit), 75) << tree.output();
  EXPECT_THAT(tree.output(), HasSubstr("child failed too often"));
  EXPECT_THAT(tree.Alive(), IsEmpty());
}

TEST(LifecycleTest, AWorkerThatFailsTooOftenLeavesTheCoordinatorUp) {
  ProcessTree tree(kPrograms);
  tree.SetBehavior("skein-worker", "crash");
  tree.Start({"serve", kModel, "--restarts-max", "2", "--restart-backoff-min", "0.01",
              "--restart-backoff-max", "0.02"});
  ASSERT_TRUE(tree.WaitForOutput("child failed too often", kLimit)) << tree.output();
  EXPECT_EQ(CountProgram(tree, "skein-coordinator"), 1);
  EXPECT_EQ(CountProgram(tree, "skein-worker"), 0);
}

TEST(LifecycleTest, EachOfSeveralWorkersIsStartedAgainForItself) {
  ProcessTree tree(kPrograms);
  tree.SetBehavior("skein-worker", "helpers");
  tree.Start({"serve", kModel, "-dp", "3"});
  ASSERT_TRUE(WaitReady(tree)) << tree.output();
  ASSERT_TRUE(tree.WaitForOutput("worker.1: ready worker", kLimit)) << tree.output();
  ASSERT_TRUE(tree.WaitForOutput("worker.2: ready worker", kLimit)) << tree.output();
  EXPECT_THAT(tree.output(), HasSubstr("  workers      3, a group each; threads "));
  EXPECT_EQ(CountProgram(tree, "skein-worker"), 9) << "three workers with two helpers each";
  tree.SetBehavior("skein-worker", "");
  EXPECT_TRUE(tree.KillOldest("skein-worker"));
  ASSERT_TRUE(tree.WaitForOutput("end=\"signal 9 (Killed)\"", kLimit)) << tree.output();
  EXPECT_TRUE(tree.WaitUntil([&] { return CountProgram(tree, "skein-worker") == 7; }, kLimit));
  EXPECT_EQ(CountProgram(tree, "skein-coordinator"), 1);
  tree.Signal(SIGTERM);
  EXPECT_EQ(tree.WaitForExit(kLimit), 0) << tree.output();
  EXPECT_TRUE(tree.WaitUntil([&] { return tree.Alive().empty(); }, absl::Seconds(1)));
}

TEST(LifecycleTest, ARefusalAtStartEndsTheNodeWithItsCode) {
  for (const int code : {65, 78}) {
    ProcessTree tree(kPrograms);
    tree.SetBehavior("skein-worker", "exit=" + std::to_string(code));
    tree.Start({"serve", kModel});
    EXPECT_EQ(tree.WaitForExit(kLimit), code) << tree.output();
    EXPECT_THAT(tree.output(), HasSubstr("child refused to start; a restart would not help"));
    EXPECT_THAT(tree.Alive(), IsEmpty());
  }
}

TEST(LifecycleTest, WrongCommandsAndConfigurationsHaveTheirCodes) {
  const struct {
    std::vector<std::string> arguments;
    int code;
    std::string text;
  } cases[] = {
      {{"serve", "--prot", "1"}, 64, "--prot: unknown flag; did you mean --port?"},
      {{"serve", "/no/such/model"}, 65, "no readable config.json there"},
      {{"serve", kModel, "--backend", "gpu9"}, 78, "\"gpu9\" is not in this build"},
      {{"serve", "--config", "/no/such.yaml"}, 78, "/no/such.yaml: cannot be opened"},
      {{"frobnicate"}, 64, "\"frobnicate\" is no command"},
      {{"version"}, 0, "skein 0.1.0, backends reference"},
      {{"config"}, 0, "# hash: "},
      {{"node", "--model", kModel, "--backend", "reference"}, 78, "required and missing"},
      {{"coordinator", "--prot"}, 78, "--prot: unknown flag"},
  };
  for (const auto& wrong : cases) {
    ProcessTree tree(kPrograms);
    tree.Start(wrong.arguments);
    EXPECT_EQ(tree.WaitForExit(kLimit), wrong.code) << tree.output();
    EXPECT_THAT(tree.output(), HasSubstr(wrong.text));
  }
}

// One round: SIGKILL at a random moment, start included, to a random set of the three.
void RunKillRound(uint32_t seed, absl::Duration& clear_max) {
  std::mt19937 random(seed);
  ProcessTree tree(kPrograms);
  tree.SetBehavior("skein-worker", "helpers");
  tree.Start(
      {"serve", kModel, "--restart-backoff-min", "0.01", "-dp", std::to_string(1 + random() % 2)});
  const auto victims = 1 + random() % 7;
  if (random() % 2 == 0) {
    ASSERT_TRUE(WaitReady(tree)) << tree.output();
  } else {
    tree.WaitForOutput("never printed", absl::Milliseconds(random() % 60));
  }
  if ((victims & 1) != 0) tree.KillOldest("skein-worker");
  if ((victims & 2) != 0) tree.KillOldest("skein-coordinator");
  if ((victims & 4) == 0) {
    tree.WaitForOutput("never printed", absl::Milliseconds(random() % 60));
  }
  tree.Signal(SIGKILL);  // every round ends with the supervisor
  const absl::Time killed = protocol::MonotonicNow();
  EXPECT_EQ(tree.WaitForExit(kLimit), -SIGKILL);
  EXPECT_TRUE(tree.WaitUntil([&] { return tree.Alive().empty(); }, absl::Seconds(2)))
      << "seed " << seed << ", alive: " << ::testing::PrintToString(tree.Alive()) << tree.output();
  clear_max = std::max(clear_max, protocol::MonotonicNow() - killed);
}

TEST(LifecycleTest, NothingSurvivesAKillAtAnyMoment) {
  absl::Duration clear_max;
  constexpr uint32_t kRounds = 40;
  for (uint32_t seed = 1; seed <= kRounds; ++seed) RunKillRound(seed, clear_max);
  std::printf("rounds=%u max_clear_ms=%ld\n", kRounds, absl::ToInt64Milliseconds(clear_max));
  EXPECT_LE(clear_max, absl::Seconds(1));
}

}  // namespace
}  // namespace skein::tests
