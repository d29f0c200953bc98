// What a scraper of a worker gets, and that clients who are slow, many or wrong get nothing else.
#include "worker/metrics_listener.h"

#include <memory>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "protocol/http/http_client.h"

namespace skein::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A client that may do with its connection what it likes.
class RawClient {
 public:
  explicit RawClient(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~RawClient() { ::close(fd_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void Send(std::string_view text) const {
    EXPECT_EQ(::send(fd_, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // Everything until the other side closes.
  std::string ReadToEnd() const {
    std::string out;
    char bytes[4096];
    pollfd wait{fd_, POLLIN, 0};
    while (::poll(&wait, 1, 20'000) == 1) {
      const ssize_t count = ::read(fd_, bytes, sizeof bytes);
      if (count <= 0) return out;
      out.append(bytes, static_cast<size_t>(count));
    }
    ADD_FAILURE() << "the connection stays open";
    return out;
  }

 private:
  const int fd_;
};

class MetricsListenerTest : public ::testing::Test {
 protected:
  void Listen(std::string text = "skein_x 1\n",
              std::chrono::milliseconds slowest = std::chrono::milliseconds(5'000)) {
    MetricsListener::Options options;
    options.host = "127.0.0.1";
    options.text = [text = std::move(text)] { return text; };
    options.slowest = slowest;
    auto listener = MetricsListener::Create(std::move(options));
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }
  protocol::HttpResult Get(const std::string& target, const std::string& method = "GET") const {
    protocol::HttpCall call;
    call.port = listener_->port();
    call.target = target;
    call.method = method;
    const auto result = protocol::CallHttp(call);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(protocol::HttpResult{});
  }
  std::unique_ptr<MetricsListener> listener_;
};

TEST_F(MetricsListenerTest, ServesTheTextAndNothingElse) {
  Listen();
  const protocol::HttpResult answer = Get("/metrics");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "skein_x 1\n");
  EXPECT_EQ(answer.Header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_EQ(Get("/metrics?name[]=x").status, 200) << "a scraper's parameters";
  for (const char* target : {"/", "/health", "/metrics/", "/metrics/../etc/passwd", "/v1/models"}) {
    EXPECT_EQ(Get(target).status, 404) << target;
  }
  for (const char* method : {"POST", "PUT", "DELETE"}) {
    EXPECT_EQ(Get("/metrics", method).status, 405) << method;
  }
}

TEST_F(MetricsListenerTest, ATakenPortIsRefusedByName) {
  Listen();
  MetricsListener::Options options;
  options.host = "127.0.0.1";
  options.port = listener_->port();
  const auto second = MetricsListener::Create(std::move(options));
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()),
              StartsWith("cannot listen on 127.0.0.1:" + std::to_string(listener_->port()) +
                         ": Address already in use"));
}

TEST_F(MetricsListenerTest, SlowClientsAreClosedAndKeepNobodyOut) {
  // More than sockets hold, so that somebody who does not read keeps the listener writing.
  const std::string large(size_t{32} << 20, 'x');
  Listen(large, std::chrono::milliseconds(300));
  std::vector<std::unique_ptr<RawClient>> slow;
  for (int i = 0; i < 3; ++i) {
    slow.push_back(std::make_unique<RawClient>(listener_->port()));
    slow.back()->Send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");  // and reads nothing
  }
  for (int i = 0; i < 3; ++i) {
    slow.push_back(std::make_unique<RawClient>(listener_->port()));
    slow.back()->Send("GET /metrics HT");  // and says no more
  }
  EXPECT_EQ(Get("/metrics").body.size(), large.size());
  EXPECT_THAT(slow.back()->ReadToEnd(), StartsWith("HTTP/1.1 408 "));
  EXPECT_LT(slow.front()->ReadToEnd().size(), large.size());
}

TEST_F(MetricsListenerTest, OneAddressTakesAHandfulOfConnections) {
  Listen();
  std::vector<std::unique_ptr<RawClient>> many;
  for (int i = 0; i < 8; ++i) {
    many.push_back(std::make_unique<RawClient>(listener_->port()));
    many.back()->Send("GET /metrics HTTP/1.1\r\nHost: x\r\n");
  }
  const RawClient late(listener_->port());
  EXPECT_THAT(late.ReadToEnd(), HasSubstr(" 503 "));
  many.clear();
}

TEST_F(MetricsListenerTest, PlacesThatAreTakenAndNotUsedAreGivenUp) {
  Listen("skein_x 1\n", std::chrono::milliseconds(300));
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 8; ++i) {
    idle.push_back(std::make_unique<RawClient>(listener_->port()));
    if (i % 2 == 0) idle.back()->Send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  for (const auto& client : idle) client->ReadToEnd();
  EXPECT_EQ(Get("/metrics").status, 200);
}

TEST_F(MetricsListenerTest, OddTargetsAreNothing) {
  Listen();
  for (const char* target : {"//metrics", "/metrics%00", "/%6detrics", "/metrics;a", "/METRICS"}) {
    EXPECT_EQ(Get(target).status, 404) << target;
  }
  for (const char* head :
       {"GET http://evil/metrics HTTP/1.1\r\nHost: x\r\n\r\n", "GET * HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /metrics HTTP/1.1\r\n\r\n", "GET /metrics\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: "
        "3\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"}) {
    const RawClient client(listener_->port());
    client.Send(head);
    EXPECT_THAT(client.ReadToEnd(), StartsWith("HTTP/1.1 4")) << head;
  }
}

TEST_F(MetricsListenerTest, LargeAndBrokenRequestsAreRefused) {
  Listen();
  const RawClient large(listener_->port());
  large.Send("GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + std::string(9000, 'y') + "\r\n\r\n");
  EXPECT_THAT(large.ReadToEnd(), StartsWith("HTTP/1.1 431 "));
  const RawClient body(listener_->port());
  body.Send("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n" +
            std::string(2000, 'z'));
  EXPECT_THAT(body.ReadToEnd(), StartsWith("HTTP/1.1 413 "));
  const RawClient broken(listener_->port());
  broken.Send("\x16\x03\x01\x02 tls\r\n\r\n");
  EXPECT_THAT(broken.ReadToEnd(), StartsWith("HTTP/1.1 400 "));
}

}  // namespace
}  // namespace skein::worker
