// Heads through admission and the parser of Beast, bodies by length or chunks.
// Thread: one object is used by one thread.
// Must never: give a head to the parser that was not admitted.
#include "protocol/http/request_reader.h"

#include <algorithm>
#include <utility>

#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>

namespace skein::protocol {
namespace {

namespace http = boost::beast::http;

// A chunk size line: 15 digits and the extensions.
constexpr size_t kChunkLineBytesMax = 15 + 256 + 2;

}  // namespace

RequestReader::Phase RequestReader::phase() const {
  if (body_ != Body::kNone) return Phase::kBody;
  return unread().empty() ? Phase::kIdle : Phase::kHead;
}

size_t RequestReader::held_bytes() const {
  size_t total = unread().size() + request_.body.size();
  for (const HttpRequest& request : requests_) total += request.body.size();
  return total;
}

HttpRequest RequestReader::TakeRequest() {
  HttpRequest request = std::move(requests_.front());
  requests_.pop_front();
  return request;
}

bool RequestReader::TakeContinue() { return std::exchange(wants_continue_, false); }

void RequestReader::Feed(std::string_view bytes) {
  if (refusal_.has_value()) return;
  bytes_.append(bytes);
  bool advanced = true;
  while (advanced && !refusal_.has_value()) {
    switch (body_) {
      case Body::kNone:
        advanced = ReadHead();
        break;
      case Body::kLength:
        advanced = ReadLength();
        break;
      case Body::kChunkHeader:
        advanced = ReadChunkHeader();
        break;
      case Body::kChunkData:
        advanced = ReadChunkData();
        break;
      case Body::kChunkEnd:
      case Body::kLastEnd:
        advanced = ReadChunkEnd();
        break;
    }
  }
  bytes_.erase(0, position_);
  position_ = 0;
}

bool RequestReader::Refuse(HttpRefusal refusal) {
  refusal_ = std::move(refusal);
  bytes_.clear();
  position_ = 0;
  body_ = Body::kNone;
  request_ = HttpRequest();
  return false;
}

bool RequestReader::ReadHead() {
  if (unread().empty()) return false;
  const auto scan = scanner_.Scan(unread(), limits_);
  if (const auto* refused = std::get_if<HttpRefusal>(&scan)) return Refuse(*refused);
  const size_t* end = std::get_if<size_t>(&scan);
  if (end == nullptr) return false;
  const std::string_view head = unread().substr(0, *end);
  const auto admitted = AdmitHead(head, limits_);
  if (const auto* refused = std::get_if<HttpRefusal>(&admitted)) return Refuse(*refused);
  if (requests_.size() >= limits_.pipelined_requests_max) {
    return Refuse({400, "pipelined_requests",
                   "more than " + std::to_string(limits_.pipelined_requests_max) +
                       " requests were sent before their answers"});
  }
  if (!ParseHead(head)) {
    return Refuse({400, "parser", "the request head is malformed"});
  }
  if (check_head_) {
    if (std::optional<HttpResponse> answer = check_head_(request_)) {
      const int status = answer->status;
      return Refuse({status, "head", "", *std::move(answer)});
    }
  }
  position_ += *end;
  scanner_ = HeadScanner();
  const AdmittedHead& framing = std::get<AdmittedHead>(admitted);
  extension_bytes_ = 0;
  remaining_ = framing.content_length;
  if (framing.is_chunked) {
    body_ = Body::kChunkHeader;
  } else if (remaining_ > 0) {
    body_ = Body::kLength;
  } else {
    FinishRequest();
    return true;
  }
  wants_continue_ = framing.expects_continue;
  return true;
}

bool RequestReader::ParseHead(std::string_view head) {
  http::request_parser<http::empty_body> parser;
  parser.header_limit(static_cast<uint32_t>(limits_.head_bytes_max + 1));
  parser.body_limit(boost::none);
  boost::beast::error_code error;
  parser.put(boost::asio::buffer(head.data(), head.size()), error);
  if (error || !parser.is_header_done()) return false;
  const auto& message = parser.get();
  request_ = HttpRequest();
  request_.method = std::string(message.method_string());
  request_.target = std::string(message.target());
  request_.path = request_.target.substr(0, request_.target.find('?'));
  request_.minor_version = message.version() == 10 ? 0 : 1;
  request_.keep_alive = request_.minor_version == 1 && message.keep_alive();
  for (const auto& field : message) {
    request_.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  }
  return true;
}

// Moves up to `remaining` unread bytes into the body.
bool RequestReader::AppendBody(uint64_t* remaining) {
  const std::string_view bytes =
      unread().substr(0, static_cast<size_t>(std::min<uint64_t>(*remaining, unread().size())));
  if (bytes.empty()) return false;
  if (request_.body.size() + bytes.size() > limits_.body_bytes_max) {
    return Refuse(
        {413, "body_bytes",
         "the request body is longer than " + std::to_string(limits_.body_bytes_max) + " bytes"});
  }
  request_.body.append(bytes);
  position_ += bytes.size();
  *remaining -= bytes.size();
  return true;
}

bool RequestReader::ReadLength() {
  if (!AppendBody(&remaining_)) return false;
  if (remaining_ == 0) FinishRequest();
  return true;
}

bool RequestReader::ReadChunkHeader() {
  const size_t end = unread().find('\n');
  if (end == std::string_view::npos) {
    if (unread().size() <= kChunkLineBytesMax) return false;
    return Refuse({400, "chunk_extension", "a chunk header is too long"});
  }
  std::string_view line = unread().substr(0, end);
  if (line.empty() || line.back() != '\r') {
    return Refuse({400, "line_end", "a chunk header does not end with CRLF"});
  }
  line.remove_suffix(1);
  const auto admitted = AdmitChunkHeader(line);
  if (const auto* refused = std::get_if<HttpRefusal>(&admitted)) return Refuse(*refused);
  const ChunkHeader& header = std::get<ChunkHeader>(admitted);
  extension_bytes_ += header.extension_bytes;
  if (extension_bytes_ > limits_.chunk_extension_bytes_max) {
    return Refuse({400, "chunk_extension",
                   "chunk extensions are longer than " +
                       std::to_string(limits_.chunk_extension_bytes_max) + " bytes in all"});
  }
  position_ += end + 1;
  remaining_ = header.size;
  body_ = remaining_ == 0 ? Body::kLastEnd : Body::kChunkData;
  return true;
}

bool RequestReader::ReadChunkData() {
  if (!AppendBody(&remaining_)) return false;
  if (remaining_ == 0) body_ = Body::kChunkEnd;
  return true;
}

bool RequestReader::ReadChunkEnd() {
  const std::string_view bytes = unread().substr(0, 2);
  if (bytes != std::string_view("\r\n").substr(0, bytes.size())) {
    if (body_ == Body::kLastEnd) return Refuse({400, "trailers", "trailers are not accepted"});
    return Refuse({400, "chunk_end", "a chunk does not end with CRLF"});
  }
  if (bytes.size() < 2) return false;
  position_ += 2;
  if (body_ == Body::kLastEnd) {
    FinishRequest();
  } else {
    body_ = Body::kChunkHeader;
  }
  return true;
}

void RequestReader::FinishRequest() {
  body_ = Body::kNone;
  wants_continue_ = false;
  requests_.push_back(std::exchange(request_, {}));
}

}  // namespace skein::protocol
