// Every coordinator metric. Declared once while main() wires; handles are updated at the one place
// where the fact is known, from any thread.
#pragma once

#include <string>

#include "coordinator/api/api_server.h"
#include "protocol/metrics/metrics.h"

namespace skein::coordinator {

// What the HTTP edge reports.
struct HttpMetrics {
  explicit HttpMetrics(protocol::MetricsRegistry& registry);
  protocol::CounterFamily requests;       // api, finished_reason
  protocol::CounterFamily http_requests;  // route, method, code
  protocol::Gauge http_streams_open;
  protocol::Counter http_malformed, http_timeouts, http_unknown_fields, http_limits;
  protocol::CounterFamily bad_requests;          // reason
  protocol::CounterFamily admission_rejections;  // reason
  protocol::Counter client_disconnects;
};

// Requests as the control loop sees them.
struct RequestMetrics {
  explicit RequestMetrics(protocol::MetricsRegistry& registry);
  protocol::Gauge requests_running, requests_waiting;
  protocol::Counter prompt_tokens, generation_tokens;
  protocol::Histogram request_prompt_tokens, request_generation_tokens;
};

// How long requests take.
struct LatencyMetrics {
  explicit LatencyMetrics(protocol::MetricsRegistry& registry);
  protocol::Histogram time_to_first_token, inter_token_latency, e2e_latency, queue_time;
};

// Steps, cache and workers.
struct StepMetrics {
  explicit StepMetrics(protocol::MetricsRegistry& registry);
  protocol::HistogramFamily step_tokens, step_batch_size, step_duration;  // phase
  protocol::GaugeFamily kv_blocks;                                        // state
  protocol::Gauge kv_cache_usage;
  protocol::Counter preemptions, preempted_tokens, replays;
  protocol::CounterFamily epoch_changes;  // cause
  protocol::GaugeFamily workers;          // state
  protocol::Counter stale_results;
};

struct CoordinatorMetrics : HttpMetrics, RequestMetrics, LatencyMetrics, StepMetrics {
  explicit CoordinatorMetrics(protocol::MetricsRegistry& registry)
      : HttpMetrics(registry),
        RequestMetrics(registry),
        LatencyMetrics(registry),
        StepMetrics(registry) {}

  // Counts what the HTTP edge reports. HTTP thread.
  void Count(const ApiEvent& event);
  void CountRefusal(std::string_view code, int status);
};

}  // namespace skein::coordinator
