// Real servers that speculate: what clients get equals, token for token and bit for bit of every
// logprob, what a server without drafts gives, whatever the depth, workers, lanes, chunks and
// other requests, and over the loss of a worker.
#include <atomic>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "protocol/json/json.h"
#include "tests/process/chat_client.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

using protocol::JsonValue;
using ::testing::HasSubstr;

constexpr size_t kAtATime = 16;
constexpr size_t kValidationPrompts = 12;

// ---- calls

std::vector<int32_t> IdsOf(const JsonValue& entry) {
  std::vector<int32_t> ids;
  for (const JsonValue& id : entry.Find("ids")->elements()) {
    ids.push_back(static_cast<int32_t>(id.AsInt64("id").value()));
  }
  return ids;
}

// The first `most` prompts of the validation set.
std::vector<std::vector<int32_t>> ReadValidationPrompts(size_t most) {
  std::vector<std::vector<int32_t>> prompts;
  std::ifstream validation("tests/data/tiny-v41-goldens/validation_prompts.jsonl");
  for (std::string line; prompts.size() < most && std::getline(validation, line);) {
    const auto entry = protocol::ParseJson(line);
    EXPECT_TRUE(entry.ok()) << entry.status();
    if (entry.ok()) prompts.push_back(IdsOf(*entry));
  }
  return prompts;
}

