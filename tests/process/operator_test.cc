// Real servers in the hands of operators: rolling restarts between two builds of the worker under
// load, drains, requests that kill their workers, and health that tells the truth.
#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "protocol/messages/control.h"
#include "tests/process/chat_client.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

using protocol::Concat;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

const ChatCall kStory = {.content = "Tell me about rivers.", .max_tokens = 300};
const ChatCall kSeededStory = {
    .content = "Tell me about rivers.", .temperature = 0.8, .seed = 7, .max_tokens = 300};

// A directory with the programs of a server, whose worker can be replaced.
class Programs {
 public:
  Programs() {
    char path[] = "/tmp/skein_programs_XXXXXX";
    directory_ = ::mkdtemp(path);
    for (const char* name : {"skein", "skein-node", "skein-coordinator"}) {
      fs::copy_file(Concat(SKEIN_PROGRAM_DIRECTORY, "/", name), Concat(directory_, "/", name));
    }
  }
  ~Programs() {
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
  }
  // What runs stays what it is: the name changes its file.
  void SetWorker(const std::string& program) {
    const std::string next = directory_ + "/next";
    fs::copy_file(Concat(SKEIN_PROGRAM_DIRECTORY, "/", program), next);
    fs::rename(next, directory_ + "/skein-worker");
  }
  const std::string& directory() const { return directory_; }

 private:
  std::string directory_;
};

