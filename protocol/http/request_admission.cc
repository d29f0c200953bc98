// Framing rules, one function per rule group.
// Thread: functions are pure.
// Must never: repair anything; what is not exact is refused.
#include "protocol/http/request_admission.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>

namespace skein::protocol {
namespace {

using Refused = std::optional<HttpRefusal>;

HttpRefusal Bad(std::string_view rule, std::string_view message) {
  return {400, std::string(rule), std::string(message)};
}

bool IsTokenChar(char c) {
  if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) return true;
  return std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool IsToken(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsTokenChar);
}

bool IsControl(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\t') || byte == 0x7F;
}

std::string_view TrimSpace(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

// A name such as content_length, which some servers read as Content-Length.
bool ShadowsKnownHeader(std::string_view name) {
  if (name.find('_') == std::string_view::npos) return false;
  static constexpr std::array<std::string_view, 14> kKnown = {
      "content-length",  "transfer-encoding", "content-type",     "x-request-id",
      "x-api-key",       "x-request-timeout", "accept-encoding",  "content-encoding",
      "x-forwarded-for", "user-agent",        "proxy-connection", "keep-alive",
      "x-real-ip",       "x-forwarded-proto"};
  std::string dashed(name);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  return std::any_of(kKnown.begin(), kKnown.end(),
                     [&](std::string_view known) { return HeaderNameEquals(dashed, known); });
}

Refused CheckRequestLine(std::string_view line, const HttpLimits& limits, AdmittedHead* head) {
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) {
    return Bad("request_line", "the request line is not METHOD TARGET VERSION");
  }
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!IsToken(line.substr(0, first))) return Bad("method", "the method is not a token");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return Bad("version", "only HTTP/1.0 and HTTP/1.1 are spoken here");
  }
  head->minor_version = version.back() - '0';
  if (target.size() > limits.target_bytes_max) {
    return Bad("target_bytes",
               "the target is longer than " + std::to_string(limits.target_bytes_max) + " bytes");
  }
  if (target.empty() || target.front() != '/') {
    return Bad("target_form", "the target must begin with /");
  }
  for (char c : target) {
    if (c <= 0x20 || c > 0x7E) return Bad("target_bytes", "the target has a byte outside ASCII");
  }
  return std::nullopt;
}

// What the framing rules need to remember of the fields.
struct FieldCounts {
  int hosts = 0;
  int lengths = 0;
  int encodings = 0;
};

Refused CheckLength(std::string_view value, AdmittedHead* head) {
  const bool digits = !value.empty() && std::all_of(value.begin(), value.end(),
                                                    [](char c) { return c >= '0' && c <= '9'; });
  if (!digits) return Bad("content_length", "Content-Length is not a decimal number");
  const auto result =
      std::from_chars(value.data(), value.data() + value.size(), head->content_length);
  if (result.ec != std::errc() || head->content_length > (uint64_t{1} << 62)) {
    return Bad("content_length", "Content-Length is out of range");
  }
  return std::nullopt;
}

Refused CheckFraming(std::string_view name, std::string_view value, FieldCounts* counts,
                     AdmittedHead* head) {
  if (HeaderNameEquals(name, "content-length")) {
    if (++counts->lengths > 1) return Bad("content_length", "more than one Content-Length");
    return CheckLength(value, head);
  }
  if (HeaderNameEquals(name, "transfer-encoding")) {
    if (++counts->encodings > 1) return Bad("transfer_encoding", "more than one Transfer-Encoding");
    if (value != "chunked") return Bad("transfer_encoding", "Transfer-Encoding is not chunked");
    head->is_chunked = true;
  } else if (HeaderNameEquals(name, "host")) {
    if (++counts->hosts > 1) return Bad("host", "more than one Host");
    if (value.empty()) return Bad("host", "Host is empty");
  } else if (HeaderNameEquals(name, "expect")) {
    if (!HeaderNameEquals(value, "100-continue")) {
      return Bad("expect", "Expect is not 100-continue");
    }
    head->expects_continue = true;
  } else if (HeaderNameEquals(name, "upgrade")) {
    return Bad("upgrade", "Upgrade is not supported");
  }
  return std::nullopt;
}