std::vector<std::vector<int32_t>> ReadPrompts() {
  std::vector<std::vector<int32_t>> prompts;
  std::ifstream goldens("tests/data/tiny-v41-goldens/goldens.json");
  std::stringstream text;
  text << goldens.rdbuf();
  const auto json = protocol::ParseJson(text.str());
  EXPECT_TRUE(json.ok()) << json.status();
  if (!json.ok()) return prompts;
  for (const JsonValue& entry : json->Find("prompts")->elements()) prompts.push_back(IdsOf(entry));
  for (auto& prompt : ReadValidationPrompts(kValidationPrompts)) {
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// Each prompt greedily and with a seed; some with stop strings, limits and bounds of their own.
std::vector<ChatCall> Calls() {
  std::vector<ChatCall> calls;
  const std::vector<std::vector<int32_t>> prompts = ReadPrompts();
  EXPECT_EQ(prompts.size(), 17 + kValidationPrompts);
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (const bool greedy : {true, false}) {
      ChatCall& call = calls.emplace_back();
      call.prompt_ids = prompts[i];
      call.max_tokens = 12 + static_cast<int>(i % 13);
      call.temperature = greedy ? 0 : 0.8;
      if (!greedy) call.seed = static_cast<int64_t>(1000 + i);
      if (i % 4 == 1) call.stop = {" the", ". ", "nn"};
      if (i % 5 == 2) call.speculation = R"({"max_draft_tokens":2})";
      if (i % 5 == 4) call.speculation = R"({"enabled":false})";
    }
  }
  return calls;
}

// The calls, so many at a time.
std::vector<ChatAnswer> AskAll(uint16_t port, const std::vector<ChatCall>& calls,
                               size_t at_a_time = kAtATime) {
  std::vector<ChatAnswer> answers(calls.size());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> askers;
  for (size_t i = 0; i < at_a_time; ++i) {
    askers.emplace_back([&] {
      for (size_t at = next++; at < calls.size(); at = next++) answers[at] = Ask(port, calls[at]);
    });
  }
  for (std::thread& asker : askers) asker.join();
  return answers;
}

std::vector<ChatAnswer> AnswersWithoutDrafts() {
  LiveServer server;
  EXPECT_TRUE(server.StartReady({"--speculation-method", "none"})) << server.output();
  EXPECT_THAT(server.output(), HasSubstr("  speculation  off: speculation.method is none\n"));
  std::vector<ChatAnswer> answers = AskAll(server.port(), Calls());
  for (const ChatAnswer& answer : answers) {
    EXPECT_EQ(answer.status, 200) << answer.refusal;
    EXPECT_EQ(answer.draft_tokens, 0);
    EXPECT_EQ(answer.completion_tokens, static_cast<int64_t>(answer.entries.size()));
  }
  EXPECT_EQ(server.Metric("skein_spec_drafts_total"), 0);
  return answers;
}

const std::vector<ChatAnswer>& WithoutDrafts() {
  static const auto* answers = new std::vector<ChatAnswer>(AnswersWithoutDrafts());
  return *answers;
}

// Streams that leave in the middle, again and again, until told to stop. Owns its thread.
class Leavers {
 public:
  explicit Leavers(uint16_t port) : thread_([this, port] { Run(port); }) {}
  ~Leavers() {
    stops_ = true;
    thread_.join();
  }
  size_t left() const { return left_; }

 private:
  void Run(uint16_t port) {
    for (size_t i = 0; !stops_; ++i) {
      ChatCall call = {.content = "Tell me about rivers.", .max_tokens = 200};
      if (i % 2 == 1) call.temperature = 1;  // verified by rejection
      ChatStream stream(port, call);
      if (stream.WaitTokens(1 + i * 7 % 23)) ++left_;
    }
  }

  std::atomic<bool> stops_ = false;
  std::atomic<size_t> left_ = 0;
  std::thread thread_;
};

// ---- exactness

struct SpeculativeFlags {
  std::string name;
  bool fixed = false;
  std::vector<std::string> flags;
};
void PrintTo(const SpeculativeFlags& flags, std::ostream* out) { *out << flags.name; }

class SpeculativeFlagsTest : public ::testing::TestWithParam<SpeculativeFlags> {};

// rule: V4, LP1
TEST_P(SpeculativeFlagsTest, AnswersEqualThoseWithoutDrafts) {
  const std::vector<ChatAnswer>& wanted = WithoutDrafts();
  std::vector<std::string> flags = GetParam().flags;
  flags.insert(flags.end(), {"--speculation-depth", GetParam().fixed ? "fixed" : "adaptive",
                             "--max-num-queued-tokens", "100000"});
  LiveServer server;
  ASSERT_TRUE(server.StartReady(flags)) << server.output();
  const std::vector<ChatCall> calls = Calls();
  std::vector<ChatAnswer> answers;
  {
    const Leavers leavers(server.port());
    answers = AskAll(server.port(), calls);
    EXPECT_TRUE(WaitUntil([&] { return leavers.left() > 0; }));
  }
  int64_t drafts = 0;
  int64_t accepted = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(answers[i], wanted[i]) << "call " << i;
    EXPECT_EQ(answers[i].completion_tokens, wanted[i].completion_tokens) << "call " << i;
    if (calls[i].speculation == R"({"enabled":false})") {
      EXPECT_EQ(answers[i].draft_tokens, 0);
    }
    if (calls[i].speculation == R"({"max_draft_tokens":2})") {
      EXPECT_LE(answers[i].draft_tokens, 2 * answers[i].steps);
    }
    drafts += answers[i].draft_tokens;
    accepted += answers[i].accepted_draft_tokens;
  }
  std::printf("%s: drafts %ld, accepted %ld\n", GetParam().name.c_str(), static_cast<long>(drafts),
              static_cast<long>(accepted));
  if (!GetParam().fixed) return;
  EXPECT_GT(drafts, 100);
  EXPECT_GT(accepted, 50);
  EXPECT_GE(server.Metric("skein_spec_draft_tokens_total"), drafts) << "the leavers' beside them";
  EXPECT_GE(server.Metric("skein_spec_accepted_tokens_total"), accepted);
  EXPECT_GT(server.Metric("skein_spec_disabled_requests_total"), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Flags, SpeculativeFlagsTest,
    ::testing::Values(
        SpeculativeFlags{"FixedTokens512Lanes1Workers1", true, {}},
        SpeculativeFlags{"FixedTokens7Lanes2Workers1",
                         true,
                         {"--max-num-batched-tokens", "7", "--max-num-seqs", "4", "--lanes", "2"}},
        SpeculativeFlags{"FixedTokens512Lanes2Workers2", true, {"--lanes", "2", "-dp", "2"}},
        SpeculativeFlags{"AdaptiveTokens7Lanes1Workers2",
                         false,
                         {"--max-num-batched-tokens", "7", "--max-num-seqs", "4", "-dp", "2"}},
        SpeculativeFlags{"AdaptiveTokens512Lanes2Workers1", false, {"--lanes", "2"}}),
    [](const auto& flags) { return flags.param.name; });

// Every validation prompt, greedily, eight at a time: text and logprobs with drafts of any depth
// are those without.
TEST(SpeculativeServingTest, TheWholeValidationSetEqualsThatWithoutDrafts) {
  constexpr size_t kBatch = 8;
  std::vector<ChatCall> calls;
  for (auto& prompt : ReadValidationPrompts(1000)) {
    ChatCall& call = calls.emplace_back();
    call.prompt_ids = std::move(prompt);
    call.max_tokens = 48;
    call.temperature = 0;
  }
  ASSERT_EQ(calls.size(), 50u);
  std::vector<ChatAnswer> wanted;
  for (const char* const depth : {"none", "fixed", "adaptive"}) {
    const bool drafts = depth != std::string_view("none");
    LiveServer server;
    ASSERT_TRUE(server.StartReady({drafts ? "--speculation-depth" : "--speculation-method", depth}))
        << server.output();
    const std::vector<ChatAnswer> answers = AskAll(server.port(), calls, kBatch);
    if (!drafts) wanted = answers;
    size_t tokens = 0;
    int64_t accepted = 0;
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_EQ(answers[i].status, 200) << answers[i].refusal;
      EXPECT_EQ(answers[i], wanted[i]) << depth << ", prompt " << i;
      EXPECT_LE(answers[i].accepted_draft_tokens + 1, answers[i].completion_tokens);
      tokens += answers[i].entries.size();
      accepted += answers[i].accepted_draft_tokens;
    }
    EXPECT_GT(tokens, 1000u);
    if (depth == std::string_view("fixed")) {
      EXPECT_GT(accepted, static_cast<int64_t>(tokens / 3));
    }
    std::printf("validation set, %s: %zu tokens, %ld of them drafted\n", depth, tokens,
                static_cast<long>(accepted));
  }
}

