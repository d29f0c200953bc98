// Flags, calls and texts of the commands.
// Main thread of skein. Must never wait without a bound that was given.
#include "worker/node/commands/cluster.h"

#include <chrono>
#include <cstdio>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include <poll.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "protocol/base/clock.h"
#include "protocol/base/control_bytes.h"
#include "protocol/base/exit_codes.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/config/admin_address.h"
#include "protocol/http/http_client.h"
#include "protocol/json/json_writer.h"
#include "worker/node/live_nodes.h"
#include "worker/node/node_supervisor.h"

namespace skein::worker {
namespace {

using protocol::Concat;
using protocol::JsonValue;

constexpr int kExitNotReached = 1;
constexpr absl::Duration kPoll = absl::Milliseconds(200);
constexpr absl::Duration kWaitDefault = absl::Seconds(600);

constexpr char kCommonHelp[] =
    "  --admin ADDRESS        operator listener: unix:/path or 127.0.0.1:port; without it the one\n"
    "                         skein that runs on this host\n"
    "  --run-directory DIR    where to look for it instead of /run/skein and /tmp, or the run "
    "files\n"
    "                         of one of several, as its start printed them\n"
    "  --token-file FILE      first line: the operators' bearer token, if one is asked for\n";

// What the commands share.
struct Common {
  std::string admin, run_directory, token_file;
  bool json = false;
  bool help = false;
  bool wait = false;
  bool undo = false;
  bool supervisor = false;
  absl::Duration timeout = kWaitDefault;
  std::string build;
  std::vector<std::string> words;  // what is no flag
};

struct Switch {
  std::string_view name;
  bool Common::*member;
};
struct Value {
  std::string_view name;
  std::string Common::*member;
};

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

// The call of an operator route; its target and body are to be filled in.
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

// The JSON of the answer; an error of the listener becomes a status with its message.
absl::StatusOr<JsonValue> Ask(protocol::HttpCall call, std::string_view method,
                              std::string_view target, std::string body = {}) {
  call.method = method;
  call.target = target;
  call.body = std::move(body);
  const absl::StatusOr<protocol::HttpResult> result = protocol::CallHttp(call);
  if (!result.ok()) {
    return absl::UnavailableError(
        Concat("no coordinator answers: ", protocol::StatusText(result.status())));
  }
  absl::StatusOr<JsonValue> json = protocol::ParseJson(result->body);
  if (result->status == 200) return json;
  std::string message = Concat("HTTP ", result->status);
  if (json.ok()) {
    const JsonValue* error = json->Find("error");
    const JsonValue* text = error != nullptr ? error->Find("message") : nullptr;
    if (text != nullptr) message = protocol::EscapeControls(text->string(), "");
  }
  return absl::FailedPreconditionError(message);
}

int Fail(const absl::Status& status) {
  int code = kExitNotReached;
  if (absl::IsInvalidArgument(status)) code = protocol::kExitUsage;
  if (absl::IsUnavailable(status) || absl::IsNotFound(status)) code = protocol::kExitRestart;
  return protocol::FailProgram("skein", status, code);
}

// For a terminal: parts of it are what workers say of themselves.
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

// "1,2", or "-" for none.
std::string NumbersText(std::span<const JsonValue> numbers) {
  std::string text;
  for (const JsonValue& number : numbers) {
    text += Concat(text.empty() ? "" : ",", number.AsInt64("workers").value_or(0));
  }
  return text.empty() ? "-" : text;
}

// Appends formatted text; for the columns of tables.
template <typename... Values>
void Append(std::string& out, const char* format, Values... values) {
  char line[160];
  std::snprintf(line, sizeof line, format, values...);
  out += line;
}

std::string Cut(std::string_view text, size_t width) { return std::string(text.substr(0, width)); }

// Waits between two looks; the supervisor and the coordinator need no more of us.
void Pause() { ::poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(kPoll))); }

std::string GroupBody(const std::vector<std::string>& words) {
  return words.empty() ? "{\"group\":null}" : Concat("{\"group\":", words.front(), "}");
}

// True when nothing of the group, or of the whole cluster, runs any more, and what moved runs
// elsewhere.
bool IsDrained(const JsonValue& status, const std::vector<std::string>& words) {
  if (words.empty()) return NumberAt(status, "running") + NumberAt(status, "waiting") == 0;
  const std::span<const JsonValue> groups = ListAt(status, "groups");
  for (const JsonValue& group : groups) {
    if (Concat(NumberAt(group, "group")) != words.front()) continue;
    // With one group there is nowhere to move to: they wait for it.
    const int64_t moving = groups.size() > 1 ? NumberAt(group, "moving") : 0;
    return NumberAt(group, "running") + moving == 0;
  }
  return true;
}