Refused CheckField(std::string_view line, FieldCounts* counts, AdmittedHead* head) {
  if (line.front() == ' ' || line.front() == '\t') {
    return Bad("folding", "a header line begins with white space");
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return Bad("field", "a header line has no colon");
  const std::string_view name = line.substr(0, colon);
  if (!IsToken(name)) return Bad("field_name", "a header name is not a token");
  if (ShadowsKnownHeader(name)) return Bad("field_name", "a header name shadows a known one");
  const std::string_view value = line.substr(colon + 1);
  if (std::any_of(value.begin(), value.end(), IsControl)) {
    return Bad("field_value", "a header value has a control byte");
  }
  return CheckFraming(name, TrimSpace(value), counts, head);
}

}  // namespace

std::variant<std::monostate, size_t, HttpRefusal> HeadScanner::Scan(std::string_view bytes,
                                                                    const HttpLimits& limits) {
  for (; scanned_ < bytes.size(); ++scanned_) {
    if (scanned_ >= limits.head_bytes_max) {
      return HttpRefusal{
          431, "head_bytes",
          "the request head is longer than " + std::to_string(limits.head_bytes_max) + " bytes"};
    }
    const char c = bytes[scanned_];
    const bool after_cr = scanned_ > 0 && bytes[scanned_ - 1] == '\r';
    if (after_cr && c != '\n') return Bad("line_end", "a CR is not followed by LF");
    if (c != '\n') continue;
    if (!after_cr) return Bad("line_end", "a line ends with LF alone");
    if (scanned_ == line_start_ + 1) {
      if (num_lines_ == 0) return Bad("request_line", "the request line is empty");
      return scanned_ + 1;
    }
    line_start_ = scanned_ + 1;
    if (++num_lines_ > limits.head_fields_max + 1) {
      return HttpRefusal{
          431, "head_fields",
          "the request has more than " + std::to_string(limits.head_fields_max) + " header fields"};
    }
  }
  return std::monostate();
}

std::variant<AdmittedHead, HttpRefusal> AdmitHead(std::string_view head, const HttpLimits& limits) {
  AdmittedHead admitted;
  FieldCounts counts;
  bool is_first = true;
  while (true) {
    const size_t end = head.find("\r\n");
    if (end == std::string_view::npos) return Bad("line_end", "the head has no empty line");
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(end + 2);
    if (line.empty()) break;
    if (line.find_first_of("\r\n") != std::string_view::npos) {
      return Bad("line_end", "a line ends with CR or LF alone");
    }
    const Refused refused =
        is_first ? CheckRequestLine(line, limits, &admitted) : CheckField(line, &counts, &admitted);
    if (refused.has_value()) return *refused;
    is_first = false;
  }
  if (is_first) return Bad("request_line", "the request line is empty");
  if (admitted.is_chunked && admitted.minor_version == 0) {
    return Bad("transfer_encoding", "Transfer-Encoding in HTTP/1.0");
  }
  if (admitted.is_chunked && counts.lengths > 0) {
    return Bad("transfer_encoding", "Transfer-Encoding together with Content-Length");
  }
  if (admitted.minor_version == 1 && counts.hosts == 0) {
    return Bad("host", "HTTP/1.1 without Host");
  }
  return admitted;
}

std::variant<ChunkHeader, HttpRefusal> AdmitChunkHeader(std::string_view line) {
  constexpr size_t kDigitsMax = 15;  // below 2^60
  const size_t semicolon = line.find(';');
  const std::string_view digits = line.substr(0, semicolon);
  const bool is_hex = !digits.empty() && std::all_of(digits.begin(), digits.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  });
  if (!is_hex || digits.size() > kDigitsMax) {
    return Bad("chunk_size", "a chunk size is not a hexadecimal number");
  }
  ChunkHeader header;
  std::from_chars(digits.data(), digits.data() + digits.size(), header.size, 16);
  if (semicolon != std::string_view::npos) {
    const std::string_view extension = line.substr(semicolon);
    if (std::any_of(extension.begin(), extension.end(), IsControl)) {
      return Bad("chunk_extension", "a chunk extension has a control byte");
    }
    header.extension_bytes = extension.size();
  }
  return header;
}

}  // namespace skein::protocol
