// skein-sim-mutants [--seeds=N] [--mutant=N]: the simulation with planted bugs (mutants.txt), one
// alive at a time. Each must be found within so many seeds; prints by which seed, and the score.

#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "protocol/base/log.h"
#include "tests/sim/mutant.h"
#include "tests/sim/sim_cluster.h"

namespace skein::tests {
namespace {

constexpr double kScoreMin = 0.95;
// A run that never ends is an end, too.
constexpr rlim_t kSeconds = 600;

struct Mutant {
  int number = 0;
  std::string what;
};

bool ParseNumber(std::string_view text, uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

std::vector<Mutant> ReadMutants(const std::string& path) {
  std::vector<Mutant> mutants;
  std::ifstream list(path);
  for (std::string line; std::getline(list, line);) {
    if (!line.starts_with("mutant ")) continue;
    const size_t space = line.find(' ', 7);
    uint64_t number = 0;
    if (space == std::string::npos || !ParseNumber(line.substr(7, space - 7), number)) continue;
    mutants.push_back({static_cast<int>(number), line.substr(space + 1)});
  }
  return mutants;
}

// The process of one mutant: the seed that runs, and what is wrong, go into the pipe.
[[noreturn]] void Hunt(int mutant, uint64_t seeds, int pipe) {
  protocol::LogOptions silent;
  silent.level = protocol::LogLevel::kOff;
  protocol::InstallLog(silent);
  const rlimit limit{kSeconds, kSeconds};
  ::setrlimit(RLIMIT_CPU, &limit);
  if (std::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(2);
  chosen_mutant = mutant;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const std::string at = absl::StrCat("\n", seed, ": ");
    const auto told = ::write(pipe, at.data(), at.size());
    const SimOutcome outcome = RunSeed(seed, true);
    if (told > 0 && outcome.violation.empty()) continue;
    const auto written = ::write(pipe, outcome.violation.data(), outcome.violation.size());
    ::_exit(written < 0 ? 2 : 1);
  }
  ::_exit(0);
}

bool Found(const Mutant& mutant, uint64_t seeds) {
  int ends[2];
  SKEIN_CHECK(::pipe(ends) == 0) << "no pipe";
  std::fflush(stdout);
  const pid_t child = ::fork();
  SKEIN_CHECK(child >= 0) << "no process";
  if (child == 0) {
    ::close(ends[0]);
    Hunt(mutant.number, seeds, ends[1]);
  }
  ::close(ends[1]);
  std::string last;
  char bytes[4096];
  for (ssize_t count = 0; (count = ::read(ends[0], bytes, sizeof bytes)) > 0;) {
    last.append(bytes, static_cast<size_t>(count));
    last.erase(0, last.rfind('\n') + 1);
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  const bool found = !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  if (WIFSIGNALED(status)) absl::StrAppend(&last, "signal ", WTERMSIG(status));
  std::printf("mutant %d, %s: %s %s\n", mutant.number, mutant.what.c_str(),
              found ? "found by seed" : "SURVIVES", found ? last.substr(0, 160).c_str() : "");
  return found;
}

int Run(int argc, char** argv) {
  uint64_t seeds = 10'000;
  uint64_t only = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const bool good = (flag.starts_with("--seeds=") && ParseNumber(flag.substr(8), seeds)) ||
                      (flag.starts_with("--mutant=") && ParseNumber(flag.substr(9), only));
    if (good) continue;
    std::fputs("usage: skein-sim-mutants [--seeds=N] [--mutant=N]\n", stderr);
    return 64;
  }
  size_t found = 0;
  size_t count = 0;
  for (const Mutant& mutant : ReadMutants(SKEIN_MUTANTS)) {
    if (only != 0 && mutant.number != static_cast<int>(only)) continue;
    ++count;
    found += Found(mutant, seeds) ? 1 : 0;
  }
  const double score = count == 0 ? 0 : static_cast<double>(found) / static_cast<double>(count);
  std::printf("mutants=%zu found=%zu score=%.3f\n", count, found, score);
  return score >= kScoreMin ? 0 : 1;
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) { return skein::tests::Run(argc, argv); }
