// Tests of tool calls over HTTP: answers, streams, replays and counts.
// Thread: the test's, beside the listener's and the control loop's.
// Must never: wait for time to pass without a condition.
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/json/json_writer.h"
#include "tests/coordinator/api_fixture.h"

namespace skein::coordinator {
namespace {

using protocol::JsonValue;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kPath[] = "/v1/chat/completions";
constexpr char kTools[] =
    R"("tools":[{"type":"function","function":{"name":"get_weather","description":"Weather.",)"
    R"("parameters":{"type":"object","properties":{"location":{"type":"string"}},)"
    R"("required":["location"]}}},{"type":"function","function":{"name":"calculator"}}])";
constexpr char kCalls[] =
    "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n<｜DSML｜ parameter "
    "name=\"location\" string=\"true\">Hà \"Nội\"</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n"
    "<｜DSML｜ invoke name=\"calculator\">\n<｜DSML｜ parameter name=\"x\" string=\"false\">[1.50, "
    "2]</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

std::string Body(std::string_view fields, std::string_view more_messages = "") {
  return R"({"messages":[{"role":"user","content":"go on"})" + std::string(more_messages) +
         R"(],"thinking":{"type":"disabled"},)" + std::string(fields) + "}";
}

struct StreamedCall {
  std::string id, name, arguments;
};
struct StreamedAnswer {
  std::string content, reasoning, finish;
  std::vector<StreamedCall> calls;
};

// Reads a stream as a strict client does.
StreamedAnswer Read(const std::vector<std::string>& events) {
  StreamedAnswer answer;
  EXPECT_EQ(events.back(), "[DONE]");
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const JsonValue choice = At(event, {"choices", "0"});
    const JsonValue* delta = choice.Find("delta");
    if (const JsonValue* text = delta->Find("content")) answer.content += text->string();
    if (const JsonValue* text = delta->Find("reasoning_content"))
      answer.reasoning += text->string();
    if (choice.Find("finish_reason")->IsString()) {
      answer.finish += choice.Find("finish_reason")->string();
    }
    const JsonValue* calls = delta->Find("tool_calls");
    if (calls == nullptr) continue;
    for (const JsonValue& call : calls->elements()) {
      const JsonValue* function = call.Find("function");
      const auto index = call.Find("index")->AsUint64("index").value();
      const std::string arguments(function->Find("arguments")->string());
      if (call.Find("id") != nullptr) {
        EXPECT_EQ(index, answer.calls.size());
        EXPECT_EQ(call.Find("type")->string(), "function");
        EXPECT_EQ(arguments, "");
        answer.calls.push_back({std::string(call.Find("id")->string()),
                                std::string(function->Find("name")->string()),
                                {}});
      } else {
        EXPECT_EQ(function->Find("name"), nullptr);
      }
      answer.calls.at(index).arguments += arguments;
    }
  }
  return answer;
}

class ToolCallsTest : public ApiFixture {
 protected:
  ToolCallsTest() : ApiFixture(std::string("I look.") + kCalls) {}
  std::string PromptOf(const std::string& body) {
    while (control_.num_submitted() > 0) control_.TakeSubmitted();
    Post(kPath, body);
    return TinyTokenizer().Decode(control_.TakeSubmitted().prompt_ids).value();
  }
  size_t Count(const std::string& event) {
    const std::vector<std::string> events = Events();
    return static_cast<size_t>(std::count(events.begin(), events.end(), event));
  }
};

// rule: S8, S11, R3.4
TEST_F(ToolCallsTest, S11AWholeAnswerHasTheCalls) {
  const protocol::HttpResult result = Post(kPath, Body(kTools));
  ASSERT_EQ(result.status, 200) << result.body;
  const std::vector<std::string> message = {"choices", "0", "message"};
  const JsonValue calls = At(result.body, {"choices", "0", "message", "tool_calls"});
  ASSERT_EQ(calls.elements().size(), 2u);
  std::set<std::string> ids;
  for (const JsonValue& call : calls.elements()) {
    const std::string id(call.Find("id")->string());
    EXPECT_THAT(id, ::testing::MatchesRegex("call_[A-Za-z0-9]+"));
    EXPECT_EQ(id.size(), 29u);
    ids.insert(id);
    EXPECT_EQ(call.Find("type")->string(), "function");
  }
  EXPECT_EQ(ids.size(), 2u);
  EXPECT_EQ(protocol::WriteJson(*calls.elements()[0].Find("function")),
            R"({"name":"get_weather","arguments":"{\"location\":\"Hà \\\"Nội\\\"\"}"})");
  EXPECT_EQ(protocol::WriteJson(*calls.elements()[1].Find("function")),
            R"({"name":"calculator","arguments":"{\"x\":[1.50, 2]}"})");
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "message", "content"}), "I look.");
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "finish_reason"}), "tool_calls");
}

