// skein-chaos: a real cluster of mock workers behind a relay that harms what it relays, whose
// workers and coordinator are killed and stopped and whose supervisor is killed at random moments,
// under clients that judge every character. In the end everything must be as in the beginning.
//   skein-chaos [--seconds N] [--seed N] [--streams N] [--messages-per-fault N]
// The last line has the figures; exit 0: they hold. What is done follows from the seed; when it
// happens among the processes does not, wholly.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "absl/strings/numbers.h"
#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "tests/accept/child_program.h"
#include "tests/accept/program_directory.h"
#include "tests/chaos/chaos_load.h"
#include "tests/chaos/process_census.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

using protocol::Concat;
using protocol::MonotonicNow;
using std::chrono::milliseconds;

constexpr int kWorkers = 4;
// Of the mock worker: a step, and a row of it.
constexpr int kStepUs = 40'000;
constexpr int kRowNs = 10'000;
constexpr absl::Duration kLookInterval = absl::Milliseconds(100);  // between questions of state

struct Plan {
  int64_t seconds = 60;
  int64_t seed = 1;
  int64_t streams = 16;
  int64_t messages_per_fault = 100;
};

enum class Deed { kKillWorker, kStopWorker, kKillCoordinator, kStopCoordinator, kKillSupervisor };
constexpr std::string_view kDeedNames[] = {"worker_kills", "worker_stops", "coordinator_kills",
                                           "coordinator_stops", "supervisor_kills"};

struct Figures {
  uint64_t deeds[std::size(kDeedNames)] = {};
  bool came_back =
      false;  // all groups are ready, all answers ended, cache and descriptors are idle
  size_t zombies = 0, orphans = 0;
  double blocks_used = -1, audit_violations = -1;
  Census before, after;
  int exit_code = -1000;
};

// A directory of our own for the two sockets of the control plane.
class Directory {
 public:
  Directory() {
    char path[] = "/tmp/skein_chaos_XXXXXX";
    path_ = ::mkdtemp(path);
  }
  ~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  std::string path(std::string_view name) const { return Concat(path_, "/", name); }

 private:
  std::string path_;
};

class Chaos {
 public:
  explicit Chaos(const Plan& plan)
      : plan_(plan),
        random_(static_cast<uint64_t>(plan.seed)),
        programs_("mock-worker"),
        server_(programs_.path()),
        port_(FreePort()) {
    programs_.SetMockSpeed(kStepUs, kRowNs);
    std::ofstream(programs_.path() + "/mock-worker.endpoint")
        << "ipc://" << directory_.path("harmed");
    proxy_ = std::make_unique<ChildProgram>(
        std::vector<std::string>{Concat(SKEIN_PROGRAM_DIRECTORY, "/skein-faultproxy"), "--listen",
                                 directory_.path("harmed"), "--dial", directory_.path("control"),
                                 "--seed", std::to_string(plan.seed), "--messages-per-fault",
                                 std::to_string(plan.messages_per_fault)},
        directory_.path("proxy.log"));
  }

  bool Start() {
    const bool ready = server_.StartReady(Flags());
    if (ready && LookUntil([&] { return ReadyGroups() == kWorkers; })) return true;
    std::printf("the cluster did not become ready:\n%s\n", server_.output().c_str());
    return false;
  }

  void Run() {
    WarmUp();
    figures_.before = CensusAtRest();
    ChaosLoad load({.port = port_,
                    .streams = static_cast<size_t>(plan_.streams),
                    .seed = static_cast<uint64_t>(plan_.seed)});
    load.Start();
    const absl::Time end = MonotonicNow() + absl::Seconds(plan_.seconds);
    while (MonotonicNow() < end) {
      load.Poll(milliseconds(10));
      if (coordinator_is_away_) LookForCoordinator(load);
      Resume(MonotonicNow());
      if (MonotonicNow() >= next_deed_) Act(load);
    }
    Heal(load);
  }

  void Stop() {
    figures_.orphans += CountOrphans({server_.skein().pid(), proxy_->process().pid()});
    server_.skein().Signal(SIGTERM);
    figures_.exit_code = server_.WaitForExit();
    figures_.orphans += CountOrphans({proxy_->process().pid()}) + server_.Alive().size();
    proxy_->process().Signal(SIGTERM);
    proxy_->process().WaitForEnd(kLimit);
  }

  bool Report() const;

 private:
  std::vector<std::string> Flags() const {
    return {"--model", "deploy/models/tiny-v41", "--port", std::to_string(port_),
            "--control-endpoint", Concat("ipc://", directory_.path("control")),
            "--data-parallel-size", std::to_string(kWorkers), "--max-num-seqs", "16",
            "--max-num-batched-tokens", "512",
            // Too few for all sequences at their longest: some are preempted.
            "--num-blocks", "96", "--restarts-max", "1000", "--restart-backoff-max", "0.2",
            "--max-connections-per-address", "1000", "--log-level", "warn"};
  }

