// The error table.
// Thread: any.
// Must never: put prompt text, paths of this machine or stack traces into a message.
#include "coordinator/api/api_error.h"

#include <utility>

#include "coordinator/front_door.h"
#include "protocol/base/strings.h"
#include "protocol/json/json_writer.h"

namespace skein::coordinator {
namespace {

using protocol::Concat;

constexpr char kQuarantined[] = "request_quarantined";
constexpr char kInvalidJson[] = "invalid_json";

ApiError Make(int status, std::string type, std::string code, std::string message) {
  ApiError error;
  error.status = status;
  error.type = std::move(type);
  error.code = std::move(code);
  error.message = std::move(message);
  return error;
}

ApiError BadRequest(std::string code, std::string param, std::string message) {
  ApiError error = Make(400, "invalid_request_error", std::move(code), std::move(message));
  error.param = std::move(param);
  return error;
}

}  // namespace

ApiError InvalidValue(std::string param, std::string message) {
  return BadRequest("invalid_value", std::move(param), std::move(message));
}

ApiError UnsupportedParameter(std::string param, std::string message) {
  return BadRequest("unsupported_parameter", std::move(param), std::move(message));
}

ApiError GrammarTooComplex(std::string param, const absl::Status& why) {
  return BadRequest("grammar_too_complex", std::move(param),
                    std::string(protocol::StatusText(why)));
}

ApiError InvalidJson(std::string message) {
  return Make(400, "invalid_request_error", kInvalidJson, std::move(message));
}

ApiError ContextLengthExceeded(int64_t n_prompt_tokens, int64_t max_tokens, int64_t n_ctx) {
  ApiError error =
      Make(400, "invalid_request_error", "context_length_exceeded",
           Concat("This model's maximum context length is ", n_ctx,
                  " tokens; the request asks for ", n_prompt_tokens, " in the prompt and ",
                  max_tokens, " in the answer. Shorten the prompt or lower max_tokens."));
  error.n_prompt_tokens = n_prompt_tokens;
  error.n_ctx = n_ctx;
  return error;
}

ApiError ModelNotFound(std::string_view model) {
  std::string shown;
  protocol::AppendJsonString(model.substr(0, 128), &shown);
  ApiError error = Make(404, "not_found_error", "model_not_found",
                        Concat("the model ", shown,
                               " is not served; GET /v1/models lists those "
                               "that are"));
  error.param = "model";
  return error;
}

ApiError RouteNotFound(std::string_view path) {
  if (path == "/v1/embeddings") {
    return UnsupportedParameter("input",
                                "this server makes no embeddings; it answers "
                                "/v1/chat/completions and /v1/completions");
  }
  return Make(404, "not_found_error", "route_not_found",
              Concat("there is no route ", path.substr(0, 128)));
}

ApiError MethodNotAllowed(std::string_view method, std::string allow) {
  ApiError error =
      Make(405, "not_found_error", "method_not_allowed",
           Concat("the method ", method.substr(0, 32), " is not allowed here; allowed: ", allow));
  error.allow = std::move(allow);
  return error;
}

ApiError UnsupportedMediaType(std::string_view content_type) {
  return Make(415, "not_found_error", "unsupported_media_type",
              Concat("the content type ", content_type.substr(0, 128),
                     " is not accepted; send application/json without a content encoding"));
}

ApiError InvalidApiKey() {
  return Make(401, "authentication_error", "invalid_api_key",
              "the API key is missing, unknown or expired; send it as Authorization: Bearer KEY");
}

ApiError Forbidden(std::string message) {
  return Make(403, "permission_error", "forbidden", std::move(message));
}

ApiError RateLimitExceeded(std::string message, double wait_s) {
  ApiError error = Make(429, "rate_limit_error", "rate_limit_exceeded", std::move(message));
  error.wait_s = wait_s;
  return error;
}

ApiError Draining() {
  return Make(503, "server_error", "draining",
              "the server is shutting down; send the request to another one or try again");
}

ApiError FromStatus(const absl::Status& status) {
  const std::string message(protocol::StatusText(status));
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return Make(400, "invalid_request_error", "invalid_value", message);
    case absl::StatusCode::kUnimplemented:
      return Make(400, "invalid_request_error", "unsupported_parameter", message);
    case absl::StatusCode::kResourceExhausted: {
      ApiError error = Make(503, "server_error", "server_overloaded", message);
      if (const auto bound = status.GetPayload(protocol::ToAbsl(kFullBound))) {
        error.reason = std::string(*bound);
      }
      return error;
    }
    case absl::StatusCode::kFailedPrecondition:
      return Draining();
    case absl::StatusCode::kUnavailable:
      return Make(503, "server_error", "not_ready", message);
    case absl::StatusCode::kDeadlineExceeded:
      return Make(408, "timeout_error", "request_timeout", message);
    case absl::StatusCode::kAborted:
      return Make(500, "server_error", kQuarantined, message);
    default:
      return Make(500, "server_error", "internal_error",
                  message.empty() ? "the request failed inside the server" : message);
  }
}

