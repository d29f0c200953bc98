// Real servers whose groups move cache blocks over UCX: disaggregated prefill gives what one group
// gives, bit for bit; a transfer that is lost is counted and computed again; a group that is
// drained gives its streams away with their cache; and either side may die at any moment.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "protocol/base/strings.h"
#include "tests/process/chat_client.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

using ::testing::HasSubstr;

const ChatCall kStory = {.content = "Tell me about rivers.", .max_tokens = 500};

ChatCall Completion(int32_t length, int32_t first, double temperature = 0) {
  ChatCall call;
  call.max_tokens = 48;
  call.temperature = temperature;
  if (temperature > 0) call.seed = 11;
  for (int32_t i = 0; i < length; ++i) call.prompt_ids.push_back(300 + (first + i * 37) % 3000);
  return call;
}

std::vector<ChatCall> Calls() {
  std::vector<ChatCall> calls = {kStory};
  for (const int32_t length : {30, 65, 66, 129, 200, 340, 640}) {
    calls.push_back(Completion(length, length));
    calls.push_back(Completion(length, length + 7, 0.8));
  }
  // Begins as another one does.
  calls.push_back(Completion(360, 340));
  return calls;
}

std::vector<std::string> Moving(std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--data-parallel-size", "2", "--block-address", "127.0.0.1"});
  return flags;
}

// The value of the one series of a family with these labels; -1: there is none.
double Series(const LiveServer& server, const std::string& family, const std::string& labels) {
  protocol::HttpCall call;
  call.port = server.port();
  call.target = "/metrics";
  const auto result = protocol::CallHttp(call);
  if (!result.ok()) return -1;
  const std::string& text = result->body;
  for (size_t at = 0; (at = text.find("\n" + family + "{", at)) != std::string::npos; ++at) {
    const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
    if (line.find(labels) != std::string::npos) return std::stod(line.substr(line.rfind(' ')));
  }
  return -1;
}
double Handed(const LiveServer& server, const std::string& result) {
  return Series(server, "skein_request_migrations_total",
                R"(kind="handover",result=")" + result + "\"");
}

TEST(BlockMovesProcessTest, DisaggregatedPrefillGivesWhatOneGroupGives) {
  LiveServer alone;
  ASSERT_TRUE(alone.StartReady()) << alone.output();
  LiveServer server;
  ASSERT_TRUE(server.StartReady(Moving({"--prefill-groups", "1"}))) << server.output();
  int64_t tokens = 0;
  for (const ChatCall& call : Calls()) {
    const ChatAnswer want = Ask(alone.port(), call);
    const ChatAnswer got = Ask(server.port(), call);
    ASSERT_EQ(want.status, 200) << want.refusal;
    EXPECT_EQ(got, want) << call.prompt_ids.size();
    EXPECT_EQ(got.prompt_tokens, want.prompt_tokens);
    tokens += got.completion_tokens;
  }
  // All prompts of a whole block and more were handed over, and nothing else of their answers was
  // computed where they were but the first token.
  EXPECT_EQ(Handed(server, "moved"), 13) << server.output();
  EXPECT_EQ(Handed(server, "replayed"), 0) << server.output();
  const double first = Series(server, "skein_generation_tokens_total", R"(engine="0")");
  EXPECT_EQ(first + Series(server, "skein_generation_tokens_total", R"(engine="1")"), tokens);
  EXPECT_LE(first, 6 * 13) << "a token each, and the drafts that were kept with it";
  EXPECT_EQ(server.Metric("skein_kv_audit_violations_total"), 0);
  EXPECT_EQ(Series(server, "skein_kv_blocks", R"(engine="0",state="pending_send")"), 0);
}

TEST(BlockMovesProcessTest, ManyStreamsAreHandedOverAndExact) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady(Moving({"--prefill-groups", "1", "--lanes", "2"})))
      << server.output();
  const ChatCall long_one = Completion(200, 5);
  const ChatAnswer story = Ask(server.port(), kStory);
  const ChatAnswer completion = Ask(server.port(), long_one);
  const auto stories = OpenStreams(server.port(), kStory, 6);
  const auto completions = OpenStreams(server.port(), long_one, 6);
  for (const auto& stream : stories) EXPECT_EQ(stream->Join(), story);
  for (const auto& stream : completions) EXPECT_EQ(stream->Join(), completion);
  EXPECT_GE(Handed(server, "moved"), 2) << "the prompt alone, and one at least of those together";
  EXPECT_EQ(Handed(server, "replayed"), 0) << server.output();
  EXPECT_EQ(server.Metric("skein_kv_audit_violations_total"), 0);
}