absl::Status AwaitDrained(const protocol::HttpCall& call, const Common& common) {
  const absl::Time end = protocol::MonotonicNow() + common.timeout;
  while (true) {
    const absl::StatusOr<JsonValue> status = Ask(call, "GET", "/admin/status");
    if (!status.ok()) return status.status();
    if (IsDrained(*status, common.words)) return absl::OkStatus();
    if (protocol::MonotonicNow() >= end) {
      return absl::DeadlineExceededError(Concat("still running after ",
                                                absl::FormatDuration(common.timeout), ": ",
                                                NumberAt(*status, "running"), " requests"));
    }
    Pause();
  }
}

constexpr char kStatusHelp[] =
    "usage: skein status [--json] [--supervisor] [FLAGS]\n"
    "Groups, workers, queues and the rolling restart of a cluster.\n"
    "  --json                 the listener's answer as it is\n"
    "  --supervisor           only whether the supervisor's loop of this host lives\n";
constexpr char kDrainHelp[] =
    "usage: skein drain [GROUP] [--wait] [--undo] [FLAGS]\n"
    "Lets no new request into a group, or into the cluster; what runs finishes or moves.\n"
    "  --wait                 return when nothing runs there any more\n"
    "  --timeout SECONDS      how long to wait (600)\n"
    "  --undo                 let requests in again; not into a group that a rollout left out\n";
constexpr char kRolloutHelp[] =
    "usage: skein rollout start|status|pause|resume|abort [FLAGS]\n"
    "Replaces the workers group by group while the cluster serves: drain, stop, start, compare "
    "the\n"
    "new worker's answer to a fixed prompt bit for bit, let requests in, watch, next. A group "
    "that\n"
    "fails goes back to the program of before, and the rollout halts.\n"
    "  --build NAME           start: pass over groups that have this build, refuse any other\n"
    "  --wait                 start, resume: return when it is done or halted\n"
    "  --timeout SECONDS      how long to wait (600)\n"
    "  --json                 the answer as JSON\n";

int Help(const char* text) {
  std::printf("%s%s", text, kCommonHelp);
  return protocol::kExitOk;
}

// Prints until the rollout runs no more; the exit code says how it ended.
int AwaitRollout(const protocol::HttpCall& call, const Common& common) {
  const absl::Time end = protocol::MonotonicNow() + common.timeout;
  std::string last;
  while (true) {
    const absl::StatusOr<JsonValue> rollout = Ask(call, "GET", "/admin/rollout");
    if (!rollout.ok()) return Fail(rollout.status());
    const std::string text = RolloutText(*rollout);
    if (text != last) std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
    last = text;
    const std::string state = TextAt(*rollout, "state");
    if (state != "running") return state == "done" ? protocol::kExitOk : kExitNotReached;
    if (protocol::MonotonicNow() >= end) {
      return Fail(absl::DeadlineExceededError("the rollout still runs; skein rollout status"));
    }
    Pause();
  }
}

}  // namespace

std::string RolloutText(const JsonValue& rollout) {
  const std::string state = TextAt(rollout, "state");
  std::string text = Concat("rollout ", state);
  if (state == "running" || state == "paused" || state == "halted") {
    text += Concat(", group ", NumberAt(rollout, "group"), " ", TextAt(rollout, "phase"));
  }
  if (state != "idle") {
    text += Concat(", ", NumberAt(rollout, "replaced"), " of ", NumberAt(rollout, "groups"),
                   " replaced");
  }
  text += "\n";
  if (const std::string reason = TextAt(rollout, "reason"); !reason.empty()) {
    text += Concat("  ", reason, "\n");
  }
  return text;
}

std::string ClusterStatusText(const JsonValue& status) {
  std::string out =
      Concat("coordinator ", TextAt(status, "build"), ", protocol ", TextAt(status, "protocol"),
             ", term ", NumberAt(status, "term"), ", config ", TextAt(status, "config_hash"), "\n");
  out +=
      Concat(FlagAt(status, "ready") ? "ready" : "not ready",
             FlagAt(status, "draining") || FlagAt(status, "closed") ? ", draining" : "", "; ",
             NumberAt(status, "running"), " running, ", NumberAt(status, "waiting"), " waiting (",
             NumberAt(status, "waiting_tokens"), " tokens); ", NumberAt(status, "requests_ended"),
             " ended, ", NumberAt(status, "requests_failed"), " failed\n");
  Append(out, "%-6s %-10s %5s %6s %8s %15s  %s\n", "group", "state", "epoch", "worker", "running",
         "blocks used", "");
  for (const JsonValue& group : ListAt(status, "groups")) {
    const std::string workers = NumbersText(ListAt(group, "workers"));
    const std::string blocks =
        Concat(NumberAt(group, "blocks_used"), " of ", NumberAt(group, "blocks"));
    Append(out, "%-6lld %-10s %5lld %6s %8lld %15s  %s%s\n",
           static_cast<long long>(NumberAt(group, "group")),
           Cut(TextAt(group, "state"), 10).c_str(),
           static_cast<long long>(NumberAt(group, "epoch")), workers.c_str(),
           static_cast<long long>(NumberAt(group, "running")), blocks.c_str(),
           FlagAt(group, "cordoned") ? "cordoned " : "",
           FlagAt(group, "probation") ? "probation" : "");
  }
  Append(out, "%-6s %-8s %-10s %-9s %8s %9s %9s\n", "worker", "state", "build", "backend", "steps",
         "heard s", "progress s");
  for (const JsonValue& worker : ListAt(status, "workers")) {
    Append(out, "%-6lld %-8s %-10s %-9s %8lld %9.1f %9.1f\n",
           static_cast<long long>(NumberAt(worker, "worker")),
           Cut(TextAt(worker, "state"), 8).c_str(), Cut(TextAt(worker, "build"), 10).c_str(),
           Cut(TextAt(worker, "backend"), 9).c_str(),
           static_cast<long long>(NumberAt(worker, "last_step")), SecondsAt(worker, "heard_age_s"),
           SecondsAt(worker, "progress_age_s"));
  }
  if (const JsonValue* rollout = status.Find("rollout")) out += RolloutText(*rollout);
  return out;
}

