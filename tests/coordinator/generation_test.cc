// Tests of generations whose client does not keep up and of deltas with several tokens; the rest is
// in api_server_test.
// Thread: the test's, beside the listener's and the control loop's.
// Must never: wait for time to pass without a condition.
#include "coordinator/api/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/json/json_writer.h"
#include "tests/coordinator/api_fixture.h"
#include "tests/protocol/raw_connection.h"

namespace skein::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using tests::RawConnection;
using GenerationTest = ApiFixture;

std::string StreamRequest(std::string_view fields) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"go on"}],"thinking":{"type":"disabled"},)"
      R"("stream":true,"ignore_eos":true)" +
      std::string(fields) + "}";
  return "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string LongAnswer() {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "The quick brown fox jumps over it. ";
  return text;
}

// The content of all chat chunks in the bytes of a streamed response.
std::string ContentOf(std::string_view response) {
  std::string content;
  for (size_t at = response.find("data: {"); at != std::string_view::npos;
       at = response.find("data: {", at + 1)) {
    const std::string_view event = response.substr(at + 6, response.find("\n\n", at) - at - 6);
    const auto parsed = protocol::ParseJson(event);
    EXPECT_TRUE(parsed.ok()) << event;
    const protocol::JsonValue* text = parsed->Find("choices")->elements()[0].Find("delta");
    if (text->Find("content") != nullptr) content += text->Find("content")->string();
  }
  return content;
}

