// Tests of the routes: answers, streams, errors, health, cancellation, drain.
// Thread: the test's, beside the listener's and the control loop's.
// Must never: wait for time to pass without a condition.
#include "coordinator/api/api_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/api_fixture.h"
#include "tests/protocol/raw_connection.h"

namespace skein::coordinator {
namespace {

using protocol::HttpResult;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using tests::RawConnection;
using ApiServerTest = ApiFixture;

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kText[] = "/v1/completions";

std::string Ask(std::string_view fields = R"("thinking":{"type":"disabled"})") {
  return R"({"messages":[{"role":"user","content":"What is the capital of Vietnam?"}],)" +
         std::string(fields) + "}";
}

TEST_F(ApiServerTest, AnswersAChat) {
  const HttpResult result = Post(kChat, Ask());
  EXPECT_EQ(result.status, 200);
  EXPECT_EQ(result.Header("content-type"), "application/json");
  EXPECT_THAT(TextAt(result.body, {"id"}), StartsWith("chatcmpl-"));
  EXPECT_EQ(TextAt(result.body, {"object"}), "chat.completion");
  EXPECT_EQ(IntAt(result.body, {"created"}), 1764410000);
  EXPECT_EQ(TextAt(result.body, {"model"}), "tiny-v41");
  EXPECT_EQ(TextAt(result.body, {"system_fingerprint"}), "skein-test");
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "message", "role"}), "assistant");
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "message", "content"}), answer_);
  EXPECT_TRUE(At(result.body, {"choices", "0", "message", "refusal"}).IsNull());
  EXPECT_TRUE(At(result.body, {"choices", "0", "logprobs"}).IsNull());
  EXPECT_TRUE(At(result.body, {"choices", "0", "stop_reason"}).IsNull());
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "finish_reason"}), "stop");
  EXPECT_THAT(result.body, Not(HasSubstr("reasoning_content")));
  const auto tokens = static_cast<int64_t>(AnswerIds().size());
  EXPECT_EQ(IntAt(result.body, {"usage", "prompt_tokens"}), 15);
  EXPECT_EQ(IntAt(result.body, {"usage", "completion_tokens"}), tokens);
  EXPECT_EQ(IntAt(result.body, {"usage", "total_tokens"}), 15 + tokens);
  EXPECT_EQ(IntAt(result.body, {"usage", "prompt_tokens_details", "cached_tokens"}), 0);
  EXPECT_EQ(IntAt(result.body, {"usage", "completion_tokens_details", "reasoning_tokens"}), 0);
  EXPECT_EQ(IntAt(result.body, {"usage", "skein", "steps"}), tokens);
}

// Also what the listener refuses before there is a request.
TEST_F(ApiServerTest, EveryRefusalHasARequestId) {
  EXPECT_THAT(Post(kChat, "{").Header("x-request-id"), Not(""));
  protocol::HttpCall call = Call("GET", "/version");
  call.headers.emplace_back("x-padding", std::string(20000, 'x'));
  const auto long_head = protocol::CallHttp(call);
  ASSERT_TRUE(long_head.ok()) << long_head.status();
  EXPECT_EQ(long_head->status, 431);
  EXPECT_THAT(long_head->Header("x-request-id"), Not(""));
}

