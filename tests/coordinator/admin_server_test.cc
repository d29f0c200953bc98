// The operator listener over both kinds of address, with a control loop that a thread of the test
// stands for: verbs, their bodies, credentials, refusals.
#include "coordinator/api/admin_server.h"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "protocol/http/http_client.h"

namespace skein::coordinator {
namespace {

using ::testing::HasSubstr;

// Answers each command on its own thread, as the control loop would.
class Control final : public protocol::Waker {
 public:
  Control() : queue_(*this) {}
  ~Control() override {
    for (std::thread& thread : threads_) thread.join();
  }
  void Wake() override {
    threads_.emplace_back([this] {
      for (OperatorCommand& command : queue_.TakeAll()) {
        seen = command;
        OperatorAnswer answer;
        answer.status = refusal;
        answer.cluster.term = 3;
        command.reply(answer);
      }
    });
  }
  OperatorQueue& queue() { return queue_; }

  absl::Status refusal;
  OperatorCommand seen;

 private:
  OperatorQueue queue_;
  std::vector<std::thread> threads_;
};

class AdminServerTest : public ::testing::Test {
 protected:
  void Start(AdminServer::Options options) {
    options.identity = {"0.1.0", "1.1", "hash"};
    options.config_json = "{\"hash\":\"hash\"}";
    options.health = [this](HealthProbe) { return health_; };
    options.metrics_text = [] { return std::string("skein_x 1\n"); };
    unix_path_ = options.unix_path;
    auto server = AdminServer::Create(std::move(options), control_.queue());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    server_->Start();
  }
  void StartUnix() {
    AdminServer::Options options;
    options.unix_path = ::testing::TempDir() + "/admin." + std::to_string(::getpid());
    Start(std::move(options));
  }
  protocol::HttpResult Call(const std::string& method, const std::string& target,
                            const std::string& body = "", const std::string& token = "") {
    protocol::HttpCall call;
    call.unix_path = unix_path_;
    if (unix_path_.empty()) call.port = server_->port();
    call.method = method;
    call.target = target;
    call.body = body;
    if (!token.empty()) call.headers.emplace_back("Authorization", "Bearer " + token);
    auto result = protocol::CallHttp(call);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : protocol::HttpResult{};
  }

  absl::Status health_;
  Control control_;
  std::string unix_path_;
  std::unique_ptr<AdminServer> server_;
};

TEST_F(AdminServerTest, VerbsReachTheControlLoopWithTheirActor) {
  StartUnix();
  const auto status = Call("GET", "/admin/status");
  EXPECT_EQ(status.status, 200);
  EXPECT_THAT(status.body, HasSubstr("\"config_hash\":\"hash\",\"term\":3"));
  EXPECT_EQ(control_.seen.actor, "uid:" + std::to_string(::getuid()));
  EXPECT_EQ(Call("POST", "/admin/drain", "{\"group\":1}").status, 200);
  EXPECT_EQ(control_.seen.verb, OperatorCommand::Verb::kDrain);
  EXPECT_EQ(control_.seen.group, 1u);
  Call("POST", "/admin/undrain", "{\"group\":null}");
  EXPECT_EQ(control_.seen.verb, OperatorCommand::Verb::kUndrain);
  EXPECT_FALSE(control_.seen.group.has_value());
  const auto rollout = Call("POST", "/admin/rollout", R"({"action":"start","build":"2"})");
  EXPECT_THAT(rollout.body, HasSubstr("{\"state\":\"idle\""));
  EXPECT_EQ(control_.seen.action, "start");
  EXPECT_EQ(control_.seen.build, "2");
  EXPECT_THAT(Call("GET", "/admin/rollout").body, HasSubstr("{\"state\":\"idle\""));
}

TEST_F(AdminServerTest, ErrorsSayWhatIsWrong) {
  StartUnix();
  const auto unknown = Call("POST", "/admin/drain", "{\"groups\":1}");
  EXPECT_EQ(unknown.status, 400);
  EXPECT_THAT(unknown.body, HasSubstr(R"(\"groups\" is unknown here; there are group)"));
  EXPECT_EQ(Call("POST", "/admin/drain", "{\"group\":-1}").status, 400);
  EXPECT_EQ(Call("POST", "/admin/drain", "[]").status, 400);
  for (const char* path : {"/admin/drain", "/admin/undrain"}) {
    for (const char* body : {"", "{}"}) {
      const auto nothing = Call("POST", path, body);
      EXPECT_EQ(nothing.status, 400) << path << body;
      EXPECT_NE(nothing.body.find("is missing; it is the number of a group, or null"),
                std::string::npos)
          << nothing.body;
    }
  }
  EXPECT_EQ(Call("GET", "/admin/drain").status, 405);
  EXPECT_EQ(Call("GET", "/admin").status, 404);
  control_.refusal = absl::FailedPreconditionError("a rollout is running at group 0");
  const auto conflict = Call("POST", "/admin/rollout", R"({"action":"start"})");
  EXPECT_EQ(conflict.status, 409);
  EXPECT_THAT(conflict.body, HasSubstr("a rollout is running at group 0"));
}

TEST_F(AdminServerTest, ServesConfigurationMetricsAndHealth) {
  StartUnix();
  EXPECT_EQ(Call("GET", "/admin/config").body, "{\"hash\":\"hash\"}");
  EXPECT_EQ(Call("GET", "/admin/requests").body, "{\"requests\":[]}");
  EXPECT_EQ(Call("GET", "/metrics").body, "skein_x 1\n");
  EXPECT_EQ(Call("GET", "/health/ready").status, 200);
  health_ = absl::UnavailableError("no worker group is ready");
  const auto health = Call("GET", "/health/ready");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.body, "{\"status\":\"unavailable\",\"reason\":\"no worker group is ready\"}");
  EXPECT_EQ(health.Header("retry-after"), "1");
}

TEST_F(AdminServerTest, ATcpListenerAsksForItsToken) {
  AdminServer::Options options;
  options.token = "secret";
  Start(std::move(options));
  EXPECT_EQ(Call("GET", "/admin/status").status, 401);
  EXPECT_EQ(Call("GET", "/admin/status", "", "secreT").status, 401);
  EXPECT_EQ(Call("GET", "/metrics").status, 401);
  EXPECT_EQ(Call("GET", "/health/live").status, 200);
  EXPECT_EQ(Call("GET", "/admin/status", "", "secret").status, 200);
  EXPECT_EQ(control_.seen.actor, "token");
}

TEST(SameSecretTest, ComparesWhole) {
  EXPECT_TRUE(SameSecret("abc", "abc"));
  EXPECT_FALSE(SameSecret("abc", "abd"));
  EXPECT_FALSE(SameSecret("abcabc", "abc"));
  EXPECT_FALSE(SameSecret("", "abc"));
}

}  // namespace
}  // namespace skein::coordinator
