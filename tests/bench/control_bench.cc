// control_bench: the coordinator alone. The real skein-coordinator on one core; on the other a null
// worker, which answers plans without computing, and this client. performance.md section 7.
// Main thread. Must never print a rate that was measured with failed requests as valid.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "protocol/base/strings.h"
#include "tests/bench/bench_line.h"
#include "tests/bench/bench_process.h"
#include "tests/bench/control_load.h"
#include "tests/bench/control_messages.h"
#include "tests/bench/null_cluster.h"

namespace skein::bench {
namespace {

constexpr char kUsage[] =
    "usage: control_bench [--case http|sse|ttft|streams|messages] [--commit ID] [--seed N]\n"
    "                     [--seconds S] [--step-us N] [--model DIR]\n"
    "One JSON line per case on standard output. Without --case: all. --seconds: measured time of\n"
    "http and sse (3). --step-us: what the null worker waits for each plan (0; whole milliseconds\n"
    "above). Targets: http_req_s 15000, events_s 80000, added_ttft_us_p50 3000.\n";

struct Options {
  std::string only;
  RunIdentity run;
  int64_t seconds = 3;
  int64_t step_us = 0;
  std::string model = "deploy/models/tiny-v41";
  bool two_cores = UsableCores() > 1;  // before this thread is pinned
};

// Prompts of eight random token ids.
std::vector<std::string> Bodies(uint64_t seed, std::string_view rest) {
  std::vector<std::string> bodies;
  uint64_t state = seed;
  for (int i = 0; i < 256; ++i) {
    std::string ids;
    for (int j = 0; j < 8; ++j) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      absl::StrAppend(&ids, j == 0 ? "" : ",", 300 + (state >> 33) % 3000);
    }
    bodies.push_back(protocol::Concat("{\"prompt\":[", ids, "],", rest, "}"));
  }
  return bodies;
}

std::string Placement(const Options& options) {
  return JsonText(options.two_cores
                      ? "coordinator on core 0; client and null worker together on core 1"
                      : "one core for everything");
}

int Failed(const absl::Status& status) {
  std::fprintf(stderr, "control_bench: %s\n", std::string(protocol::StatusText(status)).c_str());
  return 1;
}

struct Measured {
  LoadCounts counts;
  double cpu_seconds = 0;
};

absl::StatusOr<Measured> RunLoad(const NullCluster& cluster, LoadSpec spec) {
  auto load = ControlLoad::Create(cluster.port(), std::move(spec));
  if (!load.ok()) return load.status();
  const double cpu = cluster.coordinator().CpuSeconds();
  const auto warm_up = std::chrono::milliseconds(500);
  Measured measured;
  measured.counts = (*load)->Run(warm_up);
  // The warm-up is under the same load.
  measured.cpu_seconds = (cluster.coordinator().CpuSeconds() - cpu) * measured.counts.seconds /
                         (measured.counts.seconds + 0.5);
  if (!measured.counts.first_failure.empty()) {
    std::fprintf(stderr, "control_bench: %llu requests failed: %s\n",
                 static_cast<unsigned long long>(measured.counts.failures),
                 measured.counts.first_failure.c_str());
  }
  return measured;
}

int RunHttp(const Options& options) {
  const auto cluster = NullCluster::Start(options.model, options.two_cores, options.step_us);
  if (!cluster.ok()) return Failed(cluster.status());
  LoadSpec spec;
  spec.bodies = Bodies(options.run.seed, "\"max_tokens\":1,\"ignore_eos\":true,\"temperature\":0");
  spec.concurrency = 64;
  spec.duration = std::chrono::seconds(options.seconds);
  auto measured = RunLoad(**cluster, std::move(spec));
  if (!measured.ok()) return Failed(measured.status());
  LoadCounts& counts = measured->counts;
  const double rate = static_cast<double>(counts.answers) / counts.seconds;
  std::fprintf(stderr, "http     %.0f requests/s, coordinator %.0f %% of a core\n", rate,
               100 * measured->cpu_seconds / counts.seconds);
  PrintCase(options.run, "http",
            {{"placement", Placement(options)},
             {"live", "64"},
             {"step_us", std::to_string(options.step_us)},
             {"http_req_s", JsonNumber(rate)},
             {"e2e_us_p50", JsonNumber(Percentile(counts.e2e_us, 50))},
             {"e2e_us_p99", JsonNumber(Percentile(counts.e2e_us, 99))},
             {"coordinator_cpu", JsonNumber(measured->cpu_seconds / counts.seconds)},
             {"errors", std::to_string(counts.failures)}},
            counts.failures == 0 && counts.answers > 0);
  return counts.failures == 0 ? 0 : 1;
}

int RunSse(const Options& options, int live) {
  const auto cluster = NullCluster::Start(options.model, options.two_cores, options.step_us);
  if (!cluster.ok()) return Failed(cluster.status());
  LoadSpec spec;
  spec.bodies = Bodies(options.run.seed,
                       "\"max_tokens\":1000,\"ignore_eos\":true,\"temperature\":0,\"stream\":true");
  spec.concurrency = live;
  spec.duration = std::chrono::seconds(options.seconds);
  auto measured = RunLoad(**cluster, std::move(spec));
  if (!measured.ok()) return Failed(measured.status());
  LoadCounts& counts = measured->counts;
  const double rate = static_cast<double>(counts.events) / counts.seconds;
  std::fprintf(stderr, "sse %4d %.0f events/s, coordinator %.0f %% of a core\n", live, rate,
               100 * measured->cpu_seconds / counts.seconds);
  PrintCase(options.run, absl::StrCat("sse_", live),
            {{"placement", Placement(options)},
             {"live", std::to_string(live)},
             {"step_us", std::to_string(options.step_us)},
             {"events_s", JsonNumber(rate)},
             {"tok_s_core", JsonNumber(static_cast<double>(counts.events) /
                                       std::max(measured->cpu_seconds, 1e-9))},
             {"coordinator_cpu", JsonNumber(measured->cpu_seconds / counts.seconds)},
             {"errors", std::to_string(counts.failures)}},
            counts.failures == 0 && counts.events > 0);
  return counts.failures == 0 ? 0 : 1;
}

int RunTtft(const Options& options) {
  const auto cluster = NullCluster::Start(options.model, options.two_cores, 0);
  if (!cluster.ok()) return Failed(cluster.status());
  LoadSpec spec;
  spec.bodies = Bodies(options.run.seed,
                       "\"max_tokens\":2,\"ignore_eos\":true,\"temperature\":0,\"stream\":true");
  spec.requests_max = 5'000;
  spec.duration = std::chrono::seconds(5);
  auto measured = RunLoad(**cluster, std::move(spec));
  if (!measured.ok()) return Failed(measured.status());
  LoadCounts& counts = measured->counts;
  const double p50 = Percentile(counts.ttft_us, 50);
  const double p99 = Percentile(counts.ttft_us, 99);
  std::fprintf(stderr, "ttft     p50 %.0f us, p99 %.0f us\n", p50, p99);
  PrintCase(options.run, "ttft",
            {{"placement", Placement(options)},
             {"live", "1"},
             {"requests", std::to_string(counts.ttft_us.size())},
             {"added_ttft_us_p50", JsonNumber(p50)},
             {"added_ttft_us_p99", JsonNumber(p99)},
             {"errors", std::to_string(counts.failures)}},
            counts.failures == 0 && !counts.ttft_us.empty());
  return counts.failures == 0 ? 0 : 1;
}

// Chat streams: their first event comes with acceptance, so that those that wait are open too.
int RunStreams(const Options& options) {
  constexpr uint64_t kStreams = 10'000;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const auto cluster = NullCluster::Start(options.model, options.two_cores, 100'000);
  if (!cluster.ok()) return Failed(cluster.status());
  LoadSpec spec;
  spec.target = "/v1/chat/completions";
  spec.bodies = {
      "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"max_tokens\":1000,"
      "\"ignore_eos\":true,\"stream\":true,\"thinking\":{\"type\":\"disabled\"}}"};
  spec.concurrency = kStreams;
  auto load = ControlLoad::Create((*cluster)->port(), std::move(spec));
  if (!load.ok()) return Failed(load.status());
  const double before = (*cluster)->coordinator().ResidentMib();
  const LoadCounts counts = (*load)->Open(kStreams, std::chrono::seconds(30));
  const double after = (*cluster)->coordinator().ResidentMib();
  const bool valid = counts.open == kStreams && counts.failures == 0;
  std::fprintf(stderr, "streams  %llu open in %.1f s, %.1f MiB more (%.1f before) %s\n",
               static_cast<unsigned long long>(counts.open), counts.seconds, after - before, before,
               counts.first_failure.c_str());
  PrintCase(options.run, "streams",
            {{"placement", Placement(options)},
             {"live", std::to_string(counts.open)},
             {"step_us", "100000"},
             {"open_s", JsonNumber(counts.seconds)},
             {"rss_mb_before", JsonNumber(before)},
             {"rss_mb_per_10k_streams", JsonNumber(after - before)},
             {"errors", std::to_string(counts.failures)}},
            valid);
  return valid ? 0 : 1;
}

