// Tests of whole requests from bytes, at every split.
// Thread: single.
// Must never: open a socket.
#include "protocol/http/request_reader.h"

#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

const HttpLimits kLimits;

constexpr std::string_view kChunked =
    "POST /v1/completions?x=1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    "4\r\nabcd\r\n3;e=1\r\nefg\r\n0\r\n\r\n"
    "GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Request-Id: r1\r\n\r\n"
    "POST /last HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";

void ExpectTheThreeRequests(RequestReader* reader) {
  ASSERT_TRUE(reader->has_request());
  HttpRequest request = reader->TakeRequest();
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.target, "/v1/completions?x=1");
  EXPECT_EQ(request.path, "/v1/completions");
  EXPECT_EQ(request.body, "abcdefg");
  EXPECT_TRUE(request.keep_alive);
  ASSERT_TRUE(reader->has_request());
  request = reader->TakeRequest();
  EXPECT_EQ(request.path, "/health");
  EXPECT_EQ(request.Header("x-request-id"), "r1");
  EXPECT_EQ(request.Header("absent"), "");
  EXPECT_FALSE(request.keep_alive);
  ASSERT_TRUE(reader->has_request());
  EXPECT_EQ(reader->TakeRequest().body, "hi");
  EXPECT_FALSE(reader->has_request());
  EXPECT_EQ(reader->phase(), RequestReader::Phase::kIdle);
  EXPECT_FALSE(reader->refusal().has_value());
}

TEST(RequestReaderTest, ReadsTheSameAtEverySplit) {
  for (size_t split = 0; split <= kChunked.size(); ++split) {
    RequestReader reader(kLimits);
    reader.Feed(kChunked.substr(0, split));
    reader.Feed(kChunked.substr(split));
    ExpectTheThreeRequests(&reader);
  }
  RequestReader reader(kLimits);
  for (char c : kChunked) reader.Feed(std::string_view(&c, 1));
  ExpectTheThreeRequests(&reader);
}

// Status and rule after `bytes`; nothing after a refusal becomes a request.
std::string RuleOf(const std::string& bytes, const HttpLimits& limits = kLimits) {
  RequestReader reader(limits);
  reader.Feed(bytes);
  reader.Feed("GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
  if (!reader.refusal().has_value()) return "none";
  while (reader.has_request()) EXPECT_NE(reader.TakeRequest().path, "/smuggled") << bytes;
  return std::to_string(reader.refusal()->status) + " " + reader.refusal()->rule;
}

constexpr char kChunkHead[] = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

TEST(RequestReaderTest, RefusesBadBodies) {
  EXPECT_EQ(RuleOf(std::string(kChunkHead) + "x\r\n"), "400 chunk_size");
  EXPECT_EQ(RuleOf(std::string(kChunkHead) + "3\nabc\r\n"), "400 line_end");
  EXPECT_EQ(RuleOf(std::string(kChunkHead) + "3\r\nabcd\r\n"), "400 chunk_end");
  EXPECT_EQ(RuleOf(std::string(kChunkHead) + "3\r\nabc\n0\r\n\r\n"), "400 chunk_end");
  EXPECT_EQ(RuleOf(std::string(kChunkHead) + "0\r\nX: y\r\n\r\n"), "400 trailers");
  EXPECT_EQ(RuleOf(std::string(kChunkHead) + "1;" + std::string(300, 'e')), "400 chunk_extension");
  std::string many(kChunkHead);
  for (int i = 0; i < 130; ++i) many += "1;e\r\na\r\n";
  EXPECT_EQ(RuleOf(many), "400 chunk_extension");
}

TEST(RequestReaderTest, CountsBodiesAsTheyArrive) {
  HttpLimits limits;
  limits.body_bytes_max = 10;
  RequestReader reader(limits);
  reader.Feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n0123456789");
  EXPECT_FALSE(reader.refusal().has_value());
  EXPECT_EQ(reader.body_bytes(), 10u);
  EXPECT_EQ(reader.phase(), RequestReader::Phase::kBody);
  reader.Feed("x");
  ASSERT_TRUE(reader.refusal().has_value());
  EXPECT_EQ(reader.refusal()->status, 413);
  EXPECT_EQ(reader.refusal()->rule, "body_bytes");
  EXPECT_EQ(reader.refusal()->message, "the request body is longer than 10 bytes");
  EXPECT_EQ(RuleOf(std::string(kChunkHead) + "6\r\nabcdef\r\n6\r\nabcdef\r\n", limits),
            "413 body_bytes");
}

TEST(RequestReaderTest, BoundsPipelinedRequests) {
  const std::string get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
  RequestReader reader(kLimits);
  for (int i = 0; i < 8; ++i) reader.Feed(get);
  EXPECT_FALSE(reader.refusal().has_value());
  reader.Feed(get);
  EXPECT_EQ(reader.refusal()->rule, "pipelined_requests");
  int num_requests = 0;
  for (; reader.has_request(); ++num_requests) reader.TakeRequest();
  EXPECT_EQ(num_requests, 8);
}

TEST(RequestReaderTest, AsksForContinueOncePerWaitingBody) {
  RequestReader reader(kLimits);
  reader.Feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_TRUE(reader.TakeContinue());
  EXPECT_FALSE(reader.TakeContinue());
  reader.Feed("ok");
  EXPECT_EQ(reader.TakeRequest().body, "ok");
  reader.Feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nok");
  EXPECT_FALSE(reader.TakeContinue());
}

TEST(RequestReaderTest, HttpTenDoesNotStayOpen) {
  RequestReader reader(kLimits);
  reader.Feed("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const HttpRequest request = reader.TakeRequest();
  EXPECT_EQ(request.minor_version, 0);
  EXPECT_FALSE(request.keep_alive);
}

}  // namespace
}  // namespace skein::protocol
