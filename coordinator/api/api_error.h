// Errors as clients see them: status, error object, retry headers.
// Thread: any; plain values.
// Must never: put prompt text, paths of this machine or stack traces into a message.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "protocol/http/http_message.h"

namespace skein::coordinator {

// One row of the table in serving.md section 6, filled in.
struct ApiError {
  int status = 500;
  std::string type;
  std::string code;
  std::string message;
  std::optional<std::string> param;  // the field, as a path: messages[2].content
  // Set for an overflow of the context.
  std::optional<int64_t> n_prompt_tokens;
  std::optional<int64_t> n_ctx;
  std::string allow;  // methods of the route, for 405
  // When a retry may succeed, for 429; nothing: when the server expects it.
  std::optional<double> wait_s;
  bool is_final = false;  // a retry cannot cure it, whatever its status
  std::string reason;     // for counters, when the code says too little
};

// A value or what is wrong with the request.
template <typename T>
using ApiOr = std::variant<T, ApiError>;

// 400 of a known field with a wrong type, value or conflict.
ApiError InvalidValue(std::string param, std::string message);
// 400 of a known field that this server does not act on.
ApiError UnsupportedParameter(std::string param, std::string message);
// 400 of a field whose grammar exceeds a bound.
ApiError GrammarTooComplex(std::string param, const absl::Status& why);
// 400 of a body that is not JSON.
ApiError InvalidJson(std::string message);
// 400 of a prompt, or a prompt and its answer, beyond the context.
ApiError ContextLengthExceeded(int64_t n_prompt_tokens, int64_t max_tokens, int64_t n_ctx);
ApiError ModelNotFound(std::string_view model);
ApiError RouteNotFound(std::string_view path);
ApiError MethodNotAllowed(std::string_view method, std::string allow);
ApiError UnsupportedMediaType(std::string_view content_type);
// 401, the same whatever is wrong with the key.
ApiError InvalidApiKey();
// 403: the key lacks the right that `message` names.
ApiError Forbidden(std::string message);
// 429 of this key or address alone; a retry may succeed after `wait_s` seconds.
ApiError RateLimitExceeded(std::string message, double wait_s);
ApiError Draining();

// What the control loop said: at submission or as the reason of a failed generation.
ApiError FromStatus(const absl::Status& status);
// What the listener refused.
ApiError FromRefusal(const protocol::HttpRefusal& refusal);

// Gives a 400 that is about a request as a whole the field that holds its prompt. A body that is no
// JSON has no fields.
void NameField(std::string_view route, ApiError* error);

// True when the same request may succeed later (408, 429, 500, 503).
bool IsRetryable(const ApiError& error);

// {"error":{...}}. `usage` is JSON text that goes beside it, empty for none; with kInStream the
// object has "retryable".
enum class ErrorPlace { kResponse, kInStream };
std::string ErrorBody(const ApiError& error, ErrorPlace place, std::string_view usage = {});

// The whole response. `retry_after_s` is what a retryable 429 or 503 advises.
protocol::HttpResponse ErrorResponse(const ApiError& error, int retry_after_s);

}  // namespace skein::coordinator