// Clients that ask again and again until they are told to stop, each answer compared.
class Load {
 public:
  Load(uint16_t port, const ChatCall& call, const ChatAnswer& expected, int clients)
      : expected_(expected) {
    for (int i = 0; i < clients; ++i) {
      threads_.emplace_back([this, port, call] {
        while (!stops_) {
          ChatStream stream(port, call);
          const ChatAnswer answer = stream.Join();
          ++answers_;
          if (!SameAnswer(answer, expected_) || !answer.is_done) {
            ++failed_;
            failure_ = Concat(answer.status, " ", answer.error, " ", answer.cut, " ",
                              answer.refusal, " after ", answer.entries.size(), " tokens");
          }
        }
      });
    }
  }
  ~Load() { Stop(); }
  void Stop() {
    stops_ = true;
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  int answers() const { return answers_; }
  int failed() const { return failed_; }
  const std::string& failure() const { return failure_; }  // after Stop

 private:
  const ChatAnswer expected_;
  std::atomic<bool> stops_ = false;
  std::atomic<int> answers_ = 0;
  std::atomic<int> failed_ = 0;
  std::string failure_;
  std::vector<std::thread> threads_;
};

size_t CountOf(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

// Starts a rollout and watches it to its end; the most groups that were out at a time.
size_t RollOut(const LiveServer& server, const std::string& build) {
  const auto started = server.Admin("POST", "/admin/rollout",
                                    Concat(R"({"action":"start","build":")", build, R"("})"));
  EXPECT_EQ(started.status, 200) << started.body;
  size_t most_out = 0;
  const bool done = WaitUntil([&] {
    const std::string status = server.Admin("GET", "/admin/status").body;
    if (status.empty()) return false;
    most_out = std::max(most_out, CountOf(status, "\"cordoned\":true"));
    return status.find("\"rollout\":{\"state\":\"running\"") == std::string::npos;
  });
  EXPECT_TRUE(done);
  const std::string end = server.Admin("GET", "/admin/rollout").body;
  EXPECT_THAT(end, HasSubstr("{\"state\":\"done\"")) << server.output();
  return most_out;
}

class RolloutProcessTest : public ::testing::TestWithParam<int> {};

// Both directions between two builds whose protocols differ by a minor, with one group and two.
TEST_P(RolloutProcessTest, EveryStreamIsWholeAndExact) {
  const auto groups = static_cast<size_t>(GetParam());
  Programs programs;
  programs.SetWorker("skein-worker-before");
  LiveServer server(programs.directory());
  ASSERT_TRUE(server.StartReady({"--model", "deploy/models/tiny-v41", "--data-parallel-size",
                                 std::to_string(groups), "--rollout-soak", "0.5",
                                 "--rollout-drain-timeout", "0.3"}))
      << server.output();
  const std::string before = "protocol=1." + std::to_string(protocol::kProtocolMinor - 1);
  // The line takes the way through the supervisor; readiness is seen over HTTP.
  EXPECT_TRUE(server.WaitForOutput("build=before " + before)) << server.output();
  const ChatAnswer greedy = Ask(server.port(), kStory);
  const ChatAnswer seeded = Ask(server.port(), kSeededStory);
  ASSERT_EQ(greedy.entries.size(), 300u) << greedy.refusal;
  size_t most_out = 0;
  Load plain(server.port(), kStory, greedy, 3);
  Load drawn(server.port(), kSeededStory, seeded, 3);
  programs.SetWorker("skein-worker");
  most_out = std::max(most_out, RollOut(server, SKEIN_VERSION));
  EXPECT_EQ(CountOf(server.output(), before), groups);
  programs.SetWorker("skein-worker-before");
  most_out = std::max(most_out, RollOut(server, "before"));
  plain.Stop();
  drawn.Stop();
  std::printf("failed_requests=%d of %d max_unavailable=%zu moved=%.0f\n",
              plain.failed() + drawn.failed(), plain.answers() + drawn.answers(), most_out,
              server.Metric("skein_request_migrations_total"));
  EXPECT_EQ(plain.failed(), 0) << plain.failure() << server.output();
  EXPECT_EQ(drawn.failed(), 0) << drawn.failure();
  EXPECT_LE(most_out, 1u);
  EXPECT_EQ(CountOf(server.output(), "build=before"), 2 * groups);
}

INSTANTIATE_TEST_SUITE_P(Groups, RolloutProcessTest, ::testing::Values(1, 2));

TEST(OperatorTest, AProgramThatDoesNotStartGivesWayToTheOneBefore) {
  Programs programs;
  programs.SetWorker("skein-worker");
  LiveServer server(programs.directory());
  ASSERT_TRUE(server.StartReady({"--model", "deploy/models/tiny-v41", "--data-parallel-size", "2"}))
      << server.output();
  const ChatAnswer alone = Ask(server.port(), kStory);
  programs.SetWorker("skein-coordinator");  // a program that is no worker
  ASSERT_EQ(server.Admin("POST", "/admin/rollout", R"({"action":"start"})").status, 200);
  ASSERT_TRUE(server.WaitForStatus("\"rollout\":{\"state\":\"halted\"")) << server.output();
  EXPECT_THAT(server.Admin("GET", "/admin/rollout").body,
              HasSubstr("the group went back and serves with build "));
  EXPECT_TRUE(server.WaitForStatus("{\"group\":0,\"state\":\"ready\"")) << server.output();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Ask(server.port(), kStory), alone);
}

TEST(OperatorTest, AWorkerOfAnotherBuildGivesWayToTheOneBefore) {
  Programs programs;
  programs.SetWorker("skein-worker");
  LiveServer server(programs.directory());
  ASSERT_TRUE(server.StartReady({"--model", "deploy/models/tiny-v41"})) << server.output();
  const ChatAnswer alone = Ask(server.port(), kStory);
  programs.SetWorker("skein-worker-before");
  ASSERT_EQ(
      server.Admin("POST", "/admin/rollout", R"({"action":"start","build":"another"})").status,
      200);
  ASSERT_TRUE(server.WaitForStatus("\"rollout\":{\"state\":\"halted\"")) << server.output();
  EXPECT_THAT(server.Admin("GET", "/admin/rollout").body,
              HasSubstr("is build before, expected another; the group went back"));
  EXPECT_THAT(server.output(), HasSubstr("the one before it is started again"));
  EXPECT_EQ(Ask(server.port(), kStory), alone);
}

TEST(OperatorTest, ADrainedGroupMovesItsStreams) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--data-parallel-size", "2", "--rollout-drain-timeout", "0"}))
      << server.output();
  const ChatAnswer alone = Ask(server.port(), kStory);
  const auto streams = OpenStreams(server.port(), kStory, 4);
  for (const auto& stream : streams) ASSERT_TRUE(stream->WaitTokens(10)) << server.output();
  EXPECT_EQ(server.Admin("POST", "/admin/drain", "{\"group\":0}").status, 200);
  ASSERT_TRUE(server.WaitForStatus("{\"group\":0,\"state\":\"draining\""));
  for (const auto& stream : streams) EXPECT_EQ(stream->Join(), alone);
  EXPECT_EQ(server.Metric("skein_request_migrations_total"), 2);
  EXPECT_EQ(server.Admin("POST", "/admin/undrain", "{\"group\":0}").status, 200);
  ASSERT_TRUE(server.WaitForStatus("{\"group\":0,\"state\":\"ready\""));
  EXPECT_THAT(server.output(), HasSubstr("msg=operator verb=drain"));
}