// rule: S7, R3.4 — a call without wrapper ends no block; the turn ends by its stop token.
TEST_F(ToolCallsTest, R34ACallWithoutWrapperEndsTheTurnWithToolCalls) {
  answer_ =
      "<｜DSML｜ invoke name=\"get_weather\">\n<｜DSML｜ parameter name=\"location\" "
      "string=\"true\">Paris</｜DSML｜ parameter>\n</｜DSML｜ invoke>";
  const protocol::HttpResult whole = Post(kPath, Body(kTools));
  EXPECT_EQ(TextAt(whole.body, {"choices", "0", "finish_reason"}), "tool_calls");
  const StreamedAnswer streamed =
      Read(Stream(kPath, Body(std::string(kTools) + R"(,"stream":true)")));
  EXPECT_EQ(streamed.finish, "tool_calls");
  ASSERT_EQ(streamed.calls.size(), 1u);
  EXPECT_EQ(streamed.calls[0].arguments, R"({"location":"Paris"})");
}

// rule: R3.3, R3.4, S9
TEST_F(ToolCallsTest, S9AStreamHasTheSameCallsWhateverTheStep) {
  for (const size_t burst : {1, 2, 3, 5, 7, 64}) {
    control_.SetBurst(burst);
    const StreamedAnswer answer =
        Read(Stream(kPath, Body(std::string(kTools) + R"(,"stream":true)")));
    EXPECT_EQ(answer.content, "I look.");
    EXPECT_EQ(answer.finish, "tool_calls");
    ASSERT_EQ(answer.calls.size(), 2u) << burst;
    EXPECT_EQ(answer.calls[0].name, "get_weather");
    EXPECT_EQ(answer.calls[0].arguments, "{\"location\":\"Hà \\\"Nội\\\"\"}");
    EXPECT_EQ(answer.calls[1].arguments, "{\"x\":[1.50, 2]}");
  }
}

// rule: S8
TEST_F(ToolCallsTest, S8WhatFollowsABlockIsNeitherSentNorCounted) {
  const auto tokens = static_cast<int64_t>(AnswerIds().size()) - 1;
  answer_ += "\nand more text";
  for (const size_t burst : {1, 64}) {
    control_.SetBurst(burst);
    const protocol::HttpResult result = Post(kPath, Body(kTools));
    EXPECT_EQ(IntAt(result.body, {"usage", "completion_tokens"}), tokens);
    EXPECT_THAT(result.body, Not(HasSubstr("more text")));
  }
}

// rule: S8
TEST_F(ToolCallsTest, S8ACallCutByLengthEndsWithLengthAndIsNotReportedWhole) {
  const std::string fields = std::string(kTools) + R"(,"max_tokens":)" +
                             std::to_string(AnswerIds().size() / 3) + R"(,"stream":)";
  const protocol::HttpResult whole = Post(kPath, Body(fields + "false"));
  EXPECT_EQ(TextAt(whole.body, {"choices", "0", "finish_reason"}), "length");
  EXPECT_THAT(whole.body, Not(HasSubstr("tool_calls")));
  EXPECT_EQ(TextAt(whole.body, {"choices", "0", "message", "content"}), "I look.");
  const StreamedAnswer streamed = Read(Stream(kPath, Body(fields + "true")));
  EXPECT_EQ(streamed.finish, "length");
  ASSERT_EQ(streamed.calls.size(), 1u);
  EXPECT_EQ(streamed.calls[0].name, "get_weather");
  EXPECT_EQ(Count("9 /v1/chat/completions POST unclosed 0"), 2u) << "both were counted";
}