TEST_F(ApiServerTest, SubmitsWhatTheRequestSays) {
  Post(kChat, Ask(R"("thinking":{"type":"disabled"},"temperature":0.5,"top_p":0.9,"top_k":40,)"
                  R"("min_p":0.1,"seed":-1,"max_tokens":7,"min_tokens":2,"stop_token_ids":[5],)"
                  R"("logprobs":true,"top_logprobs":3,"priority":-5,"model":"org/alias")"));
  SubmitRequest request = control_.TakeSubmitted();
  EXPECT_EQ(request.prompt_ids,
            TinyTokenizer()
                .Encode("<｜begin▁of▁sentence｜><｜User｜>What is the capital of "
                        "Vietnam?<｜Assistant｜></think>",
                        SpecialTokens::kParse)
                .value());
  EXPECT_FLOAT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_FLOAT_EQ(request.sampling.top_p, 0.9F);
  EXPECT_FLOAT_EQ(request.sampling.min_p, 0.1F);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.sampling.seed, 18446744073709551615u);
  EXPECT_TRUE(request.sampling.has_seed);
  EXPECT_TRUE(request.sampling.logprobs);
  EXPECT_EQ(request.sampling.num_top_logprobs, 3);
  EXPECT_EQ(request.stop.max_tokens, 7);
  EXPECT_EQ(request.stop.min_tokens, 2);
  EXPECT_THAT(request.stop.stop_token_ids, ElementsAre(5, 1));
  EXPECT_EQ(request.priority, -5);
  EXPECT_FALSE(request.deadline.has_value());

  Post(kChat, Ask(R"("ignore_eos":true,"top_k":-1,"temperature":-0.0)"));
  request = control_.TakeSubmitted();
  EXPECT_TRUE(request.stop.stop_token_ids.empty());
  EXPECT_EQ(request.stop.max_tokens, 4096 - static_cast<int32_t>(request.prompt_ids.size()));
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_FALSE(request.sampling.has_seed);
  EXPECT_EQ(request.prompt_ids.back(), TinyTemplate().think_id());
  const uint64_t first_seed = request.sampling.seed;
  Post(kChat, Ask());
  EXPECT_NE(control_.TakeSubmitted().sampling.seed, first_seed);
}

// rule: R2.2
TEST_F(ApiServerTest, SubmitsWhatEditsLogits) {
  Post(kText, R"({"prompt":"a","presence_penalty":1.5,"logit_bias":{"7":-3},)"
              R"("allowed_token_ids":[7,8],"bad_words":["Hanoi"]})");
  const auto edits = control_.TakeSubmitted().sampling.edits;
  ASSERT_NE(edits, nullptr);
  EXPECT_EQ(edits->presence_penalty, 1.5F);
  EXPECT_THAT(edits->bias, ElementsAre(protocol::TokenBias{7, -3}));
  EXPECT_THAT(edits->allowed_tokens, ElementsAre(7, 8));
  const auto encode = [](std::string_view text) {
    return TinyTokenizer().Encode(text, SpecialTokens::kPlain).value();
  };
  // As it stands and after a space, where that is as long.
  EXPECT_THAT(edits->bad_words, Contains(encode("Hanoi")));
  const bool second = encode(" Hanoi").size() == encode("Hanoi").size();
  EXPECT_EQ(edits->bad_words.size(), second ? 2u : 1u);
  Post(kText, R"({"prompt":"a","presence_penalty":0,"logit_bias":{},"bad_words":[]})");
  EXPECT_EQ(control_.TakeSubmitted().sampling.edits, nullptr) << "nothing to edit";
  Post(kChat, Ask(R"("presence_penalty":1)"));
  EXPECT_EQ(control_.TakeSubmitted().sampling.edits, nullptr) << "it thinks";
}

// rule: R4.4
TEST_F(ApiServerTest, NamesTokensByTheirIdsWhereAsked) {
  const HttpResult text =
      Post(kText, R"({"prompt":"a","logprobs":1,"return_tokens_as_token_ids":true})");
  const std::string first = "token_id:" + std::to_string(AnswerIds()[0]);
  EXPECT_EQ(TextAt(text.body, {"choices", "0", "logprobs", "tokens", "0"}), first);
  EXPECT_THAT(text.body, HasSubstr("{\"" + first + "\":"));
  const HttpResult chat = Post(kChat, Ask(R"("thinking":{"type":"disabled"},"logprobs":true,)"
                                          R"("return_tokens_as_token_ids":true)"));
  EXPECT_EQ(TextAt(chat.body, {"choices", "0", "logprobs", "content", "0", "token"}), first);
  const std::string_view bytes = TinyTokenizer().TokenBytes(AnswerIds()[0]);
  EXPECT_EQ(IntAt(chat.body, {"choices", "0", "logprobs", "content", "0", "bytes", "0"}),
            static_cast<uint8_t>(bytes[0]));
}

