// dashboards/: each board is what Grafana imports, every metric of a running server is on a board
// or in an alert, every name that they use exists, and promtool has nothing to say. The rules of
// promtool are skipped where it is not installed.
#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/json/json.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

namespace fs = std::filesystem;
using protocol::JsonValue;
using ::testing::IsEmpty;

constexpr char kModel[] = "deploy/models/tiny-v41";
constexpr std::array<std::string_view, 7> kBoards = {"overview", "latency", "cache", "speculation",
                                                     "workers",  "api",     "device"};

std::string ReadFile(const fs::path& path) {
  std::ifstream stream(path);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::string BoardText(std::string_view name) {
  return ReadFile(fs::path("dashboards") / (std::string(name) + ".json"));
}

// What Grafana needs of a board and we of a panel: what it lacks.
class BoardCheck {
 public:
  std::vector<std::string> Problems(const JsonValue& board) {
    for (const char* key : {"uid", "title", "description"}) Text(board, key, "board");
    Number(board, "schemaVersion", "board");
    const JsonValue* panels = board.Find("panels");
    if (panels == nullptr || panels->elements().empty()) {
      problems_.push_back("board: no panels");
      return problems_;
    }
    for (const JsonValue& panel : panels->elements()) Panel(panel);
    return problems_;
  }

 private:
  std::string Text(const JsonValue& value, std::string_view key, const std::string& where) {
    const JsonValue* found = value.Find(key);
    if (found == nullptr || found->string().empty()) {
      problems_.push_back(where + ": no " + std::string(key));
      return "";
    }
    return std::string(found->string());
  }
  int64_t Number(const JsonValue& value, std::string_view key, const std::string& where) {
    const JsonValue* found = value.Find(key);
    const auto number = found == nullptr ? absl::InvalidArgumentError("") : found->AsInt64(key);
    if (!number.ok()) problems_.push_back(where + ": no " + std::string(key));
    return number.ok() ? *number : -1;
  }
  void Panel(const JsonValue& panel) {
    const std::string title = Text(panel, "title", "panel");
    const std::string type = Text(panel, "type", title);
    if (type != "timeseries" && type != "stat") problems_.push_back(title + ": type " + type);
    Text(panel, "description", title);
    if (!ids_.insert(Number(panel, "id", title)).second) problems_.push_back(title + ": id used");
    Place(panel.Find("gridPos"), title);
    const JsonValue* field = panel.Find("fieldConfig");
    const JsonValue* defaults = field == nullptr ? nullptr : field->Find("defaults");
    if (defaults == nullptr) {
      problems_.push_back(title + ": no unit");
    } else {
      Text(*defaults, "unit", title);
    }
    const JsonValue* targets = panel.Find("targets");
    if (targets == nullptr || targets->elements().empty()) {
      problems_.push_back(title + ": no targets");
      return;
    }
    std::set<std::string> refs;
    for (const JsonValue& target : targets->elements()) {
      for (const char* key : {"expr", "legendFormat"}) Text(target, key, title);
      if (!refs.insert(Text(target, "refId", title)).second) {
        problems_.push_back(title + ": refId used twice");
      }
    }
  }
  // Panels lie within 24 columns and on nothing else.
  void Place(const JsonValue* grid, const std::string& title) {
    if (grid == nullptr) return problems_.push_back(title + ": no gridPos");
    const int64_t x = Number(*grid, "x", title);
    const int64_t y = Number(*grid, "y", title);
    const int64_t w = Number(*grid, "w", title);
    const int64_t h = Number(*grid, "h", title);
    if (x < 0 || w < 1 || x + w > 24 || h < 1) problems_.push_back(title + ": outside the board");
    for (int64_t i = x; i < x + w; ++i) {
      for (int64_t j = y; j < y + h; ++j) {
        if (cells_.insert({i, j}).second) continue;
        return problems_.push_back(title + ": lies on another panel");
      }
    }
  }

  std::vector<std::string> problems_;
  std::set<int64_t> ids_;
  std::set<std::pair<int64_t, int64_t>> cells_;
};

// The names of ours in a text.
std::set<std::string> NamesIn(std::string_view text) {
  std::set<std::string> names;
  for (const std::string_view prefix : {"skein_", "process_"}) {
    for (size_t at = text.find(prefix); at != std::string_view::npos; at = text.find(prefix, at)) {
      const size_t begin = at;
      const auto in_name = [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
      };
      while (at < text.size() && in_name(text[at])) ++at;
      if (begin == 0 || !in_name(text[begin - 1])) names.emplace(text.substr(begin, at - begin));
    }
  }
  return names;
}

// Family name -> type, of the text format.
std::map<std::string, std::string> FamiliesOf(const std::string& metrics) {
  std::map<std::string, std::string> families;
  std::istringstream lines(metrics);
  std::string hash, word, name, type;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    if (words >> hash >> word >> name >> type && hash == "#" && word == "TYPE") {
      families[name] = type;
    }
  }
  return families;
}