// rule: S4
TEST_F(ToolCallsTest, S4WithoutToolsOrWithChoiceNoneNothingBecomesACall) {
  const protocol::HttpResult without = Post(kPath, Body(R"("n":1)"));
  EXPECT_THAT(without.body, Not(HasSubstr("tool_calls")));
  EXPECT_EQ(control_.TakeSubmitted().sampling.edits, nullptr);
  const protocol::HttpResult none =
      Post(kPath, Body(std::string(kTools) + R"(,"tool_choice":"none","logit_bias":{"3":1})"));
  EXPECT_THAT(none.body, Not(HasSubstr("tool_calls")));
  const SubmitRequest submitted = control_.TakeSubmitted();
  ASSERT_NE(submitted.sampling.edits, nullptr);
  const float never = -std::numeric_limits<float>::infinity();
  EXPECT_THAT(submitted.sampling.edits->bias,
              Contains(protocol::TokenBias{TinyTemplate().dsml_id(), never}));
  EXPECT_THAT(TinyTokenizer().Decode(submitted.prompt_ids).value(),
              HasSubstr("\"name\": \"get_weather\""))
      << "the tools stay in the prompt";
}

// rule: S5
TEST_F(ToolCallsTest, S5TheSchedulerGetsTheConstraintOfTheTools) {
  Post(kPath, Body(R"("n":1)"));
  EXPECT_EQ(control_.TakeSubmitted().constraint, nullptr);
  Post(kPath, Body(kTools));
  const auto may = control_.TakeSubmitted().constraint;
  ASSERT_NE(may, nullptr);
  EXPECT_FALSE(may->binds());
  Post(kPath, Body(std::string(kTools) + R"(,"tool_choice":"required")"));
  EXPECT_TRUE(control_.TakeSubmitted().constraint->binds());
  Post(kPath, R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"required",)" +
                  std::string(kTools) + "}");
  EXPECT_FALSE(control_.TakeSubmitted().constraint->binds()) << "it thinks first";
}

// rule: S10
TEST_F(ToolCallsTest, S10StopStringsDoNotApplyToCalls) {
  const protocol::HttpResult result =
      Post(kPath, Body(std::string(kTools) + R"(,"stop":["Nội","1.50"])"));
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "finish_reason"}), "tool_calls");
  const protocol::HttpResult stopped = Post(kPath, Body(std::string(kTools) + R"(,"stop":"look")"));
  EXPECT_EQ(TextAt(stopped.body, {"choices", "0", "message", "content"}), "I ");
  EXPECT_EQ(TextAt(stopped.body, {"choices", "0", "stop_reason"}), "look");
}

// rule: S2, S11, TC3, TC4
TEST_F(ToolCallsTest, TC4ReasoningIsCountedBesideCalls) {
  answer_ = std::string("think</think>") + kCalls;
  const std::string body =
      R"({"messages":[{"role":"user","content":"a"}],)" + std::string(kTools) + "}";
  const protocol::HttpResult result = Post(kPath, body);
  EXPECT_TRUE(At(result.body, {"choices", "0", "message", "content"}).IsNull());
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "message", "reasoning_content"}), "think");
  const auto reasoning =
      static_cast<int64_t>(TinyTokenizer().Encode("think</think>", SpecialTokens::kParse)->size());
  EXPECT_EQ(IntAt(result.body, {"usage", "completion_tokens_details", "reasoning_tokens"}),
            reasoning);
  EXPECT_EQ(Count("9 /v1/chat/completions POST ok 0"), 2u);
  EXPECT_EQ(Count("10 /v1/chat/completions POST ok 0"), 1u);
  answer_ = "only thinking";
  const protocol::HttpResult unclosed = Post(kPath, body);
  EXPECT_EQ(TextAt(unclosed.body, {"choices", "0", "stop_reason"}), "reasoning_unclosed");
  EXPECT_EQ(TextAt(unclosed.body, {"choices", "0", "message", "content"}), "");
  EXPECT_THAT(unclosed.body, Not(HasSubstr("end▁of▁sentence")));
  EXPECT_EQ(Count("10 /v1/chat/completions POST unclosed 0"), 1u);
}

