// Routes of the API port: from requests to the front door and back.
// Owns: the HTTP listener and the counters of ids.
// Thread: handlers run on the listener's thread; Create, Start, Drain and Stop on main's.
// Must never: block the listener's thread, or start device work for a request that is refused.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/api/api_events.h"
#include "coordinator/api/api_keys.h"
#include "coordinator/api/flight_log.h"
#include "coordinator/api/generation_params.h"
#include "coordinator/api/submission.h"
#include "coordinator/front_door.h"
#include "coordinator/text/chat_template.h"
#include "coordinator/text/tokenizer.h"
#include "protocol/http/http_message.h"
#include "protocol/http/tls_certificate.h"
#include "protocol/json/json.h"

namespace skein::coordinator {

enum class HealthProbe { kReady, kLive, kStartup };

class ApiServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    uint16_t port = 8000;
    int listen_fd =
        -1;  // a socket that listens already, owned from now on; -1: binds host and port
    std::string root_path;          // that a proxy puts before the routes; empty: none
    protocol::HttpHeaders headers;  // of every answer
    std::shared_ptr<protocol::TlsCertificate> tls;  // null: the listener speaks no TLS
    protocol::HttpLimits http_limits;
    protocol::JsonLimits json_limits;
    RequestLimits request_limits;
    std::vector<std::string> served_names;  // at least one; the first is the default
    std::string fingerprint = "skein";      // system_fingerprint of every answer
    bool names_reasoning = false;           // chats have "reasoning" beside "reasoning_content"
    std::string version_json = "{}";        // body of GET /version
    SchedulingPolicy policy = SchedulingPolicy::kPriority;
    ApiKeys* keys = nullptr;                    // outlive the server; null: everybody may come in
    int64_t auth_failures_per_minute_max = 60;  // of one address
    uint64_t id_seed = 0;                       // random; ids and seeds of requests derive from it
    FlightLog* flights = nullptr;               // outlives the server; null: no records
    // Unix seconds now, for `created`.
    std::function<int64_t()> unix_time;
    // OK, or why not, in one line. Runs on the listener's thread.
    std::function<absl::Status(HealthProbe)> health;
    // Text of GET /metrics and its content type.
    std::function<std::string()> metrics_text;
    std::string metrics_content_type = "text/plain; version=0.0.4; charset=utf-8";
    // Predicted wait in seconds of a request that comes now.
    std::function<double()> predicted_wait_s;
    // Called on the listener's thread.
    std::function<void(const ApiEvent&)> on_event;
  };

  // The tokenizer, the template and the front door outlive the server. Errors name what cannot be
  // bound or is missing in the options.
  static absl::StatusOr<std::unique_ptr<ApiServer>> Create(Options options,
                                                           const Tokenizer& tokenizer,
                                                           const ChatTemplate& chat,
                                                           FrontDoor& front_door);
  ~ApiServer();

  void Start();
  // New generations get 503 draining; `done` runs on the listener's thread when the last
  // connection is closed.
  void Drain(std::function<void()> done);
  // Closes every connection and ends the thread.
  void Stop();
  // Runs `function` on the listener's thread, after what is ready there. Any thread, until the
  // server is destroyed; nothing runs after Stop.
  void Post(std::function<void()> function);
  // Deltas that wait for the listener's thread. Any thread.
  size_t mailbox_depth() const;
  uint16_t port() const;

 private:
  class Impl;
  explicit ApiServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace skein::coordinator
