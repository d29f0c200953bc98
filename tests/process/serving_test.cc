// End to end with real processes: the recorded questions, streams, exactness whatever else runs,
// malformed requests, disconnects and overload.
#include <atomic>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/http/http_client.h"
#include "protocol/json/json.h"
#include "protocol/json/json_writer.h"
#include "tests/coordinator/malformed_cases.h"
#include "tests/process/chat_client.h"
#include "tests/process/live_server.h"
#include "tests/protocol/raw_connection.h"

namespace skein::tests {
namespace {

using protocol::JsonValue;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Beside a stream of this call, anything short happens in the middle.
const ChatCall kLongStream = {.content = "Tell me about rivers.", .max_tokens = 800};

ChatCall Question(std::string content) {
  return {.content = std::move(content), .logprobs = false};
}

// ---- questions

struct RecordedQuestion {
  std::string question;
  std::string must_contain;
  bool counts = false;  // the reference is right, by a margin above 1
};

std::vector<RecordedQuestion> ReadQuestions() {
  std::vector<RecordedQuestion> questions;
  std::ifstream file("tests/data/tiny-v41-goldens/questions.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = protocol::ParseJson(line);
    EXPECT_TRUE(json.ok()) << json.status();
    if (!json.ok()) continue;
    RecordedQuestion& question = questions.emplace_back();
    question.question = std::string(json->Find("question")->string());
    question.must_contain = std::string(json->Find("must_contain")->string());
    question.counts = json->Find("reference_right")->AsBool("reference_right").value() &&
                      json->Find("reference_min_margin")->AsDouble("margin").value() > 1;
  }
  return questions;
}

TEST(ServingTest, AnswersTheRecordedQuestions) {
  constexpr size_t kAtATime = 16;
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  const std::vector<RecordedQuestion> questions = ReadQuestions();
  ASSERT_EQ(questions.size(), 200u);
  std::vector<ChatAnswer> answers(questions.size());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> askers;
  for (size_t i = 0; i < kAtATime; ++i) {
    askers.emplace_back([&] {
      for (size_t at = next++; at < questions.size(); at = next++) {
        answers[at] = Ask(server.port(), Question(questions[at].question));
      }
    });
  }
  for (std::thread& asker : askers) asker.join();
  size_t total = 0;
  size_t right = 0;
  for (size_t i = 0; i < questions.size(); ++i) {
    EXPECT_EQ(answers[i].status, 200) << questions[i].question << answers[i].refusal;
    if (!questions[i].counts) continue;
    ++total;
    if (answers[i].text.find(questions[i].must_contain) != std::string::npos) {
      ++right;
    } else {
      std::printf("wrong: \"%s\" answered \"%s\"\n", questions[i].question.c_str(),
                  answers[i].text.c_str());
    }
  }
  std::printf("questions right=%zu total=%zu\n", right, total);
  EXPECT_GE(total, 100u);
  EXPECT_GE(right * 100, total * 98);
}

// The tiny model calls what it was shown, with the arguments of the question.
TEST(ServingTest, TheModelsOwnToolCallsComeBackAsCalls) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  const std::string head =
      R"({"messages":[{"role":"user","content":"What is the weather in Paris?"}],"temperature":0,)"
      R"("thinking":{"type":"disabled"},"tools":[{"type":"function","function":{"name":)"
      R"("get_weather","description":"Get the current weather for a city.","parameters":{"type":)"
      R"("object","properties":{"location":{"type":"string","description":"The city."}},)"
      R"("required":["location"]}}}],"stream":)";
  protocol::HttpCall call;
  call.port = server.port();
  call.method = "POST";
  call.target = "/v1/chat/completions";
  call.body = head + "false}";
  const auto whole = protocol::CallHttp(call);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_THAT(whole->body, HasSubstr(R"("content":null)"));
  EXPECT_THAT(whole->body, HasSubstr(R"("function":{"name":"get_weather","arguments":)"
                                     R"("{\"location\":\"Paris\"}"}}])"));
  EXPECT_THAT(whole->body, HasSubstr(R"("finish_reason":"tool_calls")"));
  call.body = head + "true}";
  std::string arguments, last;
  const auto streamed = protocol::CallHttpEvents(call, [&](std::string_view event) {
    const auto json = protocol::ParseJson(event);
    if (!json.ok()) return true;  // [DONE]
    last = event;
    const JsonValue* delta = json->Find("choices")->elements()[0].Find("delta");
    const JsonValue* calls = delta->Find("tool_calls");
    if (calls == nullptr) return true;
    for (const JsonValue& piece : calls->elements()) {
      arguments += piece.Find("function")->Find("arguments")->string();
    }
    return true;
  });
  ASSERT_TRUE(streamed.ok()) << streamed.status();
  EXPECT_EQ(arguments, R"({"location":"Paris"})");
  EXPECT_THAT(last, HasSubstr(R"("finish_reason":"tool_calls")"));
}