TEST_F(GenerationTest, SlowReadersGetMergedEventsAndEveryByte) {
  answer_ = LongAnswer();
  RawConnection client(server_->port(), 2048);
  client.Send(StreamRequest(""));
  // The server is done before the first byte is read: it kept what the socket did not take.
  const std::string& response = client.ReadUntilText("data: [DONE]");
  EXPECT_THAT(response, HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_EQ(ContentOf(response), answer_);
  EXPECT_GE(CountEvents(ApiEvent::Kind::kSlowStream), 1u);
  EXPECT_EQ(CountEvents(ApiEvent::Kind::kPromptStream), CountEvents(ApiEvent::Kind::kSlowStream));
}

TEST_F(GenerationTest, TokensThatComeAfterTheirClientLeftAreCounted) {
  answer_ = "One two three four five.";
  control_.Hold();
  control_.IgnoreCancel();
  control_.SetBurst(100);
  RawConnection client(server_->port());
  client.Send(StreamRequest(R"(,"n":2)"));
  client.ReadUntilText("\"index\":1");
  client.Close();
  control_.TakeCancelled();
  control_.TakeCancelled();
  EXPECT_EQ(control_.num_left(), 1u) << "one client";
  control_.Release();
  const auto num_late = [this] {
    const std::lock_guard lock(mutex_);
    return late_tokens_;
  };
  const double expected = 2 * static_cast<double>(AnswerIds().size());
  // The listener counts before it answers what comes later on its thread.
  for (int i = 0; i < 1000 && num_late() < expected; ++i) Get("/health");
  EXPECT_EQ(num_late(), expected);
}

TEST_F(GenerationTest, ReasoningIsCountedForEachChoiceThatBeganInIt) {
  answer_ = "Let me see.</think>Done.";
  const std::string body = R"({"messages":[{"role":"user","content":"go on"}],"n":2})";
  const std::string answer = Post("/v1/chat/completions", body).body;
  ASSERT_EQ(reasoned_.size(), 2u);
  EXPECT_EQ(reasoned_[0].first, 3u) << "the engine";
  EXPECT_EQ(reasoned_[0].second + reasoned_[1].second,
            IntAt(answer, {"usage", "completion_tokens_details", "reasoning_tokens"}));
  EXPECT_GT(reasoned_[0].second, 2);
  Post("/v1/completions", R"({"prompt":"go on"})");
  EXPECT_EQ(reasoned_.size(), 2u) << "nothing of it began in reasoning";
}

TEST_F(GenerationTest, ClientsThatDoNotReadAreCancelledWithAnErrorEvent) {
  protocol::HttpLimits limits;
  limits.egress_bytes_max = 32 * 1024;
  StartServer(limits);
  for (int i = 0; i < 8; ++i) answer_ += LongAnswer();
  RawConnection client(server_->port(), 2048);
  client.Send(StreamRequest(R"(,"logprobs":true,"top_logprobs":20)"));
  const protocol::RequestId id = control_.TakeSubmitted().id;
  EXPECT_EQ(control_.TakeCancelled(), id);
  const std::string& response = client.ReadToEnd();
  EXPECT_TRUE(client.closed_by_peer());
  EXPECT_THAT(response, HasSubstr("\"code\":\"request_timeout\",\"retryable\":true"));
  EXPECT_THAT(response, Not(HasSubstr("[DONE]")));
}

// ---- flight records

TEST_F(GenerationTest, EachRequestLeavesARecordUnderTheIdThatItsClientSaw) {
  auto call = Call("POST", "/v1/completions", R"({"prompt":"secret words","max_tokens":4,"n":2})");
  call.headers.emplace_back("x-request-id", "mine-1");
  const std::string answer = protocol::CallHttp(call)->body;
  const std::string json = flights_.Json();
  EXPECT_EQ(TextAt(json, {"requests", "0", "request_id"}), "mine-1");
  EXPECT_EQ(TextAt(json, {"requests", "0", "route"}), "/v1/completions");
  EXPECT_EQ(TextAt(json, {"requests", "0", "end"}),
            TextAt(answer, {"choices", "0", "finish_reason"}));
  EXPECT_EQ(IntAt(json, {"requests", "0", "engine"}), 3);
  EXPECT_EQ(IntAt(json, {"requests", "0", "choices"}), 2);
  EXPECT_GT(IntAt(answer, {"usage", "completion_tokens"}), 0);
  EXPECT_EQ(IntAt(json, {"requests", "0", "completion_tokens"}),
            IntAt(answer, {"usage", "completion_tokens"}));
  EXPECT_THAT(json, Not(HasSubstr("secret")));
}

// ---- several tokens in a delta

constexpr size_t kBursts[] = {1, 2, 3, 5, 6, 64};

class BurstTest : public ApiFixture {
 protected:
  BurstTest() : ApiFixture("Hà Nội 🏛️ is the capital of Việt Nam; 河内 is its name.") {}

  static std::string Chat(std::string_view fields) {
    return R"({"messages":[{"role":"user","content":"go on"}],"thinking":{"type":"disabled"})" +
           std::string(fields) + "}";
  }
  static std::string Text(std::string_view fields) {
    return R"({"prompt":"go on")" + std::string(fields) + "}";
  }
  // The first choice of an answer and the tokens it counts, as JSON.
  std::string Whole(const std::string& target, const std::string& body, size_t burst) {
    control_.SetBurst(burst);
    const protocol::HttpResult result = Post(target, body);
    EXPECT_EQ(result.status, 200) << result.body;
    return protocol::WriteJson(At(result.body, {"choices", "0"})) +
           std::to_string(IntAt(result.body, {"usage", "completion_tokens"}));
  }
  // The same of a stream: text, logprob entries, end.
  std::string Streamed(const std::string& target, const std::string& body, size_t burst) {
    control_.SetBurst(burst);
    std::string text, entries, end;
    for (const std::string& event : Stream(target, body)) {
      if (event == "[DONE]") continue;
      const protocol::JsonValue choices = At(event, {"choices"});
      if (choices.elements().empty()) {
        end += " tokens " + std::to_string(IntAt(event, {"usage", "completion_tokens"}));
        continue;
      }
      const protocol::JsonValue& choice = choices.elements()[0];
      const protocol::JsonValue* delta = choice.Find("delta");
      const protocol::JsonValue* content =
          delta == nullptr ? choice.Find("text") : delta->Find("content");
      if (content != nullptr) text += content->string();
      if (choice.Find("logprobs") != nullptr && choice.Find("logprobs")->Find("content")) {
        for (const auto& entry : choice.Find("logprobs")->Find("content")->elements()) {
          entries += protocol::WriteJson(entry) + "\n";
        }
      }
      end += protocol::WriteJson(*choice.Find("finish_reason"));
      if (choice.Find("stop_reason")) end += protocol::WriteJson(*choice.Find("stop_reason"));
    }
    // Chunks without an end say null, once for each.
    for (size_t at = end.find("null"); at != std::string::npos; at = end.find("null")) {
      end.erase(at, 4);
    }
    return text + "\n" + entries + end;
  }
};

// Stops inside an accepted draft, limits inside one, characters over several tokens.
const char* const kEnds[] = {
    "",
    R"(,"stop":"capital")",
    R"(,"stop":["is its"," of V"])",
    R"(,"stop":"capital","include_stop_str_in_output":true)",
    R"(,"stop":"capital","min_tokens":40)",
    R"(,"max_tokens":7)",
    R"(,"max_tokens":8,"stop":"i")",
    R"(,"ignore_eos":true)",
};

TEST_F(BurstTest, AnswersDoNotDependOnTheSizeOfDeltas) {
  for (const char* ends : kEnds) {
    const std::string chat = Chat(std::string(R"(,"logprobs":true,"top_logprobs":2)") + ends);
    const std::string text = Text(std::string(R"(,"logprobs":2)") + ends);
    const std::string one_chat = Whole("/v1/chat/completions", chat, 1);
    const std::string one_text = Whole("/v1/completions", text, 1);
    EXPECT_THAT(one_chat, HasSubstr("\"logprob\":"));
    for (const size_t burst : kBursts) {
      EXPECT_EQ(Whole("/v1/chat/completions", chat, burst), one_chat) << burst << ends;
      EXPECT_EQ(Whole("/v1/completions", text, burst), one_text) << burst << ends;
    }
  }
}

TEST_F(BurstTest, StreamsDoNotDependOnTheSizeOfDeltas) {
  for (const char* ends : kEnds) {
    for (const char* per_token : {"false", "true"}) {
      const std::string fields =
          std::string(R"(,"stream":true,"stream_options":{"include_usage":true,"per_token":)") +
          per_token + "}" + ends;
      const std::string chat = Chat(R"(,"logprobs":true)" + fields);
      const std::string one_chat = Streamed("/v1/chat/completions", chat, 1);
      const std::string one_text = Streamed("/v1/completions", Text(fields), 1);
      for (const size_t burst : kBursts) {
        EXPECT_EQ(Streamed("/v1/chat/completions", chat, burst), one_chat) << burst << ends;
        EXPECT_EQ(Streamed("/v1/completions", Text(fields), burst), one_text) << burst << ends;
      }
    }
  }
}

TEST_F(BurstTest, NothingAfterAStopStringIsSentOrCounted) {
  answer_ = "Hanoi is the capital of Vietnam.";
  const auto ids = AnswerIds();
  std::string text;
  size_t needed = 0;
  while (text.find("capital") == std::string::npos)
    text += TinyTokenizer().TokenBytes(ids[needed++]);
  ASSERT_LT(needed + 2, ids.size()) << "more tokens follow in the same delta";
  control_.SetBurst(64);
  const protocol::HttpResult result =
      Post("/v1/chat/completions", Chat(R"(,"stop":"capital","logprobs":true,"top_logprobs":0)"));
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "message", "content"}), "Hanoi is the ");
  EXPECT_EQ(TextAt(result.body, {"choices", "0", "finish_reason"}), "stop");
  EXPECT_EQ(At(result.body, {"choices", "0", "logprobs", "content"}).elements().size(), needed);
  EXPECT_EQ(IntAt(result.body, {"usage", "completion_tokens"}), static_cast<int64_t>(needed));
  EXPECT_EQ(IntAt(result.body, {"usage", "skein", "accepted_draft_tokens"}),
            static_cast<int64_t>(needed))
      << "the drafts behind the stop became no output";
}

