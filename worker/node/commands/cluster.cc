// Flags, calls and texts of the commands.
// Main thread of skein. Must never wait without a bound that was given.
#include "worker/node/commands/cluster.h"

#include <cstdio>
#include <string_view>

#include <poll.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "protocol/base/clock.h"
#include "protocol/base/exit_codes.h"
#include "protocol/base/strings.h"
#include "protocol/json/json_writer.h"
#include "worker/node/commands/operator_call.h"
#include "worker/node/live_nodes.h"
#include "worker/node/node_supervisor.h"

namespace skein::worker {
namespace {

using protocol::Concat;
using protocol::JsonValue;

constexpr int kExitNotReached = 1;
constexpr absl::Duration kPoll = absl::Milliseconds(200);

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
    "usage: skein status [--json] [--slow | --supervisor] [FLAGS]\n"
    "Groups, workers, queues and the rolling restart of a cluster.\n"
    "  --json                 the listener's answer as it is\n"
    "  --slow                 the last requests that took longer than slow-request-threshold: "
    "seconds\n"
    "                         in the queue, until the first token and after it\n"
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
    if (!rollout.ok()) return FailCommand(rollout.status());
    const std::string text = RolloutText(*rollout);
    if (text != last) std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
    last = text;
    const std::string state = TextAt(*rollout, "state");
    if (state != "running") return state == "done" ? protocol::kExitOk : kExitNotReached;
    if (protocol::MonotonicNow() >= end) {
      return FailCommand(
          absl::DeadlineExceededError("the rollout still runs; skein rollout status"));
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

std::string SlowRequestsText(const JsonValue& requests) {
  std::string out;
  Append(out, "%-26s %-7s %7s %7s %7s %7s %6s %6s\n", "request", "end", "total s", "queued",
         "prefill", "decode", "prompt", "tokens");
  for (const JsonValue& request : ListAt(requests, "requests")) {
    Append(out, "%-26s %-7s %7.1f %7.1f %7.1f %7.1f %6lld %6lld\n",
           Cut(TextAt(request, "request_id"), 26).c_str(), Cut(TextAt(request, "end"), 7).c_str(),
           SecondsAt(request, "total_s"), SecondsAt(request, "queued_s"),
           SecondsAt(request, "prefill_s"), SecondsAt(request, "decode_s"),
           static_cast<long long>(NumberAt(request, "prompt_tokens")),
           static_cast<long long>(NumberAt(request, "completion_tokens")));
  }
  return out;
}

int RunStatus(std::span<const std::string> arguments) {
  const auto common = ParseCommon(
      "status", arguments,
      {{"--json", &Common::json}, {"--supervisor", &Common::supervisor}, {"--slow", &Common::slow}},
      {}, 0);
  if (!common.ok()) return FailCommand(common.status());
  if (common->help) return Help(kStatusHelp);
  if (common->supervisor) {
    const auto run = FindRunDirectory(common->run_directory);
    if (!run.ok()) return FailCommand(run.status());
    const absl::Status alive = CheckSupervisorLoop(*run);
    if (!alive.ok()) return FailCommand(alive);
    std::printf("the supervisor of %s lives\n", run->c_str());
    return protocol::kExitOk;
  }
  const auto call = OpenCall(*common);
  if (!call.ok()) return FailCommand(call.status());
  const auto answer = Ask(*call, "GET", common->slow ? "/admin/requests" : "/admin/status");
  if (!answer.ok()) return FailCommand(answer.status());
  const std::string text = common->json   ? protocol::WriteJson(*answer) + "\n"
                           : common->slow ? SlowRequestsText(*answer)
                                          : ClusterStatusText(*answer);
  std::fputs(text.c_str(), stdout);
  return protocol::kExitOk;
}

int RunDrain(std::span<const std::string> arguments) {
  const auto common = ParseCommon("drain", arguments,
                                  {{"--wait", &Common::wait}, {"--undo", &Common::undo}}, {}, 1);
  if (!common.ok()) return FailCommand(common.status());
  if (common->help) return Help(kDrainHelp);
  int group = 0;
  if (!common->words.empty() && (!absl::SimpleAtoi(common->words.front(), &group) || group < 0)) {
    return FailCommand(absl::InvalidArgumentError(
        Concat("\"", common->words.front(), "\" is no group; skein status lists them")));
  }
  const auto call = OpenCall(*common);
  if (!call.ok()) return FailCommand(call.status());
  const auto answer = Ask(*call, "POST", common->undo ? "/admin/undrain" : "/admin/drain",
                          GroupBody(common->words));
  if (!answer.ok()) return FailCommand(answer.status());
  if (common->wait && !common->undo) {
    if (const absl::Status drained = AwaitDrained(*call, *common); !drained.ok()) {
      return FailCommand(drained);
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
  if (!common.ok()) return FailCommand(common.status());
  if (common->help) return Help(kRolloutHelp);
  const std::string action = common->words.empty() ? "" : common->words.front();
  bool known = false;
  for (const char* word : {"start", "status", "pause", "resume", "abort"}) known |= action == word;
  if (!known) {
    return FailCommand(absl::InvalidArgumentError(
        Concat("\"", action, "\" is none of start, status, pause, resume and abort")));
  }
  const auto call = OpenCall(*common);
  if (!call.ok()) return FailCommand(call.status());
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
  if (!answer.ok()) return FailCommand(answer.status());
  if (common->wait && (action == "start" || action == "resume")) {
    return AwaitRollout(*call, *common);
  }
  std::fputs(
      common->json ? (protocol::WriteJson(*answer) + "\n").c_str() : RolloutText(*answer).c_str(),
      stdout);
  return protocol::kExitOk;
}

}  // namespace skein::worker
