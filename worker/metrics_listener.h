// Serves the metrics of a worker to whoever scrapes, and nothing else.
// Owns: the listening socket, a thread and a few connections. Thread: Create and the destructor
// belong to main; `text` is called on the listener's thread.
// Must never: let those who read slowly take more than a handful of connections.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "protocol/http/http_server.h"

namespace skein::worker {

class MetricsListener {
 public:
  struct Options {
    std::string host;
    uint16_t port = 0;   // 0: any free one
    int listen_fd = -1;  // a socket that listens already, owned from now on; -1: binds one
    std::function<std::string()> text;
    std::chrono::milliseconds slowest{5'000};  // a request, and an answer that is not taken
  };

  // Serves at once. Unavailable or InvalidArgument names the address and the reason.
  static absl::StatusOr<std::unique_ptr<MetricsListener>> Create(Options options);
  ~MetricsListener() { http_->Stop(); }

  uint16_t port() const { return http_->port(); }

 private:
  explicit MetricsListener(std::unique_ptr<protocol::HttpServer> http) : http_(std::move(http)) {}
  std::unique_ptr<protocol::HttpServer> http_;
};

}  // namespace skein::worker
