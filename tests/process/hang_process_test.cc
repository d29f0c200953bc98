// A worker whose device thread stands still ends itself, and its successor forms the group anew.
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/process/chat_client.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

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

}  // namespace
}  // namespace skein::tests