// ---- faults and start

TEST(SpeculativeServingTest, StreamsOutliveTheWorkerInTheMiddleOfDrafts) {
  const ChatCall story = {.content = "Tell me about rivers.", .max_tokens = 600};
  ChatCall seeded = story;
  seeded.temperature = 0.8;
  seeded.seed = 7;
  ChatAnswer greedy_answer;
  ChatAnswer seeded_answer;
  {
    LiveServer server;
    ASSERT_TRUE(server.StartReady({"--speculation-method", "none"})) << server.output();
    greedy_answer = Ask(server.port(), story);
    seeded_answer = Ask(server.port(), seeded);
    ASSERT_EQ(greedy_answer.entries.size(), 600u) << greedy_answer.refusal;
  }
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--speculation-depth", "fixed"})) << server.output();
  auto streams = OpenStreams(server.port(), story, 2);
  for (auto& stream : OpenStreams(server.port(), seeded, 2)) streams.push_back(std::move(stream));
  for (const auto& stream : streams) ASSERT_TRUE(stream->WaitTokens(20)) << server.output();
  EXPECT_GT(server.Metric("skein_spec_accepted_tokens_total"), 0);
  const ProcessHandle worker = server.Find("skein-worker");
  ASSERT_TRUE(worker.Signal(SIGKILL));
  ASSERT_TRUE(worker.WaitForEnd(kLimit));
  for (size_t i = 0; i < streams.size(); ++i) {
    EXPECT_EQ(streams[i]->Join(), i < 2 ? greedy_answer : seeded_answer) << "stream " << i;
  }
  EXPECT_EQ(server.Metric("skein_epoch_changes_total"), 1) << server.output();
  EXPECT_EQ(server.Metric("skein_generation_tokens_total"), 4 * 600) << "each token once";
}

// rule: V5
TEST(SpeculativeServingTest, TheStartNamesWhatDraftsAndUsageCounts) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady(
      {"--speculative-config", R"({"method": "dspark", "num_speculative_tokens": 3})",
       "--speculation-depth", "fixed", "--speculation-tap-side", "leaving"}))
      << server.output();
  EXPECT_THAT(server.output(), HasSubstr(" draft_taps=leaving"));
  EXPECT_THAT(
      server.output(),
      HasSubstr("  speculation  dspark, at most 3 drafts a sequence and step, fixed depth\n"));
  EXPECT_TRUE(server.WaitForOutput("msg=\"group ready\"")) << server.output();
  EXPECT_THAT(server.output(), HasSubstr(" drafts=3 "));
  const ChatCall call = {.content = "Tell me about rivers.", .max_tokens = 60};
  const ChatAnswer answer = Ask(server.port(), call);
  EXPECT_EQ(answer.steps + answer.accepted_draft_tokens, 60) << "one token more for each step";
  EXPECT_GT(answer.accepted_draft_tokens, 0);
  EXPECT_LE(answer.draft_tokens, 3 * answer.steps);
  EXPECT_EQ(server.Metric("skein_spec_accepted_tokens_total"),
            static_cast<double>(answer.accepted_draft_tokens));
  EXPECT_EQ(server.Metric("skein_spec_accepted_tokens_per_position_total"),
            static_cast<double>(answer.accepted_draft_tokens));
}

TEST(SpeculativeServingTest, AWorkerSaysWhyItDraftsNothing) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--max-num-batched-tokens", "4", "--max-num-seqs", "2"}))
      << server.output();
  EXPECT_THAT(
      server.output(),
      HasSubstr("msg=\"speculation is off\" reason=\"scheduler.max_num_batched_tokens is 4, "
                "the draft head needs 5 rows for a sequence; raise it\""));
  const ChatAnswer answer =
      Ask(server.port(), {.content = "Tell me about rivers.", .max_tokens = 20});
  EXPECT_EQ(answer.draft_tokens, 0);
  EXPECT_EQ(answer.entries.size(), 20u);
}

}  // namespace
}  // namespace skein::tests
