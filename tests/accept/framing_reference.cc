#include "tests/accept/framing_reference.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

namespace skein::tests {
namespace {

constexpr size_t kHeadBytes = 16 << 10, kFields = 100, kTargetBytes = 8 << 10, kExtensions = 256;
constexpr size_t kBodyBytes = 8 << 20, kSizeDigits = 15;

// The outcome of reading one thing: it is there, it breaks a rule, or bytes are missing.
enum class Verdict { kGood, kBad, kMore };

char Lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

std::string Lowered(std::string_view text) {
  std::string out;
  for (char c : text) out.push_back(Lower(c));
  return out;
}

bool TokenOnly(std::string_view text) {
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte >= 0x7F) return false;
    if (std::string_view("\"(),/:;<=>?@[\\]{}").find(c) != std::string_view::npos) return false;
  }
  return !text.empty();
}

bool HasControl(std::string_view text) {
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0x7F || (byte < 0x20 && byte != 0x09)) return true;
  }
  return false;
}

std::string_view Stripped(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// A number below 2^62 in this base, digits only; `digits_max` of them.
std::optional<uint64_t> Number(std::string_view text, unsigned base, size_t digits_max) {
  if (text.empty() || text.size() > digits_max) return std::nullopt;
  unsigned __int128 value = 0;
  for (char c : text) {
    const char low = Lower(c);
    unsigned digit = 99;
    if (low >= '0' && low <= '9') digit = static_cast<unsigned>(low - '0');
    if (low >= 'a' && low <= 'f') digit = static_cast<unsigned>(low - 'a') + 10;
    if (digit >= base) return std::nullopt;
    value = value * base + digit;
    if (value > (uint64_t{1} << 62)) return std::nullopt;
  }
  return static_cast<uint64_t>(value);
}

struct Head {
  int minor = 1;
  int hosts = 0, lengths = 0, codings = 0;
  uint64_t length = 0;
  ReferenceRequest request;
};

bool RequestLine(std::string_view line, Head& head) {
  size_t spaces = 0;
  for (char c : line) spaces += c == ' ' ? 1 : 0;
  if (spaces != 2) return false;
  const size_t a = line.find(' ');
  const size_t b = line.rfind(' ');
  const std::string_view target = line.substr(a + 1, b - a - 1);
  const std::string_view version = line.substr(b + 1);
  if (version == "HTTP/1.0") head.minor = 0;
  if (version != "HTTP/1.0" && version != "HTTP/1.1") return false;
  if (target.empty() || target[0] != '/' || target.size() > kTargetBytes) return false;
  for (char c : target) {
    if (static_cast<unsigned char>(c) < 0x21 || static_cast<unsigned char>(c) > 0x7E) return false;
  }
  head.request.method = std::string(line.substr(0, a));
  head.request.target = std::string(target);
  return TokenOnly(head.request.method);
}

bool Shadows(const std::string& name) {
  static constexpr std::array<std::string_view, 14> kNames = {
      "content_length",  "transfer_encoding", "content_type",     "x_request_id",
      "x_api_key",       "x_request_timeout", "accept_encoding",  "content_encoding",
      "x_forwarded_for", "user_agent",        "proxy_connection", "keep_alive",
      "x_real_ip",       "x_forwarded_proto"};
  if (name.find('_') == std::string::npos) return false;
  std::string same = name;
  for (char& c : same) c = c == '-' ? '_' : c;
  for (std::string_view known : kNames) {
    if (same == known) return true;
  }
  return false;
}

// Tokens with commas between them; some may be missing.
bool TokenList(std::string_view text) {
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view token = Stripped(text.substr(0, comma));
    if (!token.empty() && !TokenOnly(token)) return false;
    text.remove_prefix(std::min(text.size(), comma + 1));
  }
  return true;
}

bool Field(std::string_view line, Head& head) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !TokenOnly(line.substr(0, colon))) return false;
  const std::string name = Lowered(line.substr(0, colon));
  if (Shadows(name) || HasControl(line.substr(colon + 1))) return false;
  const std::string_view value = Stripped(line.substr(colon + 1));
  if (name == "host") return ++head.hosts == 1 && !value.empty();
  if (name == "transfer-encoding") return ++head.codings == 1 && value == "chunked";
  if (name == "upgrade") return false;
  if (name == "connection" || name == "proxy-connection") return TokenList(value);
  if (name == "expect") return Lowered(value) == "100-continue";
  if (name != "content-length") return true;
  const std::optional<uint64_t> length = Number(value, 10, 4096);
  head.length = length.value_or(0);
  return ++head.lengths == 1 && length.has_value();
}

