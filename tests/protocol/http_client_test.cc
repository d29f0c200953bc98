// Tests of the blocking client against the listener.
// Thread: the test and the listener's.
// Must never: wait for time to pass without a condition.
#include "protocol/http/http_client.h"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/protocol/http_fixture.h"
#include "tests/protocol/tls_client.h"
#include "tests/protocol/tls_peer.h"

namespace skein::protocol {
namespace {

using ::testing::HasSubstr;
using HttpClientTest = HttpFixture;

TEST_F(HttpClientTest, ClientReadsAnswersAndEvents) {
  StartServer();
  HttpCall call;
  call.port = server_->port();
  call.method = "POST";
  call.target = "/echo";
  call.body = "hello";
  const auto answer = CallHttp(call);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, "hello|/echo");
  EXPECT_EQ(answer->Header("content-type"), "text/plain");

  call.target = "/stream";
  std::thread producer([this] {
    const auto exchange = held_.Take();
    EXPECT_TRUE(exchange->Push("data: {\"a\":1}\n\n: keep-alive\n\ndata: tw"));
    EXPECT_TRUE(exchange->Push("o\n\n"));
    exchange->EndStream("data: [DONE]\n\n");
  });
  std::vector<std::string> events;
  const auto stream = CallHttpEvents(call, [&](std::string_view event) {
    events.emplace_back(event);
    return true;
  });
  producer.join();
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_THAT(events, ::testing::ElementsAre("{\"a\":1}", "two", "[DONE]"));
}

TEST_F(HttpClientTest, ClientReportsCutsRefusalsAndSilence) {
  StartServer();
  HttpCall call;
  call.port = server_->port();
  call.target = "/held";
  call.timeout = std::chrono::milliseconds(50);
  EXPECT_EQ(CallHttp(call).status().code(), absl::StatusCode::kDeadlineExceeded);
  held_.Take();
  call.port = 1;
  EXPECT_EQ(CallHttp(call).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(CallHttp(call).status().message()),
              HasSubstr("cannot connect to 127.0.0.1:1: Connection refused"));
}

TEST_F(HttpClientTest, ClientSpeaksTls) {
  const tests::TestCertificate certificate("http_client");
  tls_ = TlsCertificate::Load({"C", certificate.certificate(), "K", certificate.key()}).value();
  StartServer();
  HttpCall call;
  call.port = server_->port();
  call.method = "POST";
  call.target = "/echo";
  call.body = std::string(200'000, 'b');
  call.tls = TlsContext::ForClient("CA", certificate.certificate()).value();
  const auto answer = CallHttp(call);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->body, call.body + "|/echo");
  call.target = "/stream";
  std::thread producer([this] {
    const auto exchange = held_.Take();
    EXPECT_TRUE(exchange->Push("data: 1\n\n"));
    exchange->Abort();
  });
  const auto cut = CallHttpEvents(call, [](std::string_view) { return true; });
  producer.join();
  EXPECT_EQ(cut.status().code(), absl::StatusCode::kDataLoss);
  call.tls = TlsContext::ForClient("CA", "").value();
  const absl::Status stranger = CallHttp(call).status();
  EXPECT_EQ(stranger.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(stranger.message()), HasSubstr("failed: self-signed certificate"));
}

TEST_F(HttpClientTest, ClientSaysItsEndOverTls) {
  const tests::TestCertificate certificate("http_client_end");
  tests::TlsPeer server(
      TlsContext::Load({"C", certificate.certificate(), "K", certificate.key()}).value(),
      "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone", tests::TlsPeer::After::kStaysOpen, 1);
  HttpCall call;
  call.host = "localhost";
  call.port = server.port();
  call.tls = TlsContext::ForClient("CA", certificate.certificate()).value();
  const auto answer = CallHttp(call);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->body, "done");
  EXPECT_TRUE(server.ends.Take());
}

TEST_F(HttpClientTest, ClientMayEndAStream) {
  StartServer();
  HttpCall call;
  call.port = server_->port();
  call.target = "/stream";
  std::shared_ptr<HttpExchange> exchange;
  std::thread producer([&] {
    exchange = held_.Take();
    EXPECT_TRUE(exchange->Push("data: 1\n\ndata: 2\n\n"));
  });
  const auto stream = CallHttpEvents(call, [](std::string_view) { return false; });
  producer.join();
  EXPECT_EQ(stream.status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace skein::protocol
