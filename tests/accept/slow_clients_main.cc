// Acceptance check 11: thousands of connections that send or read a byte a second, beside honest
// clients, which must not notice.
//   slow_clients [--drippers N] [--readers N] [--seconds N]
// seconds: of the honest baseline, and of the slow readers (10). The last line has the figures;
// exit 0: they hold. With fewer than 10,000 drippers figures of speed are printed and not judged.
#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "tests/accept/program_directory.h"
#include "tests/accept/slow_clients.h"
#include "tests/accept/stream_load.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

using protocol::Concat;
using protocol::MonotonicNow;

constexpr size_t kHonest = 50;
constexpr size_t kHonestTokens = 20;
constexpr int kStepUs = 50'000;
constexpr size_t kOpensPerRound = 200;
constexpr int64_t kAllDrippers = 10'000;
constexpr double kGoneMax = 15;
constexpr uint64_t kMemoryMax = uint64_t{1} << 30;

struct Plan {
  int64_t drippers = kAllDrippers;
  int64_t readers = 1000;
  int64_t seconds = 10;
};

struct Figures {
  double baseline_p99_ms = 0, drip_p99_ms = 0;
  size_t drippers = 0, drippers_gone = 0;
  double slowest_gone_s = 0;
  double baseline_rate = 0, reader_rate = 0;  // characters a second of the honest streams
  size_t readers = 0, readers_ended = 0;
  uint64_t memory_bytes = 0;
};

double P99(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) * 99 / 100];
}

// Lets honest streams and slow clients run; characters a second of the honest ones.
double RunFor(StreamLoad& honest, SlowClients* slow, absl::Duration time) {
  honest.TakeDurations();
  const uint64_t before = honest.received();
  const absl::Time begin = MonotonicNow();
  while (MonotonicNow() < begin + time) {
    honest.Poll(std::chrono::milliseconds(2));
    if (slow != nullptr) slow->Poll();
  }
  return static_cast<double>(honest.received() - before) /
         absl::ToDoubleSeconds(MonotonicNow() - begin);
}

// Half of them never end their head, half never end their body.
void Drip(uint16_t port, const Plan& plan, StreamLoad& honest, Figures& figures) {
  SlowClients drippers(
      port, {{.first = "GET /v1/models HTTP/1.1\r\nHost: a\r\nX-Drip: ", .drip = "x"},
             {.first = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json"
                       "\r\nContent-Length: 100000\r\n\r\n{\"prompt\":\"",
              .drip = "x"}});
  honest.TakeDurations();
  const auto wanted = static_cast<size_t>(plan.drippers);
  const absl::Time end = MonotonicNow() + absl::Seconds(60);
  while (MonotonicNow() < end && (drippers.opened() < wanted || drippers.open() > 0)) {
    const size_t missing = wanted - drippers.opened();
    if (missing > 0 && !drippers.Open(std::min(missing, kOpensPerRound))) break;
    honest.Poll(std::chrono::milliseconds(2));
    drippers.Poll();
  }
  figures.drip_p99_ms = 1e3 * P99(honest.TakeDurations());
  figures.drippers = drippers.opened();
  figures.drippers_gone = drippers.ended();
  figures.slowest_gone_s = drippers.longest_s();
}

// Streams of large events whose readers take a byte a second.
void ReadSlowly(uint16_t port, const Plan& plan, StreamLoad& honest, Figures& figures) {
  const std::string body =
      R"({"prompt":[40,41,42,43],"temperature":0,"ignore_eos":true,"stream":true,)"
      R"("logprobs":5,"max_tokens":4000})";
  SlowClients readers(
      port,
      {{.first = Concat("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: ",
                        "application/json\r\nContent-Length: ", body.size(), "\r\n\r\n", body),
        .drip = "",
        .receive_buffer = 2048}});
  while (readers.opened() < static_cast<size_t>(plan.readers) && readers.Open(50)) {
    honest.Poll(std::chrono::milliseconds(2));
    readers.Poll();
  }
  RunFor(honest, &readers, absl::Seconds(2));
  figures.reader_rate = RunFor(honest, &readers, absl::Seconds(plan.seconds));
  figures.readers = readers.opened();
  figures.readers_ended = readers.ended();
}

