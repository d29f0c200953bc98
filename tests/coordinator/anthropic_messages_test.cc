// Tests of requests in the Anthropic form, and of their answers over HTTP.
// Thread: the test's, beside the listener's and the control loop's.
// Must never: wait for time to pass without a condition.
#include "coordinator/api/anthropic_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/json/json_writer.h"
#include "tests/coordinator/api_fixture.h"

namespace skein::coordinator {
namespace {

using protocol::JsonValue;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kPath[] = "/v1/messages";
constexpr char kTools[] =
    R"("tools":[{"name":"get_weather","description":"Weather.","input_schema":{"type":"object",)"
    R"("properties":{"location":{"type":"string"}},"required":["location"]}},{"name":"note"}])";

const RequestLimits kLimits = {4096, 4096, 20};

ApiOr<ChatRequest> Parse(const std::string& body, MessagesUse use = MessagesUse::kAnswer) {
  return ParseMessagesRequest(protocol::ParseJson(body).value(), kLimits, use);
}
ChatRequest Good(const std::string& body) {
  auto parsed = Parse(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << error->message << " in " << body;
    return {};
  }
  return std::get<ChatRequest>(std::move(parsed));
}
std::string Body(const std::string& fields, const std::string& content = "\"go on\"") {
  return R"({"max_tokens":400,"messages":[{"role":"user","content":)" + content + "}]" +
         (fields.empty() ? "" : ",") + fields + "}";
}

TEST(AnthropicMessagesTest, ReadsTurnsOfEveryBlock) {
  const ChatRequest request = Good(
      R"({"model":"m","max_tokens":9,"system":[{"type":"text","text":"s","cache_control":{"type":)"
      R"("ephemeral"}},{"type":"text","text":"t"}],"messages":[{"role":"user","content":"a"},)"
      R"({"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"},)"
      R"({"type":"text","text":"b"},{"type":"tool_use","id":"c1","name":"f","input":{"x":[1]}}]},)"
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":[{"type":)"
      R"("text","text":"r"}]},{"type":"text","text":"d"},{"type":"text","text":"e"}]}],)"
      R"("stop_sequences":["x","y"],"top_k":5,"temperature":0.5,"metadata":{"user_id":"u"}})");
  const auto& messages = request.conversation.messages;
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0].role, ChatRole::kSystem);
  EXPECT_EQ(messages[0].content, "s\n\nt");
  EXPECT_EQ(messages[2].reasoning_content, "hm");
  EXPECT_EQ(messages[2].content, "b");
  EXPECT_EQ(messages[2].tool_calls[0].id, "c1");
  EXPECT_EQ(messages[3].role, ChatRole::kTool);
  EXPECT_EQ(messages[3].tool_call_id, "c1");
  EXPECT_EQ(messages[3].content, "r");
  EXPECT_EQ(messages[4].content, "d\n\ne");
  EXPECT_THAT(request.params.stop_strings.strings, ElementsAre("x", "y"));
  EXPECT_EQ(request.params.max_tokens, 9);
  EXPECT_EQ(request.params.sampling.top_k, 5);
  EXPECT_EQ(request.conversation.thinking, ThinkingMode::kEnabled);
  EXPECT_TRUE(request.unknown_fields.empty());
}

TEST(AnthropicMessagesTest, ThinkingAndEffortAreThoseOfTheChatForm) {
  EXPECT_EQ(Good(Body(R"("thinking":{"type":"disabled"})")).conversation.thinking,
            ThinkingMode::kDisabled);
  const ChatRequest request = Good(Body(
      R"("thinking":{"type":"enabled","budget_tokens":1024},"output_config":{"effort":"low"})"));
  EXPECT_EQ(request.conversation.thinking, ThinkingMode::kEnabled);
  EXPECT_EQ(request.conversation.reasoning_effort, 50);
}

// rule: S5
TEST(AnthropicMessagesTest, ToolsAndTheirChoice) {
  const auto with = [](const std::string& choice) {
    return Good(Body(std::string(kTools) + R"(,"tool_choice":)" + choice));
  };
  const ChatRequest may = Good(Body(kTools));
  ASSERT_EQ(may.tools.size(), 2u);
  EXPECT_THAT(may.tools[0].required, ElementsAre("location"));
  EXPECT_THAT(may.conversation.tool_schemas[0],
              StartsWith(R"({"name": "get_weather", "description": "Weather.", "parameters": {)"));
  EXPECT_FALSE(may.demands_calls);
  EXPECT_TRUE(with(R"({"type":"any"})").demands_calls);
  EXPECT_TRUE(with(R"({"type":"auto","disable_parallel_tool_use":true})").one_call);
  EXPECT_TRUE(with(R"({"type":"none"})").tools.empty());
  const ChatRequest named = with(R"({"type":"tool","name":"note"})");
  EXPECT_TRUE(named.demands_calls);
  ASSERT_EQ(named.tools.size(), 1u);
  EXPECT_EQ(named.tools[0].name, "note");
}

