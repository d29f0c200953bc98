// Requests, responses and limits of the HTTP listener.
// Owns: nothing; plain values.
// Thread: any.
// Must never: depend on the library behind the listener.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::protocol {

// Limits of serving.md section 7. Each refusal is counted with the name of its limit.
struct HttpLimits {
  size_t connections_max = 8192;
  size_t connections_per_address_max = 100;
  size_t head_bytes_max = 16 * 1024;
  size_t head_fields_max = 100;
  size_t target_bytes_max = 8 * 1024;
  size_t body_bytes_max = size_t{8} << 20;
  size_t chunk_extension_bytes_max = 256;
  size_t pipelined_requests_max = 8;
  size_t egress_bytes_max = 256 * 1024;     // of one stream, not yet taken by the socket
  size_t body_bytes_per_second_min = 1024;  // after body_grace
  std::chrono::milliseconds head_timeout{5'000};
  std::chrono::milliseconds body_grace{5'000};
  std::chrono::milliseconds keep_alive_timeout{60'000};
  std::chrono::milliseconds write_timeout{30'000};  // without progress
  std::chrono::milliseconds stream_comment_interval{10'000};
  std::chrono::milliseconds tick{100};  // how often timeouts are looked at
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// ASCII case-insensitive comparison of header names.
bool HeaderNameEquals(std::string_view a, std::string_view b);

struct HttpRequest {
  std::string method;
  std::string target;     // as sent
  std::string path;       // target up to '?'
  int minor_version = 1;  // HTTP/1.minor_version
  bool keep_alive = true;
  HttpHeaders headers;
  std::string body;
  std::string peer_address;
  std::shared_ptr<const void> attachment = nullptr;  // of who admitted the head

  // The first header of that name, empty when there is none.
  std::string_view Header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers;  // besides Content-Type, Content-Length and Connection
  std::string body;
};

// Why the listener itself refuses a request. `rule` is a stable name for counters.
struct HttpRefusal {
  int status = 400;
  std::string rule;
  std::string message;
  // The answer, when somebody else refused the head and counted it.
  std::optional<HttpResponse> response = std::nullopt;
};

// Decodes %XX; a broken escape stays as it is.
std::string PercentDecoded(std::string_view text);

// "Not Found" for 404.
std::string_view HttpReason(int status);

}  // namespace skein::protocol
