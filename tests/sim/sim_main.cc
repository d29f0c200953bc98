// skein-sim: the production cluster under virtual time. Runs seeds, prints figures, and for a seed
// with a violation the command that repeats it.

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "protocol/base/log.h"
#include "tests/sim/sim_cluster.h"

namespace skein::tests {
namespace {

constexpr size_t kRarest = 5;  // marks to name

constexpr std::string_view kHelp =
    "usage: skein-sim [--seeds=N] [--first-seed=N] [--repeat=N] [--no-faults]\n"
    "       skein-sim --seed=N [--no-faults] [--log-from=S]\n"
    "  --seeds=N       seeds to run; 1000\n"
    "  --first-seed=N  the first of them; 1\n"
    "  --seed=N        this one alone, with its log\n"
    "  --repeat=N      of the seeds, the first N run twice and must be the same; 20\n"
    "  --no-faults     nothing goes wrong\n"
    "  --log-from=S    with --seed: logs what the programs say from this virtual second on\n"
    "Exit codes: 0 no violation and all marks reached, 1 otherwise, 64 usage.\n";

struct Options {
  uint64_t first = 1;
  uint64_t seeds = 1000;
  uint64_t repeat = 20;
  bool faults = true;
  bool alone = false;
  std::optional<uint64_t> log_from;
};

struct Totals {
  uint64_t violations = 0;
  uint64_t stale_accepted = 0;  // of them: something of an ended epoch was computed or answered
  uint64_t stale_dropped = 0;
  uint64_t different = 0;  // seeds whose second run was another
  uint64_t events = 0;
  uint64_t answered = 0, refused = 0, failed = 0;
  absl::Duration lasted;
  uint64_t trace = 0;
  std::array<uint64_t, kNumMarks> seeds_of{};  // that reached each mark
};

// For what ends the program in the middle of a run.
char reproduction[128];

void OnAbort(int) {
  const size_t length = std::strlen(reproduction);
  const auto written = ::fwrite(reproduction, 1, length, stderr);
  std::_Exit(written == length ? 1 : 2);
}

std::string Reproduction(uint64_t seed, bool faults) {
  return absl::StrCat("repeat it with: skein-sim --seed=", seed, faults ? "" : " --no-faults",
                      "\n");
}

SimOutcome RunLogged(uint64_t seed, const Options& options) {
  const bool faults = options.faults;
  const std::string command =
      absl::StrCat("violation in seed ", seed, ": the program ended; ", Reproduction(seed, faults));
  std::snprintf(reproduction, sizeof reproduction, "%s", command.c_str());
  SimRandom random(seed);
  const SimConfig config = DrawConfig(random, faults);
  SimCluster cluster(random.Next(), config);
  if (options.alone && options.log_from) {
    cluster.At(absl::Seconds(*options.log_from), [&cluster] {
      protocol::LogOptions log;
      log.level = protocol::LogLevel::kDebug;
      log.sink = [&cluster](std::string_view line) {
        const double now = absl::ToDoubleSeconds(cluster.Elapsed());
        const size_t text = std::min(line.find("level="), line.size());
        std::fprintf(stderr, "%10.6f %.*s", now, static_cast<int>(line.size() - text),
                     line.data() + text);
      };
      protocol::InstallLog(std::move(log));
    });
  }
  return cluster.Run();
}

void RunOne(uint64_t seed, const Options& options, bool twice, Totals& totals) {
  const SimOutcome outcome = RunLogged(seed, options);
  if (!outcome.violation.empty()) {
    ++totals.violations;
    // Wrong rows and tokens, and plans of what is over.
    const std::string_view what = outcome.violation;
    totals.stale_accepted += what.starts_with("oracle 1") || what.starts_with("oracle 4") ? 1 : 0;
    std::fprintf(stderr, "violation in seed %llu: %s; %s", static_cast<unsigned long long>(seed),
                 outcome.violation.c_str(), Reproduction(seed, options.faults).c_str());
  }
  if (twice && RunLogged(seed, options).trace != outcome.trace) {
    ++totals.different;
    std::fprintf(stderr, "seed %llu is not the same twice\n",
                 static_cast<unsigned long long>(seed));
  }
  totals.events += outcome.events;
  totals.answered += outcome.answered;
  totals.refused += outcome.refused;
  totals.failed += outcome.failed;
  totals.stale_dropped += outcome.stale_dropped;
  totals.lasted += outcome.lasted;
  totals.trace = totals.trace * 31 + outcome.trace;
  for (size_t i = 0; i < kNumMarks; ++i) {
    totals.seeds_of[i] += outcome.marks.reached(static_cast<Mark>(i)) ? 1 : 0;
  }
}

// Says which marks the fewest seeds reached, and complains of those that none did. How many were
// reached.
size_t ReportMarks(const std::array<uint64_t, kNumMarks>& seeds_of, bool complains) {
  std::vector<size_t> order(kNumMarks);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return seeds_of[a] < seeds_of[b]; });
  std::string rarest;
  size_t reached = 0;
  for (const size_t at : order) {
    const std::string name(NameOf(static_cast<Mark>(at)));
    reached += seeds_of[at] > 0 ? 1 : 0;
    if (seeds_of[at] == 0 && complains) {
      std::fprintf(stderr, "never reached: %s\n", name.c_str());
    }
    if (reached > 0 && reached <= kRarest) absl::StrAppend(&rarest, "  ", name, " ", seeds_of[at]);
  }
  if (complains) std::printf("rarest marks, and the seeds that reached them:%s\n", rarest.c_str());
  return reached;
}