TEST(AnthropicMessagesTest, BillingLinesAreRemovedFromTheSystemText) {
  EXPECT_EQ(WithoutBillingLines("x-anthropic-billing-header: a\nYou are b.\n"), "You are b.\n");
  EXPECT_EQ(WithoutBillingLines("a\nx-anthropic-billing-header: c"), "a\n");
  EXPECT_EQ(WithoutBillingLines("say x-anthropic-billing-header"),
            "say x-anthropic-billing-header");
  EXPECT_TRUE(
      Good(Body(R"("system":"x-anthropic-billing-header: 1")")).conversation.messages[0].role ==
      ChatRole::kUser);
}

// rule: PC4
TEST(AnthropicMessagesTest, PC4MarksOfCacheControlChangeNothing) {
  const ChatRequest plain = Good(Body(kTools, R"([{"type":"text","text":"a"}])"));
  std::string marked_tools = kTools;
  marked_tools.insert(marked_tools.find("\"name\""), R"("cache_control":{"type":"ephemeral"},)");
  const ChatRequest marked = Good(
      Body(marked_tools, R"([{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}])"));
  EXPECT_EQ(plain.conversation.tool_schemas, marked.conversation.tool_schemas);
  EXPECT_EQ(plain.conversation.messages[0].content, marked.conversation.messages[0].content);
}

// rule: R2.2
TEST(AnthropicMessagesTest, R22EachErrorNamesItsField) {
  const struct {
    std::string body, param, text;
  } cases[] = {
      {R"({"messages":[{"role":"user","content":"a"}]})", "max_tokens", "is missing"},
      {R"({"max_tokens":1})", "messages", "is missing"},
      {R"({"max_tokens":1,"messages":[]})", "messages", "has 0 messages"},
      {R"({"max_tokens":1,"messages":[{"role":"system","content":"a"}]})", "messages[0].role",
       "\"system\""},
      {R"({"max_tokens":1,"messages":[{"role":"assistant","content":"a"}]})", "messages[0]",
       "is an assistant message"},
      {Body("", R"([{"type":"image"}])"), "messages[0].content[0].type", "\"image\""},
      {Body("", R"([{"type":"text"}])"), "messages[0].content[0].text", "is missing"},
      {Body("", "7"), "messages[0].content", "is an integer"},
      {Body("", R"([{"type":"tool_result","tool_use_id":"x"}])"),
       "messages[0].content[0].tool_use_id", "names no call"},
      {Body(R"("tools":[{"name":"a b"}])"), "tools[0].name", "1 to 64 characters"},
      {Body(R"("tools":[{"type":"web_search_20250305","name":"w"}])"), "tools[0].type",
       "web_search"},
      {Body(R"("tools":[{"name":"a","input_schema":{"required":[1]}}])"),
       "tools[0].input_schema.required[0]", "is an integer"},
      {Body(R"("tool_choice":{"type":"any"})"), "tool_choice.type", "there are no tools"},
      {Body(std::string(kTools) + R"(,"tool_choice":{"type":"tool","name":"x"})"),
       "tool_choice.name", "names no tool"},
      {Body(R"("tool_choice":{"type":"must"})"), "tool_choice.type", "\"must\""},
      {Body(R"("thinking":{"type":"maybe"})"), "thinking.type", "\"maybe\""},
      {Body(R"("output_config":{"effort":"some"})"), "output_config.effort", "\"some\""},
      {Body(R"("stop_sequences":["a","b","c","d","e"])"), "stop_sequences", "has 5 strings"},
      {Body(R"("stop_sequences":[""])"), "stop_sequences[0]", "has 0 bytes"},
      {Body(R"("n":2)"), "n", "one answer"},
      {Body(R"("prompt_logprobs":0)"), "prompt_logprobs", "none of it"},
      {Body(R"("logprobs":true)"), "logprobs", "has none of it"},
  };
  for (const auto& test : cases) {
    const auto parsed = Parse(test.body);
    ASSERT_TRUE(std::holds_alternative<ApiError>(parsed)) << test.body;
    const ApiError& error = std::get<ApiError>(parsed);
    EXPECT_EQ(error.status, 400) << test.body;
    EXPECT_EQ(error.param, test.param) << test.body;
    EXPECT_THAT(error.message, HasSubstr(test.text)) << test.body;
  }
}

