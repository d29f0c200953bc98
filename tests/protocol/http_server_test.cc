// Tests of the listener: binding, connection limits, drain, stop.
// Thread: the test and the listener's.
// Must never: wait for time to pass without a condition.
#include "protocol/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/protocol/http_fixture.h"
#include "tests/protocol/raw_connection.h"

namespace skein::protocol {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using tests::RawConnection;
using HttpServerTest = HttpFixture;

TEST_F(HttpServerTest, BoundsConnections) {
  HttpLimits limits;
  limits.connections_per_address_max = 1;
  headers_ = {{"x-of-all", "a"}};
  StartServer(limits);
  RawConnection first(server_->port());
  first.Send(Get("/echo"));
  first.ReadUntilText("|/echo");
  EXPECT_EQ(server_->num_connections(), 1u);
  RawConnection second(server_->port());
  const std::string refusal = second.ReadToEnd();
  EXPECT_THAT(refusal, StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_THAT(refusal, HasSubstr("\r\nx-of-all: a\r\n"));
  EXPECT_EQ(events_.Take(), "limit connections_per_address");
}

TEST_F(HttpServerTest, DrainFinishesAnswersInProgress) {
  StartServer();
  RawConnection idle(server_->port());
  idle.Send(Get("/echo"));
  idle.ReadUntilText("|/echo");
  RawConnection busy(server_->port());
  busy.Send(Get("/held"));
  const auto exchange = held_.Take();
  Box<bool> drained;
  server_->Drain([&] { drained.Put(true); });
  idle.ReadToEnd();
  EXPECT_TRUE(idle.closed_by_peer());
  idle.Close();
  RawConnection late(server_->port());  // may be refused by what it asks for, so it is answered
  late.Send(Get("/echo"));
  EXPECT_THAT(late.ReadToEnd(), HasSubstr("Connection: close\r\n"));
  RawConnection silent(server_->port());  // does not hold up the drain
  exchange->Respond({200, "text/plain", {}, "done"});
  EXPECT_THAT(busy.ReadToEnd(), HasSubstr("Connection: close\r\n\r\ndone"));
  busy.Close();
  EXPECT_TRUE(drained.Take());
  server_->Stop();
  EXPECT_TRUE(silent.ReadToEnd().empty());
  EXPECT_FALSE(RawConnection(server_->port()).connected());
}

TEST_F(HttpServerTest, StopOutlivedByAnExchange) {
  StartServer();
  RawConnection client(server_->port());
  client.Send(Get("/held"));
  const auto exchange = held_.Take();
  server_.reset();
  EXPECT_TRUE(closed_.Take());
  exchange->Respond({200, "text/plain", {}, "late"});
  exchange->Post([] { ADD_FAILURE() << "the listener is gone"; });
}

TEST_F(HttpServerTest, AHeadIsRefusedBeforeItsBodyAndAfterEarlierAnswers) {
  on_head_ = [](HttpRequest& head) -> std::optional<HttpResponse> {
    EXPECT_EQ(head.peer_address, "127.0.0.1");
    head.attachment = std::make_shared<const std::string>("seen");
    if (head.Header("x-key") == "good") return std::nullopt;
    return HttpResponse{401, "text/plain", {}, "no key"};
  };
  StartServer();
  RawConnection client(server_->port());
  client.Send(
      "POST /held HTTP/1.1\r\nHost: x\r\nx-key: good\r\nContent-Length: 2\r\n\r\nhi"
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n");
  const auto exchange = held_.Take();
  exchange->Respond({200, "text/plain", {}, "first"});
  const std::string answer = client.ReadToEnd();
  EXPECT_LT(answer.find("first"), answer.find("HTTP/1.1 401 Unauthorized"));
  EXPECT_THAT(answer, HasSubstr("no key"));
  EXPECT_TRUE(events_.IsEmpty()) << "who refused counts";
}

// A socket of another owner, as the supervisor passes it.
int ListenOn(uint16_t& port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(socket, raw, size), 0);
  EXPECT_EQ(::listen(socket, 16), 0);
  EXPECT_EQ(::getsockname(socket, raw, &size), 0);
  port = ntohs(address.sin_port);
  return socket;
}

TEST(HttpServerListenFdTest, ConnectionsWaitForTheNextListenerOfTheSameSocket) {
  uint16_t port = 0;
  const int socket = ListenOn(port);
  const auto serve = [&](const std::string& name) {
    HttpServer::Options options;
    options.listen_fd = ::dup(socket);
    options.on_request = [name](HttpRequest, const std::shared_ptr<HttpExchange>& exchange) {
      exchange->Respond({200, "text/plain", {}, name});
    };
    auto server = HttpServer::Create(std::move(options)).value();
    server->Start();
    return server;
  };
  auto first = serve("first");
  EXPECT_EQ(first->port(), port);
  RawConnection early(port);
  early.Send(Get("/"));
  EXPECT_THAT(early.ReadUntilText("first"), HasSubstr("200 OK"));
  first.reset();
  RawConnection waiting(port);
  EXPECT_TRUE(waiting.connected()) << "nobody listens but the owner of the socket";
  waiting.Send(Get("/"));
  const auto second = serve("second");
  EXPECT_THAT(waiting.ReadUntilText("second"), HasSubstr("200 OK"));
  ::close(socket);
}

TEST(HttpServerListenFdTest, ADescriptorThatDoesNotListenIsRefused) {
  HttpServer::Options options;
  options.listen_fd = ::dup(0);
  const std::string name = std::to_string(options.listen_fd);
  EXPECT_EQ(HttpServer::Create(options).status().message(),
            "descriptor " + name + " is no TCP socket that listens; let the supervisor pass it");
  ::close(options.listen_fd);
}

TEST(HttpServerCreateTest, NamesWhatCannotBeBound) {
  HttpServer::Options options;
  options.host = "not-an-address";
  EXPECT_EQ(HttpServer::Create(options).status().message(),
            "cannot listen on not-an-address:0: the host must be a numeric IPv4 or IPv6 address");
  options.host = "127.0.0.1";
  const auto first = HttpServer::Create(options);
  ASSERT_TRUE(first.ok());
  options.port = (*first)->port();
  const auto second = HttpServer::Create(options);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("Address already in use"));
}

}  // namespace
}  // namespace skein::protocol
