// Acceptance check 12: ten times the capacity by the clock. What is served stays as much as at the
// peak and exact, the rest is refused at once and told when to come back, and afterwards all is as
// before.
//   overload [--seconds N] [--phase-seconds N]
// N: of the overload (30), and of each other phase (8). The last line has the figures; exit 0: they
// hold. Shorter than 10 s, figures of speed are printed and not judged.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <poll.h>

#include "absl/strings/numbers.h"
#include "protocol/base/strings.h"
#include "tests/accept/open_load.h"
#include "tests/accept/program_directory.h"
#include "tests/process/live_server.h"
#include "tests/protocol/raw_connection.h"

namespace skein::tests {
namespace {

// The mock decodes 32 sequences in steps of 20 ms, an answer takes 32 steps: 50 requests a second.
constexpr int kStepUs = 20'000;
constexpr int kSequences = 32;
constexpr size_t kTokens = 32;
constexpr double kCapacity = 1e6 / kStepUs * kSequences / kTokens;
constexpr double kRampSeconds = 2;  // at the beginning of a phase, not counted
constexpr double kBackSlack = 1.5;

struct Phase {
  double begin_s = 0, end_s = 0;
};

struct Figures {
  double peak = 0, overload = 0;  // tokens of whole answers a second
  double refusal_p99_ms = 0;
  double normal_p99_ms = 0, back_s = -1;
  uint64_t whole = 0, refused = 0, flawed = 0, broken = 0;
  uint64_t probes = 0, no_retry_after = 0;
};

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

// Asks again and again by itself; every refusal must say when to come back.
class RetryAfterProbe {
 public:
  explicit RetryAfterProbe(uint16_t port) : thread_([this, port] { Loop(port); }) {}
  ~RetryAfterProbe() { Stop(); }
  void Stop() {
    stops_ = true;
    if (thread_.joinable()) thread_.join();
  }
  uint64_t refusals() const { return refusals_; }
  uint64_t silent() const { return silent_; }

 private:
  void Loop(uint16_t port) {
    const std::string body = R"({"prompt":[40,41,42],"temperature":0,"max_tokens":1})";
    const std::string request = protocol::KeptRequest("POST", "/v1/completions", "127.0.0.1",
                                                      "Connection: close\r\n", body);
    while (!stops_) {
      RawConnection connection(port);
      connection.Send(request);
      const std::string answer = connection.ReadToEnd();
      if (answer.find(" 503 ") == 8 || answer.find(" 429 ") == 8) {
        ++refusals_;
        silent_ += answer.find("\r\nRetry-After: ") == std::string::npos ? 1 : 0;
      }
      ::poll(nullptr, 0, 20);
    }
  }

