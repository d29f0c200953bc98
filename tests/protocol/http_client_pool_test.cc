// Tests of the pool against the real listener: connections are kept and shared, answers and streams
// arrive whole, every failure is told once.
#include "protocol/http/http_client_pool.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/protocol/http_fixture.h"
#include "tests/protocol/tls_client.h"
#include "tests/protocol/tls_peer.h"

namespace skein::protocol {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Keeps what the pool tells.
class Record final : public HttpClientPool::Receiver {
 public:
  struct Call {
    int status = 0;
    std::string body;
    int ends = 0;
    absl::Status result;
  };
  void OnBody(uint64_t call, int status, std::string_view bytes,
              HttpClientPool::Clock::time_point) override {
    EXPECT_EQ(status, 200);
    calls[call].body += bytes;
  }
  void OnEnd(uint64_t call, int status, const absl::Status& result,
             HttpClientPool::Clock::time_point) override {
    calls[call].status = status;
    calls[call].result = result;
    ++calls[call].ends;
  }
  std::map<uint64_t, Call> calls;
};

class HttpClientPoolTest : public HttpFixture {
 protected:
  void OpenPool(std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    HttpClientPool::Options options;
    options.port = server_->port();
    options.timeout = timeout;
    pool_ = HttpClientPool::Create(options).value();
  }
  // Polls until no call is left; bounded by the rounds, not by time.
  void Finish() {
    for (int i = 0; i < 1000 && pool_->num_calls() > 0; ++i) {
      pool_->Poll(std::chrono::milliseconds(20), record_);
    }
    EXPECT_EQ(pool_->num_calls(), 0u);
  }
  static std::string Post(std::string_view target, std::string_view body) {
    return KeptRequest("POST", target, "a", "X-Test: 1\r\n", body);
  }

