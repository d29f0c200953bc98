// Requests over a pool of kept connections, with the steady clock.
// Main thread. Must never report a run in which nothing succeeded as a success.
#include "worker/node/commands/bench.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>

#include <sys/resource.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "protocol/base/control_bytes.h"
#include "protocol/base/exit_codes.h"
#include "protocol/base/signal_watch.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/http/http_client.h"
#include "protocol/http/http_client_pool.h"
#include "protocol/json/json.h"
#include "protocol/json/json_writer.h"
#include "worker/node/commands/bench_compare.h"
#include "worker/node/commands/bench_load.h"
#include "worker/node/commands/bench_options.h"
#include "worker/node/commands/bench_report.h"
#include "worker/node/commands/bench_workload.h"
#include "worker/node/node_supervisor.h"

namespace skein::worker {
namespace {

using protocol::Concat;
using Clock = protocol::HttpClientPool::Clock;

constexpr int kExitInterrupted = 130;  // as shells report Ctrl-C

int Fail(const absl::Status& status, int code) {
  // What a server said may stand in it.
  std::fprintf(stderr, "skein bench: %s\n",
               protocol::EscapeControls(protocol::StatusText(status), "\n").c_str());
  return code;
}

// The server over HTTP.
class HttpTarget final : public BenchTarget, private protocol::HttpClientPool::Receiver {
 public:
  HttpTarget(const BenchOptions& options, std::unique_ptr<protocol::HttpClientPool> pool)
      : options_(options),
        pool_(std::move(pool)),
        host_(Concat(options.host, ":", options.port)),
        headers_(options.api_key.empty()
                     ? ""
                     : Concat("Authorization: Bearer ", options.api_key, "\r\n")) {}

  // The clock of a run begins.
  void Begin() { begin_ = Clock::now(); }
  double NowSeconds() override { return SecondsOf(Clock::now()); }
  void Start(uint64_t request, const std::string& body) override {
    pool_->Start(request, protocol::KeptRequest("POST", options_.endpoint, host_, headers_, body));
  }
  void Poll(double until_s, BenchTarget::Receiver& receiver) override {
    receiver_ = &receiver;
    const double wait_s = std::max(0.0, until_s - NowSeconds());
    pool_->Poll(std::chrono::nanoseconds(std::llround(wait_s * 1e9)), *this);
  }

 private:
  double SecondsOf(Clock::time_point at) const {
    return std::chrono::duration<double>(at - begin_).count();
  }
  void OnBody(uint64_t call, int status, std::string_view bytes, Clock::time_point at) override {
    receiver_->OnBody(call, status, bytes, SecondsOf(at));
  }
  void OnEnd(uint64_t call, int status, const absl::Status& result, Clock::time_point at) override {
    receiver_->OnEnd(call, status, result, SecondsOf(at));
  }

