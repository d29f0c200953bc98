// Tests of the reader of answers: lengths and chunks in any pieces, answers behind each other, cut
// and malformed ones.
#include "protocol/http/response_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kLength =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
    "content-length: 5\r\nConnection: close\r\n\r\nhello";
// Feeds `text` in pieces; the body, with the first error at its end.
std::string Read(ResponseReader& reader, std::string_view text, size_t piece) {
  std::string body;
  while (!text.empty() && !reader.is_whole()) {
    size_t used = 0;
    const std::string_view part = text.substr(0, piece);
    const absl::Status status = reader.Feed(
        part, [&](std::string_view bytes) { body += bytes; }, &used);
    if (!status.ok()) return body + "|" + std::string(status.message());
    EXPECT_TRUE(reader.is_whole() || used == part.size()) << used;
    text.remove_prefix(used);
  }
  return body;
}

TEST(ResponseReaderTest, ReadsABodyOfKnownLength) {
  for (size_t piece = 1; piece <= kLength.size(); ++piece) {
    ResponseReader reader;
    EXPECT_EQ(Read(reader, kLength, piece), "hello") << piece;
    EXPECT_TRUE(reader.is_whole());
    EXPECT_EQ(reader.status(), 503);
    EXPECT_FALSE(reader.keeps_alive());
    EXPECT_FALSE(reader.is_event_stream());
  }
}

TEST(ResponseReaderTest, ReadsChunksBehindAnInterimAnswer) {
  constexpr std::string_view kText =
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/event-stream; a=b\r\n"
      "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n 0123\r\n567\r\n0\r\n\r\n";
  for (size_t piece = 1; piece <= kText.size(); ++piece) {
    ResponseReader reader;
    EXPECT_EQ(Read(reader, kText, piece), "hello 0123\r\n567") << piece;
    EXPECT_TRUE(reader.is_whole());
    EXPECT_EQ(reader.status(), 200);
    EXPECT_TRUE(reader.keeps_alive());
    EXPECT_TRUE(reader.is_event_stream());
  }
}

TEST(ResponseReaderTest, StopsBehindAnAnswerAndBeginsAgain) {
  const std::string two = std::string(kLength) + "HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n";
  ResponseReader reader;
  size_t used = 0;
  const auto ignore = [](std::string_view) {};
  ASSERT_TRUE(reader.Feed(two, ignore, &used).ok());
  EXPECT_EQ(used, kLength.size());
  reader.Reset();
  EXPECT_FALSE(reader.has_head());
  ASSERT_TRUE(reader.Feed(std::string_view(two).substr(used), ignore, &used).ok());
  EXPECT_TRUE(reader.is_whole());
  EXPECT_EQ(reader.status(), 204);
}

TEST(ResponseReaderTest, TellsACutBodyFromOneThatEndsWithTheConnection) {
  ResponseReader cut;
  Read(cut, kLength.substr(0, kLength.size() - 1), 1000);
  EXPECT_EQ(cut.Close().message(), "the answer was cut: its body is not whole");
  ResponseReader none;
  EXPECT_EQ(none.Close().message(), "the connection was closed before an answer came");
  ResponseReader to_close;
  EXPECT_EQ(Read(to_close, "HTTP/1.0 200 OK\r\n\r\nall of it", 4), "all of it");
  EXPECT_FALSE(to_close.is_whole());
  EXPECT_TRUE(to_close.Close().ok());
}

TEST(ResponseReaderTest, NamesWhatIsMalformed) {
  const auto error = [](std::string_view text) {
    ResponseReader reader;
    return Read(reader, text, 4096);
  };
  EXPECT_EQ(error("SMTP ready, really\r\n\r\n"),
            "|the answer is malformed: it does not begin with a status line");
  EXPECT_EQ(error("HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n"),
            "|the answer is malformed: Content-Length is not a number");
  EXPECT_EQ(error("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"),
            "|the answer is malformed: Transfer-Encoding is not chunked");
  EXPECT_EQ(error("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n"),
            "ab|the answer is malformed: a chunk does not end with CRLF");
  EXPECT_EQ(error("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfive\r\n"),
            "|the answer is malformed: a chunk size is not a number");
  EXPECT_THAT(error("HTTP/1.1 200 OK\r\n" + std::string(70'000, 'a')),
              HasSubstr("its head is too long"));
  EXPECT_THAT(error("HTTP/1.1 200 OK\r\n" + std::string(70'000, 'a') + "\r\n\r\n"),
              HasSubstr("its head is too long"));
}

}  // namespace
}  // namespace skein::protocol