// ---- over HTTP

struct MessageEvent {
  std::string name;
  JsonValue data;
};

class MessagesTest : public ApiFixture {
 protected:
  MessagesTest()
      : ApiFixture(
            "hm</think>I look.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n"
            "<｜DSML｜ parameter name=\"location\" string=\"true\">Hà Nội</｜DSML｜ parameter>\n"
            "</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"note\">\n\n</｜DSML｜ invoke>\n"
            "</｜DSML｜ calls>") {}

  // The events of a streamed message with their names, from the bytes of the body.
  std::vector<MessageEvent> Streamed(const std::string& fields) {
    const protocol::HttpResult result = Post(kPath, Body(fields + R"(,"stream":true)"));
    std::vector<MessageEvent> events;
    std::string_view rest = result.body;
    while (!rest.empty()) {
      const std::string_view event = rest.substr(0, rest.find("\n\n"));
      rest.remove_prefix(std::min(rest.size(), event.size() + 2));
      if (!event.starts_with("event: ")) {
        ADD_FAILURE() << event;
        break;
      }
      const size_t line = event.find('\n');
      MessageEvent& read = events.emplace_back();
      read.name = event.substr(7, line - 7);
      read.data = protocol::ParseJson(event.substr(line + 7)).value();
      EXPECT_EQ(read.data.Find("type")->string(), read.name);
    }
    return events;
  }
};

TEST_F(MessagesTest, AWholeMessageHasItsBlocks) {
  const protocol::HttpResult result = Post(kPath, Body(kTools));
  ASSERT_EQ(result.status, 200) << result.body;
  EXPECT_THAT(TextAt(result.body, {"id"}), StartsWith("msg_"));
  EXPECT_EQ(TextAt(result.body, {"type"}), "message");
  EXPECT_EQ(TextAt(result.body, {"role"}), "assistant");
  EXPECT_EQ(At(result.body, {"content"}).elements().size(), 4u);
  EXPECT_EQ(TextAt(result.body, {"content", "0", "thinking"}), "hm");
  EXPECT_FALSE(TextAt(result.body, {"content", "0", "signature"}).empty());
  EXPECT_EQ(TextAt(result.body, {"content", "1", "text"}), "I look.");
  EXPECT_EQ(TextAt(result.body, {"content", "2", "name"}), "get_weather");
  EXPECT_EQ(TextAt(result.body, {"content", "2", "input", "location"}), "Hà Nội");
  EXPECT_EQ(protocol::WriteJson(At(result.body, {"content", "3", "input"})), "{}");
  EXPECT_EQ(TextAt(result.body, {"stop_reason"}), "tool_use");
  EXPECT_TRUE(At(result.body, {"stop_sequence"}).IsNull());
  EXPECT_EQ(IntAt(result.body, {"usage", "input_tokens"}),
            static_cast<int64_t>(control_.TakeSubmitted().prompt_ids.size()));
  EXPECT_EQ(IntAt(result.body, {"usage", "cache_read_input_tokens"}), 0);
  EXPECT_GT(IntAt(result.body, {"usage", "output_tokens"}), 20);
}

TEST_F(MessagesTest, EventsOfAStreamComeInTheirOrder) {
  for (const size_t burst : {1, 4, 64}) {
    control_.SetBurst(burst);
    const std::vector<MessageEvent> events = Streamed(kTools);
    ASSERT_GT(events.size(), 10u);
    EXPECT_EQ(events[0].name, "message_start");
    EXPECT_EQ(events[1].name, "ping");
    EXPECT_EQ(events[events.size() - 2].name, "message_delta");
    EXPECT_EQ(events.back().name, "message_stop");
    std::vector<std::string> blocks, texts;
    bool is_open = false;
    for (size_t i = 2; i + 2 < events.size(); ++i) {
      const JsonValue& data = events[i].data;
      const int64_t index = data.Find("index")->AsInt64("index").value();
      if (events[i].name == "content_block_start") {
        EXPECT_FALSE(is_open) << "a block inside another";
        EXPECT_EQ(index, static_cast<int64_t>(blocks.size()));
        blocks.emplace_back(data.Find("content_block")->Find("type")->string());
        texts.emplace_back();
        is_open = true;
      } else if (events[i].name == "content_block_stop") {
        EXPECT_EQ(index + 1, static_cast<int64_t>(blocks.size()));
        is_open = false;
      } else {
        EXPECT_TRUE(is_open);
        const JsonValue* delta = data.Find("delta");
        for (const char* member : {"thinking", "text", "partial_json"}) {
          if (const JsonValue* text = delta->Find(member)) texts.back() += text->string();
        }
      }
    }
    EXPECT_THAT(blocks, ElementsAre("thinking", "text", "tool_use", "tool_use"));
    EXPECT_THAT(texts, ElementsAre("hm", "I look.", R"({"location":"Hà Nội"})", "{}"));
    const JsonValue& last = events[events.size() - 2].data;
    EXPECT_EQ(last.Find("delta")->Find("stop_reason")->string(), "tool_use");
    EXPECT_GT(last.Find("usage")->Find("output_tokens")->AsInt64("tokens").value(), 20);
  }
}