std::vector<std::string> ServerFlags(const Plan& plan, uint16_t port) {
  return {"--model",
          "deploy/models/tiny-v41",
          "--port",
          std::to_string(port),
          "--data-parallel-size",
          "2",
          "--max-num-seqs",
          std::to_string(plan.readers / 2 + 2 * static_cast<int64_t>(kHonest)),
          "--max-num-batched-tokens",
          "4096",
          "--max-num-queued-reqs",
          "4096",
          "--max-num-queued-tokens",
          "1000000",
          "--max-connections",
          "16000",
          "--max-connections-per-address",
          "16000",
          "--log-level",
          "warn"};
}

void Print(const Figures& figures, const StreamLoad::Totals& totals) {
  std::printf(
      "drippers=%zu gone=%zu slowest_gone_s=%.1f honest_p99_ms=%.0f honest_p99_baseline_ms=%.0f "
      "memory_mib=%llu readers=%zu readers_ended=%zu others_share=%.3f honest=%llu/%llu\n",
      figures.drippers, figures.drippers_gone, figures.slowest_gone_s, figures.drip_p99_ms,
      figures.baseline_p99_ms, static_cast<unsigned long long>(figures.memory_bytes >> 20),
      figures.readers, figures.readers_ended,
      figures.baseline_rate > 0 ? figures.reader_rate / figures.baseline_rate : 0,
      static_cast<unsigned long long>(totals.whole),
      static_cast<unsigned long long>(totals.started));
}

int Run(const Plan& plan) {
  if (RaiseDescriptorLimit() < static_cast<size_t>(plan.drippers) + 200) {
    std::printf("skipped: the limit of descriptors is below %lld\n",
                static_cast<long long>(plan.drippers + 200));
    return 77;
  }
  const ProgramDirectory programs("mock-worker");
  programs.SetMockSpeed(kStepUs, 0);
  LiveServer server(programs.path());
  const uint16_t port = FreePort();
  if (!server.StartReady(ServerFlags(plan, port))) {
    std::printf("not ready:\n%s\n", server.output().c_str());
    return 1;
  }
  StreamLoad honest({.port = port, .streams = kHonest, .tokens = kHonestTokens});
  honest.Start();
  RunFor(honest, nullptr, absl::Seconds(2));
  Figures figures;
  figures.baseline_rate = RunFor(honest, nullptr, absl::Seconds(plan.seconds));
  figures.baseline_p99_ms = 1e3 * P99(honest.TakeDurations());
  Drip(port, plan, honest, figures);
  ReadSlowly(port, plan, honest, figures);
  figures.memory_bytes = StatusBytes(server.Find("skein-coordinator").pid(), "VmHWM");
  honest.Finish();
  while (!honest.idle()) honest.Poll(std::chrono::milliseconds(20));
  const StreamLoad::Totals& totals = honest.totals();
  if (!totals.failure.empty()) {
    std::printf("first failure: %s\n%s\n", totals.failure.c_str(), server.errors().c_str());
  }
  Print(figures, totals);
  const bool safe = figures.drippers == static_cast<size_t>(plan.drippers) &&
                    figures.drippers_gone == figures.drippers &&
                    figures.slowest_gone_s <= kGoneMax && figures.memory_bytes > 0 &&
                    figures.memory_bytes <= kMemoryMax && totals.whole == totals.started &&
                    figures.readers == static_cast<size_t>(plan.readers);
  const bool unnoticed = figures.drip_p99_ms <= 2 * figures.baseline_p99_ms &&
                         figures.reader_rate >= 0.95 * figures.baseline_rate;
  return safe && (unnoticed || plan.drippers < kAllDrippers) ? 0 : 1;
}

int Main(int argc, char** argv) {
  Plan plan;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    int64_t* number = name == "--drippers"  ? &plan.drippers
                      : name == "--readers" ? &plan.readers
                      : name == "--seconds" ? &plan.seconds
                                            : nullptr;
    if (number == nullptr || i + 1 == argc || !absl::SimpleAtoi(argv[i + 1], number) ||
        *number < 1) {
      std::fprintf(stderr, "slow_clients: %s: no such flag, or no number above 0\n", argv[i]);
      return 64;
    }
  }
  return Run(plan);
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) { return skein::tests::Main(argc, argv); }
