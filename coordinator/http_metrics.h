// What the HTTP edge reports: answers by route and code, refusals, streams, ends of generations.
// Owns handles of the registry's families. Thread: that of HTTP. Must never: let a client name a
// label.
#pragma once

#include <string_view>

#include "coordinator/api/api_server.h"
#include "protocol/metrics/metrics.h"

namespace skein::coordinator {

struct HttpMetrics {
  explicit HttpMetrics(protocol::MetricsRegistry& registry);
  void Count(const ApiEvent& event);
  void CountRefusal(std::string_view code, int status);

  protocol::CounterFamily requests;       // api, finished_reason
  protocol::CounterFamily http_requests;  // route, method, code
  protocol::Gauge http_streams_open;
  protocol::Counter http_malformed, http_timeouts, http_unknown_fields, http_limits;
  protocol::CounterFamily tool_parse, reasoning_parse;  // result
  protocol::CounterFamily bad_requests;                 // reason
  protocol::CounterFamily admission_rejections;         // reason
  protocol::Counter client_disconnects, auth_failures;
};

}  // namespace skein::coordinator