// The family of a name that a query uses; empty when no family has such a series.
std::string FamilyOf(const std::map<std::string, std::string>& families, const std::string& name) {
  if (const auto found = families.find(name); found != families.end()) {
    return found->second == "histogram" ? "" : name;  // a histogram has no series of its own name
  }
  for (const std::string_view suffix : {"_bucket", "_sum", "_count"}) {
    if (!name.ends_with(suffix)) continue;
    const auto found = families.find(name.substr(0, name.size() - suffix.size()));
    if (found != families.end() && found->second == "histogram") return found->first;
  }
  return "";
}

// What promtool says to stdout and stderr, after its exit code.
std::string Promtool(const std::string& arguments) {
  const std::string command = "promtool " + arguments + " 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string output;
  std::array<char, 4096> bytes{};
  for (size_t n = 0; (n = std::fread(bytes.data(), 1, bytes.size(), pipe)) > 0;) {
    output.append(bytes.data(), n);
  }
  const int status = ::pclose(pipe);
  return "exit " + std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : -1) + "\n" + output;
}

bool HasPromtool() { return Promtool("--version").starts_with("exit 0\n"); }

// What is scraped at a port.
std::string Scrape(uint16_t port) {
  protocol::HttpCall call;
  call.port = port;
  call.target = "/metrics";
  const auto result = protocol::CallHttp(call);
  return result.ok() && result->status == 200 ? result->body : "";
}

// Metrics of a server and its workers, with two groups.
class DashboardsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    LiveServer server;
    if (!server.StartReady({"--model", kModel, "-dp", "2", "--log-level", "error",
                            "--worker-metrics-listen", "127.0.0.1:0"})) {
      ADD_FAILURE() << server.output();
      return;
    }
    // The supervisor's counters come with its first round.
    EXPECT_TRUE(WaitUntil([&] {
      texts_["coordinator"] = Scrape(server.port());
      return texts_["coordinator"].find("skein_orphans_swept_total") != std::string::npos;
    }));
    const std::vector<uint16_t> ports = ScrapedPorts(server.output());
    ASSERT_EQ(ports.size(), 2u) << server.output();
    for (size_t i = 0; i < ports.size(); ++i) {
      texts_["worker." + std::to_string(i)] = Scrape(ports[i]);
    }
  }
  static std::map<std::string, std::string> texts_;  // by process
};
std::map<std::string, std::string> DashboardsTest::texts_;

TEST(BoardTest, EveryBoardIsWhatGrafanaImports) {
  std::set<std::string> uids;
  for (const std::string_view name : kBoards) {
    const auto board = protocol::ParseJson(BoardText(name));
    ASSERT_TRUE(board.ok()) << name << ": " << board.status();
    EXPECT_THAT(BoardCheck().Problems(*board), IsEmpty()) << name;
    EXPECT_TRUE(uids.insert(std::string(board->Find("uid")->string())).second) << name;
  }
  for (const auto& file : fs::directory_iterator("dashboards")) {
    if (file.path().extension() != ".json") continue;
    EXPECT_NE(std::find(kBoards.begin(), kBoards.end(), file.path().stem().string()), kBoards.end())
        << file.path() << " is not in this test";
  }
}

TEST(BoardTest, BrokenBoardsAreSeen) {
  const std::string good = BoardText("cache");
  const std::pair<const char*, const char*> breaks[] = {{"\"description\": \"C", "\"about\": \"C"},
                                                        {"\"unit\": ", "\"units\": "},
                                                        {"\"x\": 8", "\"x\": 7"},
                                                        {"\"id\": 2,", "\"id\": 1,"},
                                                        {"\"expr\": ", "\"query\": "},
                                                        {"\"timeseries\"", "\"graph\""},
                                                        {"\"w\": 8", "\"w\": 25"},
                                                        {"\"panels\"", "\"rows\""}};
  for (const auto& [from, to] : breaks) {
    std::string broken = good;
    const size_t at = broken.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    broken.replace(at, std::string_view(from).size(), to);
    const auto board = protocol::ParseJson(broken);
    ASSERT_TRUE(board.ok()) << from;
    EXPECT_FALSE(BoardCheck().Problems(*board).empty()) << from << " -> " << to;
  }
}

TEST_F(DashboardsTest, EveryNameUsedExistsAndEveryMetricIsShown) {
  std::map<std::string, std::string> families;
  for (const auto& [process, text] : texts_) {
    const auto own = FamiliesOf(text);
    ASSERT_GT(own.size(), process == "coordinator" ? 50u : 20u) << process;
    // One meaning each, whoever exports it.
    for (const auto& [name, type] : own)
      EXPECT_EQ(families.emplace(name, type).first->second, type);
  }
  std::map<std::string, std::string> texts;
  for (const std::string_view name : kBoards) texts[std::string(name)] = BoardText(name);
  texts["alerts"] = ReadFile("dashboards/alerts.rules.yaml");
  std::set<std::string> shown;
  for (const auto& [where, text] : texts) {
    for (const std::string& name : NamesIn(text)) {
      const std::string family = FamilyOf(families, name);
      EXPECT_FALSE(family.empty()) << where << " uses " << name << ", which nothing exports";
      shown.insert(family);
    }
  }
  for (const std::string& name : NamesIn(ReadFile("dashboards/vllm_aliases.rules.yaml"))) {
    EXPECT_FALSE(FamilyOf(families, name).empty()) << "an alias uses " << name;
  }
  for (const auto& [name, type] : families) {
    EXPECT_TRUE(shown.contains(name)) << name << " is on no board and in no alert";
  }
}

