#include "tests/accept/framing_probes.h"

#include <algorithm>
#include <array>

#include "protocol/base/strings.h"

namespace skein::tests {
namespace {

using protocol::Concat;

std::string Get(std::string_view fields) {
  return Concat("GET /health/live HTTP/1.1\r\nHost: a\r\n", fields, "\r\n");
}

std::string Post(std::string_view fields, std::string_view body) {
  return Concat("POST /v1/nothing HTTP/1.1\r\nHost: a\r\n", fields, "\r\n", body);
}

std::string Chunked(std::string_view chunks) {
  return Post("Transfer-Encoding: chunked\r\n", chunks);
}

std::string Line(std::string_view line) { return Concat(line, "\r\nHost: a\r\n\r\n"); }

void AddLengthProbes(std::vector<FramingProbe>& probes) {
  for (const std::string_view value :
       {"3, 3", "+3", "-3", "1 2", "0x3", "", "3;", "18446744073709551616", "9223372036854775808",
        "99999999999999999999999999"}) {
    probes.push_back(
        {Concat("length ", value), Post(Concat("Content-Length: ", value, "\r\n"), "abc")});
  }
  probes.push_back({"two lengths", Post("Content-Length: 3\r\nContent-Length: 3\r\n", "abc")});
  probes.push_back({"unequal lengths", Post("Content-Length: 3\r\ncontent-length: 4\r\n", "abc")});
}

void AddEncodingProbes(std::vector<FramingProbe>& probes) {
  const std::string_view chunks = "3\r\nabc\r\n0\r\n\r\n";
  for (const std::string_view value : {"gzip, chunked", "Chunked", "identity", "chunked, chunked",
                                       "chunked;q=1", "xchunked", ""}) {
    probes.push_back(
        {Concat("encoding ", value), Post(Concat("Transfer-Encoding: ", value, "\r\n"), chunks)});
  }
  probes.push_back({"two encodings",
                    Post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", chunks)});
  probes.push_back(
      {"encoding and length", Post("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", chunks)});
  probes.push_back(
      {"length and encoding", Post("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", chunks)});
  probes.push_back(
      {"encoding in 1.0",
       Concat("POST /v1/nothing HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", chunks)});
}

void AddHeadProbes(std::vector<FramingProbe>& probes) {
  const std::vector<FramingProbe> heads = {
      {"no host", "GET / HTTP/1.1\r\nAccept: x\r\n\r\n"},
      {"two hosts", Get("Host: b\r\n")},
      {"connection that is no list", Get("Connection: close=1\r\n")},
      {"empty host", "GET / HTTP/1.1\r\nHost:\r\n\r\n"},
      {"folding", Get("X: b\r\n c\r\n")},
      {"tab folding", Get("X: b\r\n\tc\r\n")},
      {"space before the colon", Get("X : b\r\n")},
      {"empty name", Get(": b\r\n")},
      {"name with a parenthesis", Get("X(y): b\r\n")},
      {"shadowed length", Get("Content_Length: 3\r\n")},
      {"shadowed encoding", Get("transfer_encoding: chunked\r\n")},
      {"no colon", Get("field\r\n")},
      {"control byte", Get("X: b\x01\r\n")},
      {"NUL", Get(std::string("X: b\0c\r\n", 9))},
      {"DEL", Get("X: b\x7F\r\n")},
      {"bare CR", Get("X: b\rc\r\n")},
      {"bare LF", Get("X: b\nc: d\r\n")},
      {"bare LF ends the head", "GET / HTTP/1.1\nHost: a\n\n"},
      {"other expectation", Post("Expect: 200-ok\r\nContent-Length: 3\r\n", "abc")},
      {"upgrade", Get("Upgrade: h2c\r\n")},
      {"HTTP/2.0", Line("GET / HTTP/2.0")},
      {"HTTP/1.2", Line("GET / HTTP/1.2")},
      {"HTTP/0.9", Line("GET /")},
      {"lower case version", Line("GET / http/1.1")},
      {"two spaces", Line("GET  / HTTP/1.1")},
      {"space in the target", Line("GET /a b HTTP/1.1")},
      {"tab in the target", Line("GET /a\tb HTTP/1.1")},
      {"absolute form", Line("GET http://a/ HTTP/1.1")},
      {"authority form", Line("CONNECT a:1 HTTP/1.1")},
      {"asterisk", Line("OPTIONS * HTTP/1.1")},
      {"bytes beyond ASCII", Line("GET /\xC3\xA9 HTTP/1.1")},
      {"long target", Line(Concat("GET /", std::string(8192, 'a'), " HTTP/1.1"))},
      {"method", Line("GE(T / HTTP/1.1")},
      {"empty line first", Concat("\r\n", Get(""))},
      {"long head", Get(Concat("X: ", std::string(17 << 10, 'a'), "\r\n"))},
      {"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
  };
  probes.insert(probes.end(), heads.begin(), heads.end());
  std::string fields;
  for (int i = 0; i < 100; ++i) fields += Concat("x", i, ": 1\r\n");
  probes.push_back({"101 fields", Get(fields)});
}

void AddChunkProbes(std::vector<FramingProbe>& probes) {
  for (const std::string_view size :
       {"+3", "-3", "0x3", " 3", "3 ", "", "3g", "ffffffffffffffff3", "1000000000000000", "3\t"}) {
    probes.push_back({Concat("chunk size ", size), Chunked(Concat(size, "\r\nabc\r\n0\r\n\r\n"))});
  }
  probes.push_back(
      {"long extension", Chunked(Concat("3;", std::string(300, 'a'), "\r\nabc\r\n0\r\n\r\n"))});
  const std::string half(130, 'a');
  probes.push_back({"long extensions in all",
                    Chunked(Concat("1;", half, "\r\na\r\n1;", half, "\r\nb\r\n0\r\n\r\n"))});
  probes.push_back({"control byte in an extension", Chunked("3;a\x01\r\nabc\r\n0\r\n\r\n")});
  probes.push_back({"chunk header with LF", Chunked("3\nabc\r\n0\r\n\r\n")});
  probes.push_back({"chunk without its end", Chunked("3\r\nabcd\r\n0\r\n\r\n")});
  probes.push_back({"trailers", Chunked("3\r\nabc\r\n0\r\nX: 1\r\n\r\n")});
}

}  // namespace

std::vector<FramingProbe> BadProbes() {
  std::vector<FramingProbe> probes;
  AddLengthProbes(probes);
  AddEncodingProbes(probes);
  AddHeadProbes(probes);
  AddChunkProbes(probes);
  return probes;
}

std::vector<FramingProbe> GoodProbes() {
  return {
      {"get", Get("")},
      {"get with fields", Get("X_Custom: 1\r\nAccept: */*\r\nX: \t b \r\nX: again\r\n")},
      {"get 1.0", "GET /health/live HTTP/1.0\r\n\r\n"},
      {"query", Line("GET /health/live?a=%20&b=c HTTP/1.1")},
      {"post", Post("Content-Length: 3\r\n", "abc")},
      {"post nothing", Post("Content-Length: 0\r\n", "")},
      {"post a request", Post("Content-Length: 27\r\n", "GET /v1/models HTTP/1.1\r\n\r\n")},
      {"chunks", Chunked("3\r\nabc\r\n1;a=b\r\nd\r\n0\r\n\r\n")},
      {"no chunks", Chunked("0\r\n\r\n")},
      {"chunk with a request", Chunked("1b\r\nGET /v1/models HTTP/1.1\r\n\r\n\r\n0\r\n\r\n")},
  };
}

size_t ProbeSource::Below(size_t bound) {
  uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<size_t>((z ^ (z >> 31)) % bound);
}

void ProbeSource::Change(std::string& bytes) {
  static constexpr std::array<std::string_view, 24> kPieces = {"\r",
                                                               "\n",
                                                               "\r\n",
                                                               " ",
                                                               "\t",
                                                               ":",
                                                               ";",
                                                               ",",
                                                               "0",
                                                               "3",
                                                               "+",
                                                               "-",
                                                               "x",
                                                               "\r\n\r\n",
                                                               "chunked",
                                                               "Content-Length: 3\r\n",
                                                               "Transfer-Encoding: chunked\r\n",
                                                               "Host: b\r\n",
                                                               "HTTP/1.0",
                                                               "_",
                                                               "%",
                                                               "\x80",
                                                               "\x7F",
                                                               "5;a=b\r\n"};
  const size_t at = Below(bytes.size() + 1);
  switch (Below(5)) {
    case 0:
      bytes.insert(at, kPieces[Below(kPieces.size())]);
      break;
    case 1:
      bytes.erase(at, 1 + Below(3));
      break;
    case 2:
      if (at < bytes.size()) bytes[at] = static_cast<char>(Below(256));
      break;
    case 3: {  // a line twice
      const size_t end = std::min(bytes.find('\n', at), bytes.size() - 1);
      const size_t begin = bytes.rfind('\n', end == 0 ? 0 : end - 1);
      const size_t from = begin == std::string::npos ? 0 : begin + 1;
      bytes.insert(from, bytes.substr(from, end + 1 - from));
      break;
    }
    default:
      if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(8)));
      break;
  }
}

std::string ProbeSource::Next() {
  std::string bytes;
  const size_t requests = 1 + Below(3);
  for (size_t i = 0; i < requests; ++i) {
    const bool is_bad = Below(8) == 0;
    const std::vector<FramingProbe>& source = is_bad ? bad_ : good_;
    bytes += source[Below(source.size())].bytes;
  }
  for (size_t changes = Below(4); changes > 0 && !bytes.empty(); --changes) Change(bytes);
  return bytes;
}

}  // namespace skein::tests
