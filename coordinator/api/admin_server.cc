#include "coordinator/api/admin_server.h"

#include <array>
#include <string_view>
#include <utility>

#include "coordinator/api/api_error.h"
#include "protocol/base/log.h"
#include "protocol/base/strings.h"
#include "protocol/http/http_server.h"
#include "protocol/json/json.h"
#include "protocol/json/json_writer.h"

namespace skein::coordinator {

using protocol::Concat;
using protocol::HttpRequest;
using protocol::HttpResponse;
using protocol::JsonValue;
using Exchange = std::shared_ptr<protocol::HttpExchange>;
using Verb = OperatorCommand::Verb;

namespace {

constexpr int kRetryAfterSeconds = 1;
constexpr std::string_view kBearer = "Bearer ";

ApiError Make(int status, std::string type, std::string code, std::string message) {
  ApiError error;
  error.status = status;
  error.type = std::move(type);
  error.code = std::move(code);
  error.message = std::move(message);
  return error;
}

ApiError Refused(const absl::Status& status) {
  std::string message(protocol::StatusText(status));
  if (absl::IsInvalidArgument(status)) {
    return Make(400, "invalid_request_error", "invalid_value", std::move(message));
  }
  if (absl::IsFailedPrecondition(status)) {
    return Make(409, "invalid_request_error", "wrong_state", std::move(message));
  }
  return Make(503, "server_error", "server_overloaded", std::move(message));
}

// What a verb is told. Drain and undrain have to say what they are about: a member that was
// forgotten must not mean the whole cluster.
absl::StatusOr<OperatorCommand> ReadCommand(Verb verb, std::string_view body) {
  OperatorCommand command;
  command.verb = verb;
  const bool needs_group = verb == Verb::kDrain || verb == Verb::kUndrain;
  if (body.empty() && !needs_group) return command;
  if (body.empty()) body = "{}";
  bool has_group = false;
  const absl::StatusOr<JsonValue> parsed = protocol::ParseJson(body, {.bytes_max = 4096});
  if (!parsed.ok()) return parsed.status();
  const auto members = parsed->AsObject("body");
  if (!members.ok()) return members.status();
  for (const protocol::JsonMember& member : *members) {
    if (member.key == "group" && verb != Verb::kRollout) {
      has_group = true;
      if (member.value.IsNull()) continue;
      const auto group = member.value.AsInt64("group", 0, UINT16_MAX);
      if (!group.ok()) return group.status();
      command.group = static_cast<uint32_t>(*group);
      continue;
    }
    const bool known = verb == Verb::kRollout && (member.key == "action" || member.key == "build");
    if (!known) {
      return absl::InvalidArgumentError(
          Concat("\"", member.key.substr(0, 64), "\" is unknown here; there are ",
                 verb == Verb::kRollout ? "action and build" : "group"));
    }
    const auto text = member.value.AsString(member.key);
    if (!text.ok()) return text.status();
    (member.key == "action" ? command.action : command.build) = *text;
  }
  if (needs_group && !has_group) {
    return absl::InvalidArgumentError(
        "\"group\" is missing; it is the number of a group, or null for the whole cluster");
  }
  return command;
}

}  // namespace

bool SameSecret(std::string_view given, std::string_view wanted) {
  unsigned difference = given.size() == wanted.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = wanted.empty() ? '\0' : wanted[i % wanted.size()];
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(other);
  }
  return difference == 0;
}

HttpResponse HealthResponse(const absl::Status& health, int retry_after_s) {
  HttpResponse response;
  protocol::JsonWriter writer(&response.body);
  writer.BeginObject();
  writer.Key("status");
  writer.String(health.ok() ? "ok" : "unavailable");
  if (!health.ok()) {
    response.status = 503;
    response.headers.emplace_back("Retry-After", std::to_string(retry_after_s));
    writer.Key("reason");
    writer.String(protocol::StatusText(health));
  }
  writer.EndObject();
  return response;
}

class AdminServer::Impl {
 public:
  Impl(Options options, OperatorQueue& operators)
      : options_(std::move(options)), operators_(operators) {}

  absl::Status Listen();
  protocol::HttpServer& http() { return *http_; }

 private:
  struct Route {
    std::string_view path;
    std::string_view method;
    void (Impl::*handler)(const HttpRequest&, Exchange);
  };
  static const std::array<Route, 12> kRoutes;

  void OnRequest(const HttpRequest& request, Exchange exchange);
  bool IsAllowed(const HttpRequest& request) const;
  static void SendError(Exchange& exchange, const ApiError& error) {
    exchange->Respond(ErrorResponse(error, kRetryAfterSeconds));
  }
  static void SendJson(Exchange& exchange, std::string body) {
    HttpResponse response;
    response.body = std::move(body);
    exchange->Respond(std::move(response));
  }
  // Sends the verb to the control loop, which answers with the status or its rollout part.
  void Ask(Verb verb, const HttpRequest& request, Exchange exchange);
  void GetStatus(const HttpRequest& r, Exchange e) { Ask(Verb::kStatus, r, std::move(e)); }
  void PostDrain(const HttpRequest& r, Exchange e) { Ask(Verb::kDrain, r, std::move(e)); }
  void PostUndrain(const HttpRequest& r, Exchange e) { Ask(Verb::kUndrain, r, std::move(e)); }
  void PostRollout(const HttpRequest& r, Exchange e) { Ask(Verb::kRollout, r, std::move(e)); }
  void GetConfig(const HttpRequest&, Exchange e) { SendJson(e, options_.config_json); }
  void GetRequests(const HttpRequest&, Exchange e) {
    SendJson(e, options_.flights != nullptr ? options_.flights->Json() : "{\"requests\":[]}");
  }
  void GetMetrics(const HttpRequest&, Exchange exchange);
  void GetReady(const HttpRequest&, Exchange e) { SendHealth(e, HealthProbe::kReady); }
  void GetLive(const HttpRequest&, Exchange e) { SendHealth(e, HealthProbe::kLive); }
  void GetStartup(const HttpRequest&, Exchange e) { SendHealth(e, HealthProbe::kStartup); }
  void SendHealth(Exchange& exchange, HealthProbe probe) {
    exchange->Respond(HealthResponse(options_.health(probe), kRetryAfterSeconds));
  }

