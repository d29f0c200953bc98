// Tests of the listener with TLS: answers and streams whole, old versions, requests without TLS and
// slow handshakes refused, bad files named.
#include "protocol/http/tls_session.h"

#include <fstream>
#include <string>
#include <tuple>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/base/strings.h"
#include "protocol/http/http_client.h"
#include "tests/protocol/http_fixture.h"
#include "tests/protocol/tls_client.h"

namespace skein::protocol {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using tests::RawConnection;
using tests::TestCertificate;
using tests::TlsClient;

constexpr char kEcho[] = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: ";

std::string Echo(const std::string& body, const std::string& fields = "Connection: close\r\n") {
  return kEcho + std::to_string(body.size()) + "\r\n" + fields + "\r\n" + body;
}

TlsContext::Files Files(const TestCertificate& certificate) {
  return {"CERT", certificate.certificate(), "KEY", certificate.key()};
}

std::string Problem(const TlsContext::Files& files) {
  return std::string(StatusText(TlsContext::Load(files).status()));
}

class TlsTest : public HttpFixture {
 protected:
  TlsTest() : certificate_("tls") { tls_ = TlsCertificate::Load(Files(certificate_)).value(); }

  const TestCertificate certificate_;
};

TEST_F(TlsTest, AnswersInBothVersions) {
  StartServer();
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClient client(server_->port(), version);
    ASSERT_TRUE(client.is_open());
    EXPECT_EQ(client.version(), version == TLS1_2_VERSION ? "TLSv1.2" : "TLSv1.3");
    client.Send(Echo("first", ""));
    client.Send(Echo("second"));
    const std::string answer = client.ReadToEnd();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(answer, HasSubstr("first|/echo"));
    EXPECT_THAT(answer, EndsWith("second|/echo"));
    EXPECT_TRUE(client.was_whole()) << "the end was not said";
  }
  EXPECT_TRUE(events_.IsEmpty());
}

TEST_F(TlsTest, MovesMuchMoreThanARecord) {
  StartServer();
  TlsClient client(server_->port());
  std::string body(3'000'000, 'x');
  for (size_t i = 0; i < body.size(); i += 7) body[i] = static_cast<char>('a' + i % 26);
  client.Send(Echo(body));
  const std::string answer = client.ReadToEnd();
  EXPECT_TRUE(answer.ends_with(body + "|/echo")) << answer.size();
}

TEST_F(TlsTest, AStreamThatIsCutIsNotWhole) {
  StartServer();
  TlsClient client(server_->port());
  client.Send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = held_.Take();
  EXPECT_TRUE(exchange->Push("data: 1\n\n"));
  exchange->Abort();
  const std::string answer = client.ReadToEnd();
  EXPECT_THAT(answer, Not(EndsWith("0\r\n\r\n")));
  EXPECT_FALSE(client.was_whole());
}

