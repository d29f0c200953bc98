// Must never: leave a terminal changed, or grow with the time it runs.
#include "worker/node/commands/top.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <optional>
#include <vector>

#include <poll.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "protocol/base/clock.h"
#include "protocol/base/exit_codes.h"
#include "protocol/base/strings.h"
#include "worker/node/commands/cluster.h"
#include "worker/node/commands/operator_call.h"

namespace skein::worker {
namespace {

using protocol::Concat;
using protocol::JsonValue;

constexpr char kHelp[] =
    "usage: skein top [--interval SECONDS] [--count N] [FLAGS]\n"
    "Groups, workers and queues of a cluster, and its tokens, drafts, cache and errors per "
    "second,\n"
    "looked at again and again until it is interrupted.\n"
    "  --interval SECONDS     between two looks (1)\n"
    "  --count N              end after N looks\n";

struct Family {
  std::string_view name;
  double TopCounts::*sum;
};
constexpr Family kFamilies[] = {
    {"skein_generation_tokens_total", &TopCounts::generated},
    {"skein_prompt_tokens_total", &TopCounts::prompts},
    {"skein_spec_draft_tokens_total", &TopCounts::drafted},
    {"skein_spec_accepted_tokens_total", &TopCounts::accepted},
    {"skein_prefix_cache_hits_tokens_total", &TopCounts::cached},
    {"skein_worker_restarts_total", &TopCounts::restarts},
};

// Per second; a coordinator that was restarted begins at 0.
double Rate(const TopCounts& now, const TopCounts& before, double seconds, double TopCounts::*sum) {
  return std::max(0.0, (now.*sum - before.*sum) / seconds);
}

std::string RatesText(const TopCounts& now, const TopCounts& before, double seconds) {
  if (!(seconds > 0)) return "tokens/s   (with the next look)\n";
  const auto rate = [&](double TopCounts::*sum) { return Rate(now, before, seconds, sum); };
  const double drafted = rate(&TopCounts::drafted);
  const std::string drafts =
      drafted > 0 ? absl::StrFormat("%.0f %% kept", 100 * rate(&TopCounts::accepted) / drafted)
                  : "none";
  return absl::StrFormat(
             "tokens/s   %.0f generated, %.0f of prompts, %.0f of them cached\ndrafts     %s\n",
             rate(&TopCounts::generated), rate(&TopCounts::prompts), rate(&TopCounts::cached),
             drafts) +
         absl::StrFormat("errors/s   %.1f answers 4xx, %.1f answers 5xx; %.0f worker restarts\n",
                         rate(&TopCounts::refused), rate(&TopCounts::failed), now.restarts);
}

// One bar for each engine's cache.
std::string CacheText(const JsonValue& status) {
  constexpr int kWidth = 50;
  std::string out;
  for (const JsonValue& group : ListAt(status, "groups")) {
    const double blocks = static_cast<double>(NumberAt(group, "blocks"));
    if (!(blocks > 0)) continue;
    const double share =
        std::clamp(static_cast<double>(NumberAt(group, "blocks_used")) / blocks, 0.0, 1.0);
    const auto full = static_cast<size_t>(std::lround(share * kWidth));
    out += absl::StrFormat("cache %-4d [%s%s] %3.0f %%\n", NumberAt(group, "group"),
                           std::string(full, '#'), std::string(kWidth - full, '.'), 100 * share);
  }
  return out;
}

struct Options {
  absl::Duration interval = absl::Seconds(1);
  int count = 0;  // 0: until it is interrupted
};

absl::StatusOr<Options> ParseOptions(const std::string& interval, const std::string& count) {
  Options options;
  double seconds = 0;
  if (!interval.empty()) {
    if (!absl::SimpleAtod(interval, &seconds) || !(seconds >= 0.1) || seconds > 3600) {
      return absl::InvalidArgumentError(
          Concat("--interval: \"", interval, "\" is not a number of seconds from 0.1 to 3600"));
    }
    options.interval = absl::Seconds(seconds);
  }
  if (!count.empty() && (!absl::SimpleAtoi(count, &options.count) || options.count < 1)) {
    return absl::InvalidArgumentError(Concat("--count: \"", count, "\" is not a number above 0"));
  }
  return options;
}

}  // namespace

TopCounts ReadTopCounts(std::string_view metrics) {
  TopCounts counts;
  while (!metrics.empty()) {
    const std::string_view line = metrics.substr(0, metrics.find('\n'));
    metrics.remove_prefix(std::min(metrics.size(), line.size() + 1));
    const std::string_view name = line.substr(0, line.find_first_of("{ "));
    double value = 0;
    if (line.empty() || line[0] == '#' ||
        !absl::SimpleAtod(std::string(line.substr(line.rfind(' ') + 1)), &value)) {
      continue;
    }
    for (const Family& family : kFamilies) {
      if (name == family.name) counts.*family.sum += value;
    }
    if (name != "skein_http_requests_total") continue;
    const size_t code = line.find("code=\"");
    if (code == std::string_view::npos) continue;
    const std::string_view digits = line.substr(code + 6, 3);
    if (digits[0] == '5') counts.failed += value;
    if (digits[0] == '4' && digits != "499") counts.refused += value;
  }
  return counts;
}

std::string TopText(const JsonValue& status, const TopCounts& now, const TopCounts& before,
                    double seconds) {
  return ClusterStatusText(status) + RatesText(now, before, seconds) + CacheText(status);
}

int RunTop(std::span<const std::string> arguments) {
  const auto common = ParseCommon(
      "top", arguments, {}, {{"--interval", &Common::interval}, {"--count", &Common::count}}, 0);
  if (!common.ok()) return FailCommand(common.status());
  if (common->help) {
    std::printf("%s%s", kHelp, kCommonHelp);
    return protocol::kExitOk;
  }
  const auto options = ParseOptions(common->interval, common->count);
  if (!options.ok()) return FailCommand(options.status());
  const auto call = OpenCall(*common);
  if (!call.ok()) return FailCommand(call.status());
  // On a terminal each look takes the place of the one before.
  const char* begin = ::isatty(STDOUT_FILENO) != 0 ? "\x1b[H\x1b[2J" : "";
  TopCounts before;
  std::optional<absl::Time> last;
  for (int look = 1;; ++look) {
    const absl::Time time = protocol::MonotonicNow();
    const auto status = Ask(*call, "GET", "/admin/status");
    const auto metrics = status.ok() ? AskText(*call, "GET", "/metrics") : status.status();
    if (!metrics.ok() && look == 1) return FailCommand(metrics.status());
    if (metrics.ok()) {
      const TopCounts now = ReadTopCounts(*metrics);
      const double seconds = last.has_value() ? absl::ToDoubleSeconds(time - *last) : 0;
      std::printf("%s%s\n", begin, TopText(*status, now, before, seconds).c_str());
      before = now;
      last = time;
    } else {
      std::printf("%s%s\n\n", begin, std::string(metrics.status().message()).c_str());
      last.reset();
    }
    if (std::fflush(stdout) != 0) {
      return FailCommand(absl::ErrnoToStatus(errno, "standard output cannot be written"));
    }
    if (look == options->count) return protocol::kExitOk;
    ::poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(options->interval)));
  }
}

}  // namespace skein::worker