  const Options options_;
  OperatorQueue& operators_;
  std::unique_ptr<protocol::HttpServer> http_;
};

const std::array<AdminServer::Impl::Route, 12> AdminServer::Impl::kRoutes = {{
    {"/admin/status", "GET", &Impl::GetStatus},
    {"/admin/drain", "POST", &Impl::PostDrain},
    {"/admin/undrain", "POST", &Impl::PostUndrain},
    {"/admin/rollout", "POST", &Impl::PostRollout},
    {"/admin/rollout", "GET", &Impl::GetStatus},
    {"/admin/config", "GET", &Impl::GetConfig},
    {"/admin/requests", "GET", &Impl::GetRequests},
    {"/metrics", "GET", &Impl::GetMetrics},
    {"/health", "GET", &Impl::GetReady},
    {"/health/ready", "GET", &Impl::GetReady},
    {"/health/live", "GET", &Impl::GetLive},
    {"/health/startup", "GET", &Impl::GetStartup},
}};

absl::Status AdminServer::Impl::Listen() {
  protocol::HttpServer::Options http;
  http.unix_path = options_.unix_path;
  http.host = options_.host;
  http.port = options_.port;
  http.limits.connections_max = 64;
  http.limits.body_bytes_max = 4096;
  http.on_request = [this](HttpRequest request, Exchange exchange) {
    OnRequest(request, std::move(exchange));
  };
  http.on_refusal = [](const protocol::HttpRefusal& refusal) {
    return ErrorResponse(FromRefusal(refusal), kRetryAfterSeconds);
  };
  absl::StatusOr<std::unique_ptr<protocol::HttpServer>> server =
      protocol::HttpServer::Create(std::move(http));
  if (!server.ok()) return server.status();
  http_ = *std::move(server);
  return absl::OkStatus();
}

bool AdminServer::Impl::IsAllowed(const HttpRequest& request) const {
  if (options_.token.empty() || request.path.starts_with("/health")) return true;
  const std::string_view given = request.Header("authorization");
  return given.starts_with(kBearer) && SameSecret(given.substr(kBearer.size()), options_.token);
}

void AdminServer::Impl::OnRequest(const HttpRequest& request, Exchange exchange) {
  if (!IsAllowed(request)) {
    SKEIN_LOG(kWarn, "operator refused").Field("peer", request.peer_address);
    return SendError(exchange, Make(401, "authentication_error", "invalid_api_key",
                                    "the operators' bearer token is missing or wrong"));
  }
  std::string allowed;
  for (const Route& route : kRoutes) {
    if (route.path != request.path) continue;
    if (route.method == request.method) return (this->*route.handler)(request, std::move(exchange));
    allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
  }
  SendError(exchange, allowed.empty() ? RouteNotFound(request.path)
                                      : MethodNotAllowed(request.method, std::move(allowed)));
}

void AdminServer::Impl::Ask(Verb verb, const HttpRequest& request, Exchange exchange) {
  absl::StatusOr<OperatorCommand> command = ReadCommand(verb, request.body);
  if (!command.ok()) return SendError(exchange, Refused(command.status()));
  command->actor = options_.unix_path.empty() ? "token" : request.peer_address;
  const bool rollout = request.path == "/admin/rollout";
  command->reply = [exchange, rollout,
                    identity = options_.identity](OperatorAnswer answer) mutable {
    if (!answer.status.ok()) return SendError(exchange, Refused(answer.status));
    SendJson(exchange,
             rollout ? RolloutJson(answer.cluster.rollout) : StatusJson(answer.cluster, identity));
  };
  const absl::Status pushed = operators_.TryPush(*std::move(command));
  if (!pushed.ok()) {
    SendError(exchange, Make(503, "server_error", "server_overloaded",
                             "the control loop takes no commands; look at /health/ready"));
  }
}

void AdminServer::Impl::GetMetrics(const HttpRequest&, Exchange exchange) {
  HttpResponse response;
  response.content_type = options_.metrics_content_type;
  response.body = options_.metrics_text ? options_.metrics_text() : "";
  exchange->Respond(std::move(response));
}

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Create(Options options,
                                                                 OperatorQueue& operators) {
  if (!options.health) return absl::InvalidArgumentError("the operator listener needs health");
  auto impl = std::make_unique<Impl>(std::move(options), operators);
  const absl::Status listening = impl->Listen();
  if (!listening.ok()) return listening;
  return std::unique_ptr<AdminServer>(new AdminServer(std::move(impl)));
}

AdminServer::AdminServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

AdminServer::~AdminServer() { Stop(); }

void AdminServer::Start() { impl_->http().Start(); }

void AdminServer::Stop() { impl_->http().Stop(); }

uint16_t AdminServer::port() const { return impl_->http().port(); }

}  // namespace skein::coordinator
