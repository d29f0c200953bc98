// Acceptance check 7: workers that are stopped, and networks that swallow everything in one
// direction or in both, under streams that must stay exact; then a host without processor time,
// which must not look like a failure.
//   partition [--rounds N] [--load-seconds N]
// rounds 1: the short form; 2: pauses of up to ten seconds. Needs root for the network part, which
// is left out otherwise and said so. The last line has the figures; exit 0: they hold.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <signal.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "tests/accept/child_program.h"
#include "tests/accept/networks.h"
#include "tests/accept/program_directory.h"
#include "tests/accept/stream_load.h"
#include "tests/process/live_server.h"
#include "tests/protocol/curve_fixture.h"

namespace skein::tests {
namespace {

using protocol::Concat;
using protocol::MonotonicNow;

constexpr double kMustDetect = 1.5;  // seconds; shorter pauses may go unnoticed
constexpr size_t kStreams = 16;
constexpr std::string_view kEpochs = "skein_epoch_changes_total";
constexpr uint16_t kPort = 8700;

struct Figures {
  int stops = 0, partitions = 0;
  double slowest_detection_s = 0;
  double stale_dropped = 0;
  double false_failovers = 0;
  uint64_t streams = 0, whole = 0, flawed = 0;
  std::string failure;
};

std::vector<double> Pauses(int64_t rounds) {
  if (rounds < 2) return {0.3, 2};
  return {0.1, 0.5, 1.5, 3, 10};
}

void Add(const StreamLoad& load, Figures& figures) {
  const StreamLoad::Totals& totals = load.totals();
  figures.streams += totals.started;
  figures.whole += totals.whole;
  figures.flawed += totals.lost + totals.duplicated + totals.mixed;
  if (figures.failure.empty()) figures.failure = totals.failure;
}

double Stale(uint16_t port) {
  return MetricAt(port, "skein_stale_frames_dropped_total") +
         MetricAt(port, "skein_stale_results_total");
}

// Lets the streams run until `done` or for so long; the time until `done`, or -1.
template <typename Done>
double RunUntil(StreamLoad& load, absl::Duration limit, const Done& done) {
  const absl::Time begin = MonotonicNow();
  while (MonotonicNow() - begin < limit) {
    load.Poll(std::chrono::milliseconds(10));
    if (done()) return absl::ToDoubleSeconds(MonotonicNow() - begin);
  }
  return -1;
}

// One pause of a worker: begun, awaited by its epoch's end, ended, and both groups ready again.
template <typename Begin, typename End>
bool Disturb(StreamLoad& load, uint16_t port, double pause_s, const Begin& begin, const End& end,
             Figures& figures) {
  const double epochs = MetricAt(port, kEpochs);
  const absl::Time began = MonotonicNow();
  begin();
  const absl::Duration pause = absl::Seconds(pause_s);
  const double seen = RunUntil(load, pause, [&] { return MetricAt(port, kEpochs) > epochs; });
  RunUntil(load, pause - (MonotonicNow() - began), [] { return false; });
  end();
  if (pause_s >= kMustDetect) {
    if (seen < 0) std::printf("a pause of %.1f s was not noticed\n", pause_s);
    figures.slowest_detection_s = std::max(figures.slowest_detection_s, seen < 0 ? 1e9 : seen);
  }
  const double back = RunUntil(load, absl::Seconds(20), [&] {
    return MetricAt(port, "skein_groups", "state=\"ready\"") == 2;
  });
  if (back < 0) std::printf("after a pause of %.1f s the group did not come back\n", pause_s);
  return back >= 0;
}

void StopWorkers(LiveServer& server, uint16_t port, int64_t rounds, Figures& figures) {
  StreamLoad load({.port = port, .streams = kStreams, .tokens = 400});
  load.Start();
  int index = 0;
  for (const double pause : Pauses(rounds)) {
    const ProcessHandle worker = server.Find("skein-worker", Concat("--worker-index=", index));
    index = 1 - index;
    ++figures.stops;
    const bool back = Disturb(
        load, port, pause, [&] { worker.Signal(SIGSTOP); }, [&] { worker.Signal(SIGCONT); },
        figures);
    if (!back) figures.slowest_detection_s = 1e9;
  }
  load.Finish();
  while (!load.idle()) load.Poll(std::chrono::milliseconds(20));
  Add(load, figures);
}

// Twice as many spinning threads as processors, beside streams.
void LoadProcessors(uint16_t port, int64_t seconds, Figures& figures) {
  const double epochs = MetricAt(port, kEpochs);
  StreamLoad load({.port = port, .streams = kStreams, .tokens = 200});
  load.Start();
  std::atomic<bool> stops = false;
  std::vector<std::thread> spinners;
  for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i) {
    spinners.emplace_back([&stops] {
      while (!stops) {
      }
    });
  }
  RunUntil(load, absl::Seconds(seconds), [] { return false; });
  stops = true;
  for (std::thread& spinner : spinners) spinner.join();
  load.Finish();
  while (!load.idle()) load.Poll(std::chrono::milliseconds(20));
  figures.false_failovers += MetricAt(port, kEpochs) - epochs;
  Add(load, figures);
}

// A coordinator and a worker on the near side and a worker on the far one, over tcp with keys.
class SplitCluster {
 public:
  SplitCluster(const ProgramDirectory& programs, const Networks& networks) {
    const std::vector<std::string> common = {"--model",
                                             "deploy/models/tiny-v41",
                                             "--control-endpoint",
                                             "tcp://10.77.0.1:7000",
                                             "--curve-server-key",
                                             keys_.server_key(),
                                             "--backend",
                                             "cpu",
                                             "--data-parallel-size",
                                             "2",
                                             "--log-level",
                                             "warn"};
    Start(common, {programs.path() + "/skein-coordinator"},
          {"--port", std::to_string(kPort), "--curve-secret-key-file", keys_.path("coordinator"),
           "--curve-allowed-keys-file", keys_.path("allowed")});
    const std::string worker = programs.path() + "/skein-worker";
    const std::vector<std::string> flags = {"--curve-secret-key-file", keys_.path("worker"),
                                            "--incarnation", "10", "--worker-index"};
    Start(common, {worker}, flags, "0");
    Start(common, {"ip", "netns", "exec", networks.far(), worker}, flags, "1");
  }
  bool WaitReady() const {
    return WaitUntil([] { return MetricAt(kPort, "skein_groups", "state=\"ready\"") == 2; });
  }
  std::string output() const {
    std::string all;
    for (const auto& program : programs_) all += program->output();
    return all;
  }

