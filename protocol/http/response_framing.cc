// Heads and chunks of answers.
// Thread: functions are pure.
// Must never: frame a body in two ways.
#include "protocol/http/response_framing.h"

#include <array>
#include <charconv>

namespace skein::protocol {

std::string MakeResponseHead(const HttpResponse& response, BodyFraming framing,
                             KeepAlive keep_alive, const HttpHeaders& always) {
  std::string head = "HTTP/1.1 " + std::to_string(response.status) + " " +
                     std::string(HttpReason(response.status)) + "\r\n";
  if (!response.content_type.empty()) head += "Content-Type: " + response.content_type + "\r\n";
  for (const HttpHeaders& headers : {std::cref(response.headers), std::cref(always)}) {
    for (const auto& [name, value] : headers) head += name + ": " + value + "\r\n";
  }
  if (framing == BodyFraming::kChunked) {
    head += "Transfer-Encoding: chunked\r\n";
  } else {
    head += "Content-Length: " + std::to_string(response.body.size()) + "\r\n";
  }
  if (keep_alive == KeepAlive::kNo) head += "Connection: close\r\n";
  return head + "\r\n";
}

void AppendChunk(std::string_view data, std::string* out) {
  std::array<char, 16> digits{};
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), data.size(), 16);
  out->append(digits.data(), result.ptr);
  out->append("\r\n").append(data).append("\r\n");
}

}  // namespace skein::protocol