int RunStatus(std::span<const std::string> arguments) {
  const auto common =
      ParseCommon("status", arguments,
                  {{"--json", &Common::json}, {"--supervisor", &Common::supervisor}}, {}, 0);
  if (!common.ok()) return Fail(common.status());
  if (common->help) return Help(kStatusHelp);
  if (common->supervisor) {
    const auto run = FindRunDirectory(common->run_directory);
    if (!run.ok()) return Fail(run.status());
    const absl::Status alive = CheckSupervisorLoop(*run);
    if (!alive.ok()) return Fail(alive);
    std::printf("the supervisor of %s lives\n", run->c_str());
    return protocol::kExitOk;
  }
  const auto call = OpenCall(*common);
  if (!call.ok()) return Fail(call.status());
  const auto status = Ask(*call, "GET", "/admin/status");
  if (!status.ok()) return Fail(status.status());
  std::fputs(common->json ? (protocol::WriteJson(*status) + "\n").c_str()
                          : ClusterStatusText(*status).c_str(),
             stdout);
  return protocol::kExitOk;
}

int RunDrain(std::span<const std::string> arguments) {
  const auto common = ParseCommon("drain", arguments,
                                  {{"--wait", &Common::wait}, {"--undo", &Common::undo}}, {}, 1);
  if (!common.ok()) return Fail(common.status());
  if (common->help) return Help(kDrainHelp);
  int group = 0;
  if (!common->words.empty() && (!absl::SimpleAtoi(common->words.front(), &group) || group < 0)) {
    return Fail(absl::InvalidArgumentError(
        Concat("\"", common->words.front(), "\" is no group; skein status lists them")));
  }
  const auto call = OpenCall(*common);
  if (!call.ok()) return Fail(call.status());
  const auto answer = Ask(*call, "POST", common->undo ? "/admin/undrain" : "/admin/drain",
                          GroupBody(common->words));
  if (!answer.ok()) return Fail(answer.status());
  if (common->wait && !common->undo) {
    if (const absl::Status drained = AwaitDrained(*call, *common); !drained.ok()) {
      return Fail(drained);
    }
  }
  const std::string what =
      common->words.empty() ? "the cluster" : Concat("group ", common->words.front());
  std::printf("%s %s\n", what.c_str(),
              common->undo   ? "takes requests again"
              : common->wait ? "is drained"
                             : "is draining");
  return protocol::kExitOk;
}

int RunRollout(std::span<const std::string> arguments) {
  const auto common =
      ParseCommon("rollout", arguments, {{"--wait", &Common::wait}, {"--json", &Common::json}},
                  {{"--build", &Common::build}}, 1);
  if (!common.ok()) return Fail(common.status());
  if (common->help) return Help(kRolloutHelp);
  const std::string action = common->words.empty() ? "" : common->words.front();
  bool known = false;
  for (const char* word : {"start", "status", "pause", "resume", "abort"}) known |= action == word;
  if (!known) {
    return Fail(absl::InvalidArgumentError(
        Concat("\"", action, "\" is none of start, status, pause, resume and abort")));
  }
  const auto call = OpenCall(*common);
  if (!call.ok()) return Fail(call.status());
  std::string body;
  if (action != "status") {
    protocol::JsonWriter writer(&body);
    writer.BeginObject();
    writer.Key("action");
    writer.String(action);
    if (!common->build.empty()) {
      writer.Key("build");
      writer.String(common->build);
    }
    writer.EndObject();
  }
  const auto answer =
      Ask(*call, action == "status" ? "GET" : "POST", "/admin/rollout", std::move(body));
  if (!answer.ok()) return Fail(answer.status());
  if (common->wait && (action == "start" || action == "resume")) {
    return AwaitRollout(*call, *common);
  }
  std::fputs(
      common->json ? (protocol::WriteJson(*answer) + "\n").c_str() : RolloutText(*answer).c_str(),
      stdout);
  return protocol::kExitOk;
}

}  // namespace skein::worker
