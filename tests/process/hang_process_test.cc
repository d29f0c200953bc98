// Processes that live and do nothing are replaced: a device thread that stands still, a process
// that was stopped, a control loop that goes round no more. A pause of everything is nobody's
// fault.
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/process/chat_client.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(HangProcessTest, AWorkerWhoseStepDoesNotEndIsReplacedWithoutHelp) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--enable-faults", "hang_on_token:777"})) << server.output();
  // After some steps the deadline of a step is known.
  ASSERT_EQ(Ask(server.port(), {.content = "Hello", .max_tokens = 50}).entries.size(), 50u);
  ChatStream hung(server.port(), {.content = "", .max_tokens = 20, .prompt_ids = {5, 777, 8}});
  ASSERT_TRUE(server.WaitForOutput("the device thread stands still; exit 76 in 2000 ms"))
      << server.output();
  ASSERT_TRUE(server.WaitForOutput("exit code 76")) << server.output();
  EXPECT_TRUE(server.WaitForOutput("worker.0: ready", 2)) << server.output();
  EXPECT_FALSE(hung.ended()) << "its request is replayed";
  // The replay would hang as long: the end of its server is the end of its client.
  EXPECT_TRUE(server.Find("skein-coordinator").Signal(SIGKILL));
  EXPECT_FALSE(hung.Join().is_done);
}

TEST(HangProcessTest, AStoppedWorkerIsReplaced) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--hang-timeout", "1"})) << server.output();
  const ChatCall story = {.content = "Tell a story.", .max_tokens = 300};
  const ChatAnswer undisturbed = Ask(server.port(), story);
  ChatStream stream(server.port(), story);
  ASSERT_TRUE(stream.WaitTokens(10));
  const ProcessHandle worker = server.Find("skein-worker");
  ASSERT_TRUE(worker.Signal(SIGSTOP));
  EXPECT_TRUE(worker.WaitForEnd(kLimit)) << server.output();
  EXPECT_TRUE(server.WaitForOutput("worker.0: ready", 2)) << server.output();
  EXPECT_THAT(server.output(), HasSubstr("child answers no more and is killed\" child=worker.0"));
  EXPECT_THAT(server.output(), HasSubstr("reason=\"stopped by a signal\""));
  EXPECT_EQ(stream.Join(), undisturbed) << "a stop from outside marks nobody";
  EXPECT_EQ(server.Metric("skein_replays_total"), 1);
}

TEST(HangProcessTest, AStoppedCoordinatorIsReplacedAndWorkersKeepTheirWeights) {
  const std::string port = std::to_string(FreePort());
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--hang-timeout", "1", "--port", port})) << server.output();
  const int worker = server.Find("skein-worker").pid();
  const ProcessHandle coordinator = server.Find("skein-coordinator");
  ASSERT_TRUE(coordinator.Signal(SIGSTOP));
  EXPECT_TRUE(coordinator.WaitForEnd(kLimit)) << server.output();
  EXPECT_TRUE(server.WaitForHealth(200)) << server.output();
  EXPECT_THAT(server.output(),
              HasSubstr("child answers no more and is killed\" child=coordinator"));
  EXPECT_EQ(server.Find("skein-worker").pid(), worker);
}

TEST(HangProcessTest, ACoordinatorWhoseLoopStandsStillIsReplaced) {
  const std::string port = std::to_string(FreePort());
  LiveServer server;
  ASSERT_TRUE(server.StartReady(
      {"--hang-timeout", "1", "--port", port, "--enable-faults", "wedge_on_token:777"}))
      << server.output();
  const ProcessHandle coordinator = server.Find("skein-coordinator");
  ChatStream wedges(server.port(), {.content = "", .max_tokens = 20, .prompt_ids = {5, 777, 8}});
  EXPECT_TRUE(coordinator.WaitForEnd(kLimit)) << server.output();
  EXPECT_TRUE(server.WaitForHealth(200)) << server.output();
  EXPECT_THAT(server.output(), HasSubstr("reason=\"its loop stands still\""));
  EXPECT_FALSE(wedges.Join().is_done);
}

// As when a laptop sleeps or a container is frozen: time passes for nobody.
TEST(HangProcessTest, APauseOfTheWholeTreeKillsNobody) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--hang-timeout", "1"})) << server.output();
  std::vector<ProcessHandle> all;
  all.push_back(server.Find("skein"));
  all.push_back(server.Find("skein-coordinator"));
  all.push_back(server.Find("skein-worker"));
  for (const ProcessHandle& process : all) ASSERT_TRUE(process.Signal(SIGSTOP));
  EXPECT_FALSE(all[2].WaitForEnd(absl::Seconds(3)));
  for (const ProcessHandle& process : all) ASSERT_TRUE(process.Signal(SIGCONT));
  EXPECT_FALSE(all[2].WaitForEnd(absl::Seconds(2))) << server.output();
  EXPECT_TRUE(server.WaitForHealth(200)) << server.output();
  EXPECT_THAT(server.output(), Not(HasSubstr("answers no more")));
  EXPECT_EQ(server.Find("skein-coordinator").pid(), all[1].pid());
}

}  // namespace
}  // namespace skein::tests
