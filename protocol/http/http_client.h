// A small blocking HTTP client, with server-sent events.
// Owns: one connection per call.
// Thread: each call blocks its caller; never used on the listener's or the control thread.
// Must never: retry, follow redirects, or report a cut body as whole.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "protocol/http/http_message.h"
#include "protocol/http/tls_session.h"

namespace skein::protocol {

struct HttpCall {
  std::string host = "127.0.0.1";  // name or address
  uint16_t port = 0;
  std::string unix_path;  // not empty: this Unix socket instead of host and port
  // Not null: speaks TLS with the host, which must prove to be it.
  std::shared_ptr<TlsContext> tls;
  std::string method = "GET";
  std::string target = "/";
  HttpHeaders headers;
  std::string content_type = "application/json";
  std::string body;
  std::chrono::milliseconds timeout{30'000};  // for connecting, and between two pieces of answer
};

struct HttpResult {
  int status = 0;
  HttpHeaders headers;
  std::string body;

  std::string_view Header(std::string_view name) const;
};

// Sends the call and reads the whole answer. Unavailable when no connection is made,
// DeadlineExceeded after `timeout` without progress, DataLoss when the body is cut.
absl::StatusOr<HttpResult> CallHttp(const HttpCall& call);

// The same, and gives each event of a text/event-stream answer to `on_event` as it arrives: the
// text after "data: ". Comments are skipped. Returning false ends the call with Cancelled. The
// result's body is empty for such an answer.
absl::StatusOr<HttpResult> CallHttpEvents(const HttpCall& call,
                                          const std::function<bool(std::string_view)>& on_event);

}  // namespace skein::protocol