TEST_F(TlsTest, AStreamEndsWithItsLastChunk) {
  StartServer();
  TlsClient client(server_->port());
  client.Send("GET /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const auto exchange = held_.Take();
  EXPECT_TRUE(exchange->Push("data: 1\n\n"));
  exchange->EndStream("data: 2\n\n");
  EXPECT_THAT(client.ReadToEnd(), EndsWith("data: 2\n\n\r\n0\r\n\r\n"));
  EXPECT_TRUE(client.was_whole());
}

TEST_F(TlsTest, OldVersionsAreRefused) {
  StartServer();
  const TlsClient client(server_->port(), TLS1_1_VERSION);
  EXPECT_FALSE(client.is_open());
  EXPECT_EQ(events_.Take(), "malformed tls");
}

// The alert of a client that does not believe the certificate breaks the session, and the
// connection's end behind it breaks nothing more.
TEST_F(TlsTest, AnAlertIsCountedOnce) {
  StartServer();
  for (const char* method : {"POST", "GET"}) {
    HttpCall call;
    call.port = server_->port();
    call.method = method;
    call.target = "/echo";
    call.tls = TlsContext::ForClient("CA", "").value();
    EXPECT_FALSE(CallHttp(call).ok());
    EXPECT_EQ(events_.Take(), "malformed tls");
  }
  // What the listener does later on its thread it counts later.
  TlsClient other(server_->port());
  other.Send(Echo("other"));
  EXPECT_THAT(other.ReadToEnd(), EndsWith("other|/echo"));
  EXPECT_TRUE(events_.IsEmpty()) << events_.Take();
}

TEST_F(TlsTest, ARequestWithoutTlsIsToldSo) {
  StartServer();
  RawConnection client(server_->port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string answer = client.ReadToEnd();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 Bad Request\r\n"));
  EXPECT_THAT(answer, HasSubstr("this port speaks TLS; send the request to https://"));
  EXPECT_EQ(events_.Take(), "malformed plain_http");
  RawConnection noise(server_->port());
  noise.Send(std::string(100, '\x01'));
  noise.ReadToEnd();
  EXPECT_EQ(events_.Take(), "malformed tls");
}

TEST_F(TlsTest, ASlowHandshakeHasTheTimeOfAHead) {
  HttpLimits limits;
  limits.head_timeout = std::chrono::milliseconds(50);
  StartServer(limits);
  RawConnection silent(server_->port());
  EXPECT_EQ(silent.ReadToEnd(), "");
  EXPECT_EQ(events_.Take(), "timeout handshake");
  RawConnection begun(server_->port());
  begun.Send(std::string("\x16\x03\x01\x02\x00\x01", 6));
  EXPECT_EQ(begun.ReadToEnd(), "");
  EXPECT_EQ(events_.Take(), "timeout handshake");
}

// Bytes go to and fro between both sides of a session until neither has more to say.
void Talk(TlsSession& client, TlsSession& server) {
  std::string to_server, to_client, text;
  for (int i = 0; i < 10; ++i) {
    client.TakeOutput(&to_server);
    if (!to_server.empty()) server.Receive(std::exchange(to_server, {}), &text);
    server.TakeOutput(&to_client);
    if (!to_client.empty()) client.Receive(std::exchange(to_client, {}), &text);
  }
}

class TlsClientTest : public ::testing::Test {
 protected:
  TlsClientTest()
      : certificate_("tls_client"), server_(TlsContext::Load(Files(certificate_)).value()) {}
  // How a client that trusts these ends up with the server, and why.
  std::pair<TlsSession::State, std::string> Meet(const std::string& trusted,
                                                 const std::string& name) {
    TlsSession client(TlsContext::ForClient("CA", trusted).value(), name);
    TlsSession server(server_);
    Talk(client, server);
    return {client.state(), client.problem()};
  }
  const TestCertificate certificate_;
  const std::shared_ptr<TlsContext> server_;
};

TEST_F(TlsClientTest, BelievesAServerThatIsTrustedAndMeant) {
  for (const char* name : {"localhost", "127.0.0.1"}) {
    EXPECT_EQ(Meet(certificate_.certificate(), name).first, TlsSession::State::kOpen) << name;
  }
  const TestCertificate other("tls_client_other");
  for (const auto& [trusted, name, problem] :
       {std::tuple{other.certificate(), "localhost", "self-signed certificate"},
        std::tuple{std::string(), "localhost", "self-signed certificate"},
        std::tuple{certificate_.certificate(), "example.org", "hostname mismatch"},
        std::tuple{certificate_.certificate(), "10.0.0.1", "IP address mismatch"}}) {
    const auto [state, why] = Meet(trusted, name);
    EXPECT_EQ(state, TlsSession::State::kBroken) << name;
    EXPECT_THAT(why, HasSubstr(problem)) << name;
  }
}

TEST_F(TlsClientTest, SaysWhatIsWrong) {
  EXPECT_THAT(std::string(StatusText(TlsContext::ForClient("CA", "/nonexistent.pem").status())),
              StartsWith("CA: /nonexistent.pem: "));
  TlsSession client(TlsContext::ForClient("CA", certificate_.certificate()).value(), "localhost");
  std::string text;
  EXPECT_EQ(client.Receive("HTTP/1.1 400 Bad Request\r\n", &text), TlsSession::State::kPlain);
  EXPECT_EQ(TlsFailure(client, "h:1").message(), "h:1 speaks no TLS; call it with http://");
}

TEST_F(TlsClientTest, WhatCannotBeSentBreaksTheSession) {
  TlsSession client(TlsContext::ForClient("CA", certificate_.certificate()).value(), "localhost");
  TlsSession server(server_);
  Talk(client, server);
  std::string wire;
  server.SendEnd(&wire);
  server.Send("more", &wire);
  EXPECT_EQ(server.state(), TlsSession::State::kBroken);
  EXPECT_NE(server.problem(), "");
}

TEST(TlsContextTest, NamesTheFileThatIsWrong) {
  const TestCertificate one("tls_one");
  const TestCertificate other("tls_other");
  EXPECT_TRUE(TlsContext::Load(Files(one)).ok());
  EXPECT_THAT(Problem({"CERT", "/nonexistent.pem", "KEY", one.key()}),
              StartsWith("CERT: /nonexistent.pem: No such file or directory; give"));
  EXPECT_THAT(Problem({"CERT", one.certificate(), "KEY", "/nonexistent.key"}),
              StartsWith("KEY: /nonexistent.key: No such file or directory; give"));
  const std::string mismatch = Problem({"CERT", one.certificate(), "KEY", other.key()});
  EXPECT_THAT(mismatch, StartsWith("KEY: " + other.key() +
                                   ": key values mismatch; give a PEM file "
                                   "with the private key"));
  EXPECT_THAT(Problem({"CERT", one.key(), "KEY", one.key()}), StartsWith("CERT: " + one.key()));
}

}  // namespace
}  // namespace skein::protocol
