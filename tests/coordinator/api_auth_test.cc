// Tests of a server with keys: what is refused before its body, what a key brings with it.
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/cord.h"
#include "coordinator/api/api_keys.h"
#include "protocol/base/strings.h"
#include "tests/coordinator/api_fixture.h"
#include "tests/protocol/raw_connection.h"

namespace skein::coordinator {
namespace {

using protocol::Concat;
using protocol::HttpResult;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using tests::RawConnection;

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kText[] = "/v1/completions";
constexpr char kHello[] = R"({"messages":[{"role":"user","content":"Hello"}]})";

class ApiAuthTest : public ApiFixture {
 protected:
  ApiAuthTest() : path_(testing::TempDir() + "skein_api_auth_" + std::to_string(::getpid())) {
    std::ofstream(path_) << Concat(
        "keys:\n  alice:\n    hmac: \"", ToHex(ApiKeyDigest("alice", "s1")),
        "\"\n    priority_min: 5\n    priority_max: 9\n    deadline: 60\n  bob:\n    hmac: \"",
        ToHex(ApiKeyDigest("bob", "s2")),
        "\"\n    routes: completions\n    special_ids: 1\n  old:\n    hmac: \"",
        ToHex(ApiKeyDigest("old", "s3")), "\"\n    expires: 2001-01-01\n  slow:\n    hmac: \"",
        ToHex(ApiKeyDigest("slow", "s4")),
        "\"\n    weight: 3\n    concurrency: 2\n    prompt_tokens_per_minute: 10\n");
    keys_ = ApiKeys::Load("", path_).value();
    StartServer({}, keys_.get());
  }
  ~ApiAuthTest() override {
    server_.reset();
    std::filesystem::remove(path_);
  }

  HttpResult PostAs(const std::string& key, std::string target, std::string body,
                    std::string header = "Authorization") const {
    protocol::HttpCall call = Call("POST", std::move(target), std::move(body));
    const bool bearer = header == "Authorization";
    call.headers.emplace_back(std::move(header), (bearer ? "Bearer " : "") + key);
    return protocol::CallHttp(call).value();
  }

