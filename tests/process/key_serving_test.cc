// A real server with keys: who is let in, what tenants share, what a new file of keys changes, and
// that no secret shows.
#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/base/strings.h"
#include "protocol/http/http_client.h"
#include "protocol/http/tls_session.h"
#include "tests/process/chat_client.h"
#include "tests/process/key_file.h"
#include "tests/process/live_server.h"
#include "tests/protocol/tls_client.h"

namespace skein::tests {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

ChatCall Completion(const std::string& key, int32_t length = 200) {
  ChatCall call;
  call.key = key;
  call.max_tokens = 8;
  for (int32_t i = 0; i < length; ++i) call.prompt_ids.push_back(300 + i * 37 % 3000);
  return call;
}

// rule: P4
TEST(KeyServingTest, TwoKeysWithTheSamePromptShareNothing) {
  LiveServer server;
  const std::string file = server.directory() + "/keys.yaml";
  auto keys = WriteKeyFile(file, {{"alice", ""}, {"bob", ""}, {"carol", "    tenant: alice\n"}});
  ASSERT_EQ(keys.size(), 3u);
  ASSERT_TRUE(server.StartReady({"--enable-prefix-caching", "--api-key-file", file}))
      << server.output();
  EXPECT_EQ(Ask(server.port(), Completion("")).status, 401);
  const ChatAnswer first = Ask(server.port(), Completion(keys["alice"]));
  ASSERT_EQ(first.status, 200);
  EXPECT_EQ(first.cached_tokens, 0);
  const ChatAnswer other = Ask(server.port(), Completion(keys["bob"]));
  EXPECT_EQ(other.cached_tokens, 0) << "another tenant's prompt was found";
  EXPECT_TRUE(SameAnswer(other, first));
  EXPECT_EQ(Ask(server.port(), Completion(keys["alice"])).cached_tokens, 192);
  EXPECT_EQ(Ask(server.port(), Completion(keys["carol"])).cached_tokens, 192)
      << "a key may share another one's tenant";
  EXPECT_EQ(Ask(server.port(), Completion(keys["bob"])).cached_tokens, 192);
  // A new file is in force for the next requests; the old keys are not.
  const auto renewed = WriteKeyFile(file, {{"alice", ""}});
  ASSERT_EQ(renewed.size(), 1u);
  EXPECT_TRUE(WaitUntil(
      [&] { return Ask(server.port(), Completion(renewed.at("alice"), 8)).status == 200; }));
  EXPECT_EQ(Ask(server.port(), Completion(keys["alice"], 8)).status, 401);
  EXPECT_TRUE(server.WaitForOutput("API keys read"));
  for (const auto& [id, key] : keys) EXPECT_THAT(server.output(), Not(HasSubstr(key.substr(8))));
}

TEST(KeyServingTest, AKeyThatWasGivenAsAValueShowsNowhere) {
  LiveServer server;
  const std::string secret = "sk-of-this-test";
  ASSERT_TRUE(server.StartReady({"--api-key", secret})) << server.output();
  EXPECT_EQ(Ask(server.port(), Completion("", 8)).status, 401);
  EXPECT_EQ(Ask(server.port(), Completion("sk-of-this-tesT", 8)).status, 401);
  EXPECT_EQ(Ask(server.port(), Completion(secret, 8)).status, 200);
  EXPECT_THAT(server.Alive(), Each(Not(HasSubstr(secret)))) << "the list of processes shows it";
  EXPECT_THAT(server.output(), HasSubstr("prefer --api-key-file"));
  EXPECT_THAT(server.output(), Not(HasSubstr(secret)));
  EXPECT_THAT(server.Admin("GET", "/admin/config").body, Not(HasSubstr(secret)));
}

// The port of a server that speaks TLS, once it answers there that it is ready; 0: it never did.
uint16_t WaitForTls(LiveServer& server, const TestCertificate& certificate) {
  if (!server.WaitForOutput("coordinator: ready https://127.0.0.1:")) return 0;
  const std::string output = server.output();
  protocol::HttpCall call;
  call.port =
      static_cast<uint16_t>(std::stoi(output.substr(output.find("https://127.0.0.1:") + 18)));
  call.target = "/health";
  call.tls = protocol::TlsContext::ForClient("CA", certificate.certificate()).value();
  const auto is_ready = [&] {
    const auto answer = protocol::CallHttp(call);
    return answer.ok() && answer->status == 200;
  };
  return WaitUntil(is_ready) ? call.port : 0;
}

TEST(KeyServingTest, ServesOverTls) {
  const TestCertificate certificate("serving");
  LiveServer server;
  server.Start({"--ssl-certfile", certificate.certificate(), "--ssl-keyfile", certificate.key()});
  const uint16_t port = WaitForTls(server, certificate);
  ASSERT_NE(port, 0) << server.output();
  const std::string body = R"({"prompt":[300,301],"max_tokens":4,"stream":true})";
  TlsClient client(port);
  ASSERT_TRUE(client.is_open());
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  const std::string answer = client.ReadToEnd();
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200 OK"));
  EXPECT_THAT(answer, HasSubstr("data: [DONE]\n\n"));
  EXPECT_TRUE(client.was_whole());
}

// The files are replaced under load: the stream that is open ends whole, a new connection sees the
// new certificate, and a broken file changes nothing but the log.
TEST(KeyServingTest, ANewCertificateIsForNewConnections) {
  const TestCertificate certificate("renewing");
  LiveServer server;
  server.Start({"--ssl-certfile", certificate.certificate(), "--ssl-keyfile", certificate.key()});
  const uint16_t port = WaitForTls(server, certificate);
  ASSERT_NE(port, 0) << server.output();
  const auto ask = [](TlsClient& client) {
    const std::string body =
        R"({"prompt":[300,301],"max_tokens":2500,"stream":true,"ignore_eos":true,"temperature":0})";
    client.Send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        "Content-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body);
  };
  TlsClient old(port);
  EXPECT_EQ(old.serial(), 1);
  ask(old);
  { std::ofstream(certificate.certificate()) << "no certificate"; }
  EXPECT_TRUE(WaitUntil([&] {
    const TlsClient client(port);
    EXPECT_EQ(client.serial(), 1);
    return server.output().find("the old certificate stays in force") != std::string::npos;
  }));
  const TestCertificate renewed("renewed", 2);
  certificate.ReplaceKey(renewed);
  certificate.ReplaceCertificate(renewed);
  EXPECT_TRUE(WaitUntil([&] { return TlsClient(port).serial() == 2; }));
  EXPECT_TRUE(server.WaitForOutput("certificate read"));
  EXPECT_THAT(old.ReadToEnd(), HasSubstr("data: [DONE]\n\n"));
  EXPECT_TRUE(old.was_whole());
}

TEST(KeyServingTest, AnOpenAddressWithoutKeysIsWarnedOf) {
  LiveServer server;
  server.Start({"--host", "0.0.0.0"});
  EXPECT_TRUE(server.WaitForOutput("everybody who reaches this address may use the API"));
  EXPECT_TRUE(server.WaitForOutput("address=0.0.0.0:"));
}

}  // namespace
}  // namespace skein::tests