  const BenchOptions& options_;
  const std::unique_ptr<protocol::HttpClientPool> pool_;
  const std::string host_;
  const std::string headers_;
  Clock::time_point begin_ = Clock::now();
  BenchTarget::Receiver* receiver_ = nullptr;
};

// Where the server is, and how it is spoken to.
struct Server {
  const BenchOptions& options;
  std::shared_ptr<protocol::TlsContext> tls;  // null: none
};

protocol::HttpCall CallTo(const Server& server, std::string method, std::string target) {
  const BenchOptions& options = server.options;
  protocol::HttpCall call;
  call.host = options.host;
  call.tls = server.tls;
  call.port = static_cast<uint16_t>(options.port);
  call.method = std::move(method);
  call.target = std::move(target);
  if (!options.api_key.empty()) {
    call.headers.emplace_back("Authorization", Concat("Bearer ", options.api_key));
  }
  return call;
}

// The first served name; also the proof that a server is there.
absl::StatusOr<std::string> AskModel(const Server& server) {
  SKEIN_ASSIGN_OR_RETURN(const protocol::HttpResult result,
                         protocol::CallHttp(CallTo(server, "GET", "/v1/models")));
  const auto parsed = protocol::ParseJson(result.body);
  const protocol::JsonValue* data = parsed.ok() ? parsed->Find("data") : nullptr;
  if (result.status != 200 || data == nullptr || data->elements().empty()) {
    return absl::UnavailableError(Concat("GET /v1/models of ", server.options.host, ":",
                                         server.options.port, " answered ", result.status,
                                         " without a model; give --model"));
  }
  const protocol::JsonValue* id = data->elements()[0].Find("id");
  return std::string(id == nullptr ? std::string_view() : id->string());
}

absl::StatusOr<int64_t> CountTokens(const Server& server, std::string_view text) {
  protocol::HttpCall call = CallTo(server, "POST", "/tokenize");
  call.body = "{\"prompt\":";
  protocol::AppendJsonString(text, &call.body);
  call.body += ",\"add_special_tokens\":false}";
  SKEIN_ASSIGN_OR_RETURN(const protocol::HttpResult result, protocol::CallHttp(call));
  const auto parsed = protocol::ParseJson(result.body);
  const protocol::JsonValue* count = parsed.ok() ? parsed->Find("count") : nullptr;
  if (result.status != 200 || count == nullptr) {
    return absl::UnavailableError(
        Concat("POST /tokenize answered ", result.status,
               "; the lengths of answers are unknown: give --output-len N"));
  }
  return count->AsInt64("count", 0);
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown)) {
    return absl::InvalidArgumentError(Concat(path, " is a directory; give a file"));
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return absl::NotFoundError(Concat("cannot read ", path, ": ", std::strerror(errno)));
  return std::move(text).str();
}

int Compare(const std::vector<std::string>& names) {
  std::vector<BenchFile> files;
  for (const std::string& name : names) {
    const auto text = ReadFile(name);
    if (!text.ok()) return Fail(text.status(), protocol::kExitModel);
    files.push_back({name, *text});
  }
  const auto table = CompareResults(files);
  if (!table.ok()) return Fail(table.status(), protocol::kExitModel);
  std::fputs(table->c_str(), stdout);
  return protocol::kExitOk;
}

std::string TimeText(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[40] = {};
  std::strftime(text, sizeof text, format, &parts);
  return text;
}

// Whether a result can be saved: known before the load, not after.
absl::Status CheckResultDirectory(const BenchOptions& options) {
  if (!options.save_result || options.result_dir.empty()) return absl::OkStatus();
  std::error_code unknown;
  if (!std::filesystem::is_directory(options.result_dir, unknown)) {
    return absl::NotFoundError(
        Concat("--result-dir ", options.result_dir, " is no directory; create it first"));
  }
  if (::access(options.result_dir.c_str(), W_OK) != 0) {
    return absl::PermissionDeniedError(Concat("--result-dir ", options.result_dir,
                                              " cannot be written: ", std::strerror(errno),
                                              "; choose another"));
  }
  return absl::OkStatus();
}

absl::Status SaveResult(const BenchOptions& options, const BenchReport& report) {
  std::string name = options.result_filename;
  if (name.empty()) {
    std::string model = options.model;
    for (char& c : model) c = c == '/' ? '_' : c;
    name =
        Concat("skein-",
               options.request_rate > 0 ? protocol::FormatJsonDouble(options.request_rate) : "inf",
               "qps-", model, "-", TimeText("%Y%m%d-%H%M%S"), ".json");
  }
  const std::string path =
      options.result_dir.empty() ? name : Concat(options.result_dir, "/", name);
  std::ofstream file(path);
  file << ReportJson(options, report, TimeText("%Y-%m-%dT%H:%M:%SZ")) << "\n";
  file.close();
  if (!file) return absl::NotFoundError(Concat("cannot write ", path, ": ", std::strerror(errno)));
  std::printf("result: %s\n", path.c_str());
  return absl::OkStatus();
}

// Each request in progress has a descriptor.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

absl::StatusOr<std::unique_ptr<HttpTarget>> OpenTarget(const Server& server) {
  RaiseDescriptorLimit();
  const BenchOptions& options = server.options;
  protocol::HttpClientPool::Options pool_options;
  pool_options.tls = server.tls;
  pool_options.host = options.host;
  pool_options.port = static_cast<uint16_t>(options.port);
  pool_options.timeout = std::chrono::milliseconds(std::llround(options.timeout_s * 1000));
  SKEIN_ASSIGN_OR_RETURN(auto pool, protocol::HttpClientPool::Create(pool_options));
  return std::make_unique<HttpTarget>(options, std::move(pool));
}

absl::Status WarmUp(const BenchOptions& options, const BenchWorkload& workload, HttpTarget& target,
                    const std::atomic<bool>& stop) {
  if (options.num_warmups == 0) return absl::OkStatus();
  BenchWorkload warm_up;
  for (int64_t i = 0; i < options.num_warmups; ++i) {
    warm_up.requests.push_back(
        workload.requests[static_cast<size_t>(i) % workload.requests.size()]);
  }
  target.Begin();
  for (const BenchRecord& record : BenchLoad(warm_up, 1, target, &stop).Run()) {
    if (!record.ok()) {
      return absl::UnavailableError(
          Concat("a warm-up request failed: ", record.error, ": ", record.message));
    }
  }
  return absl::OkStatus();
}

// The figures of `records`, which are those of all requests unless the run was stopped.
int Report(const BenchOptions& options, const std::vector<BenchRecord>& records,
           size_t num_requests, bool is_stopped) {
  const BenchReport report = MakeReport(options, records);
  std::fputs(ReportTable(options, report).c_str(), stdout);
  if (is_stopped) {
    std::fprintf(stderr,
                 "skein bench: interrupted; the figures are of the %zu of %zu requests that "
                 "had ended\n",
                 records.size(), num_requests);
  }
  if (options.save_result && !records.empty()) {
    const absl::Status saved = SaveResult(options, report);
    if (!saved.ok()) return Fail(saved, protocol::kExitModel);
  }
  if (is_stopped) return kExitInterrupted;
  return report.completed > 0 ? protocol::kExitOk : protocol::kExitInternal;
}

int Measure(BenchOptions options) {
  // Before any thread.
  std::atomic<bool> stop = false;
  const auto signals = protocol::SignalWatch::Create([&stop](int) { stop = true; });
  if (!signals.ok()) return Fail(signals.status(), protocol::kExitInternal);
  const absl::Status can_save = CheckResultDirectory(options);
  if (!can_save.ok()) return Fail(can_save, protocol::kExitModel);
  Server server{options, nullptr};
  if (options.tls) {
    auto tls = protocol::TlsContext::ForClient("--ca-file", options.ca_file);
    if (!tls.ok()) return Fail(tls.status(), protocol::kExitModel);
    server.tls = *std::move(tls);
  }
  if (options.model.empty()) {
    auto model = AskModel(server);
    if (!model.ok()) return Fail(model.status(), protocol::kExitInternal);
    options.model = *std::move(model);
  }
  std::string dataset;
  if (!options.dataset_path.empty()) {
    auto text = ReadFile(options.dataset_path);
    if (!text.ok()) return Fail(text.status(), protocol::kExitModel);
    dataset = *std::move(text);
  }
  const auto workload = MakeWorkload(
      options, dataset, [&](std::string_view text) { return CountTokens(server, text); });
  if (!workload.ok()) {
    return Fail(workload.status(), absl::IsUnavailable(workload.status()) ? protocol::kExitInternal
                                                                          : protocol::kExitModel);
  }
  const auto target = OpenTarget(server);
  if (!target.ok()) return Fail(target.status(), protocol::kExitInternal);
  const absl::Status warm = WarmUp(options, *workload, **target, stop);
  if (!warm.ok()) return Fail(warm, protocol::kExitInternal);
  (*target)->Begin();
  const std::vector<BenchRecord> records =
      BenchLoad(*workload, options.max_concurrency, **target, &stop).Run();
  // A stop behind the last answer changed nothing.
  const size_t num_requests = workload->requests.size();
  return Report(options, records, num_requests, records.size() < num_requests);
}

}  // namespace

int RunBench(std::span<const std::string> arguments) {
  for (const std::string& argument : arguments) {
    if (argument != "--help" && argument != "-h") continue;
    std::fputs(BenchHelp().c_str(), stdout);
    return protocol::kExitOk;
  }
  auto options = ParseBenchOptions(arguments);
  if (!options.ok()) return Fail(options.status(), protocol::kExitUsage);
  if (!options->compare.empty()) return Compare(options->compare);
  return Measure(*std::move(options));
}

}  // namespace skein::worker
