// Acceptance check 3: workers are killed every two seconds under 64 streams, which must not lose,
// repeat or mix a token; then the coordinator is killed, whose clients must see an error each.
//   kill_loop [--worker mock|tiny] [--seconds N] [--stream-seconds N] [--coordinator-kills N]
// The last line has the figures; exit 0: they hold.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <signal.h>

#include "absl/strings/numbers.h"
#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "tests/accept/child_program.h"
#include "tests/accept/program_directory.h"
#include "tests/accept/stream_load.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

using protocol::Concat;
using protocol::MonotonicNow;

constexpr size_t kStreams = 64;
constexpr int kWorkers = 2;
constexpr absl::Duration kKillInterval = absl::Seconds(2);
// Of the mock worker: a decode step, and a row of prefill in it.
constexpr int kStepUs = 10'000;
constexpr int kRowNs = 5'000;
constexpr int kStepRows = 2048;
constexpr size_t kTinyTokens = 230;  // with the prompt below 300
constexpr int kTinyStepRows = 256;   // a step must be much shorter than the time between kills

struct Plan {
  bool is_mock = true;
  int64_t seconds = 300;
  int64_t stream_seconds = 20;
  int64_t coordinator_kills = 10;
};

struct Figures {
  int kills = 0;
  double p99_gap_s = 0;
  double replayed_tokens = 0;
  double replay_share = 0;
  double capacity = 0;  // rows of prefill a second
};

std::vector<std::string> ServerFlags(const Plan& plan, uint16_t port) {
  std::vector<std::string> flags = {"--model",
                                    "deploy/models/tiny-v41",
                                    "--port",
                                    std::to_string(port),
                                    "--data-parallel-size",
                                    std::to_string(kWorkers),
                                    "--max-num-seqs",
                                    "64",
                                    "--max-num-batched-tokens",
                                    std::to_string(plan.is_mock ? kStepRows : kTinyStepRows),
                                    "--restarts-max",
                                    "1000",
                                    "--restart-backoff-max",
                                    "0.2",
                                    "--max-num-queued-tokens",
                                    "1000000",
                                    "--max-connections-per-address",
                                    "1000",
                                    "--log-level",
                                    "warn"};
  if (!plan.is_mock) {
    flags.insert(flags.end(), {"--max-model-len", "384"});
  }
  return flags;
}

StreamLoad::Options LoadOf(const Plan& plan, uint16_t port) {
  StreamLoad::Options options;
  options.port = port;
  options.streams = kStreams;
  options.is_mock = plan.is_mock;
  // A step decodes one token of each stream, so a stream cannot be faster than its steps.
  options.tokens =
      plan.is_mock ? static_cast<size_t>(plan.stream_seconds) * 1'000'000 / kStepUs : kTinyTokens;
  return options;
}

bool KillWorker(const LiveServer& server, int index) {
  return server.Find("skein-worker", Concat("--worker-index=", index)).Signal(SIGKILL);
}

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

// Rows of prefill that the workers could compute in a second: of the mock by its speed, of the real
// model by the steps that were prefill alone.
double PrefillCapacity(const Plan& plan, uint16_t port) {
  const double step_s = 1e-6 * kStepUs + 1e-9 * kRowNs * kStepRows;
  if (plan.is_mock) return kWorkers * kStepRows / step_s;
  const double rows = MetricAt(port, "skein_step_tokens_sum", "phase=\"prefill\"");
  const double took_s = MetricAt(port, "skein_step_duration_seconds_sum", "phase=\"prefill\"");
  return took_s > 0 ? kWorkers * rows / took_s : 0;
}

// Rows that workers computed more than once, as far as their results were committed, and the share
// of the cluster's prefill capacity that they took.
void CountReplays(const Plan& plan, const LiveServer& server, const StreamLoad& load,
                  double seconds, double rows_before, Figures& figures) {
  const double rows = server.Metric("skein_step_tokens_sum") - rows_before;
  figures.replayed_tokens = std::max(0.0, rows - static_cast<double>(load.totals().rows));
  figures.capacity = PrefillCapacity(plan, server.port());
  if (figures.capacity > 0) {
    figures.replay_share = figures.replayed_tokens / (figures.capacity * seconds);
  }
}

Figures KillWorkers(const Plan& plan, const LiveServer& server, StreamLoad& load) {
  Figures figures;
  const double rows_before = server.Metric("skein_step_tokens_sum");
  std::vector<double> silences;
  const absl::Time begin = MonotonicNow();
  const absl::Time end = begin + absl::Seconds(plan.seconds);
  absl::Time next = begin + kKillInterval;
  load.Start();
  while (MonotonicNow() < end) {
    load.Poll(std::chrono::milliseconds(20));
    if (MonotonicNow() < next) continue;
    next += kKillInterval;
    // The gaps of the time before the first kill count too: they can only be shorter.
    for (const double silence : load.TakeSilences()) silences.push_back(silence);
    figures.kills += KillWorker(server, figures.kills % kWorkers) ? 1 : 0;
  }
  load.Finish();
  while (!load.idle()) load.Poll(std::chrono::milliseconds(20));
  figures.p99_gap_s = Percentile(silences, 0.99);
  CountReplays(plan, server, load, absl::ToDoubleSeconds(MonotonicNow() - begin), rows_before,
               figures);
  return figures;
}

struct CoordinatorFigures {
  int kills = 0;
  uint64_t errors = 0;          // streams that ended as an error for their client
  uint64_t looks_complete = 0;  // those that did not
  double slowest_ready_s = 0;
  int workers_reloaded = 0;
};