TEST(ServingTest, ReasoningHasBothNamesWhereThatIsWanted) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--reasoning-field", "both"})) << server.output();
  protocol::HttpCall call;
  call.port = server.port();
  call.method = "POST";
  call.target = "/v1/chat/completions";
  const std::string head =
      R"({"messages":[{"role":"user","content":"What is 12 plus 30?"}],"temperature":0,"stream":)";
  call.body = head + "false}";
  const auto whole = protocol::CallHttp(call);
  const auto answer = protocol::ParseJson(whole.value().body).value();
  const JsonValue* message = answer.Find("choices")->elements()[0].Find("message");
  const std::string reasoning(message->Find("reasoning_content")->string());
  EXPECT_EQ(message->Find("reasoning")->string(), reasoning);
  call.body = head + "true}";
  std::string streamed;
  const auto events = protocol::CallHttpEvents(call, [&](std::string_view event) {
    const auto json = protocol::ParseJson(event);
    if (!json.ok()) return true;  // [DONE]
    const JsonValue* delta = json->Find("choices")->elements()[0].Find("delta");
    if (const JsonValue* text = delta->Find("reasoning")) streamed += text->string();
    return true;
  });
  EXPECT_TRUE(events.ok() && !reasoning.empty() && streamed == reasoning) << streamed;
}

// The body of a chat about a capital, which the model answers with text when it may.
std::string DemandBody(const std::string& choice, bool drafts, bool greedy) {
  return R"({"messages":[{"role":"user","content":"What is the capital of Vietnam?"}],)"
         R"("max_tokens":160,"tools":[{"type":"function","function":{"name":"get_weather",)"
         R"("description":"Get the current weather for a city.","parameters":{"type":"object",)"
         R"("properties":{"location":{"type":"string"},"unit":{"type":"string"}},"required":)"
         R"(["location"]}}},{"type":"function","function":{"name":"calculator","parameters":)"
         R"({"type":"object","properties":{"expression":{"type":"string"}}}}}],"logprobs":true,)" +
         choice + (drafts ? "" : R"(,"speculation":{"enabled":false})") +
         (greedy ? R"(,"temperature":0})" : R"(,"temperature":0.9,"seed":5})");
}

// Every call is one of the declared functions with declared parameters, each once.
void ExpectDeclared(const JsonValue& calls, const std::string& only) {
  const std::map<std::string, std::set<std::string>> declared = {
      {"get_weather", {"location", "unit"}}, {"calculator", {"expression"}}};
  for (const JsonValue& call : calls.elements()) {
    const std::string name(call.Find("function")->Find("name")->string());
    ASSERT_TRUE(declared.contains(name)) << name;
    if (!only.empty()) {
      EXPECT_EQ(name, only);
    }
    const auto arguments = protocol::ParseJson(call.Find("function")->Find("arguments")->string());
    ASSERT_TRUE(arguments.ok()) << arguments.status();
    for (const auto& member : arguments->members()) {
      EXPECT_TRUE(declared.at(name).contains(member.key)) << name << " " << member.key;
    }
  }
}

