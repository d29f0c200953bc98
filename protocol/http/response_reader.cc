// Status line, the few fields that frame a body, lengths and chunks.
// Thread: one object is used by one thread.
// Must never: report a cut body as whole.
#include "protocol/http/response_reader.h"

#include <algorithm>
#include <charconv>

#include "protocol/http/http_message.h"

namespace skein::protocol {
namespace {

constexpr size_t kHeadBytesMax = 64 * 1024;
constexpr size_t kLineBytesMax = 4096;

absl::Status Malformed(std::string_view what) {
  return absl::DataLossError("the answer is malformed: " + std::string(what));
}

bool ParseNumber(std::string_view text, int base, uint64_t* value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *value, base);
  return !text.empty() && result.ec == std::errc() && result.ptr == end;
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

}  // namespace

void ResponseReader::Reset() {
  body_ = Body::kHead;
  text_.clear();
  remaining_ = 0;
  status_ = 0;
  is_chunked_ = has_length_ = is_event_stream_ = false;
  keeps_alive_ = true;
}

bool ResponseReader::Collect(std::string_view end, std::string_view* bytes) {
  const size_t before = text_.size();
  const size_t overlap = std::min(before, end.size() - 1);
  text_.append(*bytes);
  const size_t found = text_.find(end, before - overlap);
  if (found == std::string::npos) {
    bytes->remove_prefix(bytes->size());
    return false;
  }
  bytes->remove_prefix(found + end.size() - before);
  text_.resize(found + end.size());
  return true;
}

absl::Status ResponseReader::ReadField(std::string_view name, std::string_view value) {
  if (HeaderNameEquals(name, "content-length")) {
    has_length_ = ParseNumber(value, 10, &remaining_);
    if (!has_length_) return Malformed("Content-Length is not a number");
  } else if (HeaderNameEquals(name, "transfer-encoding")) {
    is_chunked_ = HeaderNameEquals(value, "chunked");
    if (!is_chunked_) return Malformed("Transfer-Encoding is not chunked");
  } else if (HeaderNameEquals(name, "content-type")) {
    is_event_stream_ = value.starts_with("text/event-stream");
  } else if (HeaderNameEquals(name, "connection")) {
    keeps_alive_ = !HeaderNameEquals(value, "close");
  }
  return absl::OkStatus();
}

absl::Status ResponseReader::ReadHead(std::string_view head) {
  uint64_t status = 0;
  if (!head.starts_with("HTTP/1.") || head.size() < 14 ||
      !ParseNumber(head.substr(9, 3), 10, &status)) {
    return Malformed("it does not begin with a status line");
  }
  status_ = static_cast<int>(status);
  keeps_alive_ = head[7] == '1';
  for (size_t at = head.find('\n') + 1; at < head.size();) {
    const size_t end = head.find('\n', at);
    const std::string_view line = head.substr(at, end - at);
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos) {
      const absl::Status read = ReadField(line.substr(0, colon), Trimmed(line.substr(colon + 1)));
      if (!read.ok()) return read;
    }
    at = end + 1;
  }
  if (status_ >= 100 && status_ < 200) {
    Reset();  // an interim answer
  } else if (is_chunked_) {
    body_ = Body::kChunkLine;
  } else if (has_length_) {
    body_ = remaining_ > 0 ? Body::kLength : Body::kDone;
  } else {
    body_ = Body::kToClose;
    keeps_alive_ = false;
  }
  return absl::OkStatus();
}

// A line between chunks, or the head.
absl::Status ResponseReader::ReadLine(std::string_view line) {
  switch (body_) {
    case Body::kHead:
      return ReadHead(line);
    case Body::kChunkLine: {
      line = line.substr(0, line.find_first_of("\r\n"));
      if (!ParseNumber(Trimmed(line.substr(0, line.find(';'))), 16, &remaining_)) {
        return Malformed("a chunk size is not a number");
      }
      body_ = remaining_ > 0 ? Body::kChunkData : Body::kTrailer;
      return absl::OkStatus();
    }
    case Body::kChunkEnd:
      if (line != "\r\n") return Malformed("a chunk does not end with CRLF");
      body_ = Body::kChunkLine;
      return absl::OkStatus();
    default:
      if (line == "\r\n") body_ = Body::kDone;
      return absl::OkStatus();
  }
}

absl::Status ResponseReader::Feed(std::string_view bytes,
                                  const std::function<void(std::string_view)>& on_body,
                                  size_t* used) {
  const size_t size = bytes.size();
  while (!bytes.empty() && body_ != Body::kDone) {
    if (body_ == Body::kLength || body_ == Body::kChunkData || body_ == Body::kToClose) {
      const size_t left = body_ == Body::kToClose ? bytes.size() : static_cast<size_t>(remaining_);
      const std::string_view part = bytes.substr(0, left);
      on_body(part);
      bytes.remove_prefix(part.size());
      remaining_ -= body_ == Body::kToClose ? 0 : part.size();
      if (body_ == Body::kToClose || remaining_ > 0) continue;
      body_ = body_ == Body::kLength ? Body::kDone : Body::kChunkEnd;
      continue;
    }
    const bool is_head = body_ == Body::kHead;
    const bool is_there = Collect(is_head ? "\r\n\r\n" : "\n", &bytes);
    if (text_.size() > (is_head ? kHeadBytesMax : kLineBytesMax)) {
      return Malformed(is_head ? "its head is too long" : "a line between chunks is too long");
    }
    if (!is_there) break;
    const absl::Status read = ReadLine(text_);
    if (!read.ok()) return read;
    text_.clear();
  }
  *used = size - bytes.size();
  return absl::OkStatus();
}

absl::Status ResponseReader::Close() {
  if (body_ == Body::kToClose) body_ = Body::kDone;
  if (body_ == Body::kDone) return absl::OkStatus();
  return absl::DataLossError(has_head() ? "the answer was cut: its body is not whole"
                                        : "the connection was closed before an answer came");
}

}  // namespace skein::protocol
