#include "coordinator/http_metrics.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <vector>

namespace skein::coordinator {
namespace {

const std::vector<std::string> kApis = {"chat", "completions", "messages"};
const std::vector<std::string> kParseResults = {"ok", "recovered", "malformed", "unclosed"};
const std::vector<std::string> kFinished = {"stop",  "length", "tool_calls",
                                            "abort", "error",  "timeout"};
const std::vector<std::string> kRoutes = {"/v1/chat/completions",
                                          "/v1/completions",
                                          "/v1/messages",
                                          "/v1/messages/count_tokens",
                                          "/v1/models",
                                          "/tokenize",
                                          "/detokenize",
                                          "/health",
                                          "/metrics",
                                          "/version",
                                          "other"};
const std::vector<std::string> kMethods = {"GET", "POST", "other"};
const std::vector<std::string> kCodes = {"200", "400", "401", "403", "404", "405", "408", "413",
                                         "415", "429", "431", "499", "500", "503", "529", "other"};
const std::vector<std::string> kReasons = {"invalid_value",         "invalid_json",
                                           "unsupported_parameter", "context_length_exceeded",
                                           "grammar_too_complex",   "model_not_found",
                                           "request_too_large",     "forbidden",
                                           "rate_limit_exceeded",   "other"};
const std::vector<std::string> kRejections = {"queue_requests", "queue_tokens", "queue_delay",
                                              "rate_limit",     "draining",     "not_ready",
                                              "deadline",       "too_long"};

// Rules of the listener's framing, by which it refuses with 400.
const std::vector<std::string> kRules = {"chunk_end",
                                         "chunk_extension",
                                         "chunk_size",
                                         "chunked",
                                         "content_length",
                                         "expect",
                                         "field",
                                         "field_name",
                                         "field_value",
                                         "folding",
                                         "host",
                                         "line_end",
                                         "method",
                                         "parser",
                                         "plain_http",
                                         "pipelined_requests",
                                         "request_line",
                                         "target_bytes",
                                         "target_form",
                                         "tls",
                                         "trailers",
                                         "transfer_encoding",
                                         "upgrade",
                                         "version",
                                         "other"};
// What a client took too long for.
const std::vector<std::string> kTimeouts = {"handshake", "head", "body", "write", "other"};
// Limits of the server section.
const std::vector<std::string> kLimits = {"connections",  "connections_per_address",
                                          "head_bytes",   "head_fields",
                                          "target_bytes", "body_bytes",
                                          "other"};
// How far a request was when its client left.
const std::vector<std::string> kPhases = {"queued", "prefill", "decode"};
const std::vector<std::string> kGrammarResults = {"ok", "too_complex"};

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

std::string_view Api(std::string_view route) {
  if (route == "/v1/chat/completions") return "chat";
  return route == "/v1/messages" ? "messages" : "completions";
}

}  // namespace

ListenerMetrics::ListenerMetrics(protocol::MetricsRegistry& registry)
    : http_requests(registry.AddCounters(
          {"skein_http_requests_total", "Answers by route, method and status code."},
          {{"route", kRoutes}, {"method", kMethods}, {"code", kCodes}})),
      http_inflight(registry.AddGauges(
          {"skein_http_inflight_requests",
           "Requests being answered, streams among them, by route. Never falling: see "
           "skein_requests_waiting and skein_slow_streams."},
          {{"route", kRoutes}})),
      http_streams_open(
          registry.AddGauge({"skein_http_streams_open",
                             "Streams being written. Never falling: clients do not read, "
                             "see the egress timeout."})),
      slow_streams(registry.AddGauge(
          {"skein_slow_streams",
           "Streams whose client is behind: what it has not read is merged, and it is cut off "
           "after egress-bytes-max or the egress timeout. High: slow clients or a slow network."})),
      http_malformed(registry.AddCounters(
          {"skein_http_malformed_total",
           "Requests refused for their framing, by the rule that they break. Rising: a broken "
           "client or a probe."},
          {{"rule", kRules}})),
      http_timeouts(registry.AddCounters(
          {"skein_http_timeouts_total",
           "Connections that were given up, by what their client took too long for."},
          {{"phase", kTimeouts}})),
      http_limits(registry.AddCounters(
          {"skein_http_limits_total",
           "Connections and requests refused by a limit of the server section, by the limit."},
          {{"limit", kLimits}})) {}

HttpMetrics::HttpMetrics(protocol::MetricsRegistry& registry)
    : ListenerMetrics(registry),
      requests(
          registry.AddCounters({"skein_requests_total",
                                "Generations that ended, by interface and reason. Errors rising: "
                                "read the coordinator's log."},
                               {{"api", kApis}, {"finished_reason", kFinished}})),
      http_unknown_fields(registry.AddCounter({"skein_http_unknown_fields_total",
                                               "Request fields that were ignored; the log names "
                                               "each once."})),
      tokens_after_disconnect(registry.AddCounter(
          {"skein_tokens_after_disconnect_total",
           "Tokens that were computed for clients that had left: those of the step that ran then. "
           "More than a step for each of skein_client_disconnects_total: cancelling is late, see "
           "skein_actor_mailbox_depth."})),
      tool_parse(registry.AddCounters(
          {"skein_tool_parse_total",
           "Tool calls by how they were read. malformed or recovered rising: the model leaves its "
           "syntax."},
          {{"result", kParseResults}})),
      reasoning_parse(registry.AddCounters(
          {"skein_reasoning_parse_total",
           "Answers by how their reasoning was read. unclosed rising: max_tokens is too small."},
          {{"result", kParseResults}})),
      bad_requests(registry.AddCounters(
          {"skein_bad_request_total", "Requests refused with a 4xx but 401, by error code."},
          {{"reason", kReasons}})),
      admission_rejections(registry.AddCounters({"skein_admission_rejections_total",
                                                 "Requests refused before any work, by reason. "
                                                 "queue_requests, queue_tokens and queue_delay: "
                                                 "add capacity; "
                                                 "rate_limit: of a key, see its limits; not_ready: "
                                                 "look at skein_workers."},
                                                {{"reason", kRejections}})),
      client_disconnects(registry.AddCounters(
          {"skein_client_disconnects_total",
           "Requests cancelled because the client went away, by how far they were. queued rising: "
           "the line is longer than clients wait."},
          {{"phase", kPhases}})),
      auth_failures(registry.AddCounter(
          {"skein_auth_failures_total",
           "Requests without a good API key, and those of addresses that sent too many. Rising: a "
           "key expired or was taken away, or somebody guesses."})),
      grammar_compilations(registry.AddCounters(
          {"skein_grammar_compilations_total",
           "Grammars made for requests, those of declared tools among them. too_complex rising: a "
           "client sends tools or schemas over the bounds."},
          {{"result", kGrammarResults}})),
      grammar_compilation_time(registry.AddHistogram(
          {"skein_grammar_compilation_seconds",
           "Time that the grammar of a request took. High: the HTTP thread stands still so long."},
          protocol::StepDurationBounds())) {}

bool ListenerMetrics::CountListener(const ApiEvent& event) {
  switch (event.kind) {
    case ApiEvent::Kind::kRequest:
      http_inflight.At({Route(event.route)}).Add(1);
      return true;
    case ApiEvent::Kind::kResponse: {
      http_inflight.At({Route(event.route)}).Add(-1);
      std::array<char, 4> code = {"000"};
      std::to_chars(code.data(), code.data() + 3, event.status);
      http_requests
          .At({Route(event.route), Closed(kMethods, event.method),
               Closed(kCodes, std::string_view(code.data(), 3))})
          .Increment();
      return true;
    }
    case ApiEvent::Kind::kStreamOpened:
      http_streams_open.Add(1);
      return true;
    case ApiEvent::Kind::kStreamClosed:
      http_streams_open.Add(-1);
      return true;
    case ApiEvent::Kind::kSlowStream:
      slow_streams.Add(1);
      return true;
    case ApiEvent::Kind::kPromptStream:
      slow_streams.Add(-1);
      return true;
    case ApiEvent::Kind::kMalformed:
      http_malformed.At({Closed(kRules, event.name)}).Increment();
      return true;
    case ApiEvent::Kind::kTimeout:
      http_timeouts.At({Closed(kTimeouts, event.name)}).Increment();
      return true;
    case ApiEvent::Kind::kLimit:
      http_limits.At({Closed(kLimits, event.name)}).Increment();
      return true;
    default:
      return false;
  }
}

void HttpMetrics::Count(const ApiEvent& event) {
  if (CountListener(event)) return;
  switch (event.kind) {
    case ApiEvent::Kind::kGeneration:
      requests.At({Api(event.route), Closed(kFinished, event.name)}).Increment();
      return;
    case ApiEvent::Kind::kGrammar:
      grammar_compilations.At({Closed(kGrammarResults, event.name)}).Increment();
      grammar_compilation_time.Observe(event.value);
      return;
    case ApiEvent::Kind::kLateTokens:
      tokens_after_disconnect.Increment(event.value);
      return;
    case ApiEvent::Kind::kUnknownField:
      http_unknown_fields.Increment();
      return;
    case ApiEvent::Kind::kRefusal:
      CountRefusal(event.name, event.status);
      return;
    case ApiEvent::Kind::kAuthFailure:
      auth_failures.Increment();
      return;
    case ApiEvent::Kind::kToolParse:
      tool_parse.At({Closed(kParseResults, event.name)}).Increment();
      return;
    case ApiEvent::Kind::kReasoningParse:
      reasoning_parse.At({Closed(kParseResults, event.name)}).Increment();
      return;
    default:
      return;  // kReasoning is of an engine: CoordinatorMetrics counts it
  }
}

void HttpMetrics::CountRefusal(std::string_view code, int status) {
  if (status < 500) bad_requests.At({Closed(kReasons, code)}).Increment();
  // The mailbox of the control loop has a bound beside the queue's.
  const std::string_view rejection = code == "server_overloaded"         ? "queue_requests"
                                     : code == "rate_limit_exceeded"     ? "rate_limit"
                                     : code == "request_timeout"         ? "deadline"
                                     : code == "context_length_exceeded" ? "too_long"
                                                                         : code;
  if (std::find(kRejections.begin(), kRejections.end(), rejection) != kRejections.end()) {
    admission_rejections.At({rejection}).Increment();
  }
}

}  // namespace skein::coordinator