// The value of the series of a metric whose labels contain `label`; -1 when there is none.
double CountOf(const LiveServer& server, std::string_view name, std::string_view label) {
  protocol::HttpCall call;
  call.port = server.port();
  call.target = "/metrics";
  const auto result = protocol::CallHttp(call);
  if (!result.ok()) return -1;
  std::istringstream lines(result->body);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name) || line.find(label) == std::string::npos) continue;
    return std::stod(line.substr(line.rfind(' ')));
  }
  return -1;
}

// rule: S5, G5
TEST(ServingTest, S5DemandedCallsComeAndDraftsChangeNothing) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  const struct {
    std::string fields, only;
    bool one = false;
  } cases[] = {
      {R"("tool_choice":"required","parallel_tool_calls":false)", "", true},
      {R"("tool_choice":{"type":"function","function":{"name":"calculator"}},)"
       R"("parallel_tool_calls":false)",
       "calculator", true},
      {R"("tool_choice":"required")", ""},
      {R"("tool_choice":"required","parallel_tool_calls":false,"thinking":{"type":"disabled"})", "",
       true},
  };
  size_t num_calls = 0;
  for (const auto& test : cases) {
    for (const bool greedy : {true, false}) {
      JsonValue message[2];
      for (const bool drafts : {false, true}) {
        protocol::HttpCall call;
        call.port = server.port();
        call.method = "POST";
        call.target = "/v1/chat/completions";
        call.body = DemandBody(test.fields, drafts, greedy);
        const auto answer = protocol::CallHttp(call);
        ASSERT_TRUE(answer.ok()) << answer.status();
        ASSERT_EQ(answer->status, 200) << answer->body;
        const JsonValue choice = protocol::ParseJson(answer->body)->Find("choices")->elements()[0];
        const JsonValue* calls = choice.Find("message")->Find("tool_calls");
        // A model this small may write a value to the end of its tokens.
        if (choice.Find("finish_reason")->string() != "length") {
          ASSERT_NE(calls, nullptr) << answer->body;
          if (test.one) {
            EXPECT_EQ(calls->elements().size(), 1u);
          }
        }
        if (calls != nullptr) {
          ExpectDeclared(*calls, test.only);
          num_calls += calls->elements().size();
        }
        message[drafts ? 1 : 0] = *choice.Find("logprobs");
      }
      EXPECT_EQ(protocol::WriteJson(message[0]), protocol::WriteJson(message[1])) << test.fields;
    }
  }
  EXPECT_GT(num_calls, 6u);
  EXPECT_GT(CountOf(server, "skein_spec_accepted_tokens_total", "method=\"provided\""), 0);
}

// The texts of the choices of a completion, by index.
std::vector<std::string> CompletionTexts(uint16_t port, const std::string& fields) {
  protocol::HttpCall call;
  call.port = port;
  call.method = "POST";
  call.target = "/v1/completions";
  call.body = R"({"max_tokens":12,"temperature":1,)" + fields + "}";
  const auto answer = protocol::CallHttp(call);
  EXPECT_TRUE(answer.ok() && answer->status == 200) << answer.status();
  std::vector<std::string> texts;
  const auto body = protocol::ParseJson(answer.ok() ? answer->body : "{}");
  for (const JsonValue& choice : body->Find("choices")->elements()) {
    EXPECT_EQ(choice.Find("index")->AsUint64("index").value(), texts.size());
    texts.emplace_back(choice.Find("text")->string());
  }
  return texts;
}

TEST(ServingTest, AChoiceEqualsTheRequestOfItsPromptAndSeed) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  std::vector<std::string> alone;
  for (const char* prompt : {"\"The\"", "[70,71,72]"}) {
    for (const char* seed : {"21", "22", "23"}) {
      alone.push_back(CompletionTexts(server.port(),
                                      R"("prompt":)" + std::string(prompt) + R"(,"seed":)" + seed)
                          .front());
    }
  }
  EXPECT_EQ(CompletionTexts(server.port(), R"("prompt":["The",[70,71,72]],"n":3,"seed":21)"),
            alone);
  EXPECT_GT(std::set<std::string>(alone.begin(), alone.end()).size(), 2u);
}

