// Tests of the listener with TLS: answers and streams whole, old versions, requests without TLS and
// slow handshakes refused, bad files named.
#include "protocol/http/tls_session.h"

#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/base/strings.h"
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
  TlsTest() : certificate_("tls") { tls_ = TlsContext::Load(Files(certificate_)).value(); }

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

TEST(TlsContextTest, NamesTheFileThatIsWrong) {
  const TestCertificate one("tls_one");
  const TestCertificate other("tls_other");
  EXPECT_TRUE(TlsContext::Load(Files(one)).ok());
  EXPECT_THAT(Problem({"CERT", "/nonexistent.pem", "KEY", one.key()}),
              StartsWith("CERT: /nonexistent.pem: "));
  EXPECT_THAT(Problem({"CERT", one.certificate(), "KEY", "/nonexistent.key"}),
              StartsWith("KEY: /nonexistent.key: "));
  const std::string mismatch = Problem({"CERT", one.certificate(), "KEY", other.key()});
  EXPECT_THAT(mismatch, StartsWith("KEY: " + other.key() +
                                   ": key values mismatch; give a PEM file "
                                   "with the private key"));
  EXPECT_THAT(Problem({"CERT", one.key(), "KEY", one.key()}), StartsWith("CERT: " + one.key()));
}

}  // namespace
}  // namespace skein::protocol