TEST_F(ApiServerTest, StreamsChunksInTheOrderClientsExpect) {
  const std::vector<std::string> events =
      Stream(kChat, Ask(R"("thinking":{"type":"disabled"},"stream":true)"));
  ASSERT_GE(events.size(), 4u);
  const std::string id = TextAt(events[0], {"id"});
  EXPECT_EQ(TextAt(events[0], {"choices", "0", "delta", "role"}), "assistant");
  EXPECT_EQ(TextAt(events[0], {"choices", "0", "delta", "content"}), "");
  std::string text;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(TextAt(events[i], {"object"}), "chat.completion.chunk");
    EXPECT_EQ(TextAt(events[i], {"id"}), id);
    EXPECT_EQ(IntAt(events[i], {"created"}), 1764410000);
    EXPECT_EQ(TextAt(events[i], {"model"}), "tiny-v41");
    EXPECT_EQ(IntAt(events[i], {"choices", "0", "index"}), 0);
    EXPECT_THAT(events[i], Not(HasSubstr("usage")));
    if (i + 2 < events.size()) {
      EXPECT_TRUE(At(events[i], {"choices", "0", "finish_reason"}).IsNull());
      text += TextAt(events[i], {"choices", "0", "delta", "content"});
    }
  }
  EXPECT_EQ(text, answer_);
  const std::string& last = events[events.size() - 2];
  EXPECT_EQ(TextAt(last, {"choices", "0", "finish_reason"}), "stop");
  EXPECT_TRUE(At(last, {"choices", "0", "delta"}).members().empty());
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(ApiServerTest, StreamsUsageAsAsked) {
  std::vector<std::string> events =
      Stream(kChat, Ask(R"("thinking":{"type":"disabled"},"stream":true,"stream_options":)"
                        R"({"include_usage":true})"));
  EXPECT_TRUE(At(events[0], {"usage"}).IsNull());
  const std::string& usage = events[events.size() - 2];
  EXPECT_TRUE(At(usage, {"choices"}).elements().empty());
  EXPECT_EQ(IntAt(usage, {"usage", "completion_tokens"}), static_cast<int64_t>(AnswerIds().size()));
  events = Stream(kChat, Ask(R"("thinking":{"type":"disabled"},"stream":true,"stream_options":)"
                             R"({"continuous_usage_stats":true})"));
  EXPECT_EQ(IntAt(events[0], {"usage", "completion_tokens"}), 0);
  EXPECT_EQ(IntAt(events[1], {"usage", "completion_tokens"}), 1);
}

TEST_F(ApiServerTest, SplitsBurstsPerTokenOnlyWhenAsked) {
  control_.SetBurst(100);
  const std::string body = R"("thinking":{"type":"disabled"},"stream":true)";
  EXPECT_EQ(Stream(kChat, Ask(body)).size(), 4u);  // opening, text, end, [DONE]
  const size_t split = Stream(kChat, Ask(body + R"(,"stream_options":{"per_token":true})")).size();
  EXPECT_EQ(split, AnswerIds().size() - 1 + 3);
}

TEST_F(ApiServerTest, SeparatesReasoning) {
  answer_ = "I recall it.</think>Hanoi.";
  HttpResult result = Post(kChat, Ask(R"("seed":1)"));
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "message", "reasoning_content"}), "I recall it.");
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "message", "content"}), "Hanoi.");
  const auto reasoning = static_cast<int64_t>(
      TinyTokenizer().Encode("I recall it.</think>", SpecialTokens::kParse)->size());
  EXPECT_EQ(IntAt(result.body, {"usage", "completion_tokens_details", "reasoning_tokens"}),
            reasoning);
  std::string seen;
  const auto events = Stream(kChat, Ask(R"("stream":true)"));
  EXPECT_TRUE(At(events[0], {"choices", "0", "delta", "content"}).IsNull());
  for (size_t i = 1; i + 2 < events.size(); ++i) {
    const auto delta = At(events[i], {"choices", "0", "delta"});
    if (delta.Find("reasoning_content")) seen += delta.Find("reasoning_content")->string();
    if (delta.Find("content")) seen += "|" + std::string(delta.Find("content")->string());
  }
  EXPECT_THAT(seen, StartsWith("I recall it.|"));
  answer_ = "never ends";
  result = Post(kChat, Ask(R"("seed":1)"));
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "message", "reasoning_content"}), "never ends");
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "message", "content"}), "");
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "stop_reason"}), "reasoning_unclosed");
}