TEST(ServingTest, MinTokensAreGeneratedWithoutAnEndAmongThem) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  for (const char* drafts : {"true", "false"}) {
    protocol::HttpCall call;
    call.port = server.port();
    call.method = "POST";
    call.target = "/v1/chat/completions";
    call.body = R"({"messages":[{"role":"user","content":"What is the capital of Vietnam?"}],)"
                R"("temperature":0,"thinking":{"type":"disabled"},"min_tokens":40,"max_tokens":50,)"
                R"("return_token_ids":true,"speculation":{"enabled":)" +
                std::string(drafts) + "}}";
    const auto answer = protocol::CallHttp(call);
    ASSERT_TRUE(answer.ok() && answer->status == 200);
    const JsonValue choice = protocol::ParseJson(answer->body)->Find("choices")->elements()[0];
    const auto ids = choice.Find("token_ids")->elements();
    ASSERT_GE(ids.size(), 40u);
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      EXPECT_NE(ids[i].AsInt64("id").value(), 1) << "the end at " << i;
    }
  }
}

TEST(ServingTest, AMessageSaysWhatAChatSays) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  protocol::HttpCall call;
  call.port = server.port();
  call.method = "POST";
  const std::string body =
      R"({"messages":[{"role":"user","content":"What is the capital of Vietnam?"}],)"
      R"("max_tokens":60,"temperature":0,"thinking":{"type":"disabled"}})";
  call.body = body;
  call.target = "/v1/chat/completions";
  const auto chat = protocol::CallHttp(call);
  call.target = "/v1/messages";
  const auto message = protocol::CallHttp(call);
  ASSERT_TRUE(chat.ok() && message.ok());
  const auto of_chat = protocol::ParseJson(chat->body);
  const auto of_message = protocol::ParseJson(message->body);
  ASSERT_TRUE(of_chat.ok() && of_message.ok());
  const JsonValue& block = of_message->Find("content")->elements()[0];
  EXPECT_EQ(block.Find("text")->string(),
            of_chat->Find("choices")->elements()[0].Find("message")->Find("content")->string());
  EXPECT_THAT(std::string(block.Find("text")->string()), HasSubstr("Hanoi"));
  EXPECT_EQ(of_message->Find("stop_reason")->string(), "end_turn");
}

TEST(ServingTest, StreamsTheCapitalAndTheColour) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  const struct {
    const char* question;
    const char* answer;
  } cases[] = {{"What is the capital of Vietnam?", "Hanoi"}, {"天空是什么颜色？", "蓝色"}};
  for (const auto& test : cases) {
    ChatStream stream(server.port(), {.content = test.question});
    const ChatAnswer answer = stream.Join();
    EXPECT_THAT(answer.text, HasSubstr(test.answer));
    EXPECT_EQ(answer.finish_reason, "stop");
    EXPECT_TRUE(answer.is_done);
    EXPECT_EQ(answer, Ask(server.port(), {.content = test.question})) << "streamed or not";
  }
}

// ---- exactness

std::vector<ChatCall> ExactCalls() {
  std::string long_text = "Read this list and tell me which city is the capital of Vietnam:";
  for (int i = 0; i < 12; ++i) {
    long_text += " Hanoi, Paris, Berlin, Madrid, Rome, Tokyo, number " + std::to_string(i) + ";";
  }
  const std::string short_text = "Which river flows through Cairo?";
  return {{.content = short_text, .max_tokens = 40},
          {.content = short_text, .temperature = 0.8, .seed = 7, .max_tokens = 40},
          {.content = long_text, .max_tokens = 40},
          {.content = long_text, .temperature = 0.8, .seed = 7, .max_tokens = 40}};
}