  double ReadyGroups() const { return MetricAt(port_, "skein_groups", "state=\"ready\""); }

  uint64_t Draw(uint64_t bound) {
    random_ += 0x9E3779B97F4A7C15u;
    uint64_t x = random_;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (x ^ (x >> 31)) % bound;
  }

  // What is opened once and kept, is open before it is counted.
  void WarmUp() const {
    ChaosLoad load({.port = port_, .streams = 4, .seed = 99});
    load.Start();
    load.Finish();
    while (!load.idle()) load.Poll(milliseconds(20));
    load.Close();
  }

  // Neither the connection of the last question is being closed, nor one of a worker made anew.
  Census CensusAtRest() const {
    Census last;
    int looks = 0;
    LookUntil([&] {
      Census now = TakeCensus(server_.skein().pid());
      looks = now == last ? looks + 1 : 0;
      last = std::move(now);
      return looks == 5;
    });
    return last;
  }

  ProcessHandle Worker(uint64_t index) const {
    return server_.Find("skein-worker", Concat("--worker-index=", index));
  }

  void Act(ChaosLoad& load) {
    next_deed_ = MonotonicNow() + absl::Milliseconds(200 + static_cast<int64_t>(Draw(1500)));
    const uint64_t dice = Draw(33);
    const Deed deed = dice < 16   ? Deed::kKillWorker
                      : dice < 29 ? Deed::kStopWorker
                      : dice < 31 ? Deed::kStopCoordinator
                      : dice < 32 ? Deed::kKillCoordinator
                                  : Deed::kKillSupervisor;
    const uint64_t index = Draw(kWorkers);
    const auto pause = absl::Milliseconds(50 + static_cast<int64_t>(Draw(2500)));
    const bool is_worker = deed == Deed::kKillWorker || deed == Deed::kStopWorker;
    const bool kills = deed == Deed::kKillWorker || deed == Deed::kKillCoordinator;
    if (deed == Deed::kKillSupervisor) return KillSupervisor(load);
    ProcessHandle process = is_worker ? Worker(index) : server_.Find("skein-coordinator");
    if (!process.valid()) return;  // still on its way
    if (deed == Deed::kKillCoordinator) {
      load.Excuse();
      coordinator_is_away_ = true;
    }
    if (!process.Signal(kills ? SIGKILL : SIGSTOP)) return;
    ++figures_.deeds[static_cast<size_t>(deed)];
    // A coordinator that stood still for long would be taken for hung.
    if (!kills) stopped_.push_back({std::move(process), MonotonicNow() + pause});
  }

  // What it supervised ends with it, wherever it is, stopped or starting. As a service manager
  // does, we start it again.
  void KillSupervisor(ChaosLoad& load) {
    load.Excuse();
    coordinator_is_away_ = true;
    if (!server_.skein().Signal(SIGKILL)) return;
    ++figures_.deeds[static_cast<size_t>(Deed::kKillSupervisor)];
    server_.WaitForExit();
    const auto orphans = [&] {
      while (::waitpid(-1, nullptr, WNOHANG) > 0) continue;  // they are ours now
      return CountOrphans({proxy_->process().pid()});
    };
    LookUntil([&] { return orphans() == 0; });
    figures_.orphans += orphans();
    stopped_.clear();
    server_.Start(Flags());
  }

  void Resume(absl::Time now) {
    std::erase_if(stopped_, [&](const Stopped& stopped) {
      return stopped.until <= now && (stopped.process.Signal(SIGCONT), true);
    });
  }

  void LookForCoordinator(ChaosLoad& load) {
    load.Excuse();
    if (MonotonicNow() < next_look_) return;
    next_look_ = MonotonicNow() + kLookInterval;
    coordinator_is_away_ = ReadyGroups() < 1;
  }

  // Waits for what each look takes processor time; false when the time is over.
  static bool LookUntil(const std::function<bool()>& done) {
    const absl::Time end = MonotonicNow() + kLimit;
    while (!done()) {
      if (MonotonicNow() >= end) return false;
      const absl::Time next = MonotonicNow() + kLookInterval;
      WaitUntil([&] { return MonotonicNow() >= next; });
    }
    return true;
  }

  void Heal(ChaosLoad& load) {
    Resume(absl::InfiniteFuture());
    proxy_->process().Signal(SIGUSR1);
    if (coordinator_is_away_) load.Excuse();
    load.Finish();
    const absl::Time limit = MonotonicNow() + 2 * kLimit;
    while (!load.idle() && MonotonicNow() < limit) load.Poll(milliseconds(20));
    const bool all_ended = load.idle();
    totals_ = load.Close();
    figures_.came_back =
        all_ended && LookUntil([&] { return ReadyGroups() == kWorkers; }) && BlocksIdle();
  }

