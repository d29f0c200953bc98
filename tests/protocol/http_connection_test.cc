// Tests of connections over real sockets: framing, order, streams, deadlines, bounds.
// Thread: the test and the listener's.
// Must never: wait for time to pass without a condition.
#include "protocol/http/http_connection.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/http/http_client.h"
#include "tests/protocol/http_fixture.h"
#include "tests/protocol/raw_connection.h"

namespace skein::protocol {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using tests::RawConnection;
using HttpConnectionTest = HttpFixture;

TEST_F(HttpConnectionTest, APathBeforeTheRoutesIsTakenOff) {
  root_path_ = "/skein";
  StartServer();
  const auto echo = [this](std::string_view path) {
    RawConnection client(server_->port());
    client.Send("POST " + std::string(path) +
                " HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx");
    return client.ReadToEnd();
  };
  EXPECT_THAT(echo("/skein/echo"), HasSubstr("x|/skein/echo"));
  EXPECT_THAT(echo("/echo"), HasSubstr("x|/echo"));
  const auto path_of = [this](std::string_view path) {
    RawConnection client(server_->port());
    client.Send(Get(path));
    EXPECT_NE(held_.Take(), nullptr);
    return paths_.Take();
  };
  EXPECT_EQ(path_of("/skeinecho"), "/skeinecho") << "another path";
  EXPECT_EQ(path_of("/skein/skein/held"), "/skein/held") << "once";
  EXPECT_EQ(path_of("/skein"), "/");
}

TEST_F(HttpConnectionTest, EveryAnswerHasTheHeadersOfTheListener) {
  headers_ = {{"x-of-all", "a,b"}};
  StartServer();
  const auto head_of = [this](const std::string& request) {
    RawConnection client(server_->port());
    client.Send(request);
    const std::string answer = client.ReadUntilText("\r\n\r\n");
    held_.IsEmpty() ? void() : held_.Take()->Abort();
    return answer;
  };
  EXPECT_THAT(head_of(Get("/echo")), HasSubstr("200 OK\r\n"));
  for (const std::string& request :
       {Get("/echo"), Get("/stream"), std::string("GET nonsense\r\n\r\n")}) {
    EXPECT_THAT(head_of(request), HasSubstr("\r\nx-of-all: a,b\r\n")) << request;
  }
}

TEST_F(HttpConnectionTest, AnswersOnOneConnectionInOrder) {
  StartServer();
  RawConnection client(server_->port());
  client.Send(Get("/held") + Get("/echo?2") + Get("/echo?3"));
  const auto exchange = held_.Take();
  exchange->Respond({200, "text/plain", {}, "first"});
  const std::string answers = client.ReadUntilText("|/echo?3");
  EXPECT_THAT(answers, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
                                  "Content-Length: 5\r\n\r\nfirstHTTP/1.1 200 OK\r\n"));
  EXPECT_LT(answers.find("|/echo?2"), answers.find("|/echo?3"));
}

TEST_F(HttpConnectionTest, RefusesMalformedRequestsAndCloses) {
  StartServer();
  RawConnection client(server_->port());
  client.Send("GET /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx" +
              Get("/echo?smuggled"));
  const std::string answer = client.ReadToEnd();
  EXPECT_TRUE(client.closed_by_peer());
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 Bad Request\r\n"));
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n\r\nmore than one Content-Length\n"));
  EXPECT_THAT(answer, Not(HasSubstr("smuggled")));
  EXPECT_EQ(events_.Take(), "malformed content_length");
}

