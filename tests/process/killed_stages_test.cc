// Acceptance check 2 with the real programs: SIGKILL of `skein serve` in every stage of its life.
// Nothing survives, and no process, lock, socket or file of the dead one blocks the next start on
// the same port and directories.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "protocol/http/http_client.h"
#include "tests/process/chat_client.h"
#include "tests/process/live_server.h"
#include "tests/process/process_tree.h"

namespace skein::tests {
namespace {

using protocol::Concat;

constexpr char kModel[] = "deploy/models/tiny-v41";
const ChatCall kStory = {.content = "Tell me about rivers.", .max_tokens = 400};

class KilledStagesTest : public ::testing::Test {
 protected:
  void Start() {
    tree_.Start({"serve", kModel, "--port", std::to_string(port_), "--log-directory",
                 tree_.directory() + "/logs", "--max-model-len", "4096"});
  }
  bool WaitServing() {
    if (!tree_.WaitForOutput("coordinator: ready http://", kLimit)) return false;
    protocol::HttpCall call;
    call.port = port_;
    call.target = "/health/ready";
    return WaitUntil([&] {
      const auto result = protocol::CallHttp(call);
      return result.ok() && result->status == 200;
    });
  }
  void Pause(int milliseconds) {
    tree_.WaitForOutput("never printed", absl::Milliseconds(milliseconds));
  }
  // Kills skein, and shows that all is gone and a new start serves.
  void KillAndServeAgain(std::string_view stage) {
    tree_.Signal(SIGKILL);
    const absl::Time killed = protocol::MonotonicNow();
    EXPECT_EQ(tree_.WaitForExit(kLimit), -SIGKILL) << stage;
    EXPECT_TRUE(tree_.WaitUntil([&] { return tree_.Alive().empty(); }, kLimit)) << stage;
    clear_max_ = std::max(clear_max_, protocol::MonotonicNow() - killed);
    Start();
    ASSERT_TRUE(WaitServing()) << stage << "\n" << tree_.output();
    const ChatAnswer answer = Ask(port_, {.content = "Hello", .max_tokens = 4});
    EXPECT_EQ(answer.status, 200) << stage << "\n" << answer.refusal;
    ++stages_;
  }
  // The run directory of the instance that lives: its parent holds no other.
  std::vector<std::string> RunDirectories() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(tree_.directory() + "/run")) {
      found.push_back(entry.path().string());
    }
    return found;
  }

  ProcessTree tree_{SKEIN_PROGRAM_DIRECTORY, Children::kReal};
  uint16_t port_ = FreePort();
  absl::Duration clear_max_;
  int stages_ = 0;
};

TEST_F(KilledStagesTest, NothingOfTheDeadOneBlocksTheNextStart) {
  Start();
  Pause(15);
  KillAndServeAgain("start");
  {
    ChatStream stream(port_, kStory);
    ASSERT_TRUE(stream.WaitTokens(3));
    KillAndServeAgain("decode");
    EXPECT_NE(stream.Join().cut, "") << "a stream that was cut never looks complete";
  }
  {
    std::string prompt;
    for (int i = 0; i < 300; ++i) prompt += "The river runs past the mill. ";
    ChatStream stream(port_, {.content = prompt, .max_tokens = 4});
    Pause(30);
    KillAndServeAgain("prefill");
  }
  tree_.Signal(SIGKILL);
  EXPECT_EQ(tree_.WaitForExit(kLimit), -SIGKILL);
  Start();
  ASSERT_TRUE(tree_.WaitForOutput("  stop         ", kLimit)) << tree_.output();
  Pause(60);
  KillAndServeAgain("load");
  {
    protocol::HttpCall call;
    const std::vector<std::string> runs = RunDirectories();
    ASSERT_EQ(runs.size(), 1U) << "those of dead ones are swept";
    call.unix_path = runs[0] + "/admin.sock";
    call.method = "POST";
    call.target = "/admin/rollout";
    call.body = R"({"action":"start"})";
    const auto started = protocol::CallHttp(call);
    ASSERT_TRUE(started.ok()) << started.status();
    EXPECT_EQ(started->status, 200) << started->body;
    Pause(40);
    KillAndServeAgain("rollout");
  }
  {
    ChatStream stream(port_, kStory);
    ASSERT_TRUE(stream.WaitTokens(1));
    tree_.Signal(SIGTERM);
    Pause(20);
    KillAndServeAgain("drain");
  }
  tree_.Signal(SIGTERM);
  EXPECT_EQ(tree_.WaitForExit(kLimit), 0) << tree_.output();
  EXPECT_THAT(tree_.Alive(), ::testing::IsEmpty());
  EXPECT_THAT(RunDirectories(), ::testing::IsEmpty());
  std::printf("stages=%d/6 real_max_clear_ms=%ld\n", stages_,
              absl::ToInt64Milliseconds(clear_max_));
}

// Connections that come while there is no coordinator are served by the next one.
TEST_F(KilledStagesTest, ConnectionsWaitWhileTheCoordinatorIsReplaced) {
  Start();
  ASSERT_TRUE(WaitServing()) << tree_.output();
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(tree_.KillOldest("skein-coordinator"));
    protocol::HttpCall call;
    call.port = port_;
    call.target = "/health/live";
    const auto result = protocol::CallHttp(call);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->status, 200) << "nobody was refused";
  }
}

}  // namespace
}  // namespace skein::tests
