// startup_bench: how long skein serve takes until it answers: files not in the page cache (cold),
// in it (warm), and after its worker was killed (crash).
// Main thread, and the one that reads the output. Must never count a server that did not answer.
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "protocol/http/http_client.h"
#include "tests/bench/bench_line.h"
#include "tests/process/live_server.h"
#include "worker/node/descriptor.h"

namespace skein::bench {
namespace {

using protocol::MonotonicNow;

constexpr char kUsage[] =
    "usage: startup_bench [--case cold|warm|crash] [--commit ID] [--reps N] [--model DIR]\n"
    "Medians of N starts (5). Targets: ready_s 10, first_token_s 1. Cold drops the model's files\n"
    "from the page cache first; programs and libraries stay in it.\n";

struct Options {
  RunIdentity run;
  std::string only;
  std::string model = "deploy/models/tiny-v41";
};

struct Start {
  double supervised_s = 0;   // the supervisor prints its table
  double listening_s = 0;    // the coordinator accepts connections
  double loaded_s = 0;       // the worker has its weights
  double ready_s = 0;        // /health is 200
  double first_token_s = 0;  // after ready: one token was answered
  double load_gbs = 0;       // weight bytes over the time between table and loaded
};

double SecondsSince(absl::Time begin) { return absl::ToDoubleSeconds(MonotonicNow() - begin); }

std::vector<std::string> WeightFiles(const std::string& model) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(model)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  return files;
}

double WeightBytes(const std::string& model) {
  double bytes = 0;
  for (const std::string& file : WeightFiles(model)) {
    bytes += static_cast<double>(std::filesystem::file_size(file));
  }
  return bytes;
}

void DropFromCache(const std::string& model) {
  for (const auto& entry : std::filesystem::directory_iterator(model)) {
    const worker::Descriptor file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    if (file.valid()) ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

bool AnswersOneToken(uint16_t port) {
  protocol::HttpCall call;
  call.port = port;
  call.method = "POST";
  call.target = "/v1/completions";
  call.body = "{\"prompt\":[300,301,302],\"max_tokens\":1,\"temperature\":0,\"ignore_eos\":true}";
  const auto answer = protocol::CallHttp(call);
  return answer.ok() && answer->status == 200;
}

// One start of a whole node; false when it did not answer.
bool MeasureStart(const Options& options, Start& start) {
  tests::LiveServer server;
  const absl::Time begin = MonotonicNow();
  server.Start({"--model", options.model});
  if (!server.WaitForOutput("api          http://")) return false;
  start.supervised_s = SecondsSince(begin);
  if (!server.WaitForOutput("coordinator: ready")) return false;
  start.listening_s = SecondsSince(begin);
  if (!server.WaitForOutput("model loaded")) return false;
  start.loaded_s = SecondsSince(begin);
  if (!server.WaitForHealth(200)) return false;
  const absl::Time ready = MonotonicNow();
  start.ready_s = absl::ToDoubleSeconds(ready - begin);
  if (!AnswersOneToken(server.port())) return false;
  start.first_token_s = SecondsSince(ready);
  start.load_gbs = WeightBytes(options.model) / 1e9 / (start.loaded_s - start.supervised_s);
  return true;
}

// The worker of a running node is killed; the time until the next token.
bool MeasureCrash(const Options& options, Start& start) {
  tests::LiveServer server;
  if (!server.StartReady({"--model", options.model})) return false;
  if (!AnswersOneToken(server.port())) return false;
  const absl::Time begin = MonotonicNow();
  if (!server.Find("skein-worker").Signal(SIGKILL)) return false;
  if (!server.WaitForOutput("model loaded", 2)) return false;
  start.loaded_s = SecondsSince(begin);
  if (!server.WaitForHealth(200)) return false;
  const absl::Time ready = MonotonicNow();
  start.ready_s = absl::ToDoubleSeconds(ready - begin);
  if (!AnswersOneToken(server.port())) return false;
  start.first_token_s = SecondsSince(ready);
  return true;
}

std::string Median(const std::vector<Start>& starts, double Start::*member) {
  std::vector<double> values;
  for (const Start& start : starts) values.push_back(start.*member);
  return JsonNumber(Percentile(values, 50));
}

int Run(const Options& options, std::string_view name) {
  std::vector<Start> starts;
  bool valid = true;
  for (int i = 0; i < options.run.reps && valid; ++i) {
    Start start;
    if (name == "cold") DropFromCache(options.model);
    valid = name == "crash" ? MeasureCrash(options, start) : MeasureStart(options, start);
    if (valid) starts.push_back(start);
  }
  const std::string phases =
      name == "crash" ? protocol::Concat("{\"loaded\":", Median(starts, &Start::loaded_s), "}")
                      : protocol::Concat("{\"supervised\":", Median(starts, &Start::supervised_s),
                                         ",\"listening\":", Median(starts, &Start::listening_s),
                                         ",\"loaded\":", Median(starts, &Start::loaded_s), "}");
  std::fprintf(stderr, "%-6s ready %s s, first token %s s later%s\n", std::string(name).c_str(),
               Median(starts, &Start::ready_s).c_str(),
               Median(starts, &Start::first_token_s).c_str(), valid ? "" : ", FAILED");
  PrintCase(options.run, name,
            {{"model", JsonText(std::filesystem::path(options.model).filename().string())},
             {"phase_s", phases},
             {"ready_s", Median(starts, &Start::ready_s)},
             {"first_token_s", Median(starts, &Start::first_token_s)},
             {"load_gbs", name == "crash" ? "null" : Median(starts, &Start::load_gbs)},
             {"pct_storage", "null"}},
            valid);
  return valid ? 0 : 1;
}

int Main(int argc, char** argv) {
  Options options;
  options.run.bench = "startup_bench";
  options.run.reps = 5;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--commit") {
      options.run.commit = value;
    } else if (name == "--case") {
      options.only = value;
    } else if (name == "--model") {
      options.model = value;
    } else if (name != "--reps" || !absl::SimpleAtoi(value, &options.run.reps)) {
      std::fputs(kUsage, stderr);
      return 64;
    }
  }
  int code = 0;
  for (const char* name : {"cold", "warm", "crash"}) {
    if (options.only.empty() || options.only == name) code |= Run(options, name);
  }
  return code;
}

}  // namespace
}  // namespace skein::bench

int main(int argc, char** argv) { return skein::bench::Main(argc, argv); }