TEST_F(HttpConnectionTest, LimitsTurnIntoTheirStatus) {
  HttpLimits limits;
  limits.body_bytes_max = 100;
  StartServer(limits);
  RawConnection body(server_->port());
  body.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n" +
            std::string(101, 'x'));
  EXPECT_THAT(body.ReadToEnd(), StartsWith("HTTP/1.1 413 Content Too Large\r\n"));
  EXPECT_EQ(events_.Take(), "limit body_bytes");
  RawConnection head(server_->port());
  head.Send("GET /echo HTTP/1.1\r\nHost: a\r\nX: " + std::string(20'000, 'x'));
  EXPECT_THAT(head.ReadToEnd(), StartsWith("HTTP/1.1 431 "));
  EXPECT_EQ(events_.Take(), "limit head_bytes");
}

TEST_F(HttpConnectionTest, SlowHeadsAndBodiesTimeOut) {
  HttpLimits limits;
  limits.head_timeout = std::chrono::milliseconds(50);
  limits.body_grace = std::chrono::milliseconds(50);
  StartServer(limits);
  RawConnection head(server_->port());
  head.Send("GET /echo HTTP/1.1\r\nHos");
  EXPECT_THAT(head.ReadToEnd(), StartsWith("HTTP/1.1 408 Request Timeout\r\n"));
  EXPECT_EQ(events_.Take(), "timeout head");
  RawConnection body(server_->port());
  body.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n");
  EXPECT_THAT(body.ReadToEnd(), HasSubstr("the request body arrived too slowly\n"));
  EXPECT_EQ(events_.Take(), "timeout body");
}

TEST_F(HttpConnectionTest, IdleConnectionsCloseQuietly) {
  HttpLimits limits;
  limits.keep_alive_timeout = std::chrono::milliseconds(50);
  StartServer(limits);
  RawConnection client(server_->port());
  client.Send(Get("/echo"));
  const std::string answer = client.ReadToEnd();
  EXPECT_TRUE(client.closed_by_peer());
  EXPECT_THAT(answer, HasSubstr("|/echo"));
  EXPECT_THAT(answer, Not(HasSubstr("408")));
}

TEST_F(HttpConnectionTest, StreamsChunksAndKeepsTheConnection) {
  StartServer();
  RawConnection client(server_->port());
  client.Send(Get("/stream"));
  const auto exchange = held_.Take();
  client.ReadUntilText("\r\n\r\n");
  EXPECT_TRUE(exchange->Push("data: 1\n\n"));
  EXPECT_THAT(client.ReadUntilText("9\r\ndata: 1\n\n\r\n"),
              HasSubstr("Transfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n"));
  exchange->EndStream("bye");
  client.ReadUntilText("3\r\nbye\r\n0\r\n\r\n");
  EXPECT_FALSE(exchange->Push("late"));
  client.Forget();
  client.Send(Get("/echo"));
  EXPECT_THAT(client.ReadUntilText("|/echo"), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpConnectionTest, QueuedEventsLeaveInOneChunk) {
  StartServer();
  RawConnection client(server_->port());
  client.Send(Get("/stream"));
  const auto exchange = held_.Take();
  exchange->Post([exchange] {
    EXPECT_TRUE(exchange->Push("one"));  // starts the head's write; the rest queues behind it
    EXPECT_TRUE(exchange->Push("two"));
    EXPECT_TRUE(exchange->Push("three"));
    exchange->EndStream();
  });
  const std::string answer = client.ReadUntilText("0\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("twothree\r\n0\r\n\r\n"));
}

TEST_F(HttpConnectionTest, AbortLeavesTheBodyIncomplete) {
  StartServer();
  RawConnection client(server_->port());
  client.Send(Get("/stream"));
  const auto exchange = held_.Take();
  EXPECT_TRUE(exchange->Push("part"));
  client.ReadUntilText("part");
  exchange->Abort();
  const std::string answer = client.ReadToEnd();
  EXPECT_TRUE(client.closed_by_peer());
  EXPECT_THAT(answer, Not(HasSubstr("0\r\n\r\n")));
  HttpCall call;
  call.port = server_->port();
  call.target = "/dropped";
  EXPECT_EQ(CallHttp(call).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(HttpConnectionTest, ClosingStreamsEndTheConnection) {
  StartServer();
  RawConnection client(server_->port());
  client.Send(Get("/stream"));
  held_.Take()->EndStream("error", HttpExchange::After::kClose);
  EXPECT_THAT(client.ReadToEnd(), HasSubstr("5\r\nerror\r\n0\r\n\r\n"));
  EXPECT_TRUE(client.closed_by_peer());
}

TEST_F(HttpConnectionTest, CommentsKeepQuietStreamsAlive) {
  HttpLimits limits;
  limits.stream_comment_interval = std::chrono::milliseconds(30);
  StartServer(limits);
  RawConnection client(server_->port());
  client.Send(Get("/stream"));
  const auto exchange = held_.Take();
  EXPECT_THAT(client.ReadUntilText("e\r\n: keep-alive\n\n\r\n"), HasSubstr(": keep-alive"));
  exchange->EndStream();
  client.ReadUntilText("0\r\n\r\n");
}

TEST_F(HttpConnectionTest, NoticesDisconnectsOfStreamsAndOfWaitingRequests) {
  StartServer();
  for (std::string_view target : {"/held", "/stream"}) {
    RawConnection client(server_->port());
    client.Send(Get(target));
    const auto exchange = held_.Take();
    client.Close();
    EXPECT_TRUE(closed_.Take()) << target;
    EXPECT_FALSE(exchange->Push("x"));
    exchange->Respond({200, "text/plain", {}, "nobody"});
  }
}

TEST_F(HttpConnectionTest, BoundsWhatAClientDoesNotRead) {
  HttpLimits limits;
  limits.egress_bytes_max = 64 * 1024;
  limits.write_timeout = std::chrono::milliseconds(200);
  StartServer(limits);
  RawConnection client(server_->port(), 4096);
  client.Send(Get("/stream"));
  const auto exchange = held_.Take();
  size_t accepted = 0;  // on the listener's thread until closed_ is given
  size_t pending_max = 0;
  const auto fill = [&, exchange = exchange.get()] {
    while (exchange->Push(std::string(8192, 'x'))) {
      accepted += 8192;
      pending_max = std::max(pending_max, exchange->pending_bytes());
    }
  };
  exchange->Post([&, exchange = exchange.get()] {
    exchange->OnDrained(fill);
    fill();
  });
  EXPECT_TRUE(closed_.Take());
  EXPECT_EQ(events_.Take(), "timeout write");
  EXPECT_EQ(pending_max, limits.egress_bytes_max);
  EXPECT_LT(accepted, size_t{64} << 20);
}

TEST_F(HttpConnectionTest, TellsWhenEverythingWasTaken) {
  StartServer();
  RawConnection client(server_->port());
  client.Send(Get("/stream"));
  const auto exchange = held_.Take();
  Box<size_t> drained;
  exchange->Post([&, exchange = exchange.get()] {
    exchange->OnDrained([&, exchange] { drained.Put(exchange->pending_bytes()); });
    EXPECT_TRUE(exchange->Push("abc"));
  });
  EXPECT_EQ(drained.Take(), 0u);
  exchange->EndStream();
  client.ReadUntilText("0\r\n\r\n");
}

TEST_F(HttpConnectionTest, TakesOnePieceHoweverLarge) {
  HttpLimits limits;
  limits.egress_bytes_max = 64 * 1024;
  StartServer(limits);
  RawConnection client(server_->port());
  client.Send(Get("/stream"));
  const auto exchange = held_.Take();
  exchange->Post([exchange = exchange.get()] {
    EXPECT_TRUE(exchange->Push(std::string(256 * 1024, 'x') + "whole"));
    EXPECT_FALSE(exchange->Push("more"));
    exchange->EndStream();
  });
  client.ReadUntilText("whole");
  client.ReadUntilText("0\r\n\r\n");
}

TEST_F(HttpConnectionTest, ContinuesAndHeadRequests) {
  StartServer();
  RawConnection client(server_->port());
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  client.ReadUntilText("HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("ok");
  client.ReadUntilText("ok|/echo");
  client.Forget();
  client.Send("HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n" + Get("/echo?next"));
  EXPECT_THAT(client.ReadUntilText("|/echo?next"),
              HasSubstr("Content-Length: 6\r\n\r\nHTTP/1.1 200 OK"));
}

}  // namespace
}  // namespace skein::protocol
