// What the HTTP edge reports: answers by route and code, refusals, streams, ends of generations.
// Owns handles of the registry's families. Thread: that of HTTP. Must never: let a client name a
// label.
#pragma once

#include <string_view>

#include "coordinator/api/api_server.h"
#include "protocol/metrics/metrics.h"

namespace skein::coordinator {

// Connections, framing and answers, whatever they are about.
struct ListenerMetrics {
  explicit ListenerMetrics(protocol::MetricsRegistry& registry);
  // False for an event of another kind.
  bool CountListener(const ApiEvent& event);

  protocol::CounterFamily http_requests;  // route, method, code
  protocol::GaugeFamily http_inflight;    // route
  protocol::Gauge http_streams_open, slow_streams;
  protocol::CounterFamily http_malformed;  // rule
  protocol::CounterFamily http_timeouts;   // phase
  protocol::CounterFamily http_limits;     // limit
};

struct HttpMetrics : ListenerMetrics {
  explicit HttpMetrics(protocol::MetricsRegistry& registry);
  void Count(const ApiEvent& event);
  void CountRefusal(std::string_view code, int status);

  protocol::CounterFamily requests;  // api, finished_reason
  protocol::Counter http_unknown_fields, tokens_after_disconnect;
  protocol::CounterFamily tool_parse, reasoning_parse;  // result
  protocol::CounterFamily bad_requests;                 // reason
  protocol::CounterFamily admission_rejections;         // reason
  protocol::CounterFamily client_disconnects;           // phase; the control loop knows it
  protocol::Counter auth_failures;
  protocol::CounterFamily grammar_compilations;  // result
  protocol::Histogram grammar_compilation_time;
};

}  // namespace skein::coordinator
