// Must never: retry, or print a token.
#include "worker/node/commands/operator_call.h"

#include <chrono>
#include <utility>

#include "absl/strings/numbers.h"
#include "protocol/base/control_bytes.h"
#include "protocol/base/exit_codes.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/config/admin_address.h"
#include "protocol/config/config.h"
#include "worker/node/live_nodes.h"

namespace skein::worker {

using protocol::Concat;
using protocol::JsonValue;

const char kCommonHelp[] =
    "  --admin ADDRESS        operator listener: unix:/path or 127.0.0.1:port; without it the one\n"
    "                         skein that runs on this host\n"
    "  --run-directory DIR    where to look for it instead of /run/skein and /tmp, or the run "
    "files\n"
    "                         of one of several, as its start printed them\n"
    "  --token-file FILE      first line: the operators' bearer token, if one is asked for\n";

absl::StatusOr<Common> ParseCommon(std::string_view command, std::span<const std::string> arguments,
                                   std::initializer_list<Switch> switches,
                                   std::initializer_list<Value> values, size_t words_max) {
  Common common;
  std::string seconds;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    std::string* value = argument == "--admin"           ? &common.admin
                         : argument == "--run-directory" ? &common.run_directory
                         : argument == "--token-file"    ? &common.token_file
                         : argument == "--timeout"       ? &seconds
                                                         : nullptr;
    for (const Value& known : values) {
      if (argument == known.name) value = &(common.*known.member);
    }
    bool* flag = argument == "--help" || argument == "-h" ? &common.help : nullptr;
    for (const Switch& known : switches) {
      if (argument == known.name) flag = &(common.*known.member);
    }
    if (value != nullptr) {
      if (i + 1 == arguments.size()) {
        return absl::InvalidArgumentError(Concat(argument, " needs a value"));
      }
      *value = arguments[++i];
    } else if (flag != nullptr) {
      *flag = true;
    } else if (argument.rfind('-', 0) == 0 || common.words.size() == words_max) {
      return absl::InvalidArgumentError(Concat("skein ", command, " does not know \"", argument,
                                               "\"; skein ", command,
                                               " --help lists what it does"));
    } else {
      common.words.push_back(argument);
    }
  }
  double number = 0;
  if (!seconds.empty()) {
    if (!absl::SimpleAtod(seconds, &number) || !(number > 0) || number > 1e6) {
      return absl::InvalidArgumentError(
          Concat("--timeout: \"", seconds, "\" is not a number of seconds above 0"));
    }
    common.timeout = absl::Seconds(number);
  }
  return common;
}

absl::StatusOr<protocol::HttpCall> OpenCall(const Common& common) {
  std::string address = common.admin;
  if (address.empty()) {
    SKEIN_ASSIGN_OR_RETURN(const std::string run, FindRunDirectory(common.run_directory));
    address = Concat("unix:", run, "/admin.sock");
  }
  SKEIN_ASSIGN_OR_RETURN(const protocol::AdminAddress parsed, protocol::ParseAdminAddress(address));
  if (parsed.none()) return absl::InvalidArgumentError("--admin: is empty");
  protocol::HttpCall call;
  call.unix_path = parsed.unix_path;
  if (parsed.port.has_value()) {
    call.host = parsed.host;
    call.port = *parsed.port;
  }
  call.timeout = std::chrono::milliseconds(5'000);
  if (!common.token_file.empty()) {
    SKEIN_ASSIGN_OR_RETURN(const std::string token,
                           protocol::ReadAdminToken("--token-file", common.token_file));
    call.headers.emplace_back("authorization", "Bearer " + token);
  }
  return call;
}

absl::StatusOr<std::string> AskText(protocol::HttpCall call, std::string_view method,
                                    std::string_view target, std::string body) {
  call.method = method;
  call.target = target;
  call.body = std::move(body);
  absl::StatusOr<protocol::HttpResult> result = protocol::CallHttp(call);
  if (!result.ok()) {
    return absl::UnavailableError(
        Concat("no coordinator answers: ", protocol::StatusText(result.status())));
  }
  if (result->status == 200) return std::move(result->body);
  std::string message = Concat("HTTP ", result->status);
  if (const auto json = protocol::ParseJson(result->body); json.ok()) {
    const JsonValue* error = json->Find("error");
    const JsonValue* text = error != nullptr ? error->Find("message") : nullptr;
    if (text != nullptr) message = protocol::EscapeControls(text->string(), "");
  }
  return absl::FailedPreconditionError(message);
}

absl::StatusOr<JsonValue> Ask(const protocol::HttpCall& call, std::string_view method,
                              std::string_view target, std::string body) {
  SKEIN_ASSIGN_OR_RETURN(const std::string text, AskText(call, method, target, std::move(body)));
  return protocol::ParseJson(text);
}

int FailCommand(const absl::Status& status) {
  int code = 1;
  if (absl::IsInvalidArgument(status)) code = protocol::kExitUsage;
  if (absl::IsUnavailable(status) || absl::IsNotFound(status)) code = protocol::kExitRestart;
  return protocol::FailProgram("skein", status, code);
}

std::string TextAt(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.Find(key);
  return value == nullptr ? "" : protocol::EscapeControls(value->string(), "");
}

int64_t NumberAt(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.Find(key);
  return value == nullptr ? 0 : value->AsInt64(key).value_or(0);
}

double SecondsAt(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.Find(key);
  return value == nullptr ? 0 : value->AsDouble(key).value_or(0);
}

bool FlagAt(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.Find(key);
  return value != nullptr && value->AsBool(key).value_or(false);
}

std::span<const JsonValue> ListAt(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.Find(key);
  return value == nullptr ? std::span<const JsonValue>() : value->elements();
}

}  // namespace skein::worker
