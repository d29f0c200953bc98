// Tests of the framing rules, one case per rule.
// Thread: single.
// Must never: open a socket.
#include "protocol/http/request_admission.h"

#include <string>

#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

const HttpLimits kLimits;

std::string Head(std::string_view fields, std::string_view line = "POST /v1/x HTTP/1.1") {
  return std::string(line) + "\r\n" + std::string(fields) + "\r\n";
}

std::string RuleOf(const std::string& head) {
  const auto result = AdmitHead(head, kLimits);
  const auto* refusal = std::get_if<HttpRefusal>(&result);
  if (refusal == nullptr) return "admitted";
  EXPECT_EQ(refusal->status, 400);
  EXPECT_FALSE(refusal->message.empty());
  return refusal->rule;
}

struct Case {
  std::string name;
  std::string head;
  std::string rule;
};

std::vector<Case> HeadCases() {
  return {
      {"two encodings",
       Head("Host: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
       "transfer_encoding"},
      {"encoding list", Head("Host: a\r\nTransfer-Encoding: gzip, chunked\r\n"),
       "transfer_encoding"},
      {"encoding case", Head("Host: a\r\nTransfer-Encoding: Chunked\r\n"), "transfer_encoding"},
      {"encoding identity", Head("Host: a\r\nTransfer-Encoding: identity\r\n"),
       "transfer_encoding"},
      {"encoding in 1.0", Head("Transfer-Encoding: chunked\r\n", "POST / HTTP/1.0"),
       "transfer_encoding"},
      {"both framings", Head("Host: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n"),
       "transfer_encoding"},
      {"two lengths", Head("Host: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n"),
       "content_length"},
      {"length list", Head("Host: a\r\nContent-Length: 3, 3\r\n"), "content_length"},
      {"length sign", Head("Host: a\r\nContent-Length: +3\r\n"), "content_length"},
      {"length minus", Head("Host: a\r\nContent-Length: -3\r\n"), "content_length"},
      {"length space", Head("Host: a\r\nContent-Length: 1 2\r\n"), "content_length"},
      {"length hex", Head("Host: a\r\nContent-Length: 0x3\r\n"), "content_length"},
      {"length empty", Head("Host: a\r\nContent-Length:\r\n"), "content_length"},
      {"length overflow", Head("Host: a\r\nContent-Length: 18446744073709551616\r\n"),
       "content_length"},
      {"length 2^63", Head("Host: a\r\nContent-Length: 9223372036854775808\r\n"), "content_length"},
      {"no host", Head("Accept: x\r\n"), "host"},
      {"two hosts", Head("Host: a\r\nHost: a\r\n"), "host"},
      {"empty host", Head("Host: \r\n"), "host"},
      {"folding", Head("Host: a\r\nX: b\r\n c\r\n"), "folding"},
      {"space before colon", Head("Host : a\r\n"), "field_name"},
      {"empty name", Head("Host: a\r\n: b\r\n"), "field_name"},
      {"name not a token", Head("Host: a\r\nX(y): b\r\n"), "field_name"},
      {"shadowed name", Head("Host: a\r\nContent_Length: 3\r\n"), "field_name"},
      {"no colon", Head("Host: a\r\nfield\r\n"), "field"},
      {"control in value", Head("Host: a\r\nX: b\x01\r\n"), "field_value"},
      {"NUL in value", Head(std::string("Host: a\r\nX: b\0c\r\n", 17)), "field_value"},
      {"bare CR in value", Head("Host: a\r\nX: b\rc\r\n"), "line_end"},
      {"bare LF in value", Head("Host: a\r\nX: b\nc\r\n"), "line_end"},
      {"expect", Head("Host: a\r\nExpect: 200-ok\r\n"), "expect"},
      {"upgrade", Head("Host: a\r\nUpgrade: h2c\r\n"), "upgrade"},
      {"HTTP/2.0", Head("Host: a\r\n", "GET / HTTP/2.0"), "version"},
      {"HTTP/1.2", Head("Host: a\r\n", "GET / HTTP/1.2"), "version"},
      {"lower case version", Head("Host: a\r\n", "GET / http/1.1"), "version"},
      {"no version", Head("Host: a\r\n", "GET /"), "request_line"},
      {"two spaces", Head("Host: a\r\n", "GET  / HTTP/1.1"), "target_form"},
      {"space in target", Head("Host: a\r\n", "GET /a b HTTP/1.1"), "target_bytes"},
      {"absolute form", Head("Host: a\r\n", "GET http://a/ HTTP/1.1"), "target_form"},
      {"authority form", Head("Host: a\r\n", "CONNECT a:1 HTTP/1.1"), "target_form"},
      {"asterisk form", Head("Host: a\r\n", "OPTIONS * HTTP/1.1"), "target_form"},
      {"UTF-8 target", Head("Host: a\r\n", "GET /\xC3\xA9 HTTP/1.1"), "target_bytes"},
      {"long target", Head("Host: a\r\n", "GET /" + std::string(8192, 'a') + " HTTP/1.1"),
       "target_bytes"},
      {"method", Head("Host: a\r\n", "GE(T / HTTP/1.1"), "method"},
      {"empty line", Head("", ""), "request_line"},
      {"no end", "GET / HTTP/1.1\r\nHost: a\r\n", "line_end"},
  };
}

TEST(RequestAdmissionTest, RefusesEachRule) {
  for (const Case& test : HeadCases()) EXPECT_EQ(RuleOf(test.head), test.rule) << test.name;
  EXPECT_GE(HeadCases().size(), 40u);
}

TEST(RequestAdmissionTest, AdmitsGoodHeads) {
  const auto admit = [](const std::string& head) {
    const auto result = AdmitHead(head, kLimits);
    EXPECT_TRUE(std::holds_alternative<AdmittedHead>(result)) << head;
    return std::get<AdmittedHead>(result);
  };
  AdmittedHead head = admit(Head("Host: a\r\nContent-Length:  42 \r\nExpect: 100-Continue\r\n"));
  EXPECT_EQ(head.content_length, 42u);
  EXPECT_TRUE(head.expects_continue);
  EXPECT_FALSE(head.is_chunked);
  EXPECT_EQ(head.minor_version, 1);
  EXPECT_TRUE(admit(Head("Host: a\r\nTransfer-Encoding: chunked\r\n")).is_chunked);
  EXPECT_EQ(admit("GET /a?b=%20 HTTP/1.0\r\n\r\n").minor_version, 0);
  admit(Head("Host: a\r\nX_Custom: 1\r\nX: \t\xC3\xA9\r\nX: again\r\n"));
}

TEST(RequestAdmissionTest, ChecksChunkHeaders) {
  const auto rule = [](std::string_view line) {
    const auto result = AdmitChunkHeader(line);
    const auto* refusal = std::get_if<HttpRefusal>(&result);
    return refusal == nullptr ? std::string("admitted") : refusal->rule;
  };
  for (std::string_view bad : {"", " 5", "5 ", "+5", "-5", "0x5", "5g", "1000000000000000", "5\r",
                               "ffffffffffffffff", "00000000000000005", " ;a", ";a"}) {
    EXPECT_EQ(rule(bad), "chunk_size") << bad;
  }
  EXPECT_EQ(rule("5;a\rb"), "chunk_extension");
  const auto good = AdmitChunkHeader("1aF;name=value");
  ASSERT_TRUE(std::holds_alternative<ChunkHeader>(good));
  EXPECT_EQ(std::get<ChunkHeader>(good).size, 0x1AFu);
  EXPECT_EQ(std::get<ChunkHeader>(good).extension_bytes, 11u);
}

TEST(HeadScannerTest, FindsTheEndAtEverySplit) {
  const std::string head = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
  for (size_t split = 0; split < head.size(); ++split) {
    HeadScanner scanner;
    const std::string_view whole = head;
    EXPECT_TRUE(
        std::holds_alternative<std::monostate>(scanner.Scan(whole.substr(0, split), kLimits)));
    const auto end = scanner.Scan(head + "rest", kLimits);
    ASSERT_TRUE(std::holds_alternative<size_t>(end)) << split;
    EXPECT_EQ(std::get<size_t>(end), head.size());
  }
}

TEST(HeadScannerTest, RefusesEarly) {
  const auto scan = [](const std::string& bytes) {
    HeadScanner scanner;
    const auto result = scanner.Scan(bytes, kLimits);
    const auto* refusal = std::get_if<HttpRefusal>(&result);
    return refusal == nullptr ? std::string("more")
                              : std::to_string(refusal->status) + " " + refusal->rule;
  };
  EXPECT_EQ(scan("GET / HTTP/1.1\n"), "400 line_end");
  EXPECT_EQ(scan("GET / HTTP/1.1\rX"), "400 line_end");
  EXPECT_EQ(scan("\r\n"), "400 request_line");
  EXPECT_EQ(scan(std::string(16 * 1024 + 1, 'a')), "431 head_bytes");
  EXPECT_EQ(scan(std::string(16 * 1024, 'a')), "more");
  std::string fields = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 100; ++i) fields += "a:b\r\n";
  EXPECT_EQ(scan(fields), "more");
  EXPECT_EQ(scan(fields + "a:b\r\n"), "431 head_fields");
}

}  // namespace
}  // namespace skein::protocol