std::vector<int> WorkerPids(const LiveServer& server) {
  std::vector<int> pids;
  for (int i = 0; i < kWorkers; ++i) {
    pids.push_back(server.Find("skein-worker", Concat("--worker-index=", i)).pid());
  }
  return pids;
}

CoordinatorFigures KillCoordinators(const Plan& plan, LiveServer& server, uint16_t port) {
  CoordinatorFigures figures;
  for (int i = 0; i < plan.coordinator_kills; ++i) {
    const std::vector<int> pids = WorkerPids(server);
    StreamLoad::Options options = LoadOf(plan, port);
    if (plan.is_mock) options.tokens = 2000;
    StreamLoad load(options);
    load.Start();
    load.Finish();
    const size_t characters = 1 + static_cast<size_t>(i) * 3;
    while (load.NumBeyond(characters) < kStreams && !load.idle()) {
      load.Poll(std::chrono::milliseconds(20));
    }
    figures.kills += server.Find("skein-coordinator").Signal(SIGKILL) ? 1 : 0;
    const absl::Time killed = MonotonicNow();
    while (!load.idle()) load.Poll(std::chrono::milliseconds(20));
    figures.errors += load.cut();
    figures.looks_complete += kStreams - load.cut();
    if (load.cut() != kStreams) std::printf("not cut: %s\n", load.totals().failure.c_str());
    if (!server.WaitForHealth(200)) figures.slowest_ready_s = 1e9;
    figures.slowest_ready_s =
        std::max(figures.slowest_ready_s, absl::ToDoubleSeconds(MonotonicNow() - killed));
    figures.workers_reloaded += WorkerPids(server) == pids ? 0 : 1;
  }
  return figures;
}

// Judged with the mock alone, whose speed does not depend on what else the host computes.
bool IsFast(const Figures& figures) {
  return figures.p99_gap_s <= 2 && figures.replay_share <= 0.5;
}

int Run(const Plan& plan) {
  const ProgramDirectory programs(plan.is_mock ? "mock-worker" : "skein-worker");
  programs.SetMockSpeed(kStepUs, kRowNs);
  LiveServer server(programs.path());
  const uint16_t port = FreePort();
  if (!server.StartReady(ServerFlags(plan, port))) {
    std::printf("not ready:\n%s\n", server.output().c_str());
    return 1;
  }
  StreamLoad load(LoadOf(plan, port));
  if (!plan.is_mock && !load.Record()) {
    std::printf("the undisturbed run failed: %s\n", load.totals().failure.c_str());
    return 1;
  }
  const Figures figures = KillWorkers(plan, server, load);
  const StreamLoad::Totals& totals = load.totals();
  if (!totals.failure.empty()) std::printf("first failure: %s\n", totals.failure.c_str());
  const CoordinatorFigures coordinator = KillCoordinators(plan, server, port);
  std::printf(
      "coordinator_kills=%d errors=%llu looks_complete=%llu slowest_ready_s=%.2f "
      "workers_reloaded=%d\n",
      coordinator.kills, static_cast<unsigned long long>(coordinator.errors),
      static_cast<unsigned long long>(coordinator.looks_complete), coordinator.slowest_ready_s,
      coordinator.workers_reloaded);
  std::printf(
      "kills=%d streams=%llu whole=%llu shortest_stream_s=%.1f lost=%llu duplicated=%llu "
      "mixed=%llu unfinished=%llu p99_gap_s=%.3f replayed_tokens=%.0f prefill_per_s=%.0f "
      "replay_share=%.3f\n",
      figures.kills, static_cast<unsigned long long>(totals.started),
      static_cast<unsigned long long>(totals.whole), totals.shortest_s,
      static_cast<unsigned long long>(totals.lost),
      static_cast<unsigned long long>(totals.duplicated),
      static_cast<unsigned long long>(totals.mixed),
      static_cast<unsigned long long>(totals.unfinished), figures.p99_gap_s,
      figures.replayed_tokens, figures.capacity, figures.replay_share);
  const bool streams_hold = totals.whole == totals.started && totals.lost == 0 &&
                            totals.duplicated == 0 && totals.mixed == 0 && totals.unfinished == 0 &&
                            figures.kills > 0 && (!plan.is_mock || IsFast(figures));
  const bool coordinator_holds =
      coordinator.kills == plan.coordinator_kills && coordinator.looks_complete == 0 &&
      coordinator.slowest_ready_s <= 5 && coordinator.workers_reloaded == 0;
  if (!streams_hold || !coordinator_holds) std::printf("%s\n", server.errors().c_str());
  return streams_hold && coordinator_holds ? 0 : 1;
}

int Main(int argc, char** argv) {
  Plan plan;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::string_view value = argv[i + 1];
    int64_t* number = name == "--seconds"             ? &plan.seconds
                      : name == "--stream-seconds"    ? &plan.stream_seconds
                      : name == "--coordinator-kills" ? &plan.coordinator_kills
                                                      : nullptr;
    if (name == "--worker" && (value == "mock" || value == "tiny")) {
      plan.is_mock = value == "mock";
    } else if (number == nullptr || !absl::SimpleAtoi(argv[i + 1], number)) {
      std::fprintf(stderr, "kill_loop: %s %s: no such flag or value\n", argv[i], argv[i + 1]);
      return 78;
    }
  }
  return Run(plan);
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) { return skein::tests::Main(argc, argv); }
