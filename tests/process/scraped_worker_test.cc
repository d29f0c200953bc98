// Workers that are scraped, in real processes: a successor is found where its predecessor was, a
// port that is taken ends the start, and a start on a terminal shows how far it is.
#include <array>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/http/http_client.h"
#include "tests/process/chat_client.h"
#include "tests/process/live_server.h"
#include "tests/process/process_tree.h"
#include "worker/node/listen_socket.h"

namespace skein::tests {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kConfiguration = 78;

std::string Scrape(uint16_t port) {
  protocol::HttpCall call;
  call.port = port;
  call.target = "/metrics";
  const auto result = protocol::CallHttp(call);
  return result.ok() && result->status == 200 ? result->body : "";
}

// The value of the first series that begins so; -1 without one.
double ValueOf(const std::string& text, const std::string& series) {
  const size_t at = text.find("\n" + series);
  if (at == std::string::npos) return -1;
  const size_t end = text.find('\n', at + 1);
  return std::strtod(text.c_str() + text.rfind(' ', end - 1), nullptr);
}

TEST(ScrapedWorkerTest, ASuccessorIsFoundWhereItsPredecessorWas) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"-dp", "2", "--worker-metrics-listen", "127.0.0.1:0"}))
      << server.output();
  const std::vector<uint16_t> ports = ScrapedPorts(server.output());
  ASSERT_EQ(ports.size(), 2u) << server.output();
  ChatCall call;
  call.content = "What is the capital of Vietnam?";
  call.max_tokens = 16;
  double looked_up = 0;
  for (int i = 0; i < 4; ++i) ASSERT_EQ(Ask(server.port(), call).status, 200);
  for (const uint16_t port : ports) {
    const std::string text = Scrape(port);
    looked_up += ValueOf(text, "skein_engram_lookups_total{node=");
    EXPECT_GT(ValueOf(text, "process_start_time_seconds"), 0);
  }
  EXPECT_GT(looked_up, 0);
  const double before = ValueOf(Scrape(ports[0]), "process_start_time_seconds");
  ASSERT_TRUE(server.Find("skein-worker", "--worker-index=0").Signal(SIGKILL));
  // Whoever comes meanwhile waits in the backlog, and is answered by the new one.
  EXPECT_TRUE(WaitUntil([&] {
    return ValueOf(Scrape(ports[0]), "process_start_time_seconds") > before;
  })) << server.output();
  EXPECT_THAT(Scrape(ports[0]), AllOf(HasSubstr("worker=\"1\""), Not(HasSubstr("worker=\"2\""))));
  EXPECT_THAT(Scrape(ports[1]), AllOf(HasSubstr("worker=\"2\""), Not(HasSubstr("worker=\"1\""))));
}

TEST(ScrapedWorkerTest, APortThatIsTakenEndsTheStart) {
  auto taken = worker::OpenListenSocket("127.0.0.1", 0);
  ASSERT_TRUE(taken.ok()) << taken.status();
  LiveServer server;
  const std::string address = "127.0.0.1:" + std::to_string(taken->port);
  server.Start({"--worker-metrics-listen", address});
  EXPECT_EQ(server.WaitForExit(), kConfiguration) << server.output();
  EXPECT_THAT(server.errors(),
              AllOf(HasSubstr("cannot listen on " + address + ": Address already in use"),
                    HasSubstr("give another --worker-metrics-listen")));
  EXPECT_THAT(server.Alive(), IsEmpty());
}