// No token that the stories below are made of.
constexpr int32_t kDeadly = 777;

class PoisonProcessTest : public ::testing::TestWithParam<int> {};

TEST_P(PoisonProcessTest, OneRequestEndsAndNobodyElse) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--data-parallel-size", std::to_string(GetParam()),
                                 "--restart-backoff-max", "0.4", "--restarts-max", "100",
                                 "--enable-faults", Concat("abort_on_token:", kDeadly)}))
      << server.output();
  const ChatAnswer greedy = Ask(server.port(), kStory);
  const ChatAnswer seeded = Ask(server.port(), kSeededStory);
  ASSERT_EQ(greedy.entries.size(), 300u) << server.output();
  const int incarnations = GetParam();
  auto streams = OpenStreams(server.port(), kStory, 4);
  for (auto& stream : OpenStreams(server.port(), kSeededStory, 4)) {
    streams.push_back(std::move(stream));
  }
  for (const auto& stream : streams) ASSERT_TRUE(stream->WaitTokens(10)) << server.output();
  const ChatCall deadly = {.content = "", .max_tokens = 20, .prompt_ids = {5, 6, kDeadly, 8}};
  const ChatAnswer ended = Ask(server.port(), deadly);
  EXPECT_EQ(ended.status, 500) << server.output();
  EXPECT_THAT(ended.refusal, HasSubstr("\"code\":\"request_quarantined\""));
  for (size_t i = 0; i < streams.size(); ++i) {
    EXPECT_EQ(streams[i]->Join(), i < 4 ? greedy : seeded) << "stream " << i << server.output();
  }
  const size_t deaths =
      CountOf(server.output(), "msg=\"worker registered\"") - static_cast<size_t>(incarnations);
  std::printf("workers=%d deaths=%zu innocent_failures=0\n", GetParam(), deaths);
  EXPECT_LE(deaths, 3u) << server.output();
  // The same prompt is refused at once from now on.
  const ChatAnswer again = Ask(server.port(), deadly);
  EXPECT_EQ(again.status, 500);
  EXPECT_THAT(again.refusal, HasSubstr("this prompt ended its workers before"));
  EXPECT_EQ(server.Metric("skein_quarantined_requests_total"), 1);
  EXPECT_EQ(Ask(server.port(), kStory), greedy);
}

INSTANTIATE_TEST_SUITE_P(Workers, PoisonProcessTest, ::testing::Values(1, 2));

int Health(const LiveServer& server, const std::string& probe) {
  protocol::HttpCall call;
  call.port = server.port();
  call.target = "/health/" + probe;
  call.timeout = std::chrono::milliseconds(1000);
  const auto result = protocol::CallHttp(call);
  return result.ok() ? result->status : 0;
}