  Record record_;
  std::unique_ptr<HttpClientPool> pool_;
};

class TlsPoolTest : public HttpClientPoolTest {
 protected:
  TlsPoolTest() : certificate_("http_pool") {
    tls_ = TlsCertificate::Load({"C", certificate_.certificate(), "K", certificate_.key()}).value();
  }
  void OpenTlsPool(const std::string& trusted, uint16_t port) {
    HttpClientPool::Options options;
    options.port = port;
    options.tls = TlsContext::ForClient("CA", trusted).value();
    pool_ = HttpClientPool::Create(options).value();
  }
  const tests::TestCertificate certificate_;
};

TEST_F(TlsPoolTest, KeepsItsConnectionsAndReadsStreams) {
  StartServer();
  OpenTlsPool(certificate_.certificate(), server_->port());
  const std::string body(300'000, 'b');
  for (uint64_t call = 0; call < 4; ++call) {
    pool_->Start(call, Post("/echo?n", body));
    Finish();
    EXPECT_TRUE(record_.calls[call].result.ok()) << record_.calls[call].result;
    EXPECT_EQ(record_.calls[call].body, body + "|/echo?n");
  }
  EXPECT_EQ(server_->num_connections(), 1u);
  pool_->Start(9, Post("/stream", ""));
  pool_->Start(10, Post("/echo", "beside it"));
  for (int i = 0; i < 1000 && held_.IsEmpty(); ++i) {
    pool_->Poll(std::chrono::milliseconds(20), record_);
  }
  const auto exchange = held_.Take();
  EXPECT_TRUE(exchange->Push("data: 1\n\n"));
  exchange->EndStream("data: 2\n\n");
  Finish();
  EXPECT_TRUE(record_.calls[9].result.ok()) << record_.calls[9].result;
  EXPECT_EQ(record_.calls[9].body, "data: 1\n\ndata: 2\n\n");
  EXPECT_EQ(record_.calls[10].body, "beside it|/echo");
}

TEST_F(TlsPoolTest, SaysWhyThereIsNoSession) {
  StartServer();
  OpenTlsPool("", server_->port());
  pool_->Start(1, Post("/echo", "x"));
  Finish();
  EXPECT_EQ(record_.calls[1].result.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(record_.calls[1].result.message()), HasSubstr("self-signed certificate"));
  EXPECT_EQ(record_.calls[1].ends, 1);
  tls_ = nullptr;
  StartServer();
  OpenTlsPool(certificate_.certificate(), server_->port());
  pool_->Start(2, Post("/echo", "x"));
  Finish();
  EXPECT_THAT(std::string(record_.calls[2].result.message()), HasSubstr("speaks no TLS"));
  OpenTlsPool(certificate_.certificate(), 1);
  pool_->Start(3, Post("/echo", "x"));
  Finish();
  EXPECT_THAT(std::string(record_.calls[3].result.message()), HasSubstr("cannot connect to"));
}

TEST_F(TlsPoolTest, AStreamThatIsCutIsNotWhole) {
  StartServer();
  OpenTlsPool(certificate_.certificate(), server_->port());
  pool_->Start(1, Post("/stream", ""));
  for (int i = 0; i < 1000 && held_.IsEmpty(); ++i) {
    pool_->Poll(std::chrono::milliseconds(20), record_);
  }
  const auto exchange = held_.Take();
  EXPECT_TRUE(exchange->Push("data: 1\n\n"));
  exchange->Abort();
  Finish();
  EXPECT_EQ(record_.calls[1].result.code(), absl::StatusCode::kDataLoss);
}

constexpr char kAnswer[] = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";

TEST_F(TlsPoolTest, SaysItsEndBeforeItCloses) {
  tests::TlsPeer server(tls_->Current(TlsCertificate::Clock::now()), kAnswer,
                        tests::TlsPeer::After::kStaysOpen, 1);
  OpenTlsPool(certificate_.certificate(), server.port());
  pool_->Start(1, Post("/any", ""));
  Finish();
  EXPECT_EQ(record_.calls[1].body, "done");
  EXPECT_EQ(pool_->num_connections(), 1u) << "it is kept";
  pool_ = nullptr;
  EXPECT_TRUE(server.ends.Take()) << "the server cannot tell it from a cut";
}

// The answer is whole and the connection could be kept, but for the server's word behind it.
TEST_F(TlsPoolTest, AConnectionWhoseServerSaidItsEndIsNotUsedAgain) {
  tests::TlsPeer server(tls_->Current(TlsCertificate::Clock::now()), kAnswer,
                        tests::TlsPeer::After::kSaysItsEnd, 2);
  OpenTlsPool(certificate_.certificate(), server.port());
  for (uint64_t call = 1; call <= 2; ++call) {
    pool_->Start(call, Post("/any", ""));
    Finish();
    EXPECT_TRUE(record_.calls[call].result.ok()) << record_.calls[call].result;
    EXPECT_EQ(record_.calls[call].body, "done");
    EXPECT_EQ(pool_->num_connections(), 0u);
    server.ends.Take();
  }
}

TEST_F(HttpClientPoolTest, KeepsItsConnections) {
  StartServer();
  OpenPool();
  for (uint64_t call = 0; call < 8; ++call) {
    pool_->Start(call, Post("/echo?n", std::to_string(call)));
    Finish();
  }
  EXPECT_EQ(pool_->num_connections(), 1u);
  EXPECT_EQ(server_->num_connections(), 1u);
  for (uint64_t call = 0; call < 8; ++call) {
    EXPECT_TRUE(record_.calls[call].result.ok());
    EXPECT_EQ(record_.calls[call].status, 200);
    EXPECT_EQ(record_.calls[call].body, std::to_string(call) + "|/echo?n");
    EXPECT_EQ(record_.calls[call].ends, 1);
  }
}

TEST_F(HttpClientPoolTest, RunsCallsAtTheSameTime) {
  StartServer();
  OpenPool();
  const std::string large(300'000, 'x');
  for (uint64_t call = 0; call < 16; ++call) pool_->Start(call, Post("/echo", large));
  EXPECT_EQ(pool_->num_calls(), 16u);
  Finish();
  EXPECT_EQ(pool_->num_connections(), 16u);
  for (uint64_t call = 0; call < 16; ++call) EXPECT_EQ(record_.calls[call].body, large + "|/echo");
}

TEST_F(HttpClientPoolTest, GivesAStreamAsItComes) {
  StartServer();
  OpenPool();
  pool_->Start(7, KeptRequest("GET", "/stream", "a", "", ""));
  for (int i = 0; i < 1000 && held_.IsEmpty(); ++i) {
    pool_->Poll(std::chrono::milliseconds(20), record_);
  }
  const auto exchange = held_.Take();
  ASSERT_NE(exchange, nullptr);
  EXPECT_TRUE(exchange->Push("data: 1\n\n"));
  for (int i = 0; i < 1000 && record_.calls[7].body.empty(); ++i) {
    pool_->Poll(std::chrono::milliseconds(20), record_);
  }
  EXPECT_EQ(record_.calls[7].body, "data: 1\n\n");
  EXPECT_EQ(record_.calls[7].ends, 0);
  exchange->EndStream("data: 2\n\n");
  Finish();
  EXPECT_EQ(record_.calls[7].body, "data: 1\n\ndata: 2\n\n");
  EXPECT_TRUE(record_.calls[7].result.ok());
}

TEST_F(HttpClientPoolTest, TellsThatAnAnswerNeverCame) {
  StartServer();
  OpenPool();
  pool_->Start(1, Post("/dropped", "x"));
  Finish();
  EXPECT_EQ(record_.calls[1].result.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(record_.calls[1].result.message(), "the connection was closed before an answer came");
  EXPECT_EQ(pool_->num_connections(), 0u);
}

TEST_F(HttpClientPoolTest, TellsThatNobodyListens) {
  StartServer();
  OpenPool();
  server_->Stop();
  server_.reset();
  pool_->Start(1, Post("/echo", "x"));
  Finish();
  EXPECT_EQ(record_.calls[1].result.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(record_.calls[1].result.message()),
              StartsWith("cannot connect to 127.0.0.1:"));
}

TEST_F(HttpClientPoolTest, EndsACallWithoutProgress) {
  StartServer();
  OpenPool(std::chrono::milliseconds(50));
  pool_->Start(1, Post("/held", "x"));
  Finish();
  EXPECT_EQ(record_.calls[1].result.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(record_.calls[1].result.message(), "no byte of the answer for 50 ms");
  EXPECT_TRUE(closed_.Take());
}

TEST(HttpClientPool, NamesAHostThatDoesNotResolve) {
  HttpClientPool::Options options;
  options.host = "no host";
  const auto pool = HttpClientPool::Create(options);
  EXPECT_EQ(pool.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(pool.status().message()), HasSubstr("cannot resolve no host: "));
}

}  // namespace
}  // namespace skein::protocol