TEST_F(ApiServerTest, StopsAtStringsTokensAndLength) {
  const std::string off = R"("thinking":{"type":"disabled"},)";
  HttpResult result = Post(kChat, Ask(off + R"("stop":["capital"])"));
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "message", "content"}), "Hanoi is the ");
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "finish_reason"}), "stop");
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "stop_reason"}), "capital");
  EXPECT_EQ(control_.TakeCancelled(), control_.TakeSubmitted().id);
  result = Post(kChat, Ask(off + R"("stop":"capital","include_stop_str_in_output":true)"));
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "message", "content"}), "Hanoi is the capital");
  result = Post(kChat, Ask(off + R"("stop":["capital"],"min_tokens":50)"));
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "finish_reason"}), "length");  // the script's end
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "message", "content"}), answer_);
  result = Post(kChat, Ask(off + R"("max_tokens":2)"));
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "finish_reason"}), "length");
  EXPECT_EQ(IntAt(result.body, {"usage", "completion_tokens"}), 2);
  const int32_t second = AnswerIds()[1];
  result = Post(kChat, Ask(off + "\"stop_token_ids\":[" + std::to_string(second) + "]"));
  EXPECT_EQ(IntAt(result.body, {"choices", "0", "stop_reason"}), second);
  EXPECT_EQ(IntAt(result.body, {"usage", "completion_tokens"}), 2);
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "message", "content"}),
            TinyTokenizer().TokenBytes(AnswerIds()[0]));
}

TEST_F(ApiServerTest, StopStringsAreNeverSplitOverChunks) {
  const auto events = Stream(kChat, Ask(R"("thinking":{"type":"disabled"},"stream":true,)"
                                        R"("stop":[" of Viet"])"));
  std::string text;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    text += TextAt(events[i], {"choices", "0", "delta", "content"});
  }
  EXPECT_EQ(text, "Hanoi is the capital");
  EXPECT_EQ(TextAt(events[events.size() - 2], {"choices", "0", "stop_reason"}), " of Viet");
}

// rule: R4.3
TEST_F(ApiServerTest, GivesLogprobsPerToken) {
  answer_ = "中a";
  const HttpResult result =
      Post(kChat, Ask(R"("thinking":{"type":"disabled"},"logprobs":true,"top_logprobs":2)"));
  const auto entries = At(result.body, {"choices", "0", "logprobs", "content"});
  ASSERT_EQ(entries.elements().size(), AnswerIds().size() - 1);  // EOS has none
  std::string bytes;
  for (const protocol::JsonValue& entry : entries.elements()) {
    for (const protocol::JsonValue& byte : entry.Find("bytes")->elements()) {
      bytes.push_back(static_cast<char>(byte.AsInt64("byte", 0, 255).value()));
    }
    EXPECT_EQ(entry.Find("top_logprobs")->elements().size(), 2u);
  }
  EXPECT_EQ(bytes, answer_);
  EXPECT_EQ(*entries.elements()[0].Find("logprob")->AsDouble("logprob"), -0.25);
  EXPECT_EQ(*entries.elements()[0]
                 .Find("top_logprobs")
                 ->elements()[1]
                 .Find("logprob")
                 ->AsDouble("logprob"),
            -1.25);
}