 private:
  void Start(const std::vector<std::string>& common, std::vector<std::string> command,
             const std::vector<std::string>& own, const std::string& last = "") {
    command.insert(command.end(), common.begin(), common.end());
    command.insert(command.end(), own.begin(), own.end());
    if (!last.empty()) command.push_back(last);
    programs_.push_back(
        std::make_unique<ChildProgram>(command, keys_.path(Concat("output.", programs_.size()))));
  }

  const CurveFixture keys_;
  std::vector<std::unique_ptr<ChildProgram>> programs_;
};

bool CutNetworks(const ProgramDirectory& programs, int64_t rounds, Figures& figures) {
  const Networks networks;
  if (!networks.ok() || !networks.Enter()) {
    std::printf("networks left out: no network namespaces here (ip netns needs root)\n");
    return true;
  }
  const SplitCluster cluster(programs, networks);
  if (!cluster.WaitReady()) {
    std::printf("not ready:\n%s\n", cluster.output().c_str());
    return false;
  }
  StreamLoad load({.port = kPort, .streams = kStreams, .tokens = 400});
  load.Start();
  bool back = true;
  for (const double pause : Pauses(rounds)) {
    for (const auto& [near, far] : {std::pair(true, true), {true, false}, {false, true}}) {
      ++figures.partitions;
      back = back && Disturb(
                         load, kPort, pause, [&] { networks.Cut(near, far); },
                         [&] { networks.Cut(false, false); }, figures);
    }
  }
  load.Finish();
  while (!load.idle()) load.Poll(std::chrono::milliseconds(20));
  Add(load, figures);
  figures.stale_dropped += Stale(kPort);
  if (!back) std::printf("%s\n", cluster.output().c_str());
  return back;
}

int Run(int64_t rounds, int64_t load_seconds) {
  const ProgramDirectory programs("mock-worker");
  Figures figures;
  {
    LiveServer server(programs.path());
    const uint16_t port = FreePort();
    if (!server.StartReady({"--model", "deploy/models/tiny-v41", "--port", std::to_string(port),
                            "--data-parallel-size", "2", "--log-level", "warn"})) {
      std::printf("not ready:\n%s\n", server.output().c_str());
      return 1;
    }
    LoadProcessors(port, load_seconds, figures);
    StopWorkers(server, port, rounds, figures);
    figures.stale_dropped += Stale(port);
    if (figures.whole != figures.streams) std::printf("%s\n", server.errors().c_str());
  }
  const bool networks_hold = CutNetworks(programs, rounds, figures);
  if (!figures.failure.empty()) std::printf("first failure: %s\n", figures.failure.c_str());
  std::printf(
      "stops=%d partitions=%d slowest_detection_s=%.2f streams=%llu whole=%llu stale_accepted=%llu "
      "stale_dropped=%.0f false_failovers=%.0f\n",
      figures.stops, figures.partitions, figures.slowest_detection_s,
      static_cast<unsigned long long>(figures.streams),
      static_cast<unsigned long long>(figures.whole),
      static_cast<unsigned long long>(figures.flawed), figures.stale_dropped,
      figures.false_failovers);
  const bool holds = networks_hold && figures.slowest_detection_s <= 1.2 &&
                     figures.whole == figures.streams && figures.flawed == 0 &&
                     figures.stale_dropped > 0 && figures.false_failovers == 0;
  return holds ? 0 : 1;
}

int Main(int argc, char** argv) {
  int64_t rounds = 2;
  int64_t load_seconds = 20;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    int64_t* number = name == "--rounds"         ? &rounds
                      : name == "--load-seconds" ? &load_seconds
                                                 : nullptr;
    if (number == nullptr || !absl::SimpleAtoi(argv[i + 1], number)) {
      std::fprintf(stderr, "partition: %s %s: no such flag or number\n", argv[i], argv[i + 1]);
      return 78;
    }
  }
  return Run(rounds, load_seconds);
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) { return skein::tests::Main(argc, argv); }
