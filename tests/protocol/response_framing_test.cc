// Tests of the bytes of answers.
// Thread: single.
// Must never: open a socket.
#include "protocol/http/response_framing.h"

#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

TEST(ResponseFramingTest, WritesHeadsAndChunks) {
  const HttpResponse response{200, "text/plain", {{"X-A", "b"}}, "hello"};
  EXPECT_EQ(MakeResponseHead(response, BodyFraming::kLength, KeepAlive::kYes),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-A: b\r\nContent-Length: 5\r\n\r\n");
  EXPECT_EQ(MakeResponseHead(response, BodyFraming::kLength, KeepAlive::kYes, {{"X-C", "d"}}),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-A: b\r\nX-C: d\r\n"
            "Content-Length: 5\r\n\r\n");
  EXPECT_EQ(MakeResponseHead({404, "", {}, ""}, BodyFraming::kChunked, KeepAlive::kNo),
            "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
  std::string out;
  AppendChunk(std::string(26, 'x'), &out);
  EXPECT_EQ(out, "1a\r\n" + std::string(26, 'x') + "\r\n");
}

}  // namespace
}  // namespace skein::protocol
