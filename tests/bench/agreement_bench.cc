// agreement_bench: skein bench and a raw-socket client load the same server in turn, ABBA; their
// throughput and TTFT must agree within 2 %.
// Main thread, and those of the client. Must never compare different loads.
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "protocol/base/strings.h"
#include "protocol/json/json.h"
#include "tests/bench/bench_line.h"
#include "tests/bench/null_cluster.h"
#include "tests/bench/raw_sse_client.h"
#include "tests/process/live_server.h"
#include "worker/node/commands/bench_workload.h"

namespace skein::bench {
namespace {

using protocol::Concat;

constexpr int kConcurrency = 4;
constexpr int64_t kStepUs = 8'000;
constexpr double kToleranceMax = 0.02;
constexpr double kRangeRatio = 0.5;
constexpr char kUsage[] =
    "usage: agreement_bench [--server null|cpu] [--commit ID] [--pairs N] [--prompts N] [--seed "
    "N]\n"
    "Measures a server N times (6) with each client: a closed loop of 4 completions of 32 + 32\n"
    "tokens. null: a coordinator whose worker answers each step after 8 ms, which keeps the\n"
    "server's own noise out. cpu: skein serve with one compute thread; lengths are random from 16\n"
    "to 48, or the four would end and begin in one step, and who is first would decide the TTFT.\n"
    "Exit 1 when the median of the pairs differs by more than 2 %.\n";

struct Options {
  RunIdentity run;
  std::string server = "null";
  int pairs = 6;
  int64_t prompts = 48;
};

struct Sample {
  double throughput = 0;
  double ttft_ms = 0;
};

worker::BenchOptions LoadOptions(const Options& options, int64_t seed) {
  worker::BenchOptions load;
  load.num_prompts = options.prompts;
  load.random_input_len = load.random_output_len = 32;
  load.random_range_ratio = options.server == "cpu" ? kRangeRatio : 0;
  load.ignore_eos = true;
  load.seed = seed;
  return load;
}

bool MeasureRaw(const Options& options, uint16_t port, int64_t seed, Sample& sample) {
  const auto workload = worker::MakeWorkload(
      LoadOptions(options, seed), "",
      [](std::string_view) -> absl::StatusOr<int64_t> { return absl::InternalError("no text"); });
  std::vector<std::string> bodies;
  int64_t tokens = 0;
  for (const worker::BenchRequest& request : workload->requests) {
    bodies.push_back(request.body);
    tokens += request.output_len;
  }
  const RawResult result = RunRawClient(port, bodies, kConcurrency);
  sample = {static_cast<double>(tokens) / result.seconds, result.mean_ttft_ms};
  return result.answers == static_cast<uint64_t>(options.prompts);
}

bool MeasureTool(const Options& options, uint16_t port, int64_t seed, Sample& sample) {
  const std::string path = Concat("/tmp/skein_agreement_", ::getpid(), ".json");
  const std::string command =
      Concat(SKEIN_PROGRAM_DIRECTORY, "/skein bench --port ", port, " --num-prompts ",
             options.prompts, " --random-input-len 32 --random-output-len 32 --ignore-eos --seed ",
             seed, " --max-concurrency ", kConcurrency, " --random-range-ratio ",
             LoadOptions(options, seed).random_range_ratio, " --save-result --result-filename ",
             path, " > /dev/null");
  const int status = std::system(command.c_str());
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return false;
  std::ifstream file(path);
  ::unlink(path.c_str());
  std::ostringstream text;
  text << file.rdbuf();
  const auto result = protocol::ParseJson(text.str());
  if (!result.ok()) return false;
  const auto number = [&](std::string_view key) {
    const protocol::JsonValue* value = result->Find(key);
    return value == nullptr ? 0 : value->AsDouble(key).value_or(0);
  };
  sample = {number("output_throughput"), number("mean_ttft_ms")};
  return number("completed") == static_cast<double>(options.prompts);
}

double Median(const std::vector<Sample>& samples, double Sample::*member) {
  std::vector<double> values;
  for (const Sample& sample : samples) values.push_back(sample.*member);
  return Percentile(values, 50);
}

// The median over the pairs of tool / raw - 1: a pair shares the state of the machine.
double Difference(const std::vector<Sample>& tool, const std::vector<Sample>& raw,
                  double Sample::*member) {
  std::vector<double> ratios;
  for (size_t i = 0; i < tool.size(); ++i) {
    ratios.push_back(tool[i].*member / (raw[i].*member) - 1);
    std::fprintf(stderr, "  pair %zu: raw %.2f, skein bench %.2f\n", i, raw[i].*member,
                 tool[i].*member);
  }
  return Percentile(ratios, 50);
}

// Both clients in turn, and what the pairs say.
int MeasureAt(const Options& options, uint16_t port) {
  std::vector<Sample> raw;
  std::vector<Sample> tool;
  Sample sample;
  bool valid = MeasureRaw(options, port, 99, sample);  // not counted
  for (int pair = 0; pair < options.pairs; ++pair) {
    for (const bool is_raw : {pair % 2 == 0, pair % 2 != 0}) {
      // Both clients of a pair send the same prompts.
      const int64_t seed = static_cast<int64_t>(options.run.seed) + pair;
      valid = valid && (is_raw ? MeasureRaw(options, port, seed, sample)
                               : MeasureTool(options, port, seed, sample));
      (is_raw ? raw : tool).push_back(sample);
    }
  }
  const double throughput = Difference(tool, raw, &Sample::throughput);
  const double ttft = Difference(tool, raw, &Sample::ttft_ms);
  valid = valid && std::abs(throughput) <= kToleranceMax && std::abs(ttft) <= kToleranceMax;
  std::fprintf(stderr, "agreement throughput %+.2f %%, TTFT %+.2f %%: %s\n", 100 * throughput,
               100 * ttft, valid ? "within 2 %" : "NOT within 2 %, or a run failed");
  PrintCase(options.run, options.server == "cpu" ? "closed_loop_cpu" : "closed_loop",
            {{"concurrency", std::to_string(kConcurrency)},
             {"prompts", std::to_string(options.prompts)},
             {"raw_output_tok_s", JsonNumber(Median(raw, &Sample::throughput))},
             {"tool_output_tok_s", JsonNumber(Median(tool, &Sample::throughput))},
             {"raw_ttft_ms", JsonNumber(Median(raw, &Sample::ttft_ms))},
             {"tool_ttft_ms", JsonNumber(Median(tool, &Sample::ttft_ms))},
             {"throughput_difference", JsonNumber(throughput)},
             {"ttft_difference", JsonNumber(ttft)}},
            valid);
  return valid ? 0 : 1;
}

int Measure(const Options& options) {
  if (options.server == "cpu") {
    tests::LiveServer server;
    if (!server.StartReady({"--model", "deploy/models/tiny-v41", "--threads", "1"})) {
      std::fprintf(stderr, "agreement_bench: no server: %s\n", server.output().c_str());
      return 1;
    }
    return MeasureAt(options, server.port());
  }
  const auto cluster = NullCluster::Start("deploy/models/tiny-v41", UsableCores() > 1, kStepUs);
  if (!cluster.ok()) {
    std::fprintf(stderr, "agreement_bench: no server: %s\n",
                 std::string(protocol::StatusText(cluster.status())).c_str());
    return 1;
  }
  return MeasureAt(options, (*cluster)->port());
}

int Main(int argc, char** argv) {
  Options options;
  options.run.bench = "agreement_bench";
  options.run.seed = 1;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--commit") {
      options.run.commit = value;
    } else if (name == "--server" &&
               (std::string_view(value) == "null" || std::string_view(value) == "cpu")) {
      options.server = value;
    } else if (!(name == "--pairs" && absl::SimpleAtoi(value, &options.pairs)) &&
               !(name == "--prompts" && absl::SimpleAtoi(value, &options.prompts)) &&
               !(name == "--seed" && absl::SimpleAtoi(value, &options.run.seed))) {
      std::fputs(kUsage, stderr);
      return 64;
    }
  }
  options.run.reps = options.pairs;
  return Measure(options);
}

}  // namespace
}  // namespace skein::bench

int main(int argc, char** argv) { return skein::bench::Main(argc, argv); }