TEST_F(ApiServerTest, CompletesRawPrompts) {
  HttpResult result = Post(kText, R"({"prompt":"Once upon a time","logprobs":1})");
  EXPECT_EQ(TextAt(result.body, {"object"}), "text_completion");
  EXPECT_THAT(TextAt(result.body, {"id"}), StartsWith("cmpl-"));
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "text"}), answer_);
  EXPECT_EQ(At(result.body, {"choices", "0", "logprobs", "tokens"}).elements().size(),
            AnswerIds().size() - 1);
  EXPECT_EQ(IntAt(result.body, {"choices", "0", "logprobs", "text_offset", "1"}),
            static_cast<int64_t>(TinyTokenizer().TokenBytes(AnswerIds()[0]).size()));
  EXPECT_THAT(control_.TakeSubmitted().prompt_ids, ElementsAre(0, 1433, 1103, 261, 771));
  Post(kText, R"({"prompt":"</think>","add_special_tokens":false})");
  for (int32_t id : control_.TakeSubmitted().prompt_ids)
    EXPECT_FALSE(TinyTokenizer().IsSpecial(id));
  Post(kText, R"({"prompt":[0,4067,5]})");
  EXPECT_THAT(control_.TakeSubmitted().prompt_ids, ElementsAre(0, 4067, 5));
  const auto events = Stream(kText, R"({"prompt":[[0,7]],"stream":true})");
  std::string text;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(TextAt(events[i], {"object"}), "text_completion");
    text += TextAt(events[i], {"choices", "0", "text"});
  }
  EXPECT_EQ(text, answer_);
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(ApiServerTest, RefusalsOfTheControlLoopHaveTheirCodes) {
  struct Refusal {
    absl::Status status;
    int http;
    std::string code;
  };
  for (const Refusal& test :
       {Refusal{absl::ResourceExhaustedError("the queue is full"), 503, "server_overloaded"},
        Refusal{absl::FailedPreconditionError(""), 503, "draining"},
        Refusal{absl::UnavailableError("no group is ready"), 503, "not_ready"},
        Refusal{absl::InvalidArgumentError("cannot run"), 400, "invalid_value"},
        Refusal{absl::InternalError("bug"), 500, "internal_error"}}) {
    control_.Refuse(test.status);
    for (const char* stream : {"false", "true"}) {
      const HttpResult result = Post(kChat, Ask(std::string("\"stream\":") + stream));
      EXPECT_EQ(result.status, test.http);
      EXPECT_EQ(TextAt(result.body, {"error", "code"}), test.code);
      EXPECT_EQ(result.Header("retry-after"), test.http == 503 ? "1" : "");
      EXPECT_THAT(Events(), Contains("5 /v1/chat/completions  " + test.code + " " +
                                     std::to_string(test.http)));
    }
  }
}

// rule: R3.1
TEST_F(ApiServerTest, FailuresEndAStreamWithAnErrorEvent) {
  control_.Hold();
  RawConnection client(server_->port());
  const std::string body = Ask(R"("stream":true)");
  client.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  client.ReadUntilText("assistant");
  control_.Fail(absl::UnavailableError("the group is gone"));
  const std::string answer = client.ReadToEnd();
  EXPECT_TRUE(client.closed_by_peer());
  EXPECT_THAT(answer, HasSubstr("data: {\"error\":{\"message\":\"the group is gone\",\"type\":"
                                "\"server_error\",\"param\":null,\"code\":\"not_ready\","
                                "\"retryable\":true},\"usage\":{\"prompt_tokens\":"));
  EXPECT_THAT(answer, Not(HasSubstr("[DONE]")));
  EXPECT_THAT(answer, Not(HasSubstr("\"finish_reason\":\"")));
  EXPECT_THAT(answer, ::testing::EndsWith("\n\n\r\n0\r\n\r\n"));
  control_.Fail(absl::DeadlineExceededError("too late"));
  const HttpResult result = Post(kChat, Ask());
  EXPECT_EQ(result.status, 408);
  EXPECT_EQ(TextAt(result.body, {"error", "type"}), "timeout_error");
}

// rule: A5, AB5
TEST_F(ApiServerTest, DisconnectsCancelStreamedAndOtherRequests) {
  control_.Hold();
  for (const char* stream : {"false", "true"}) {
    RawConnection client(server_->port());
    const std::string body = Ask(std::string("\"stream\":") + stream);
    client.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + body);
    const protocol::RequestId id = control_.TakeSubmitted().id;
    client.Close();
    EXPECT_EQ(control_.TakeCancelled(), id) << stream;
  }
}

TEST_F(ApiServerTest, StreamHeadersAreThoseOfTheSpecification) {
  RawConnection client(server_->port());
  const std::string body = Ask(R"("stream":true)");
  client.Send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-Request-Id: mine\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  const std::string answer = client.ReadUntilText("0\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                 "x-request-id: mine\r\nCache-Control: no-cache\r\n"
                                 "X-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n\r\n"));
  client.Forget();
  client.Send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  const std::string refusal = client.ReadToEnd();
  EXPECT_THAT(refusal, StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(refusal, HasSubstr("\"param\":\"stream\""));
}

TEST_F(ApiServerTest, KeepsQuietStreamsAlive) {
  protocol::HttpLimits limits;
  limits.stream_comment_interval = std::chrono::milliseconds(30);
  StartServer(limits);
  control_.Hold();
  RawConnection client(server_->port());
  const std::string body = Ask(R"("stream":true)");
  client.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_THAT(client.ReadUntilText(": keep-alive\n\n"), HasSubstr(": keep-alive\n\n"));
  control_.Release();
  EXPECT_THAT(client.ReadUntilText("[DONE]"), HasSubstr("data: [DONE]\n\n"));
}