std::vector<ChatAnswer> AskOneByOne(uint16_t port, const std::vector<ChatCall>& calls) {
  std::vector<ChatAnswer> answers;
  for (const ChatCall& call : calls) answers.push_back(Ask(port, call));
  return answers;
}

std::vector<ChatAnswer> AskTogether(uint16_t port, const std::vector<ChatCall>& calls) {
  std::vector<std::unique_ptr<ChatStream>> streams;
  for (const ChatCall& call : calls) streams.push_back(std::make_unique<ChatStream>(port, call));
  std::vector<ChatAnswer> answers;
  for (const auto& stream : streams) answers.push_back(stream->Join());
  return answers;
}

void ExpectSame(const std::vector<ChatAnswer>& actual, const std::vector<ChatAnswer>& expected,
                std::string_view what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i], expected[i]) << what << ", call " << i;
  }
}

// The answers of a server with default flags to calls that ran alone.
std::vector<ChatAnswer> AnswersAlone() {
  LiveServer server;
  EXPECT_TRUE(server.StartReady()) << server.output();
  std::vector<ChatAnswer> answers = AskOneByOne(server.port(), ExactCalls());
  for (const ChatAnswer& answer : answers) {
    EXPECT_EQ(answer.status, 200) << answer.refusal;
    EXPECT_EQ(answer.entries.size(), 40u);
    EXPECT_EQ(answer.finish_reason, "length");
  }
  EXPECT_GE(answers[2].prompt_tokens, 150);
  EXPECT_NE(answers[0].text, answers[1].text) << "the seed does something";
  return answers;
}

// rule: DT1
TEST(ServingTest, SixteenOthersChangeNoBit) {
  const std::vector<ChatAnswer> alone = AnswersAlone();
  for (const char* lanes : {"1", "2"}) {
    LiveServer server;
    ASSERT_TRUE(server.StartReady({"--lanes", lanes})) << server.output();
    const auto others = OpenStreams(server.port(), kLongStream, 16);
    for (const auto& other : others) ASSERT_TRUE(other->WaitTokens(1)) << server.output();
    ExpectSame(AskOneByOne(server.port(), ExactCalls()), alone, std::string("lanes ") + lanes);
    ExpectSame(AskTogether(server.port(), ExactCalls()), alone, std::string("lanes ") + lanes);
    for (const auto& other : others) EXPECT_FALSE(other->ended()) << "they ran all the time";
  }
}

struct ServingFlags {
  std::string name;
  std::vector<std::string> flags;
};
void PrintTo(const ServingFlags& flags, std::ostream* out) { *out << flags.name; }

class ServingFlagsTest : public ::testing::TestWithParam<ServingFlags> {};

TEST_P(ServingFlagsTest, ChunksThreadsLanesAndWorkersChangeNoBit) {
  const std::vector<ChatAnswer> alone = AnswersAlone();
  std::vector<std::string> flags = GetParam().flags;
  flags.insert(flags.end(), {"--max-num-queued-tokens", "100000"});
  LiveServer server;
  ASSERT_TRUE(server.StartReady(flags)) << server.output();
  ExpectSame(AskOneByOne(server.port(), ExactCalls()), alone, "one by one");
  ExpectSame(AskTogether(server.port(), ExactCalls()), alone, "together");
}

// A step has room for a token of every running sequence, so small ones run few.
INSTANTIATE_TEST_SUITE_P(
    Flags, ServingFlagsTest,
    ::testing::Values(
        ServingFlags{"Tokens1Threads2Lanes1",
                     {"--max-num-batched-tokens", "1", "--max-num-seqs", "1", "--threads", "2",
                      "--lanes", "1"}},
        ServingFlags{"Tokens7Threads1Lanes2",
                     {"--max-num-batched-tokens", "7", "--max-num-seqs", "4", "--threads", "1",
                      "--lanes", "2"}},
        ServingFlags{"Tokens64Threads1Lanes1",
                     {"--max-num-batched-tokens", "64", "--threads", "1", "--lanes", "1"}},
        ServingFlags{"Tokens64Threads2Lanes2",
                     {"--max-num-batched-tokens", "64", "--threads", "2", "--lanes", "2"}},
        ServingFlags{"Tokens512Threads2Lanes2",
                     {"--max-num-batched-tokens", "512", "--threads", "2", "--lanes", "2"}},
        ServingFlags{"Tokens64Threads1Lanes1Workers2",
                     {"--max-num-batched-tokens", "64", "--threads", "1", "-dp", "2"}},
        ServingFlags{"Tokens512Threads2Lanes2Workers2",
                     {"--threads", "2", "--lanes", "2", "--data-parallel-size", "2"}}),
    [](const auto& flags) { return flags.param.name; });