  std::atomic<bool> stops_ = false;
  std::atomic<uint64_t> refusals_ = 0, silent_ = 0;
  std::thread thread_;
};

Phase RunPhase(OpenLoad& load, double times, double seconds) {
  Phase phase;
  phase.begin_s = load.now_s();
  load.Run(times * kCapacity, seconds);
  phase.end_s = load.now_s();
  return phase;
}

// Tokens a second of the answers that ended whole in the phase, without its beginning.
double Goodput(const OpenLoad& load, const Phase& phase) {
  const double begin = phase.begin_s + std::min(kRampSeconds, (phase.end_s - phase.begin_s) / 2);
  double tokens = 0;
  for (const OpenCall& call : load.calls()) {
    const double ended = call.arrived_s + call.ended_s;
    if (call.end == OpenCall::End::kWhole && ended >= begin && ended < phase.end_s) {
      tokens += static_cast<double>(kTokens);
    }
  }
  return tokens / (phase.end_s - begin);
}

// p99 of the time to the first token of those that arrived in this time; refused ones count as
// endless.
double FirstTokenP99(const OpenLoad& load, double begin, double end) {
  std::vector<double> times;
  for (const OpenCall& call : load.calls()) {
    if (call.arrived_s < begin || call.arrived_s >= end) continue;
    times.push_back(call.end == OpenCall::End::kWhole ? call.first_token_s : 1e3);
  }
  return Percentile(times, 0.99);
}

// Seconds of the last phase after which every further second is as good as normal; -1: none.
double SecondsUntilNormal(const OpenLoad& load, const Phase& phase, double normal) {
  double back = 0;
  for (double at = phase.begin_s; at + 1 <= phase.end_s; at += 1) {
    const double p99 = FirstTokenP99(load, at, at + 1);
    if (p99 > kBackSlack * normal) back = at + 1 - phase.begin_s;
  }
  return back + 1 > phase.end_s - phase.begin_s ? -1 : back;
}

Figures Measure(OpenLoad& load, uint16_t port, double phase_s, double overload_s) {
  Figures figures;
  const Phase normal = RunPhase(load, 0.5, phase_s);
  const Phase full = RunPhase(load, 1, phase_s);
  const Phase twice = RunPhase(load, 2, phase_s);
  RetryAfterProbe probe(port);
  const Phase tenfold = RunPhase(load, 10, overload_s);
  probe.Stop();
  const Phase after = RunPhase(load, 0.5, phase_s);
  load.Finish();
  figures.probes = probe.refusals();
  figures.no_retry_after = probe.silent();
  figures.peak = std::max(Goodput(load, full), Goodput(load, twice));
  figures.overload = Goodput(load, tenfold);
  const double normal_p99 = FirstTokenP99(load, normal.begin_s, normal.end_s);
  figures.normal_p99_ms = 1e3 * normal_p99;
  figures.back_s = SecondsUntilNormal(load, after, normal_p99);
  std::vector<double> refusals;
  for (const OpenCall& call : load.calls()) {
    figures.whole += call.end == OpenCall::End::kWhole ? 1 : 0;
    figures.flawed += call.end == OpenCall::End::kFlawed ? 1 : 0;
    figures.broken += call.end == OpenCall::End::kBroken ? 1 : 0;
    if (call.end == OpenCall::End::kRefused) refusals.push_back(call.ended_s);
  }
  figures.refused = refusals.size();
  figures.refusal_p99_ms = 1e3 * Percentile(refusals, 0.99);
  return figures;
}

int Run(int64_t overload_s, int64_t phase_s) {
  const ProgramDirectory programs("mock-worker");
  programs.SetMockSpeed(kStepUs, 0);
  LiveServer server(programs.path());
  const uint16_t port = FreePort();
  if (!server.StartReady({"--model", "deploy/models/tiny-v41", "--port", std::to_string(port),
                          "--max-num-seqs", std::to_string(kSequences), "--max-num-queued-reqs",
                          std::to_string(kSequences), "--max-num-queued-tokens", "1000000",
                          "--max-connections-per-address", "4000", "--log-level", "warn"})) {
    std::printf("not ready:\n%s\n", server.output().c_str());
    return 1;
  }
  OpenLoad load({.port = port, .prompt_tokens = 32, .tokens = kTokens});
  const Figures figures =
      Measure(load, port, static_cast<double>(phase_s), static_cast<double>(overload_s));
  if (!load.first_failure().empty()) {
    std::printf("first failure: %s\n%s\n", load.first_failure().c_str(), server.errors().c_str());
  }
  std::printf(
      "overload_s=%lld requests=%zu whole=%llu refused=%llu flawed=%llu broken=%llu "
      "no_retry_after=%llu/%llu goodput_peak=%.0f goodput_10x=%.0f goodput_share=%.3f "
      "refusal_p99_ms=%.1f normal_p99_ms=%.1f back_s=%.0f\n",
      static_cast<long long>(overload_s), load.calls().size(),
      static_cast<unsigned long long>(figures.whole),
      static_cast<unsigned long long>(figures.refused),
      static_cast<unsigned long long>(figures.flawed),
      static_cast<unsigned long long>(figures.broken),
      static_cast<unsigned long long>(figures.no_retry_after),
      static_cast<unsigned long long>(figures.probes), figures.peak, figures.overload,
      figures.peak > 0 ? figures.overload / figures.peak : 0, figures.refusal_p99_ms,
      figures.normal_p99_ms, figures.back_s);
  const bool exact = figures.flawed + figures.broken + figures.no_retry_after == 0 &&
                     figures.whole > 0 && figures.refused > 0 && figures.probes > 0;
  const bool fast = figures.overload >= 0.9 * figures.peak && figures.refusal_p99_ms <= 50 &&
                    figures.back_s >= 0 && figures.back_s <= 5;
  return exact && (fast || overload_s < 10) ? 0 : 1;
}

int Main(int argc, char** argv) {
  int64_t overload_s = 30;
  int64_t phase_s = 8;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    int64_t* number = name == "--seconds"         ? &overload_s
                      : name == "--phase-seconds" ? &phase_s
                                                  : nullptr;
    if (number == nullptr || i + 1 == argc || !absl::SimpleAtoi(argv[i + 1], number) ||
        *number < 1) {
      std::fprintf(stderr, "overload: %s: no such flag, or no number above 0\n", argv[i]);
      return 64;
    }
  }
  return Run(overload_s, phase_s);
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) { return skein::tests::Main(argc, argv); }
