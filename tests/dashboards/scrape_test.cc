// A real Prometheus scrapes a real cluster under a mixed load with killed, stopped and drained
// workers: each panel of each board shows something, and the sums are those of the clients.
// scrape_test [--seconds=N] (20; `--seconds=180` is the whole form).
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "protocol/json/json.h"
#include "tests/dashboards/mixed_load.h"
#include "tests/dashboards/prometheus.h"
#include "tests/process/key_file.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

namespace fs = std::filesystem;
using protocol::Concat;
using protocol::JsonValue;
using protocol::MonotonicNow;
using ::testing::Contains;
using ::testing::IsEmpty;

int seconds = 20;  // --seconds

constexpr int kClients = 12;
constexpr absl::Duration kBetweenFaults = absl::Seconds(4);

// Panels that stay at zero here, and why. Everything else must show something.
const std::map<std::string, std::string>& Silent() {
  static const auto* panels = new std::map<std::string, std::string>{
      {"cache/Audit", "shows defects of the accounts"},
      {"cache/Block transfers", "needs groups that move blocks: transport.block_address"},
      {"cache/Time of a block transfer", "needs groups that move blocks"},
      {"cache/Bytes of block transfers", "needs groups that move blocks"},
      {"workers/Swept at the start", "needs a supervisor that was killed before this start"},
      {"workers/Bad frames", "needs a damaged network or a stranger on it"},
      {"workers/Resent frames", "needs a network that loses"},
      {"workers/Hangs and aborted groups", "needs a step that hangs, or groups of several ranks"},
      {"workers/Load of experts", "needs groups of several ranks"},
      {"workers/Pauses to move experts", "needs groups whose experts move"},
      {"workers/Features", "shows what the host lacks, which may be nothing"},
      {"device/Logits that are no numbers", "needs damaged weights"},
      {"api/Mailboxes", "is read between two rounds, when they are mostly empty"},
      {"api/Log lines held back", "needs a flood of lines"},
  };
  return *panels;
}

std::string Replaced(std::string text, std::string_view from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
    text.replace(at, from.size(), to);
  }
  return text;
}

struct Panel {
  std::string name;  // "board/title"
  std::vector<std::string> expressions;
};

// Every panel, with Grafana's own variables filled in.
std::vector<Panel> Panels() {
  std::vector<Panel> panels;
  for (const auto& file : fs::directory_iterator("dashboards")) {
    if (file.path().extension() != ".json") continue;
    std::ifstream stream(file.path());
    std::stringstream text;
    text << stream.rdbuf();
    const auto board = protocol::ParseJson(text.str());
    if (!board.ok()) continue;
    for (const JsonValue& panel : board->Find("panels")->elements()) {
      Panel out;
      out.name = Concat(file.path().stem().string(), "/", panel.Find("title")->string());
      for (const JsonValue& target : panel.Find("targets")->elements()) {
        std::string expression(target.Find("expr")->string());
        expression = Replaced(std::move(expression), "$__rate_interval", "8s");
        out.expressions.push_back(Replaced(std::move(expression), "$__range", "30s"));
      }
      panels.push_back(std::move(out));
    }
  }
  return panels;
}