// Every alert has a remedy that exists, a firing and a silent case.
TEST(AlertTest, EachHasARunbookAndTwoCases) {
  const std::string cases = ReadFile("tests/dashboards/alerts_test.yaml");
  std::istringstream lines(ReadFile("dashboards/alerts.rules.yaml"));
  int alerts = 0, runbooks = 0;
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view kAlert = "- alert: ", kRunbook = "runbook: ";
    if (const size_t at = line.find(kAlert); at != std::string::npos) {
      const std::string name = line.substr(at + kAlert.size());
      EXPECT_NE(cases.find("name: " + name + " fires\n"), std::string::npos) << name;
      EXPECT_NE(cases.find("name: " + name + " is silent\n"), std::string::npos) << name;
      ++alerts;
    }
    if (const size_t at = line.find(kRunbook); at != std::string::npos) {
      EXPECT_TRUE(fs::exists(line.substr(at + kRunbook.size()))) << line;
      ++runbooks;
    }
  }
  EXPECT_GE(alerts, 15);
  EXPECT_EQ(alerts, runbooks);
}

// rule: HA9
TEST(AlertTest, PromtoolAcceptsTheRulesAndTheirCases) {
  if (!HasPromtool()) GTEST_SKIP() << "promtool is not installed (package prometheus)";
  for (const char* file : {"dashboards/alerts.rules.yaml", "dashboards/vllm_aliases.rules.yaml"}) {
    const std::string said = Promtool(std::string("check rules ") + file);
    EXPECT_TRUE(said.starts_with("exit 0\n")) << said;
  }
  const std::string said = Promtool("test rules tests/dashboards/alerts_test.yaml");
  EXPECT_TRUE(said.starts_with("exit 0\n")) << said;
}

TEST_F(DashboardsTest, PromtoolHasNothingToSayOfTheMetrics) {
  if (!HasPromtool()) GTEST_SKIP() << "promtool is not installed (package prometheus)";
  for (const auto& [process, text] : texts_) {
    char path[] = "/tmp/skein_metrics_XXXXXX";
    const int fd = ::mkstemp(path);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
    ::close(fd);
    EXPECT_EQ(Promtool(std::string("check metrics <") + path), "exit 0\n") << process;
    ::unlink(path);
  }
}

// Label values are closed sets: what a server was asked, and by whom, makes no series.
TEST(LabelTest, NothingThatAClientSendsBecomesASeries) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady(
      {"--model", kModel, "--log-level", "error", "--worker-metrics-listen", "127.0.0.1:0"}))
      << server.output();
  const uint16_t worker = ScrapedPorts(server.output()).at(0);
  const std::string mark = "zq7unbounded";
  const auto ask = [&](const std::string& method, const std::string& target,
                       const std::string& body, const std::string& id) {
    protocol::HttpCall call;
    call.port = server.port();
    call.method = method;
    call.target = target;
    call.body = body;
    call.headers = {{"x-request-id", id}, {"Authorization", "Bearer " + id}, {"X-" + id, id}};
    return protocol::CallHttp(call);
  };
  const auto series = [&] {
    std::set<std::string> names;
    for (const uint16_t port : {server.port(), worker}) {
      std::istringstream lines(Scrape(port));
      for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with("#")) names.insert(line.substr(0, line.rfind(' ')));
      }
    }
    return names;
  };
  ASSERT_TRUE(WaitUntil([&] {
    return Scrape(server.port()).find("skein_orphans_swept_total") != std::string::npos;
  }));
  const std::set<std::string> before = series();
  for (int i = 0; i < 20; ++i) {
    const std::string own = mark + std::to_string(i);
    const std::string chat = R"({"messages":[{"role":"user","content":")" + own +
                             R"("}],"max_tokens":2,"user":")" + own + R"(","cache_salt":")" + own +
                             R"(",")" + own + R"(":1})";
    for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/messages"}) {
      ask("POST", path, chat, own).IgnoreError();
    }
    ask("POST", "/v1/chat/completions", R"({"model":")" + own + R"(","messages":[]})", own)
        .IgnoreError();
    ask("GET", "/" + own, "", own).IgnoreError();
    ask("GET", "/v1/models/" + own, "", own).IgnoreError();
    ask("Z" + own, "/v1/models?" + own, "", own).IgnoreError();
  }
  const std::set<std::string> after = series();
  EXPECT_EQ(after, before);
  for (const std::string& name : after) EXPECT_EQ(name.find(mark), std::string::npos) << name;
}

}  // namespace
}  // namespace skein::tests