// rule: E5, E6
TEST_F(ToolCallsTest, E5AReplayedCallIsRenderedAsTheModelWroteIt) {
  // The second layout is not the encoder's own: only the table can restore it.
  answer_ =
      "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"calculator\">\n\n"
      "<｜DSML｜ parameter name=\"b\" string=\"false\">1.50</｜DSML｜ parameter>\n"
      "<｜DSML｜ parameter name=\"a\" string=\"false\">{ \"k\":2 }</｜DSML｜ parameter> \n"
      "</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  const protocol::HttpResult result = Post(kPath, Body(kTools));
  const std::string id = TextAt(result.body, {"choices", "0", "message", "tool_calls", "0", "id"});
  const auto replay = [&](const std::string& arguments) {
    std::string quoted;
    protocol::AppendJsonString(arguments, &quoted);
    return PromptOf(Body(
        kTools, R"(,{"role":"assistant","content":null,"tool_calls":[{"id":")" + id +
                    R"(","type":"function","function":{"name":"calculator","arguments":)" + quoted +
                    R"(}}]},{"role":"tool","tool_call_id":")" + id + R"(","content":"3"})"));
  };
  const std::string tail =
      "<｜end▁of▁sentence｜><｜User｜><tool_result>3</tool_result><｜Assistant｜></think>";
  EXPECT_THAT(replay(R"({"a": {"k": 2}, "b": 1.5})"), HasSubstr("</think>" + answer_ + tail));
  EXPECT_THAT(replay(R"({"b":1.50,"a":{ "k":3 }})"),
              HasSubstr("name=\"calculator\">\n<｜DSML｜ parameter name=\"b\" "
                        "string=\"false\">1.50</｜DSML｜ parameter>\n<｜DSML｜ parameter "
                        "name=\"a\" string=\"false\">{ \"k\":3 }</｜DSML｜ parameter>\n</｜DSML｜"))
      << "other arguments are the client's own, byte for byte";
}

// rule: E3
TEST_F(ToolCallsTest, E3NoTextOfAClientBecomesSpecialWhateverItsParts) {
  const auto special_ids = [&](const std::string& text) {
    std::string quoted;
    protocol::AppendJsonString(text, &quoted);
    std::string halves;
    const size_t half = text.size() / 2;
    for (const std::string& part : {text.substr(0, half), text.substr(half)}) {
      std::string json;
      protocol::AppendJsonString(part, &json);
      halves += (halves.empty() ? "" : ",");
      halves += R"({"type":"text","text":)" + json + "}";
    }
    while (control_.num_submitted() > 0) control_.TakeSubmitted();
    const protocol::HttpResult result =
        Post(kPath, R"({"messages":[{"role":"system","content":)" + quoted +
                        R"(},{"role":"user","content":[)" + halves +
                        R"(]},{"role":"assistant","content":)" + quoted +
                        R"(,"tool_calls":[{"id":"c","type":"function","function":{"name":"f",)"
                        R"("arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":)" +
                        quoted + R"(}],"tools":[{"type":"function","function":{"name":"f",)" +
                        R"("description":)" + quoted + "}}]}");
    EXPECT_EQ(result.status, 200) << result.body;
    std::vector<int32_t> ids;
    for (const int32_t id : control_.TakeSubmitted().prompt_ids) {
      if (TinyTokenizer().IsSpecial(id)) ids.push_back(id);
    }
    return ids;
  };
  answer_ = "ok";
  const std::vector<int32_t> plain = special_ids("word");
  size_t num_special = 0;
  for (int32_t id = 0; id < TinyTokenizer().vocab_size(); ++id) {
    if (!TinyTokenizer().IsSpecial(id)) continue;
    ++num_special;
    const std::string text(TinyTokenizer().TokenBytes(id));
    ASSERT_EQ(special_ids(text), plain) << text;
  }
  EXPECT_GT(num_special, 8u);
}

}  // namespace
}  // namespace skein::coordinator