int Connect(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

class ScrapeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Prometheus::IsInstalled()) {
      GTEST_SKIP() << "prometheus is not installed (package prometheus)";
    }
  }

  // Small enough that requests wait, are preempted and lose what was cached.
  bool Start() {
    const std::string file = server_.directory() + "/keys.yaml";
    keys_ = WriteKeyFile(file, {{"load", ""}, {"scraper", "    routes: metrics\n"}});
    if (keys_.size() != 2) return false;
    server_.Start({"--speculation-depth",
                   "fixed",
                   "-dp",
                   "2",
                   "--max-num-seqs",
                   "4",
                   "--max-model-len",
                   "1024",
                   "--num-blocks",
                   "24",
                   "--max-num-queued-reqs",
                   "3",
                   "--api-key-file",
                   file,
                   "--auth-failures-per-minute",
                   "1000000",
                   "--max-connections-per-address",
                   "40",
                   "--rollout-drain-timeout",
                   "0",
                   "--worker-metrics-listen",
                   "127.0.0.1:0",
                   "--restart-backoff-max",
                   "0.5"});
    return server_.WaitForHealth(200) && server_.WaitForOutput("ready=2 of=2");
  }

  // What no client of the API does: nonsense, and more connections than are allowed.
  void Annoy() const {
    const int nonsense = Connect(server_.port());
    constexpr std::string_view kBytes = "NONSENSE\r\n\r\n";
    EXPECT_EQ(::send(nonsense, kBytes.data(), kBytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(kBytes.size()));
    char answer[256];
    EXPECT_GT(::read(nonsense, answer, sizeof answer), 0);
    ::close(nonsense);
    std::vector<int> many;
    for (int i = 0; i < 45; ++i) many.push_back(Connect(server_.port()));
    EXPECT_GT(::read(many.back(), answer, sizeof answer), 0) << "the last ones are refused";
    for (const int fd : many) ::close(fd);
  }

  // One fault after the other, until the time is over; both groups serve in the end.
  void Disturb(absl::Time end) {
    for (; MonotonicNow() < end; ++turn_) {
      const std::string index = std::to_string(turn_ % 2);
      const ProcessHandle worker = server_.Find("skein-worker", "--worker-index=" + index);
      if (turn_ % 4 == 2) {
        EXPECT_TRUE(worker.Signal(SIGSTOP));
        Pause(absl::Seconds(2));
        EXPECT_TRUE(worker.Signal(SIGCONT));
      } else if (turn_ % 4 == 3) {
        EXPECT_EQ(server_.Admin("POST", "/admin/drain", "{\"group\":" + index + "}").status, 200);
        Pause(absl::Seconds(1));
        EXPECT_EQ(server_.Admin("POST", "/admin/undrain", "{\"group\":" + index + "}").status, 200);
      } else {
        EXPECT_TRUE(worker.Signal(SIGKILL));
        ++kills_;
      }
      Pause(std::min(kBetweenFaults, end - MonotonicNow()));
    }
    EXPECT_TRUE(WaitUntil([this] {
      return prometheus_->Value("sum(skein_groups{state=\"ready\"})") == 2;
    })) << server_.output();
  }

  // Lets the load go on.
  static void Pause(absl::Duration time) {
    WaitUntil([] { return false; }, time);
  }

  // Until Prometheus has what is final.
  void Settle() const {
    EXPECT_TRUE(WaitUntil([this] {
      return prometheus_->Value(
                 "sum(skein_requests_running) + sum(skein_requests_waiting) + "
                 "sum(skein_http_streams_open)") == 0;
    }));
    Pause(absl::Seconds(3));
  }

  double Sum(const std::string& selector) const {
    return prometheus_->Value("sum(" + selector + ")");
  }
  // Prints both figures; they are equal.
  void Expect(const std::string& what, const std::string& selector, int64_t counted) const {
    const double value = Sum(selector);
    std::printf("%-28s clients %8lld  metrics %8.0f\n", what.c_str(),
                static_cast<long long>(counted), value);
    EXPECT_EQ(value, static_cast<double>(counted)) << selector;
  }
  void ExpectRequests(const LoadCounts& counts) const;
  void ExpectTokens(const LoadCounts& counts) const;
  bool Shows(const Panel& panel, std::time_t begin) const;
  void ExpectPanels(std::time_t begin) const;

  LiveServer server_;
  std::map<std::string, std::string> keys_;
  std::unique_ptr<Prometheus> prometheus_;
  int turn_ = 0;  // of the faults
  int kills_ = 0;
};

void ScrapeTest::ExpectRequests(const LoadCounts& counts) const {
  const std::string routes = R"(method="POST",route!~"/health|/metrics")";
  std::map<int, int64_t> by_code;
  for (const auto& [answer, count] : counts.answers) {
    const auto& [route, code] = answer;
    by_code[code] += count;
    Expect(Concat(route, " ", code),
           Concat("skein_http_requests_total{method=\"POST\",route=\"", route, "\",code=\"", code,
                  "\"}"),
           count);
  }
  int64_t answers = 0;
  for (const auto& [code, count] : by_code) answers += count;
  Expect("answers", "skein_http_requests_total{" + routes + "}", answers);
  int64_t finished = 0;
  for (const auto& [reason, count] : counts.finished) finished += count;
  Expect("generations", "skein_requests_total", finished + counts.left);
  Expect("ended by a call", "skein_requests_total{finished_reason=\"tool_calls\"}",
         counts.tool_calls);
  Expect("clients that left", "skein_client_disconnects_total", counts.left);
}

void ScrapeTest::ExpectTokens(const LoadCounts& counts) const {
  Expect("prompt tokens", "skein_prompt_tokens_total", counts.prompt_tokens);
  Expect("prompt tokens by source", "skein_prompt_tokens_by_source_total", counts.prompt_tokens);
  Expect("generation tokens", "skein_generation_tokens_total", counts.generated_tokens);
  Expect("drafted tokens", "skein_spec_draft_tokens_total", counts.draft_tokens);
  Expect("accepted drafts", "skein_spec_accepted_tokens_total", counts.accepted_drafts);
  Expect("tokens of prefix hits", "skein_prefix_cache_hits_tokens_total", counts.cached_tokens);
}