int Report(const Options& options, const Totals& totals, double seconds) {
  const bool complains = !options.alone && options.faults;
  const size_t reached = ReportMarks(totals.seeds_of, complains);
  std::printf(
      "seeds=%llu violations=%llu stale_accepted=%llu stale_dropped=%llu different=%llu "
      "marks=%zu/%zu events=%llu answered=%llu refused=%llu failed=%llu virtual_s=%.0f "
      "cpu_s=%.1f realtime=%.0fx trace=%016llx\n",
      static_cast<unsigned long long>(options.seeds),
      static_cast<unsigned long long>(totals.violations),
      static_cast<unsigned long long>(totals.stale_accepted),
      static_cast<unsigned long long>(totals.stale_dropped),
      static_cast<unsigned long long>(totals.different), reached, kNumMarks,
      static_cast<unsigned long long>(totals.events),
      static_cast<unsigned long long>(totals.answered),
      static_cast<unsigned long long>(totals.refused),
      static_cast<unsigned long long>(totals.failed), absl::ToDoubleSeconds(totals.lasted), seconds,
      absl::ToDoubleSeconds(totals.lasted) / std::max(seconds, 1e-9),
      static_cast<unsigned long long>(totals.trace));
  const bool all = !complains || reached == kNumMarks;
  return totals.violations == 0 && totals.different == 0 && all ? 0 : 1;
}

bool ParseNumber(std::string_view text, uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

std::optional<Options> Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const std::string_view value = flag.substr(std::min(flag.find('=') + 1, flag.size()));
    bool good = true;
    if (flag.starts_with("--seeds=")) {
      good = ParseNumber(value, options.seeds);
    } else if (flag.starts_with("--first-seed=")) {
      good = ParseNumber(value, options.first);
    } else if (flag.starts_with("--repeat=")) {
      good = ParseNumber(value, options.repeat);
    } else if (flag.starts_with("--seed=")) {
      good = ParseNumber(value, options.first);
      options.seeds = 1;
      options.alone = true;
    } else if (flag == "--no-faults") {
      options.faults = false;
    } else if (flag.starts_with("--log-from=")) {
      good = ParseNumber(value, options.log_from.emplace());
    } else {
      good = false;
    }
    if (!good) return std::nullopt;
  }
  return options;
}

int Run(int argc, char** argv) {
  const std::optional<Options> options = Parse(argc, argv);
  if (!options) {
    std::fwrite(kHelp.data(), 1, kHelp.size(), stderr);
    return 64;
  }
  protocol::LogOptions silent;
  silent.level = protocol::LogLevel::kOff;
  protocol::InstallLog(silent);
  std::signal(SIGABRT, &OnAbort);
  Totals totals;
  const std::clock_t begin = std::clock();
  for (uint64_t i = 0; i < options->seeds; ++i) {
    RunOne(options->first + i, *options, i < options->repeat, totals);
  }
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  return Report(*options, totals, seconds);
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) { return skein::tests::Run(argc, argv); }
