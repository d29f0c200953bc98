// What a server says of itself: its build and model, and, if that was asked for, what its host
// lacks.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "protocol/base/fingerprint.h"
#include "protocol/http/http_client.h"
#include "protocol/json/json.h"
#include "tests/process/live_server.h"
#include "tests/protocol/raw_connection.h"

namespace skein::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Fewer descriptors than connections are allowed degrade a host, whatever else it has.
class FewDescriptors {
 public:
  FewDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{4096, 4096};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }  // as far as this user may

 private:
  rlimit before_{};
};

// The names that /metrics has for degraded features, with commas between.
std::string DegradedInMetrics(uint16_t port) {
  protocol::HttpCall call;
  call.port = port;
  call.target = "/metrics";
  const auto answer = protocol::CallHttp(call);
  EXPECT_TRUE(answer.ok()) << answer.status();
  std::string names;
  const std::string_view begin = "\nskein_feature{name=\"";
  for (size_t at = answer->body.find(begin); at != std::string::npos;
       at = answer->body.find(begin, at + 1)) {
    const std::string line = answer->body.substr(at + 1, answer->body.find('\n', at + 1) - at - 1);
    if (line.find("state=\"degraded\"") == std::string::npos || !line.ends_with(" 1")) continue;
    const std::string name = line.substr(begin.size() - 1);
    names += (names.empty() ? "" : ",") + name.substr(0, name.find('"'));
  }
  return names;
}

std::string HeadOf(uint16_t port, const std::string& request) {
  RawConnection client(port);
  client.Send(request);
  return client.ReadUntilText("\r\n\r\n");
}

const std::string kModels = "GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n";

std::string StreamRequest() {
  const std::string body = R"({"prompt":[300,301],"max_tokens":4,"stream":true})";
  return "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\nContent-Type: application/json\r\n\r\n" + body;
}

TEST(DegradedHeaderTest, EveryAnswerNamesWhatTheHostLacks) {
  const FewDescriptors few;
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--degraded-header", "1"})) << server.output();
  const std::string names = DegradedInMetrics(server.port());
  EXPECT_THAT(names, HasSubstr("descriptors"));
  const std::string header = "\r\nx-skein-degraded: " + names + "\r\n";
  for (const std::string& request :
       {kModels, StreamRequest(), std::string("GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n"),
        std::string("no request\r\n\r\n")}) {
    EXPECT_THAT(HeadOf(server.port(), request), HasSubstr(header)) << request;
  }
}

TEST(DegradedHeaderTest, NobodyAskedForItSoNobodyIsTold) {
  const FewDescriptors few;
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  EXPECT_THAT(HeadOf(server.port(), kModels), Not(HasSubstr("x-skein-degraded")));
}

TEST(VersionTest, NamesBuildProtocolAndModel) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--served-model-name", "mine"})) << server.output();
  protocol::HttpCall call;
  call.port = server.port();
  call.target = "/version";
  const auto answer = protocol::CallHttp(call);
  ASSERT_TRUE(answer.ok()) << answer.status();
  const auto json = protocol::ParseJson(answer->body);
  ASSERT_TRUE(json.ok()) << answer->body;
  EXPECT_EQ(json->Find("version")->string(), "0.1.0");
  EXPECT_FALSE(json->Find("protocol")->string().empty());
  const protocol::JsonValue* model = json->Find("model");
  ASSERT_NE(model, nullptr) << answer->body;
  EXPECT_EQ(model->Find("name")->string(), "mine");
  EXPECT_EQ(model->Find("max_model_len")->AsInt64("max_model_len").value(), 4096);
  const std::string path = "deploy/models/tiny-v41/";
  EXPECT_EQ(model->Find("config")->string(), *protocol::FileFingerprint(path + "config.json"));
  EXPECT_EQ(model->Find("tokenizer")->string(),
            *protocol::FileFingerprint(path + "tokenizer.json"));
}

}  // namespace
}  // namespace skein::tests