TEST(BlockMovesProcessTest, ALostTransferIsCountedAndComputedAgain) {
  LiveServer alone;
  ASSERT_TRUE(alone.StartReady()) << alone.output();
  LiveServer server;
  ASSERT_TRUE(server.StartReady(Moving(
      {"--prefill-groups", "1", "--enable-faults", "lose_blocks:1", "--block-timeout", "1"})))
      << server.output();
  for (const ChatCall& call : {Completion(200, 1), Completion(340, 2, 0.8)}) {
    EXPECT_EQ(Ask(server.port(), call), Ask(alone.port(), call));
  }
  EXPECT_EQ(Handed(server, "moved"), 0);
  EXPECT_EQ(Handed(server, "replayed"), 2);
  EXPECT_THAT(server.output(), HasSubstr("msg=\"cache blocks not moved\" worker=2 side=fetch"));
  // What was lent comes back when its time is over, the second that was given.
  EXPECT_TRUE(WaitUntil(
      [&] { return Series(server, "skein_kv_blocks", R"(engine="0",state="pending_send")") == 0; },
      absl::Seconds(4)));
  EXPECT_THAT(server.output(), HasSubstr("the loan was not taken in time"));
  EXPECT_EQ(server.Metric("skein_kv_audit_violations_total"), 0);
}

TEST(BlockMovesProcessTest, ADrainedGroupGivesItsStreamsAwayWithTheirCache) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady(Moving({"--rollout-drain-timeout", "0"}))) << server.output();
  const ChatAnswer alone = Ask(server.port(), kStory);
  const auto streams = OpenStreams(server.port(), kStory, 4);
  for (const auto& stream : streams) ASSERT_TRUE(stream->WaitTokens(70)) << server.output();
  EXPECT_EQ(server.Admin("POST", "/admin/drain", "{\"group\":0}").status, 200);
  for (const auto& stream : streams) EXPECT_EQ(stream->Join(), alone);
  EXPECT_EQ(Series(server, "skein_request_migrations_total", R"(kind="drain",result="moved")"), 2)
      << server.output();
  EXPECT_EQ(Series(server, "skein_request_migrations_total", R"(kind="drain",result="replayed")"),
            0);
  EXPECT_EQ(server.Metric("skein_kv_audit_violations_total"), 0);
}

// Two deaths of each side, and more until a transfer was under way at one.
TEST(BlockMovesProcessTest, StreamsOutliveTheDeathOfEitherSide) {
  LiveServer alone;
  ASSERT_TRUE(alone.StartReady()) << alone.output();
  LiveServer server;
  ASSERT_TRUE(server.StartReady(Moving({"--prefill-groups", "1", "--restarts-max", "100"})))
      << server.output();
  const ChatAnswer story = Ask(alone.port(), kStory);
  int ready = 2, first = 0;
  for (int round = 0; round < 4 || (round < 16 && Handed(server, "replayed") == 0); ++round) {
    // Prompts that no group has: each is handed over.
    std::vector<ChatCall> calls;
    std::vector<ChatAnswer> answers;
    for (int i = 0; i < 4; ++i) {
      calls.push_back(Completion(640, 3 + 100 * ++first));
      answers.push_back(Ask(alone.port(), calls.back()));
    }
    const auto stories = OpenStreams(server.port(), kStory, 3);
    ASSERT_TRUE(stories[0]->WaitTokens(5)) << server.output();
    std::vector<std::unique_ptr<ChatStream>> streams;
    for (const ChatCall& call : calls) {
      streams.push_back(std::move(OpenStreams(server.port(), call, 1)[0]));
    }
    const std::string victim = protocol::Concat("--worker-index=", round % 2);
    const ProcessHandle worker = server.Find("skein-worker", victim);
    WaitUntil(
        [&] {
          return Series(server, "skein_kv_blocks", R"(engine="0",state="pending_send")") > 0;
        },
        absl::Seconds(2));
    ASSERT_TRUE(worker.Signal(SIGKILL));
    for (const auto& stream : stories) EXPECT_EQ(stream->Join(), story) << server.output();
    for (size_t i = 0; i < streams.size(); ++i) EXPECT_EQ(streams[i]->Join(), answers[i]);
    ASSERT_TRUE(server.WaitForOutput("msg=\"group ready\"", ++ready)) << server.output();
  }
  EXPECT_GT(Handed(server, "replayed"), 0) << "no transfer was under way at any death";
  EXPECT_EQ(server.Metric("skein_kv_audit_violations_total"), 0);
}

}  // namespace
}  // namespace skein::tests
