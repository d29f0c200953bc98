// Process tests with real processes and stand-in children: nothing survives a SIGKILL of any of
// them at any moment; stop, restart and refusal follow the rules of the supervisor.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

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

// rule: OR5
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

// rule: OR4
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

TEST(LifecycleTest, ThePortAndTheStateAreKeptOverCoordinators) {
  ProcessTree tree(kPrograms);
  tree.Start({"serve", kModel, "--port", "0", "--restart-backoff-min", "0.01"});
  ASSERT_TRUE(WaitReady(tree)) << tree.output();
  const size_t at = tree.output().find("  api          http://127.0.0.1:");
  ASSERT_NE(at, std::string::npos) << tree.output();
  EXPECT_THAT(tree.output().substr(at, 60), ::testing::Not(HasSubstr(":0\n")));
  std::ifstream first_file(tree.directory() + "/state/term");
  std::string first;
  std::getline(first_file, first);
  EXPECT_THAT(first, HasSubstr("skein term "));
  EXPECT_TRUE(tree.KillOldest("skein-coordinator"));
  ASSERT_TRUE(tree.WaitForOutput("child=coordinator end=\"signal 9 (Killed)\"", kLimit));
  std::string second;
  EXPECT_TRUE(tree.WaitUntil(
      [&] {
        std::ifstream file(tree.directory() + "/state/term");
        std::getline(file, second);
        return second != first;
      },
      kLimit));
  EXPECT_GT(second, first) << "numbers of the same length";
}

TEST(LifecycleTest, ATornTermFileEndsTheStartWithItsRemedy) {
  ProcessTree tree(kPrograms);
  std::filesystem::create_directory(tree.directory() + "/state");
  std::ofstream(tree.directory() + "/state/term") << "skein ter";
  tree.Start({"serve", kModel});
  EXPECT_EQ(tree.WaitForExit(kLimit), 78) << tree.output();
  EXPECT_THAT(tree.output(), HasSubstr("is torn (9 bytes that are no term with its sum)"));
  EXPECT_THAT(tree.Alive(), IsEmpty());
}

TEST(LifecycleTest, LinesGoToTheLogFilesAndTheDirectoryHasOneOwner) {
  ProcessTree tree(kPrograms);
  const std::string logs = tree.directory() + "/logs";
  tree.Start({"serve", kModel, "--log-directory", logs});
  ASSERT_TRUE(WaitReady(tree)) << tree.output();
  EXPECT_THAT(tree.output(), HasSubstr("  log          " + logs + "/skein.log\n"));
  EXPECT_THAT(tree.output(), ::testing::Not(HasSubstr("msg=\"child started\"")));
  ProcessTree second(kPrograms);
  second.Start({"serve", kModel, "--port", "0", "--log-directory", logs});
  EXPECT_EQ(second.WaitForExit(kLimit), 78);
  EXPECT_THAT(second.output(), HasSubstr("another supervisor writes there"));
  tree.Signal(SIGINT);
  EXPECT_EQ(tree.WaitForExit(kLimit), 0);
  std::ostringstream text;
  text << std::ifstream(logs + "/skein.log").rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("msg=\"child started\" child=worker.0"));
  EXPECT_THAT(text.str(), HasSubstr("worker stopped in order\n"));
}

TEST(LifecycleTest, AKilledTreeWithoutLeavesIsSweptByTheNextStart) {
  ProcessTree tree(kPrograms);
  tree.SetBehavior("skein-worker", "helpers");
  const std::vector<std::string> arguments = {
      "serve", kModel, "--feature-cgroup-leaf", "off", "--feature-pid-namespace", "off"};
  tree.Start(arguments);
  ASSERT_TRUE(WaitReady(tree)) << tree.output();
  EXPECT_THAT(tree.output(), HasSubstr("  containment  rung 3: subreaper"));
  tree.Signal(SIGKILL);
  EXPECT_EQ(tree.WaitForExit(kLimit), -SIGKILL);
  EXPECT_TRUE(tree.WaitUntil([&] { return tree.Pids("skein-worker").size() == 2; }, kLimit))
      << "the helpers left the session";
  const std::vector<int> left = tree.Pids("skein-worker");
  tree.SetBehavior("skein-worker", "");
  tree.Start(arguments);
  ASSERT_TRUE(WaitReady(tree)) << tree.output();
  EXPECT_THAT(tree.output(), HasSubstr("orphans_swept=2"));
  for (const int pid : tree.Pids("")) {
    EXPECT_EQ(std::count(left.begin(), left.end(), pid), 0) << pid;
  }
}

}  // namespace
}  // namespace skein::tests