// rule: HA2
TEST(HealthTest, ADeviceThreadThatStandsStillIsSeenBySteps) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--enable-faults", "hang_on_token:777"})) << server.output();
  ASSERT_EQ(Ask(server.port(), kStory).entries.size(), 300u);
  // It gives up before the hang is seen, so that it does not hang the next worker, too.
  protocol::HttpCall call;
  call.port = server.port();
  call.method = "POST";
  call.target = "/v1/completions";
  call.headers = {{"x-request-timeout", "1"}};
  call.body = R"({"prompt":[5,777,8],"max_tokens":20})";
  std::thread hung([call] { EXPECT_EQ(protocol::CallHttp(call)->status, 408); });
  ASSERT_TRUE(server.WaitForOutput("the device thread stands still")) << server.output();
  const absl::Time hangs = protocol::MonotonicNow();
  EXPECT_TRUE(server.WaitForHealth(503, "no worker group is ready")) << server.output();
  std::printf("hang_seen_s=%.2f\n", absl::ToDoubleSeconds(protocol::MonotonicNow() - hangs));
  EXPECT_EQ(Health(server, "live"), 200);
  EXPECT_EQ(Health(server, "startup"), 200);
  server.Find("skein-worker").Signal(SIGKILL);
  EXPECT_TRUE(server.WaitForHealth(200)) << server.output();
  hung.join();
}

TEST(HealthTest, AControlLoopThatStandsStillIsNotReady) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--enable-faults", "wedge_on_token:777"})) << server.output();
  ChatStream wedges(server.port(), {.content = "", .max_tokens = 20, .prompt_ids = {5, 777, 8}});
  ASSERT_TRUE(server.WaitForOutput("the control loop stands still")) << server.output();
  const absl::Time wedged = protocol::MonotonicNow();
  EXPECT_TRUE(server.WaitForHealth(503, "the control loop has not run for ")) << server.output();
  std::printf("wedge_seen_s=%.2f\n", absl::ToDoubleSeconds(protocol::MonotonicNow() - wedged));
  EXPECT_EQ(Health(server, "live"), 200);
  EXPECT_TRUE(server.WaitForHealth(200)) << server.output();
}

// rule: HA5
TEST(HealthTest, ALongPrefillChangesNothing) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--max-model-len", "8192", "--max-num-batched-tokens", "2048"}))
      << server.output();
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 4000; ++i) prompt.push_back(3 + i % 500);
  ChatStream stream(server.port(), {.content = "", .max_tokens = 2, .prompt_ids = prompt});
  int probes = 0;
  while (!stream.ended()) {
    ASSERT_EQ(Health(server, "ready"), 200) << probes << server.output();
    ++probes;
  }
  std::printf("probes=%d, all ready\n", probes);
  EXPECT_GT(probes, 10);
}

TEST(HealthTest, TheLossOfTheCoordinatorCostsSecondsAndNoLoading) {
  const std::string port = std::to_string(FreePort());
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--port", port})) << server.output();
  const auto streams = OpenStreams(server.port(), kStory, 4);
  for (const auto& stream : streams) ASSERT_TRUE(stream->WaitTokens(10)) << server.output();
  const absl::Time killed = protocol::MonotonicNow();
  ASSERT_TRUE(server.Find("skein-coordinator").Signal(SIGKILL));
  for (const auto& stream : streams) EXPECT_FALSE(stream->Join().is_done);
  ASSERT_TRUE(server.WaitForOutput("coordinator: ready http://127.0.0.1:" + port, 2));
  EXPECT_TRUE(server.WaitForHealth(200)) << server.output();
  std::printf("ready_after_s=%.2f loads=%zu\n",
              absl::ToDoubleSeconds(protocol::MonotonicNow() - killed),
              CountOf(server.output(), "msg=\"model loaded\""));
  EXPECT_EQ(CountOf(server.output(), "msg=\"model loaded\""), 1u);
}

}  // namespace
}  // namespace skein::tests
