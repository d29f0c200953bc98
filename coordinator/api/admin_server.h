// The listener for operators: status, drain, rollout, configuration, metrics, health. On a Unix
// socket of this user, or on loopback with a token.
// Owns: the listener and its thread, apart from that of clients.
// Thread: handlers run on it; verbs cross to the control loop and are answered from there.
// Must never: block, or act on a call that did not show the credential.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/api/api_server.h"
#include "coordinator/api/flight_log.h"
#include "coordinator/api/status_json.h"
#include "coordinator/operator_queue.h"

namespace skein::coordinator {

class AdminServer {
 public:
  struct Options {
    std::string unix_path;  // empty: host and port
    std::string host = "127.0.0.1";
    uint16_t port = 0;
    std::string token;  // bearer token of every route but /health*; empty: none is asked for
    ServerIdentity identity;
    std::string config_json = "{}";
    std::function<absl::Status(HealthProbe)> health;
    std::function<std::string()> metrics_text;
    const FlightLog* flights = nullptr;  // outlives the server; null: there are none
    std::string metrics_content_type = "text/plain; version=0.0.4; charset=utf-8";
  };

  // Binds. `operators` outlives the server. Errors name the address and the reason.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Create(Options options,
                                                             OperatorQueue& operators);
  ~AdminServer();

  void Start();
  // Closes every connection and ends the thread. Answers that come later are dropped.
  void Stop();
  uint16_t port() const;

 private:
  class Impl;
  explicit AdminServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The body of a health probe and its status: 200, or 503 with the reason and Retry-After.
protocol::HttpResponse HealthResponse(const absl::Status& health, int retry_after_s);

// The same texts, in a time that does not depend on where they differ.
bool SameSecret(std::string_view given, std::string_view wanted);

}  // namespace skein::coordinator