TEST_F(ApiServerTest, RoutesMethodsAndTypes) {
  HttpResult result = Get("/nowhere");
  EXPECT_EQ(result.status, 404);
  EXPECT_EQ(TextAt(result.body, {"error", "code"}), "route_not_found");
  result = Get(kChat);
  EXPECT_EQ(result.status, 405);
  EXPECT_EQ(result.Header("allow"), "POST");
  EXPECT_EQ(TextAt(result.body, {"error", "code"}), "method_not_allowed");
  protocol::HttpCall call = Call("POST", kChat, Ask());
  call.content_type = "application/x-www-form-urlencoded";
  EXPECT_EQ(protocol::CallHttp(call)->status, 415);
  call.content_type = "application/json; charset=utf-8";
  EXPECT_EQ(protocol::CallHttp(call)->status, 200);
  call.headers = {{"Content-Encoding", "gzip"}};
  EXPECT_EQ(protocol::CallHttp(call)->status, 415);
  RawConnection raw(server_->port());
  raw.Send("GET / HTTP/1.1\r\n\r\n");
  const std::string framing = raw.ReadToEnd();
  EXPECT_THAT(framing, StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(framing, HasSubstr("{\"error\":{\"message\":\"HTTP/1.1 without Host\""));
}

TEST_F(ApiServerTest, ListsModelsVersionAndMetrics) {
  HttpResult result = Get("/v1/models");
  EXPECT_EQ(TextAt(result.body, {"data", "0", "id"}), "tiny-v41");
  EXPECT_EQ(TextAt(result.body, {"data", "1", "id"}), "org/alias");
  EXPECT_EQ(IntAt(result.body, {"data", "0", "max_model_len"}), 4096);
  EXPECT_EQ(TextAt(result.body, {"data", "0", "owned_by"}), "skein");
  EXPECT_EQ(TextAt(Get("/v1/models/org%2Falias").body, {"id"}), "org/alias");
  EXPECT_EQ(TextAt(Get("/v1/models/org/alias").body, {"object"}), "model");
  result = Get("/v1/models/none");
  EXPECT_EQ(result.status, 404);
  EXPECT_EQ(TextAt(result.body, {"error", "code"}), "model_not_found");
  EXPECT_EQ(Get("/version").body, "{\"version\":\"0.1.0\"}");
  result = Get("/metrics");
  EXPECT_EQ(result.body, "skein_build_info 1\n");
  EXPECT_THAT(std::string(result.Header("content-type")), StartsWith("text/plain; version=0.0.4"));
}

TEST_F(ApiServerTest, TokenizesBothWays) {
  HttpResult result = Post("/tokenize", R"({"prompt":"Once upon a time"})");
  EXPECT_EQ(result.body, "{\"count\":5,\"max_model_len\":4096,\"tokens\":[0,1433,1103,261,771]}");
  result = Post("/tokenize", R"({"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(IntAt(result.body, {"tokens", "0"}), 0);
  EXPECT_EQ(Post("/detokenize", R"({"tokens":[1433,1103,261,771]})").body,
            "{\"prompt\":\"Once upon a time\"}");
  EXPECT_EQ(Post("/detokenize", R"({"tokens":"x"})").status, 400);
  EXPECT_EQ(TextAt(Post("/tokenize", "{}").body, {"error", "param"}), "prompt");
  EXPECT_EQ(control_.num_submitted(), 0u);
}

// rule: HA4, HA5
TEST_F(ApiServerTest, HealthFollowsTheProbes) {
  EXPECT_EQ(Get("/health").body, "{\"status\":\"ok\"}");
  health_ = absl::UnavailableError("no group is ready");
  const HttpResult result = Get("/health/ready");
  EXPECT_EQ(result.status, 503);
  EXPECT_EQ(result.body, "{\"status\":\"unavailable\",\"reason\":\"no group is ready\"}");
  EXPECT_EQ(Get("/health/live").status, 200);
  EXPECT_EQ(Get("/health/startup").status, 200);
  EXPECT_EQ(control_.num_submitted(), 0u);
}

TEST_F(ApiServerTest, LongPromptsAreRefusedBeforeTheyAreTokenised) {
  const std::string words(2'000'000, 'a');
  const HttpResult result =
      Post(kChat, R"({"messages":[{"role":"user","content":")" + words + R"("}]})");
  EXPECT_EQ(result.status, 400);
  EXPECT_EQ(TextAt(result.body, {"error", "code"}), "context_length_exceeded");
  EXPECT_EQ(IntAt(result.body, {"error", "n_ctx"}), 4096);
  EXPECT_GT(IntAt(result.body, {"error", "n_prompt_tokens"}), 4096);
  EXPECT_THAT(TextAt(result.body, {"error", "message"}),
              HasSubstr("maximum context length is 4096 tokens"));
}

TEST_F(ApiServerTest, HeadersOfRequests) {
  protocol::HttpCall call = Call("POST", kChat, Ask());
  call.headers = {{"x-request-timeout", "2.5"}, {"x-request-id", "bad id"}};
  EXPECT_THAT(std::string(protocol::CallHttp(call)->Header("x-request-id")), StartsWith("req-"));
  const SubmitRequest request = control_.TakeSubmitted();
  ASSERT_TRUE(request.deadline.has_value());
  EXPECT_EQ(*request.deadline - request.arrival, std::chrono::milliseconds(2500));
  for (const char* value : {"0", "-1", "soon", "1e9", "nan"}) {
    call.headers = {{"x-request-timeout", value}};
    const HttpResult result = *protocol::CallHttp(call);
    EXPECT_EQ(result.status, 400) << value;
    EXPECT_EQ(TextAt(result.body, {"error", "param"}), "x-request-timeout");
  }
}

// rule: R2.1
TEST_F(ApiServerTest, UnknownFieldsAreIgnoredAndCounted) {
  EXPECT_EQ(Post(kChat, Ask(R"("verbosity":"low","user":"me","metadata":{"a":"b"})")).status, 200);
  EXPECT_THAT(Events(), Contains("4   verbosity 0"));
  EXPECT_THAT(Events(), Not(Contains("4   user 0")));
  EXPECT_THAT(Events(), Contains("1 /v1/chat/completions POST stop 200"));
  EXPECT_THAT(Events(), Contains("0 /v1/chat/completions POST  200"));
}

TEST_F(ApiServerTest, NullsCountAsAbsent) {
  EXPECT_EQ(Post(kChat, Ask(R"("temperature":null,"stop":null,"n":null,"tools":null,)"
                            R"("max_tokens":null,"stream":null,"response_format":null)"))
                .status,
            200);
}

TEST_F(ApiServerTest, DrainFinishesRunningAnswersAndRefusesNewOnes) {
  control_.Hold();
  RawConnection client(server_->port());
  const std::string body = Ask(R"("thinking":{"type":"disabled"})");
  const std::string request = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: " +
                              std::to_string(body.size()) + "\r\n\r\n" + body;
  client.Send(request);
  control_.TakeSubmitted();
  std::mutex mutex;
  std::condition_variable changed;
  bool drained = false;
  server_->Drain([&] {
    const std::lock_guard lock(mutex);
    drained = true;
    changed.notify_all();
  });
  const protocol::HttpResult refused = Post("/v1/chat/completions", body);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(TextAt(refused.body, {"error", "code"}), "draining");
  EXPECT_FALSE(refused.Header("retry-after").empty());
  EXPECT_EQ(Get("/health").body, R"({"status":"unavailable","reason":"draining"})");
  EXPECT_EQ(Get("/health/live").status, 200);
  EXPECT_EQ(control_.num_submitted(), 0u);
  control_.Release();
  EXPECT_THAT(client.ReadToEnd(), HasSubstr(answer_));
  client.Close();
  std::unique_lock lock(mutex);
  EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(10), [&] { return drained; }));
}

TEST(ApiServerCreateTest, NamesWhatIsMissing) {
  tests::FakeControl control([](const SubmitRequest&) { return std::vector<int32_t>(); });
  ApiServer::Options options;
  EXPECT_EQ(ApiServer::Create(options, TinyTokenizer(), TinyTemplate(), control).status().message(),
            "the API server needs at least one served model name and a clock");
}

}  // namespace
}  // namespace skein::coordinator