// ---- refusals beside streams

void ExpectRefused(uint16_t port, const MalformedCase& test) {
  protocol::HttpCall call;
  call.port = port;
  call.method = "POST";
  call.target = test.path;
  call.body = test.body;
  const auto result = protocol::CallHttp(call);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->status, test.status) << test.body << "\n" << result->body;
  const auto body = protocol::ParseJson(result->body);
  ASSERT_TRUE(body.ok()) << result->body;
  const JsonValue* error = body->Find("error");
  ASSERT_NE(error, nullptr) << result->body;
  EXPECT_EQ(error->Find("code")->string(), test.code) << test.body;
  EXPECT_EQ(error->Find("param")->IsNull(), test.param.empty()) << result->body;
  EXPECT_EQ(error->Find("param")->string(), test.param) << test.body;
  const std::string message(error->Find("message")->string());
  EXPECT_THAT(message, HasSubstr(test.detail)) << test.body;
  EXPECT_EQ(message.find("secret words"), std::string::npos) << message;
}

TEST(ServingTest, MalformedRequestsDisturbNoStream) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  const ChatAnswer undisturbed = Ask(server.port(), kLongStream);
  ASSERT_EQ(undisturbed.entries.size(), 800u);
  const int coordinator = server.Find("skein-coordinator").pid();
  const int worker = server.Find("skein-worker").pid();
  const auto streams = OpenStreams(server.port(), kLongStream, 8);
  for (const auto& stream : streams) ASSERT_TRUE(stream->WaitTokens(1));
  const std::vector<MalformedCase> cases = MalformedCases();
  EXPECT_GE(cases.size(), 40u);
  for (const MalformedCase& test : cases) ExpectRefused(server.port(), test);
  for (const auto& stream : streams) EXPECT_FALSE(stream->ended()) << "they ran all the time";
  for (const auto& stream : streams) {
    const ChatAnswer answer = stream->Join();
    EXPECT_TRUE(answer.is_done);
    EXPECT_EQ(answer, undisturbed);
  }
  EXPECT_EQ(server.Find("skein-coordinator").pid(), coordinator);
  EXPECT_EQ(server.Find("skein-worker").pid(), worker);
  EXPECT_GE(server.Metric("skein_bad_request_total"), 40);
}

// ---- disconnects

std::string RawRequest(const ChatCall& call, Streaming streaming) {
  const std::string body = ChatBody(call, streaming);
  return "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
         "Content-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

// rule: A5, AB1
TEST(ServingTest, AClientThatLeavesEndsItsRequest) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  EXPECT_EQ(server.Metric("skein_client_disconnects_total"), 0);

  ChatStream stream(server.port(), kLongStream);
  ASSERT_TRUE(stream.WaitTokens(3));
  EXPECT_EQ(server.Metric("skein_requests_running"), 1);
  stream.Leave();
  EXPECT_TRUE(server.WaitForMetric("skein_requests_running", 0));
  EXPECT_TRUE(server.WaitForMetric("skein_client_disconnects_total{phase=\"decode\"}", 1));
  EXPECT_LT(stream.Join().entries.size(), 800u);

  RawConnection whole(server.port());
  whole.Send(RawRequest(kLongStream, Streaming::kNo));
  EXPECT_TRUE(server.WaitForMetric("skein_requests_running", 1));
  whole.Close();
  EXPECT_TRUE(server.WaitForMetric("skein_client_disconnects_total", 2));
  EXPECT_TRUE(server.WaitForMetric("skein_requests_running", 0));
  EXPECT_LT(server.Metric("skein_generation_tokens_total"), 2 * 800);
  EXPECT_THAT(Ask(server.port(), Question("What is the capital of Vietnam?")).text,
              HasSubstr("Hanoi"));
}