TEST_F(BurstTest, UsageReportsStepsAndDrafts) {
  answer_ = "Hanoi is the capital of Vietnam.";
  const auto tokens = static_cast<int64_t>(AnswerIds().size());
  control_.SetBurst(3);
  const protocol::HttpResult result = Post("/v1/chat/completions", Chat(""));
  const int64_t steps = (tokens + 2) / 3;
  EXPECT_EQ(IntAt(result.body, {"usage", "completion_tokens"}), tokens);
  EXPECT_EQ(IntAt(result.body, {"usage", "skein", "steps"}), steps);
  EXPECT_EQ(IntAt(result.body, {"usage", "skein", "draft_tokens"}), 2 * steps);
  EXPECT_EQ(IntAt(result.body, {"usage", "skein", "accepted_draft_tokens"}), tokens - steps);
  EXPECT_EQ(
      IntAt(result.body, {"usage", "completion_tokens_details", "accepted_prediction_tokens"}), 0);
}

TEST_F(BurstTest, TheFrontDoorGetsWhatTheRequestSaysOfDrafts) {
  Post("/v1/chat/completions", Chat(R"(,"speculation":{"max_draft_tokens":2},"seed":1)"));
  protocol::SpeculationParams speculation = control_.TakeSubmitted().speculation;
  EXPECT_TRUE(speculation.enabled);
  EXPECT_EQ(speculation.max_draft_tokens, 2u);
  EXPECT_EQ(speculation.mode, protocol::VerificationMode::kCoupled);
  Post("/v1/completions", Text(R"(,"speculation":{"enabled":false})"));
  speculation = control_.TakeSubmitted().speculation;
  EXPECT_FALSE(speculation.enabled);
  EXPECT_EQ(speculation.mode, protocol::VerificationMode::kRejection);
}

}  // namespace
}  // namespace skein::coordinator