// Without a coordinator on the node its first worker, and no other, has the supervisor's counters.
TEST(ScrapedWorkerTest, TheFirstWorkerOfANodeHasItsSupervisorsCounters) {
  ProcessTree tree(SKEIN_PROGRAM_DIRECTORY, Children::kReal);
  tree.Start({"node", "--model", fs::absolute("deploy/models/tiny-v41").string(), "--backend",
              "cpu", "-dp", "2", "--control-endpoint", "ipc://" + tree.directory() + "/control",
              "--worker-metrics-listen", "127.0.0.1:0"});
  ASSERT_TRUE(tree.WaitForOutput("worker.0: loaded", kLimit)) << tree.output();
  const std::vector<uint16_t> ports = ScrapedPorts(tree.output());
  ASSERT_EQ(ports.size(), 2u) << tree.output();
  EXPECT_TRUE(WaitUntil(
      [&] { return Scrape(ports[0]).find("\nskein_orphans_swept_total ") != std::string::npos; }));
  EXPECT_THAT(Scrape(ports[0]), HasSubstr("\nskein_child_restarts_total{child=\"worker.1\"} 0"));
  EXPECT_THAT(Scrape(ports[1]),
              AllOf(HasSubstr("skein_build_info{"), Not(HasSubstr("skein_orphans_swept_total"))));
  tree.Signal(SIGTERM);
  EXPECT_EQ(tree.WaitForExit(kLimit), 0) << tree.output();
}

TEST(ScrapedWorkerTest, WithoutAnAddressNothingListens) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  EXPECT_THAT(server.output(), AllOf(HasSubstr("of workers: none without --worker-metrics-listen"),
                                     Not(HasSubstr("metrics are served"))));
  EXPECT_THAT(ScrapedPorts(server.output()), IsEmpty());
}

// What `skein serve` writes to a terminal until it is ready; it is stopped then.
std::string StartOnATerminal(const std::string& directory) {
  const std::string program = std::string(SKEIN_PROGRAM_DIRECTORY) + "/skein";
  const std::string run = directory + "/run";
  int master = -1;
  winsize size{};
  size.ws_col = 100;
  size.ws_row = 25;
  const int parent = ::getpid();
  const int pid = ::forkpty(&master, nullptr, nullptr, &size);
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(127);
    ::execl(program.c_str(), program.c_str(), "serve", "--port", "0", "--run-directory",
            run.c_str(), nullptr);
    ::_exit(127);
  }
  std::string out;
  std::array<char, 4096> bytes{};
  pollfd wait{master, POLLIN, 0};
  bool is_stopped = false;
  while (::poll(&wait, 1, 60'000) == 1) {
    const ssize_t count = ::read(master, bytes.data(), bytes.size());
    if (count <= 0) break;  // everybody who had the terminal has ended
    out.append(bytes.data(), static_cast<size_t>(count));
    if (is_stopped || out.find("worker.0: ready") == std::string::npos) continue;
    is_stopped = true;
    ::kill(pid, SIGTERM);
  }
  if (!is_stopped) ::kill(pid, SIGTERM);
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << out;
  ::close(master);
  return out;
}

TEST(ScrapedWorkerTest, ATerminalShowsHowFarAStartIs) {
  const LiveServer place;  // for its directory
  const std::string out = StartOnATerminal(place.directory());
  EXPECT_THAT(out,
              AllOf(HasSubstr("\r\033[Kworker.0 preflight [....................]   0 %"),
                    HasSubstr("\r\033[Kworker.0 weights ["), HasSubstr("\r\033[Kworker.0 engram ["),
                    HasSubstr("\r\033[Kworker.0 warmup [")));
  // Lines are whole: the bar was taken away before each, and is gone in the end.
  for (const char* line : {"worker.0: loaded (after ", "worker.0: ready (after "}) {
    const size_t at = out.find(line);
    ASSERT_NE(at, std::string::npos) << out;
    const std::string before = out.substr(0, at);
    EXPECT_TRUE(before.ends_with("\n") || before.ends_with("\r\033[K")) << line << out;
  }
  EXPECT_THAT(out.substr(out.find("worker.0: ready")), Not(HasSubstr("] ")));
}

TEST(ScrapedWorkerTest, ElsewhereAShortStartSaysNothingOfIt) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  EXPECT_THAT(server.output(), AllOf(Not(HasSubstr("\033")), Not(HasSubstr("[..."))));
  EXPECT_THAT(server.output(), AllOf(HasSubstr("msg=\"worker started\" preflight_s="),
                                     HasSubstr(" weights_s="), HasSubstr(" total_s=")));
}

}  // namespace
}  // namespace skein::tests