TEST(ServingTest, AClientThatLeavesTheQueueIsForgotten) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--max-num-seqs", "1"})) << server.output();
  const ChatAnswer undisturbed = Ask(server.port(), kLongStream);
  ChatStream running(server.port(), kLongStream);
  ASSERT_TRUE(running.WaitTokens(1));
  const double prompt_tokens = server.Metric("skein_prompt_tokens_total");
  EXPECT_GT(prompt_tokens, 0);
  for (const Streaming streaming : {Streaming::kNo, Streaming::kYes}) {
    RawConnection waiting(server.port());
    waiting.Send(RawRequest(kLongStream, streaming));
    EXPECT_TRUE(server.WaitForMetric("skein_requests_waiting", 1));
    waiting.Close();
    EXPECT_TRUE(server.WaitForMetric("skein_requests_waiting", 0));
  }
  EXPECT_EQ(server.Metric("skein_client_disconnects_total{phase=\"queued\"}"), 2);
  EXPECT_GE(server.Metric("skein_actor_mailbox_depth"), 0);
  EXPECT_GE(server.Metric("skein_feature"), 10) << "a state for each feature of the host";
  EXPECT_EQ(server.Metric("skein_prompt_tokens_total"), prompt_tokens) << "neither had a step";
  EXPECT_FALSE(running.ended()) << "all of this happened beside it";
  EXPECT_EQ(running.Join(), undisturbed);
  EXPECT_EQ(server.Metric("skein_generation_tokens_total"), 2 * 800) << "none for nobody";
}

// ---- overload

// rule: A1, AB6
TEST(ServingTest, OverloadIsRefusedAndTheRestIsExact) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--max-num-seqs", "1", "--max-num-queued-reqs", "2"}))
      << server.output();
  const ChatCall call = {.content = "Tell me about rivers.", .max_tokens = 400};
  const ChatAnswer undisturbed = Ask(server.port(), call);
  ASSERT_EQ(undisturbed.entries.size(), 400u);
  std::vector<std::unique_ptr<ChatStream>> accepted;
  accepted.push_back(std::make_unique<ChatStream>(server.port(), call));
  ASSERT_TRUE(accepted[0]->WaitTokens(1)) << "it runs";
  for (int i = 0; i < 2; ++i) {
    accepted.push_back(std::make_unique<ChatStream>(server.port(), call));
    ASSERT_TRUE(accepted.back()->WaitAccepted()) << "it waits";
  }
  EXPECT_TRUE(server.WaitForMetric("skein_requests_waiting_by_reason{reason=\"capacity\"}", 2));
  for (int i = 0; i < 5; ++i) {
    const ChatAnswer refused = Ask(server.port(), call);
    EXPECT_EQ(refused.status, 503);
    EXPECT_THAT(refused.refusal, HasSubstr("2 requests wait, at most 2 may; retry later"));
    EXPECT_THAT(refused.refusal, HasSubstr("\"code\":\"server_overloaded\""));
    EXPECT_GE(std::strtol(refused.retry_after.c_str(), nullptr, 10), 1);
  }
  EXPECT_FALSE(accepted[0]->ended()) << "all of this happened beside it";
  for (const auto& stream : accepted) EXPECT_EQ(stream->Join(), undisturbed);
  EXPECT_EQ(server.Metric("skein_admission_rejections_total"), 5);
  EXPECT_TRUE(server.WaitForMetric("skein_requests_waiting", 0));
}

}  // namespace
}  // namespace skein::tests
