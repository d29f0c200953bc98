#include "coordinator/metrics.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <vector>

namespace skein::coordinator {
namespace {

const std::vector<std::string> kApis = {"chat", "completions"};
const std::vector<std::string> kFinished = {"stop", "length", "abort", "error", "timeout"};
const std::vector<std::string> kRoutes = {"/v1/chat/completions",
                                          "/v1/completions",
                                          "/v1/models",
                                          "/tokenize",
                                          "/detokenize",
                                          "/health",
                                          "/metrics",
                                          "/version",
                                          "other"};
const std::vector<std::string> kMethods = {"GET", "POST", "other"};
const std::vector<std::string> kCodes = {"200", "400", "401", "403", "404", "405", "408",  "413",
                                         "415", "429", "431", "499", "500", "503", "other"};
const std::vector<std::string> kReasons = {"invalid_value",
                                           "invalid_json",
                                           "unsupported_parameter",
                                           "context_length_exceeded",
                                           "model_not_found",
                                           "request_too_large",
                                           "other"};
const std::vector<std::string> kPhases = {"prefill", "decode", "mixed"};
const std::vector<std::string> kRejections = {"queue", "draining", "not_ready"};

// The value if it is in the closed set, else its last entry.
std::string_view Closed(const std::vector<std::string>& values, std::string_view value) {
  const auto found = std::find(values.begin(), values.end(), value);
  return found == values.end() ? std::string_view(values.back()) : std::string_view(*found);
}

std::string_view Route(std::string_view route) {
  if (route.starts_with("/health")) return "/health";
  if (route.starts_with("/v1/models")) return "/v1/models";
  return Closed(kRoutes, route);
}

}  // namespace

HttpMetrics::HttpMetrics(protocol::MetricsRegistry& registry)
    : requests(
          registry.AddCounters({"skein_requests_total",
                                "Generations that ended, by interface and reason. Errors rising: "
                                "read the coordinator's log."},
                               {{"api", kApis}, {"finished_reason", kFinished}})),
      http_requests(registry.AddCounters(
          {"skein_http_requests_total", "Answers by route, method and status code."},
          {{"route", kRoutes}, {"method", kMethods}, {"code", kCodes}})),
      http_streams_open(
          registry.AddGauge({"skein_http_streams_open",
                             "Streams being written. Never falling: clients do not read, "
                             "see the egress timeout."})),
      http_malformed(registry.AddCounter({"skein_http_malformed_total",
                                          "Requests refused for their framing. Rising: a broken "
                                          "client or a probe."})),
      http_timeouts(registry.AddCounter(
          {"skein_http_timeouts_total", "Requests that were sent too slowly."})),
      http_unknown_fields(registry.AddCounter({"skein_http_unknown_fields_total",
                                               "Request fields that were ignored; the log names "
                                               "each once."})),
      http_limits(registry.AddCounter({"skein_http_limits_total",
                                       "Connections and requests refused by a limit of the server "
                                       "section."})),
      bad_requests(registry.AddCounters(
          {"skein_bad_request_total", "Requests refused with a 4xx, by error code."},
          {{"reason", kReasons}})),
      admission_rejections(registry.AddCounters({"skein_admission_rejections_total",
                                                 "Requests refused with 503, by reason. queue: add "
                                                 "capacity; not_ready: look at skein_workers."},
                                                {{"reason", kRejections}})),
      client_disconnects(registry.AddCounter(
          {"skein_client_disconnects_total", "Requests cancelled because the client went away."})) {
}

RequestMetrics::RequestMetrics(protocol::MetricsRegistry& registry)
    : requests_running(
          registry.AddGauge({"skein_requests_running",
                             "Requests that take part in steps. Flat at max_num_seqs: the "
                             "server is full, see skein_requests_waiting."})),
      requests_waiting(
          registry.AddGauge({"skein_requests_waiting",
                             "Requests that wait for their first step. Rising for minutes: "
                             "add capacity or lower the load."})),
      prompt_tokens(registry.AddCounter(
          {"skein_prompt_tokens_total", "Prompt tokens of admitted requests."})),
      generation_tokens(
          registry.AddCounter({"skein_generation_tokens_total", "Tokens committed to requests."})),
      request_prompt_tokens(
          registry.AddHistogram({"skein_request_prompt_tokens", "Prompt tokens of a request."},
                                protocol::TokenCountBounds())),
      request_generation_tokens(registry.AddHistogram(
          {"skein_request_generation_tokens", "Generated tokens of an ended request."},
          protocol::TokenCountBounds())) {}

LatencyMetrics::LatencyMetrics(protocol::MetricsRegistry& registry)
    : time_to_first_token(registry.AddHistogram({"skein_time_to_first_token_seconds",
                                                 "From arrival to the first token. High with an "
                                                 "empty queue: prompts are long."},
                                                protocol::TimeToFirstTokenBounds())),
      inter_token_latency(registry.AddHistogram({"skein_inter_token_latency_seconds",
                                                 "Between tokens of one request, a step's time "
                                                 "shared by its tokens."},
                                                protocol::InterTokenBounds())),
      e2e_latency(registry.AddHistogram(
          {"skein_e2e_request_latency_seconds", "From arrival to the last token."},
          protocol::RequestLatencyBounds())),
      queue_time(registry.AddHistogram(
          {"skein_request_queue_time_seconds", "From arrival to the first step."},
          protocol::RequestLatencyBounds())) {}

StepMetrics::StepMetrics(protocol::MetricsRegistry& registry)
    : step_tokens(
          registry.AddHistograms({"skein_step_tokens",
                                  "Rows of a step. Far below max_num_batched_tokens under load: "
                                  "the cache is the limit."},
                                 protocol::StepTokenBounds(), {{"phase", kPhases}})),
      step_batch_size(registry.AddHistograms({"skein_step_batch_size", "Sequences of a step."},
                                             protocol::StepBatchBounds(), {{"phase", kPhases}})),
      step_duration(
          registry.AddHistograms({"skein_step_duration_seconds", "From plan to commit of a step."},
                                 protocol::StepDurationBounds(), {{"phase", kPhases}})),
      kv_blocks(registry.AddGauges({"skein_kv_blocks", "Cache blocks by state."},
                                   {{"state", {"free", "used"}}})),
      kv_cache_usage(registry.AddGauge({"skein_kv_cache_usage_ratio",
                                        "Used share of the cache blocks. Near 1 with preemptions "
                                        "rising: lower max_num_seqs."})),
      preemptions(
          registry.AddCounter({"skein_preemptions_total",
                               "Sequences that lost their cache to others and start over."})),
      preempted_tokens(registry.AddCounter(
          {"skein_preempted_tokens_total", "Computed tokens that preemption threw away."})),
      replays(registry.AddCounter(
          {"skein_replays_total", "Sequences put back because their worker was lost."})),
      epoch_changes(
          registry.AddCounters({"skein_epoch_changes_total",
                                "Epochs that ended, by cause. Rising: a worker dies or "
                                "hangs, read its log."},
                               {{"cause", {"peer_down", "step_failed", "registered_again"}}})),
      workers(
          registry.AddGauges({"skein_workers", "Workers by state. None ready: nothing is served."},
                             {{"state", {"ready", "spare"}}})),
      stale_results(registry.AddCounter(
          {"skein_stale_results_total", "Results of ended epochs that were dropped."})) {}

void CoordinatorMetrics::Count(const ApiEvent& event) {
  switch (event.kind) {
    case ApiEvent::Kind::kResponse: {
      std::array<char, 4> code = {"000"};
      std::to_chars(code.data(), code.data() + 3, event.status);
      http_requests
          .At({Route(event.route), Closed(kMethods, event.method),
               Closed(kCodes, std::string_view(code.data(), 3))})
          .Increment();
      return;
    }
    case ApiEvent::Kind::kGeneration:
      requests
          .At({event.route == "/v1/chat/completions" ? "chat" : "completions",
               Closed(kFinished, event.name)})
          .Increment();
      if (event.name == "abort") client_disconnects.Increment();
      return;
    case ApiEvent::Kind::kStreamOpened:
      http_streams_open.Add(1);
      return;
    case ApiEvent::Kind::kStreamClosed:
      http_streams_open.Add(-1);
      return;
    case ApiEvent::Kind::kUnknownField:
      http_unknown_fields.Increment();
      return;
    case ApiEvent::Kind::kRefusal:
      CountRefusal(event.name, event.status);
      return;
    case ApiEvent::Kind::kMalformed:
      http_malformed.Increment();
      return;
    case ApiEvent::Kind::kTimeout:
      http_timeouts.Increment();
      return;
    case ApiEvent::Kind::kLimit:
      http_limits.Increment();
      return;
  }
}

void CoordinatorMetrics::CountRefusal(std::string_view code, int status) {
  if (status < 500) bad_requests.At({Closed(kReasons, code)}).Increment();
  if (code == "server_overloaded") admission_rejections.At({"queue"}).Increment();
  if (code == "draining") admission_rejections.At({"draining"}).Increment();
  if (code == "not_ready") admission_rejections.At({"not_ready"}).Increment();
}

}  // namespace skein::coordinator