  const std::string path_;
  std::unique_ptr<ApiKeys> keys_;
};

TEST_F(ApiAuthTest, RefusesBeforeTheBodyIsSent) {
  RawConnection connection(server_->port());
  connection.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Content-Length: 8000000\r\n\r\n");
  const std::string answer = connection.ReadToEnd();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 401 Unauthorized\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nWWW-Authenticate: Bearer\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_THAT(answer, HasSubstr("\"type\":\"authentication_error\""));
  EXPECT_EQ(control_.num_submitted(), 0u);
}

TEST_F(ApiAuthTest, EveryFailureLooksTheSame) {
  const HttpResult missing = Post(kChat, kHello);
  EXPECT_EQ(missing.status, 401);
  EXPECT_EQ(TextAt(missing.body, {"error", "code"}), "invalid_api_key");
  for (const char* key : {"alice.s2", "carol.s1", "old.s3", "x", "alice"}) {
    const HttpResult result = PostAs(key, kChat, kHello);
    EXPECT_EQ(result.status, 401) << key;
    EXPECT_EQ(result.body, missing.body) << key;
  }
  EXPECT_THAT(Events(), Contains("11 /v1/chat/completions  invalid_api_key 401"));
  EXPECT_EQ(control_.num_submitted(), 0u);
}

TEST_F(ApiAuthTest, AnswersInTheFormOfTheRoute) {
  const std::string body = R"({"max_tokens":4,"messages":[{"role":"user","content":"Hello"}]})";
  const HttpResult refused = PostAs("alice.bad", "/v1/messages", body, "x-api-key");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(TextAt(refused.body, {"error", "type"}), "authentication_error");
  EXPECT_EQ(TextAt(refused.body, {"type"}), "error");
  EXPECT_EQ(PostAs("alice.s1", "/v1/messages", body, "x-api-key").status, 200);
}

TEST_F(ApiAuthTest, AMissingRightIsForbidden) {
  const HttpResult result = PostAs("bob.s2", kChat, kHello);
  EXPECT_EQ(result.status, 403);
  EXPECT_EQ(TextAt(result.body, {"error", "type"}), "permission_error");
  EXPECT_EQ(result.Header("x-should-retry"), "false");
  EXPECT_EQ(PostAs("bob.s2", kText, R"({"prompt":"a","max_tokens":1})").status, 200);
}

TEST_F(ApiAuthTest, HealthNeedsNoKeyAndMetricsDo) {
  EXPECT_EQ(Get("/health").status, 200);
  EXPECT_EQ(Get("/health/live").status, 200);
  EXPECT_EQ(Get("/metrics").status, 401);
  EXPECT_EQ(Get("/nothing").status, 401);
}

TEST_F(ApiAuthTest, AKeyBringsTenantPriorityAndDeadline) {
  EXPECT_EQ(PostAs("alice.s1", kChat, kHello).status, 200);
  const SubmitRequest request = control_.TakeSubmitted();
  EXPECT_EQ(request.tenant, "alice");
  EXPECT_EQ(request.priority, 5) << "what is nearest to 0";
  ASSERT_TRUE(request.deadline.has_value());
  EXPECT_EQ(*request.deadline - request.arrival, std::chrono::seconds(60));
  const HttpResult refused =
      PostAs("alice.s1", kChat, R"({"messages":[{"role":"user","content":"Hi"}],"priority":1})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(TextAt(refused.body, {"error", "param"}), "priority");
  EXPECT_EQ(TextAt(refused.body, {"error", "message"}),
            "priority is 1; this API key may give 5 to 9");
  // Unless the file says so, no key goes before those of others.
  EXPECT_EQ(PostAs("bob.s2", kText, R"({"prompt":"a","max_tokens":1,"priority":-3})").status, 400);
  EXPECT_EQ(PostAs("bob.s2", kText, R"({"prompt":"a","max_tokens":1,"priority":3})").status, 200);
  const SubmitRequest other = control_.TakeSubmitted();
  EXPECT_EQ(other.tenant, "bob");
  EXPECT_EQ(other.priority, 3);
  EXPECT_FALSE(other.deadline.has_value());
}

TEST_F(ApiAuthTest, TheKeysDeadlineBoundsTheRequests) {
  for (const auto& [asked, got] : {std::pair("5", 5), std::pair("600", 60)}) {
    protocol::HttpCall call = Call("POST", kChat, kHello);
    call.headers = {{"Authorization", "Bearer alice.s1"}, {"x-request-timeout", asked}};
    EXPECT_EQ(protocol::CallHttp(call)->status, 200);
    const SubmitRequest request = control_.TakeSubmitted();
    EXPECT_EQ(*request.deadline - request.arrival, std::chrono::seconds(got));
  }
}

// rule: E3
TEST_F(ApiAuthTest, SpecialIdsNeedTheRight) {
  const std::string body = R"({"prompt":[0,77],"max_tokens":1})";
  const HttpResult refused = PostAs("alice.s1", kText, body);
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(TextAt(refused.body, {"error", "param"}), "prompt");
  EXPECT_EQ(PostAs("alice.s1", kText, R"({"prompt":[77],"max_tokens":1})").status, 200);
  EXPECT_EQ(PostAs("bob.s2", kText, body).status, 200);
}

// rule: A1
TEST_F(ApiAuthTest, AKeyOverItsLimitIsToldWhenToComeBack) {
  const HttpResult good =
      PostAs("slow.s4", kText, R"({"prompt":[70,71,72,73,74,75],"max_tokens":1})");
  EXPECT_EQ(good.status, 200);
  const SubmitRequest request = control_.TakeSubmitted();
  EXPECT_EQ(request.flow, "slow");
  EXPECT_EQ(request.weight, 3u);
  const HttpResult refused =
      PostAs("slow.s4", kText, R"({"prompt":[70,71,72,73,74,75],"max_tokens":1})");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(TextAt(refused.body, {"error", "type"}), "rate_limit_error");
  EXPECT_EQ(TextAt(refused.body, {"error", "code"}), "rate_limit_exceeded");
  const int seconds = std::stoi(std::string(refused.Header("retry-after")));
  EXPECT_GE(seconds, 7) << "two of ten tokens are missing: 12 s, give or take a fifth";
  EXPECT_LE(seconds, 15);
  EXPECT_EQ(refused.Header("retry-after-ms"), std::to_string(seconds * 1000));
  EXPECT_EQ(control_.num_submitted(), 0u) << "refused before any work";
  EXPECT_EQ(PostAs("alice.s1", kText, R"({"prompt":[70],"max_tokens":1})").status, 200);
}

// What is wrong with its prompt is not looked for.
TEST_F(ApiAuthTest, AKeyThatMayHaveNothingIsToldSoBeforeItsPromptIsRead) {
  const HttpResult all =
      PostAs("slow.s4", kText, R"({"prompt":[70,71,72,73,74,75,76,77,78,79,80],"max_tokens":1})");
  EXPECT_EQ(all.status, 200);
  EXPECT_EQ(PostAs("slow.s4", kText, R"({"prompt":[0],"max_tokens":1})").status, 429);
  EXPECT_EQ(PostAs("alice.s1", kText, R"({"prompt":[0],"max_tokens":1})").status, 403);
}

TEST_F(ApiAuthTest, SequencesOfAKeyAreCountedUntilTheyEnd) {
  const std::string two = R"({"prompt":[70],"max_tokens":1,"n":2})";
  control_.Hold();
  RawConnection leaver(server_->port());
  leaver.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer slow.s4\r\n"
      "Content-Length: " +
      std::to_string(two.size()) + "\r\n\r\n" + two);
  control_.TakeSubmitted();
  control_.TakeSubmitted();
  EXPECT_EQ(PostAs("slow.s4", kText, R"({"prompt":[70],"max_tokens":1})").status, 429);
  leaver.Close();
  control_.TakeCancelled();
  control_.TakeCancelled();
  control_.Release();
  EXPECT_EQ(PostAs("slow.s4", kText, R"({"prompt":[70],"max_tokens":1})").status, 200);
  const HttpResult never = PostAs("slow.s4", kText, R"({"prompt":[70],"max_tokens":1,"n":3})");
  EXPECT_EQ(never.status, 429);
  EXPECT_EQ(never.Header("x-should-retry"), "false");
}

TEST_F(ApiAuthTest, AFullQueueSaysWhichBoundItIs) {
  absl::Status full = absl::ResourceExhaustedError("5 requests wait");
  full.SetPayload("skein.full_bound", absl::Cord("queue_requests"));
  control_.Refuse(full);
  const HttpResult refused = PostAs("alice.s1", kText, R"({"prompt":[70],"max_tokens":1})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(TextAt(refused.body, {"error", "code"}), "server_overloaded");
  EXPECT_NE(refused.Header("retry-after"), "");
  EXPECT_THAT(Events(), Contains(HasSubstr("queue_requests 503")));
}

TEST_F(ApiAuthTest, ARefusalWaitsForTheAnswersBeforeIt) {
  RawConnection connection(server_->port());
  connection.Send(
      "GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice.s1\r\n\r\n"
      "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
      "GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice.s1\r\n\r\n");
  const std::string answer = connection.ReadToEnd();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  const size_t refusal = answer.find("HTTP/1.1 401 ");
  ASSERT_NE(refusal, std::string::npos);
  EXPECT_THAT(answer.substr(refusal), Not(HasSubstr("HTTP/1.1 200"))) << "nothing after a refusal";
}

}  // namespace
}  // namespace skein::coordinator