  // Waits until nothing of the cache is in use and as many descriptors are open as before.
  bool BlocksIdle() {
    const auto used = [&] {
      return MetricAt(port_, "skein_kv_blocks", "state=\"used\"") +
             MetricAt(port_, "skein_kv_slots", "state=\"used\"");
    };
    const bool idle = LookUntil([&] { return used() == 0; });
    figures_.blocks_used = used();
    figures_.audit_violations = MetricAt(port_, "skein_kv_audit_violations_total");
    const int root = server_.skein().pid();
    // The connection of the last question is still being closed when it has been answered.
    const bool same = LookUntil([&] { return TakeCensus(root) == figures_.before; });
    figures_.after = TakeCensus(root);
    figures_.zombies = figures_.after.zombies;
    return idle && same;
  }

  struct Stopped {
    ProcessHandle process;
    absl::Time until;
  };

  const Plan plan_;
  uint64_t random_;
  const Directory directory_;
  const ProgramDirectory programs_;
  std::unique_ptr<ChildProgram> proxy_;
  LiveServer server_;
  const uint16_t port_;
  absl::Time next_deed_ = MonotonicNow(), next_look_ = MonotonicNow();
  bool coordinator_is_away_ = false;
  std::vector<Stopped> stopped_;
  Figures figures_;
  ChaosLoad::Totals totals_;
};

double ProcessorSeconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    ::getrusage(who, &usage);
    for (const timeval& time : {usage.ru_utime, usage.ru_stime}) {
      seconds += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    }
  }
  return seconds;
}

bool Chaos::Report() const {
  const Figures& f = figures_;
  const bool holds = f.came_back && totals_.mismatches == 0 && totals_.failed == 0 &&
                     totals_.whole > 0 && f.zombies == 0 && f.orphans == 0 &&
                     f.audit_violations == 0 && f.exit_code == 0;
  if (!totals_.failure.empty()) std::printf("first failure: %s\n", totals_.failure.c_str());
  std::printf("relay: %s", proxy_->output().c_str());
  std::printf("%s", Difference(f.before, f.after).c_str());
  if (!holds) {
    std::printf("%s\n", server_.errors().c_str());
    std::printf(
        "repeat: skein-chaos --seconds %lld --seed %lld --streams %lld "
        "--messages-per-fault %lld\n",
        static_cast<long long>(plan_.seconds), static_cast<long long>(plan_.seed),
        static_cast<long long>(plan_.streams), static_cast<long long>(plan_.messages_per_fault));
  }
  std::printf("seed=%lld seconds=%lld", static_cast<long long>(plan_.seed),
              static_cast<long long>(plan_.seconds));
  for (size_t i = 0; i < std::size(kDeedNames); ++i) {
    std::printf(" %s=%llu", kDeedNames[i].data(), static_cast<unsigned long long>(f.deeds[i]));
  }
  std::printf(
      " answers=%llu whole=%llu cut=%llu refused=%llu mismatches=%llu failed=%llu orphans=%zu "
      "zombies=%zu descriptors=%+lld blocks_used=%.0f audit_violations=%.0f came_back=%d exit=%d "
      "processor_s=%.1f\n",
      static_cast<unsigned long long>(totals_.started),
      static_cast<unsigned long long>(totals_.whole), static_cast<unsigned long long>(totals_.cut),
      static_cast<unsigned long long>(totals_.refused),
      static_cast<unsigned long long>(totals_.mismatches),
      static_cast<unsigned long long>(totals_.failed), f.orphans, f.zombies,
      static_cast<long long>(f.after.num_descriptors()) -
          static_cast<long long>(f.before.num_descriptors()),
      f.blocks_used, f.audit_violations, f.came_back ? 1 : 0, f.exit_code, ProcessorSeconds());
  return holds;
}

int Run(const Plan& plan) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // what is orphaned comes to us and is counted
  Chaos chaos(plan);
  if (!chaos.Start()) return 1;
  chaos.Run();
  chaos.Stop();
  return chaos.Report() ? 0 : 1;
}

int Main(int argc, char** argv) {
  Plan plan;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    int64_t* number = name == "--seconds"              ? &plan.seconds
                      : name == "--seed"               ? &plan.seed
                      : name == "--streams"            ? &plan.streams
                      : name == "--messages-per-fault" ? &plan.messages_per_fault
                                                       : nullptr;
    if (number == nullptr || i + 1 == argc || !absl::SimpleAtoi(argv[i + 1], number)) {
      std::fprintf(stderr, "skein-chaos: %s: no such flag, or its number is missing\n", argv[i]);
      return 64;
    }
  }
  return Run(plan);
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) { return skein::tests::Main(argc, argv); }
