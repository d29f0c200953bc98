// Many HTTP calls at a time to one server, on one thread: connections that are kept, whole answers
// and streams, a time for everything that comes. The load generator and the benchmarks use it.
// Owns: the connections.
// Thread: one thread uses an object; Poll alone waits.
// Must never: repeat a call, or report a cut body as whole.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "protocol/http/tls_session.h"

namespace skein::protocol {

class HttpClientPool {
 public:
  using Clock = std::chrono::steady_clock;

  struct Options {
    std::string host = "127.0.0.1";  // name or address
    uint16_t port = 0;
    std::shared_ptr<TlsContext> tls;  // not null: speaks TLS with the host, which must be it
    std::chrono::milliseconds timeout{600'000};  // of a call without a byte
  };

  // What happens to the calls, told during Poll. `at` is read when the bytes were received.
  class Receiver {
   public:
    virtual ~Receiver() = default;
    // Bytes of the body without framing, borrowed for the call. `status` is the HTTP status.
    virtual void OnBody(uint64_t call, int status, std::string_view bytes,
                        Clock::time_point at) = 0;
    // The call is over. OK: the answer is whole, with any HTTP status. Unavailable: no connection.
    // DataLoss: the answer was cut. DeadlineExceeded: no byte for `timeout`.
    virtual void OnEnd(uint64_t call, int status, const absl::Status& result,
                       Clock::time_point at) = 0;
  };

  // Resolves the host. Unavailable names it and the reason.
  static absl::StatusOr<std::unique_ptr<HttpClientPool>> Create(Options options);
  ~HttpClientPool();

  // Sends a whole request, head and body, over an idle connection or a new one. `call` names it to
  // the receiver; failures are told there too, by the next Poll.
  void Start(uint64_t call, std::string request);
  // Waits until something came or `timeout` is over, and tells the receiver, which may call Start.
  void Poll(std::chrono::nanoseconds timeout, Receiver& receiver);

  size_t num_calls() const;
  size_t num_connections() const;

 private:
  class Impl;
  explicit HttpClientPool(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The bytes of a request that keeps its connection. `headers` are whole lines with CRLF.
std::string KeptRequest(std::string_view method, std::string_view target, std::string_view host,
                        std::string_view headers, std::string_view body);

}  // namespace skein::protocol