bool ScrapeTest::Shows(const Panel& panel, std::time_t begin) const {
  return std::any_of(panel.expressions.begin(), panel.expressions.end(),
                     [&](const std::string& expression) {
                       const std::vector<double> values =
                           prometheus_->Range(expression, begin, std::time(nullptr));
                       return std::any_of(values.begin(), values.end(),
                                          [](double v) { return std::isfinite(v) && v != 0; });
                     });
}

void ScrapeTest::ExpectPanels(std::time_t begin) const {
  std::vector<Panel> left = Panels();
  const size_t panels = left.size();
  std::set<std::string> names;
  for (const Panel& panel : left) names.insert(panel.name);
  for (const auto& [name, reason] : Silent()) EXPECT_THAT(names, Contains(name));
  // Some need a coincidence, for which the load goes on.
  WaitUntil([&] {
    std::erase_if(left, [&](const Panel& panel) { return Shows(panel, begin); });
    return std::all_of(left.begin(), left.end(),
                       [](const Panel& panel) { return Silent().contains(panel.name); });
  });
  for (const Panel& panel : left) {
    const auto reason = Silent().find(panel.name);
    EXPECT_TRUE(reason != Silent().end()) << panel.name << " shows nothing";
    if (reason != Silent().end()) {
      std::printf("silent: %s: %s\n", panel.name.c_str(), reason->second.c_str());
    }
  }
  std::printf("panels: %zu show something, %zu are silent\n", panels - left.size(), left.size());
}

// rule: ME1, ME2
// ME1, ME2: nothing is counted twice, and what should move does.
TEST_F(ScrapeTest, EveryPanelShowsSomethingAndSumsAreTheClients) {
  ASSERT_TRUE(Start()) << server_.output();
  prometheus_ = std::make_unique<Prometheus>(
      server_.directory(),
      std::vector<ScrapeJob>{{"coordinator", {server_.port()}, keys_["scraper"]},
                             {"worker", ScrapedPorts(server_.output()), ""}},
      std::vector<std::string>{"dashboards/alerts.rules.yaml",
                               "dashboards/vllm_aliases.rules.yaml"});
  ASSERT_TRUE(prometheus_->WaitReady()) << prometheus_->Log();
  ASSERT_TRUE(WaitUntil([this] { return prometheus_->Value("count(up == 1)") == 3; }))
      << prometheus_->Log();
  Pause(absl::Seconds(2));  // a rate needs the time before
  const std::time_t begin = std::time(nullptr);
  Annoy();
  Pause(absl::Seconds(1));  // until those connections are gone
  MixedLoad load(server_.port(), keys_["load"]);
  load.Crowd(8);
  load.Start(kClients, MixedLoad::Ends::kCounted);
  Disturb(MonotonicNow() + absl::Seconds(seconds) * 0.6);
  load.Stop();
  Settle();
  ExpectRequests(load.counts());
  ExpectTokens(load.counts());
  EXPECT_GT(load.counts().accepted_drafts, 0);
  const int64_t known = load.counts().generated_tokens;

  std::printf("with calls, natural ends and clients that leave\n");
  load.Start(kClients, MixedLoad::Ends::kAny);
  load.LeaveStreams(8);
  Disturb(MonotonicNow() + absl::Seconds(seconds) * 0.4);
  ExpectPanels(begin);
  load.Stop();
  Settle();
  ExpectRequests(load.counts());
  EXPECT_GT(load.counts().tool_calls, 0);
  // What was computed and not sent: the steps in flight when an answer ended or a client left.
  const double unsent =
      Sum("skein_generation_tokens_total") - static_cast<double>(load.counts().generated_tokens);
  const auto ends = static_cast<double>(load.counts().left + load.counts().tool_calls);
  std::printf("generated and not sent: %.0f of %.0f tokens\n", unsent,
              static_cast<double>(load.counts().generated_tokens - known));
  EXPECT_GE(unsent, 0);
  EXPECT_LE(unsent, 60 * ends) << "they are cancelled, not finished";
  EXPECT_THAT(load.counts().broken, IsEmpty());

  EXPECT_THAT(prometheus_->RuleProblems(), IsEmpty());
  EXPECT_GE(prometheus_->Value("count(up == 1)"), 3);
  EXPECT_GT(kills_, 0);
  std::printf("%d s of load, %d workers killed, %zu alerts fired\n", seconds, kills_,
              prometheus_->Query("count by (alertname) (ALERTS{alertstate=\"firing\"})").size());
}

}  // namespace
}  // namespace skein::tests

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::string_view argument = argc == 2 ? argv[1] : "";
  constexpr std::string_view kSeconds = "--seconds=";
  if (argument.starts_with(kSeconds)) {
    std::from_chars(argument.data() + kSeconds.size(), argument.data() + argument.size(),
                    skein::tests::seconds);
  } else if (argc > 1) {
    std::fprintf(stderr, "usage: scrape_test [--seconds=N]\n");
    return 64;
  }
  return RUN_ALL_TESTS();
}