ApiError FromRefusal(const protocol::HttpRefusal& refusal) {
  switch (refusal.status) {
    case 408:
      return Make(408, "timeout_error", "request_timeout", refusal.message);
    case 413:
    case 431:
      return Make(refusal.status, "invalid_request_error", "request_too_large", refusal.message);
    case 503:
      return Make(503, "server_error", "server_overloaded", refusal.message);
    default:
      return Make(refusal.status, "invalid_request_error", "invalid_value", refusal.message);
  }
}

void NameField(std::string_view route, ApiError* error) {
  if (error->status != 400 || error->param.has_value() || error->code == kInvalidJson) return;
  const bool chats = route == "/v1/chat/completions" || route.starts_with("/v1/messages");
  error->param = chats ? "messages" : route == "/detokenize" ? "tokens" : "prompt";
}

bool IsRetryable(const ApiError& error) {
  if (error.code == kQuarantined) return false;
  if (error.is_final) return false;
  return error.status == 408 || error.status == 429 || error.status >= 500;
}

std::string ErrorBody(const ApiError& error, ErrorPlace place, std::string_view usage) {
  std::string body;
  protocol::JsonWriter writer(&body);
  writer.BeginObject();
  writer.Key("error");
  writer.BeginObject();
  writer.Key("message");
  writer.String(error.message);
  writer.Key("type");
  writer.String(error.type);
  writer.Key("param");
  error.param.has_value() ? writer.String(*error.param) : writer.Null();
  writer.Key("code");
  writer.String(error.code);
  if (error.n_prompt_tokens.has_value()) {
    writer.Key("n_prompt_tokens");
    writer.Int(*error.n_prompt_tokens);
  }
  if (error.n_ctx.has_value()) {
    writer.Key("n_ctx");
    writer.Int(*error.n_ctx);
  }
  if (place == ErrorPlace::kInStream) {
    writer.Key("retryable");
    writer.Bool(IsRetryable(error));
  }
  writer.EndObject();
  if (!usage.empty()) {
    writer.Key("usage");
    writer.Raw(usage);
  }
  writer.EndObject();
  return body;
}

protocol::HttpResponse ErrorResponse(const ApiError& error, int retry_after_s) {
  protocol::HttpResponse response;
  response.status = error.status;
  if (error.status == 429 || error.status == 503) {
    response.headers.emplace_back("Retry-After", std::to_string(retry_after_s));
  }
  if (error.status == 429) {
    response.headers.emplace_back("retry-after-ms", std::to_string(retry_after_s * 1000));
  }
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (!IsRetryable(error)) response.headers.emplace_back("x-should-retry", "false");
  if (!error.allow.empty()) response.headers.emplace_back("Allow", error.allow);
  response.body = ErrorBody(error, ErrorPlace::kResponse);
  return response;
}

}  // namespace skein::coordinator
