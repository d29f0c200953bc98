#include "tests/dashboards/prometheus.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/base/strings.h"
#include "protocol/http/http_client.h"
#include "protocol/json/json.h"

namespace skein::tests {
namespace {

using protocol::Concat;
using protocol::JsonValue;

constexpr char kProgram[] = "/usr/bin/prometheus";

std::string Encoded(const std::string& text) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      out += c;
    } else {
      out += {'%', kHex[static_cast<unsigned char>(c) >> 4], kHex[c & 15]};
    }
  }
  return out;
}

std::string Configuration(const std::vector<ScrapeJob>& jobs,
                          const std::vector<std::string>& rule_files) {
  std::string text = "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 2s}\n";
  text += "rule_files:\n";
  for (const std::string& file : rule_files) {
    text += Concat("  - ", std::filesystem::absolute(file).string(), "\n");
  }
  text += "scrape_configs:\n";
  for (const ScrapeJob& job : jobs) {
    text += Concat("  - job_name: ", job.name, "\n");
    if (!job.key.empty()) text += Concat("    authorization: {credentials: \"", job.key, "\"}\n");
    text += "    static_configs: [{targets: [";
    for (const uint16_t port : job.ports) text += Concat("\"127.0.0.1:", port, "\", ");
    text += "]}]\n";
  }
  return text;
}

// The numbers of [time, "value"].
double Number(const JsonValue& sample) {
  return std::strtod(std::string(sample.elements()[1].string()).c_str(), nullptr);
}

const JsonValue* ResultOf(const JsonValue& answer) {
  const JsonValue* data = answer.Find("data");
  return data == nullptr ? nullptr : data->Find("result");
}

}  // namespace

bool Prometheus::IsInstalled() { return ::access(kProgram, X_OK) == 0; }

Prometheus::Prometheus(const std::string& directory, const std::vector<ScrapeJob>& jobs,
                       const std::vector<std::string>& rule_files)
    : directory_(directory), port_(FreePort()) {
  std::ofstream(directory_ + "/prometheus.yaml") << Configuration(jobs, rule_files);
  const std::string config = "--config.file=" + directory_ + "/prometheus.yaml";
  const std::string data = "--storage.tsdb.path=" + directory_ + "/prometheus";
  const std::string listen = Concat("--web.listen-address=127.0.0.1:", port_);
  const std::string log = directory_ + "/prometheus.log";
  const int parent = ::getpid();
  const int pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(out, 1);
    ::dup2(out, 2);
    ::execl(kProgram, kProgram, config.c_str(), data.c_str(), listen.c_str(), nullptr);
    ::_exit(127);
  }
  process_ = ProcessHandle(pid);
}

Prometheus::~Prometheus() {
  process_.Signal(SIGKILL);
  ::waitpid(process_.pid(), nullptr, 0);
}

std::string Prometheus::Log() const {
  std::ifstream file(directory_ + "/prometheus.log");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string Prometheus::Ask(const std::string& path, const std::string& form) const {
  protocol::HttpCall call;
  call.port = port_;
  call.method = form.empty() ? "GET" : "POST";
  call.target = path;
  call.content_type = "application/x-www-form-urlencoded";
  call.body = form;
  const auto result = protocol::CallHttp(call);
  return result.ok() ? result->body : "";
}

bool Prometheus::WaitReady() const {
  return WaitUntil([this] { return Ask("/-/ready", "").find("Ready") != std::string::npos; });
}

std::vector<double> Prometheus::Query(const std::string& expression) const {
  std::vector<double> values;
  const auto answer = protocol::ParseJson(Ask("/api/v1/query", "query=" + Encoded(expression)));
  if (!answer.ok()) return values;
  const JsonValue* result = ResultOf(*answer);
  if (result == nullptr) return values;
  for (const JsonValue& series : result->elements()) {
    if (const JsonValue* value = series.Find("value")) values.push_back(Number(*value));
  }
  return values;
}

double Prometheus::Value(const std::string& expression) const {
  const std::vector<double> values = Query(expression);
  return values.size() == 1 ? values[0] : std::numeric_limits<double>::quiet_NaN();
}

std::vector<double> Prometheus::Range(const std::string& expression, std::time_t from,
                                      std::time_t to) const {
  std::vector<double> values;
  protocol::JsonLimits limits;
  limits.bytes_max = size_t{64} << 20;
  limits.values_max = 10'000'000;
  const auto answer = protocol::ParseJson(
      Ask("/api/v1/query_range",
          Concat("query=", Encoded(expression), "&start=", from, "&end=", to, "&step=1")),
      limits);
  if (!answer.ok()) return values;
  const JsonValue* result = ResultOf(*answer);
  if (result == nullptr) return values;
  for (const JsonValue& series : result->elements()) {
    const JsonValue* samples = series.Find("values");
    if (samples == nullptr) continue;
    for (const JsonValue& sample : samples->elements()) values.push_back(Number(sample));
  }
  return values;
}

std::vector<std::string> Prometheus::RuleProblems() const {
  std::vector<std::string> problems;
  const auto answer = protocol::ParseJson(Ask("/api/v1/rules", ""));
  const JsonValue* data = answer.ok() ? answer->Find("data") : nullptr;
  if (data == nullptr) return {"no rules"};
  for (const JsonValue& group : data->Find("groups")->elements()) {
    for (const JsonValue& rule : group.Find("rules")->elements()) {
      if (rule.Find("health")->string() == "ok") continue;
      const JsonValue* error = rule.Find("lastError");
      problems.push_back(Concat(rule.Find("name")->string(), ": ", rule.Find("health")->string(),
                                " ", error == nullptr ? "" : error->string()));
    }
  }
  return problems;
}

}  // namespace skein::tests