TEST_F(MessagesTest, StopReasonsAreThoseOfTheForm) {
  answer_ = "hm</think>one two three";
  EXPECT_EQ(TextAt(Post(kPath, Body("")).body, {"stop_reason"}), "end_turn");
  const protocol::HttpResult stopped = Post(kPath, Body(R"("stop_sequences":[" two"])"));
  EXPECT_EQ(TextAt(stopped.body, {"stop_reason"}), "stop_sequence");
  EXPECT_EQ(TextAt(stopped.body, {"stop_sequence"}), " two");
  std::string cut = Body("");
  cut.replace(cut.find("400"), 3, "2");
  EXPECT_EQ(TextAt(Post(kPath, cut).body, {"stop_reason"}), "max_tokens");
}

TEST_F(MessagesTest, ACallIsReplayedToTheByte) {
  const protocol::HttpResult first = Post(kPath, Body(kTools));
  const std::string id = TextAt(first.body, {"content", "2", "id"});
  while (control_.num_submitted() > 0) control_.TakeSubmitted();
  Post(kPath,
       R"({"max_tokens":50,"messages":[{"role":"user","content":"go on"},{"role":"assistant",)"
       R"("content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":)"
       R"("I look."},{"type":"tool_use","id":")" +
           id + R"(","name":"get_weather","input":{"location":"Hà Nội"}}]},{"role":"user",)" +
           R"("content":[{"type":"tool_result","tool_use_id":")" + id + R"(","content":"30"}]}],)" +
           kTools + "}");
  const std::string prompt = TinyTokenizer().Decode(control_.TakeSubmitted().prompt_ids).value();
  EXPECT_THAT(prompt, HasSubstr("<think>hm</think>I look.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke "
                                "name=\"get_weather\">\n<｜DSML｜ parameter name=\"location\" "
                                "string=\"true\">Hà Nội</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n"
                                "</｜DSML｜ calls>"));
  EXPECT_THAT(prompt, HasSubstr("<tool_result>30</tool_result>"));
}

TEST_F(MessagesTest, CountsTokensAsTheAnswerWould) {
  const std::string body = Body(std::string(kTools) + R"(,"system":"s")");
  const protocol::HttpResult counted = Post("/v1/messages/count_tokens", body);
  ASSERT_EQ(counted.status, 200) << counted.body;
  EXPECT_EQ(control_.num_submitted(), 0u);
  Post(kPath, body);
  EXPECT_EQ(IntAt(counted.body, {"input_tokens"}),
            static_cast<int64_t>(control_.TakeSubmitted().prompt_ids.size()));
  EXPECT_EQ(
      Post("/v1/messages/count_tokens", R"({"messages":[{"role":"user","content":"a"}]})").status,
      200)
      << "without max_tokens";
}

TEST_F(MessagesTest, ErrorsHaveTheFormOfTheRoute) {
  const protocol::HttpResult bad = Post(kPath, R"({"max_tokens":1})");
  EXPECT_EQ(bad.status, 400);
  EXPECT_EQ(TextAt(bad.body, {"type"}), "error");
  EXPECT_EQ(TextAt(bad.body, {"error", "type"}), "invalid_request_error");
  const protocol::HttpResult missing = Post(kPath, Body(R"("model":"other")"));
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(TextAt(missing.body, {"error", "type"}), "not_found_error");
  control_.Refuse(absl::ResourceExhaustedError("full"));
  const protocol::HttpResult full = Post(kPath, Body(""));
  EXPECT_EQ(full.status, 529);
  EXPECT_EQ(TextAt(full.body, {"error", "type"}), "overloaded_error");
  control_.Refuse(absl::OkStatus());
  control_.Fail(absl::InternalError("broken"));
  const std::vector<MessageEvent> events = Streamed(kTools);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().name, "error");
  EXPECT_EQ(events.back().data.Find("error")->Find("type")->string(), "api_error");
  for (const MessageEvent& event : events) EXPECT_NE(event.name, "message_stop");
}

}  // namespace
}  // namespace skein::coordinator