int RunMessages(const Options& options) {
  const CodecTimes codec = MeasureCodec(1000);
  char path[] = "/tmp/skein_control_XXXXXX";
  const std::string directory = ::mkdtemp(path);
  const auto inproc = MeasureMailbox(10'000);
  const auto ipc = MeasureTransport(absl::StrCat("ipc://", directory, "/control"), 5'000);
  const auto tcp = MeasureTransport("tcp://127.0.0.1:*", 5'000);
  ::unlink((directory + "/control").c_str());
  ::rmdir(directory.c_str());
  for (const auto* trip : {&inproc, &ipc, &tcp}) {
    if (!trip->ok()) return Failed(trip->status());
  }
  std::fprintf(stderr, "messages encode %.0f ns, decode %.0f ns; round trip %.1f, %.1f, %.1f us\n",
               codec.encode_ns, codec.decode_ns, inproc->p50_us, ipc->p50_us, tcp->p50_us);
  const auto both = [](const RoundTrip& trip) {
    return absl::StrCat("{\"p50\":", JsonNumber(trip.p50_us), ",\"p99\":", JsonNumber(trip.p99_us),
                        "}");
  };
  PrintCase(options.run, "messages",
            {{"live", "1000"},
             {"encode_ns", JsonNumber(codec.encode_ns)},
             {"decode_ns", JsonNumber(codec.decode_ns)},
             {"rtt_us", absl::StrCat("{\"inproc\":", both(*inproc), ",\"ipc\":", both(*ipc),
                                     ",\"tcp\":", both(*tcp), "}")}},
            codec.equal);
  return codec.equal ? 0 : 1;
}

bool ReadFlags(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    if (i + 1 >= argc) return false;
    const char* value = argv[i + 1];
    if (name == "--case") {
      options.only = value;
    } else if (name == "--commit") {
      options.run.commit = value;
    } else if (name == "--model") {
      options.model = value;
    } else if (name == "--seed") {
      if (!absl::SimpleAtoi(value, &options.run.seed)) return false;
    } else if (name == "--seconds") {
      if (!absl::SimpleAtoi(value, &options.seconds)) return false;
    } else if (name != "--step-us" || !absl::SimpleAtoi(value, &options.step_us)) {
      return false;
    }
  }
  return true;
}

int Main(int argc, char** argv) {
  Options options;
  options.run.bench = "control_bench";
  options.run.seed = 20240717;
  if (!ReadFlags(argc, argv, options)) {
    std::fputs(kUsage, stderr);
    return 64;
  }
  const auto wanted = [&](std::string_view name) {
    return options.only.empty() || options.only == name;
  };
  int code = 0;
  if (wanted("messages")) code |= RunMessages(options);  // before this thread is pinned
  if (wanted("http")) code |= RunHttp(options);
  if (wanted("sse")) code |= RunSse(options, 256) | RunSse(options, 1024);
  if (wanted("ttft")) code |= RunTtft(options);
  if (wanted("streams")) code |= RunStreams(options);
  return code;
}

}  // namespace
}  // namespace skein::bench

int main(int argc, char** argv) { return skein::bench::Main(argc, argv); }