// Every CR is followed by LF and every LF preceded by CR.
bool CleanLines(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] != '\n') return false;
    if (text[i] == '\n' && (i == 0 || text[i - 1] != '\r')) return false;
  }
  return true;
}

Verdict ReadHead(std::string_view& bytes, Head& head) {
  const size_t end = bytes.find("\r\n\r\n");
  const std::string_view text = bytes.substr(0, end == std::string_view::npos ? end : end + 2);
  if (!CleanLines(text) || text.starts_with("\r\n")) return Verdict::kBad;
  if (end == std::string_view::npos) {
    size_t whole_lines = 0;
    for (char c : text) whole_lines += c == '\n' ? 1 : 0;
    const bool bounded = text.size() <= kHeadBytes && whole_lines <= kFields + 1;
    return bounded ? Verdict::kMore : Verdict::kBad;
  }
  if (end + 4 > kHeadBytes) return Verdict::kBad;
  size_t lines = 0;
  for (std::string_view rest = text; !rest.empty(); ++lines) {
    const std::string_view line = rest.substr(0, rest.find("\r\n"));
    rest.remove_prefix(line.size() + 2);
    if (!(lines == 0 ? RequestLine(line, head) : Field(line, head))) return Verdict::kBad;
  }
  if (lines > kFields + 1) return Verdict::kBad;
  if (head.codings > 0 && (head.minor == 0 || head.lengths > 0)) return Verdict::kBad;
  if (head.minor == 1 && head.hosts == 0) return Verdict::kBad;
  bytes.remove_prefix(end + 4);
  return Verdict::kGood;
}

Verdict ReadChunks(std::string_view& bytes, std::string& body) {
  size_t extensions = 0;
  while (true) {
    const size_t end = bytes.find('\n');
    if (end == std::string_view::npos) {
      return bytes.size() > kSizeDigits + kExtensions + 2 ? Verdict::kBad : Verdict::kMore;
    }
    if (end == 0 || bytes[end - 1] != '\r') return Verdict::kBad;
    const std::string_view line = bytes.substr(0, end - 1);
    const size_t semicolon = line.find(';');
    const std::optional<uint64_t> size = Number(line.substr(0, semicolon), 16, kSizeDigits);
    if (!size) return Verdict::kBad;
    if (semicolon != std::string_view::npos) {
      extensions += line.size() - semicolon;
      if (HasControl(line.substr(semicolon)) || extensions > kExtensions) return Verdict::kBad;
    }
    bytes.remove_prefix(end + 1);
    if (body.size() + std::min<uint64_t>(*size, bytes.size()) > kBodyBytes) return Verdict::kBad;
    if (bytes.size() < *size) return Verdict::kMore;
    body += bytes.substr(0, *size);
    bytes.remove_prefix(*size);
    if (bytes.substr(0, 2) != std::string_view("\r\n").substr(0, bytes.size())) {
      return Verdict::kBad;
    }
    if (bytes.size() < 2) return Verdict::kMore;
    bytes.remove_prefix(2);
    if (*size == 0) return Verdict::kGood;
  }
}

Verdict ReadBody(std::string_view& bytes, Head& head) {
  if (head.codings > 0) return ReadChunks(bytes, head.request.body);
  if (std::min<uint64_t>(head.length, bytes.size()) > kBodyBytes) return Verdict::kBad;
  if (bytes.size() < head.length) return Verdict::kMore;
  head.request.body = std::string(bytes.substr(0, head.length));
  bytes.remove_prefix(head.length);
  return Verdict::kGood;
}

}  // namespace

ReferenceReading ReadByTheRules(std::string_view bytes) {
  ReferenceReading reading;
  while (!bytes.empty()) {
    Head head;
    Verdict verdict = ReadHead(bytes, head);
    if (verdict == Verdict::kGood) verdict = ReadBody(bytes, head);
    if (verdict != Verdict::kGood) {
      reading.refused = verdict == Verdict::kBad;
      return reading;
    }
    reading.requests.push_back(std::move(head.request));
  }
  return reading;
}

}  // namespace skein::tests
