// What operators see of real processes: `skein top` over the loss of a worker and of a coordinator,
// and the record of a request whose client left.
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/base/clock.h"
#include "protocol/json/json.h"
#include "protocol/json/json_writer.h"
#include "tests/process/chat_client.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

using protocol::JsonValue;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string AdminOf(const LiveServer& server) {
  constexpr std::string_view kServed = "msg=\"operators are served\" address=";
  const std::string text = server.output();
  const size_t at = text.find(kServed);
  if (at == std::string::npos) return "";
  return text.substr(at + kServed.size(), text.find('\n', at) - at - kServed.size());
}

// A `skein top` that looks five times a second; stopped with the test.
class Top {
 public:
  explicit Top(const std::string& admin) {
    std::array<int, 2> pipe{};
    EXPECT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
    const std::string program = std::string(SKEIN_PROGRAM_DIRECTORY) + "/skein";
    const int parent = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(127);
      ::dup2(pipe[1], 1);
      ::dup2(pipe[1], 2);
      ::execl(program.c_str(), program.c_str(), "top", "--interval", "0.2", "--admin",
              admin.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(pipe[1]);
    out_ = pipe[0];
  }
  ~Top() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(out_);
  }
  Top(const Top&) = delete;
  Top& operator=(const Top&) = delete;

  // Waits until what was printed since the last call contains `text`.
  bool WaitFor(std::string_view text) {
    std::array<char, 4096> bytes{};
    pollfd wait{out_, POLLIN, 0};
    const absl::Time end = protocol::MonotonicNow() + kLimit;
    while (protocol::MonotonicNow() < end) {
      if (const size_t at = printed_.find(text); at != std::string::npos) {
        printed_.erase(0, at + text.size());
        return true;
      }
      if (::poll(&wait, 1, 1000) != 1) continue;
      const ssize_t count = ::read(out_, bytes.data(), bytes.size());
      if (count <= 0) return false;
      printed_.append(bytes.data(), static_cast<size_t>(count));
    }
    return false;
  }
  const std::string& printed() const { return printed_; }

 private:
  int pid_ = 0;
  int out_ = -1;
  std::string printed_;
};

TEST(WatchingTest, TopShowsALostWorkerAndSurvivesItsCoordinator) {
  LiveServer server;
  // A pause before the restart, so that a look falls into it.
  ASSERT_TRUE(server.StartReady({"-dp", "2", "--restart-backoff-min", "2"})) << server.output();
  ASSERT_TRUE(server.WaitForOutput("ready=2 of=2")) << server.output();
  Top top(AdminOf(server));
  EXPECT_TRUE(top.WaitFor("tokens/s   (with the next look)")) << top.printed();
  EXPECT_TRUE(top.WaitFor("errors/s")) << top.printed();
  ASSERT_TRUE(server.Find("skein-worker", "--worker-index=1").Signal(SIGKILL));
  EXPECT_TRUE(top.WaitFor("dead")) << top.printed();
  EXPECT_TRUE(top.WaitFor("1 worker restarts")) << top.printed();

  // Between two looks the coordinator goes: that is said, and it is looked for again.
  ASSERT_TRUE(server.Find("skein-coordinator").Signal(SIGKILL));
  EXPECT_TRUE(top.WaitFor("admin.sock")) << top.printed();
  ASSERT_TRUE(server.WaitForHealth(200)) << server.output();
  // The first look at the new one has no rates: its counters began anew.
  EXPECT_TRUE(top.WaitFor("tokens/s   (with the next look)")) << top.printed();
  ChatCall call;
  call.content = "Tell me a story about a fox.";
  call.max_tokens = 400;
  ASSERT_EQ(Ask(server.port(), call).status, 200);
  EXPECT_TRUE(top.WaitFor("0 worker restarts")) << top.printed();
}

TEST(WatchingTest, TopEndsWhenWhatItShowsCannotBeWritten) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  const std::string command = std::string(SKEIN_PROGRAM_DIRECTORY) +
                              "/skein top --count 5 --interval 0.2 --admin " + AdminOf(server) +
                              " 2>&1 >/dev/full";
  FILE* said = ::popen(command.c_str(), "re");
  ASSERT_NE(said, nullptr);
  std::array<char, 512> bytes{};
  const size_t count = std::fread(bytes.data(), 1, bytes.size(), said);
  const int status = ::pclose(said);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  EXPECT_EQ(std::string(bytes.data(), count),
            "skein: standard output cannot be written: No space left on device\n");
}

// The record of the request with this id, of GET /admin/requests; empty without one.
std::string RecordOf(const LiveServer& server, const std::string& id) {
  const auto answer = protocol::ParseJson(server.Admin("GET", "/admin/requests").body);
  const JsonValue* requests = answer.ok() ? answer->Find("requests") : nullptr;
  if (requests == nullptr) return "";
  for (const JsonValue& record : requests->elements()) {
    if (record.Find("request_id")->string() == id) return protocol::WriteJson(record);
  }
  return "";
}

TEST(WatchingTest, AClientThatLeftLeavesARecordWithoutItsText) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--slow-request-threshold", "0"})) << server.output();
  const std::string secret = "zq7fox";
  protocol::HttpCall call;
  call.port = server.port();
  call.method = "POST";
  call.target = "/v1/chat/completions";
  call.headers.emplace_back("x-request-id", "left-in-decode");
  call.body = R"({"messages":[{"role":"user","content":"Tell me a story about a )" + secret +
              R"(."}],"max_tokens":2000,"ignore_eos":true,"stream":true})";
  int events = 0;
  const auto left = protocol::CallHttpEvents(call, [&](std::string_view) { return ++events < 6; });
  EXPECT_TRUE(absl::IsCancelled(left.status())) << left.status();
  ASSERT_TRUE(WaitUntil([&] { return !RecordOf(server, "left-in-decode").empty(); }));
  const std::string record = RecordOf(server, "left-in-decode");
  EXPECT_THAT(record, AllOf(HasSubstr(R"("end":"abort")"), HasSubstr(R"("status":499)"),
                            HasSubstr(R"("engine":0)"), Not(HasSubstr(secret))));
  const auto json = protocol::ParseJson(record);
  ASSERT_TRUE(json.ok());
  const int64_t tokens = json->Find("completion_tokens")->AsInt64("completion_tokens").value();
  EXPECT_GT(tokens, 0);
  EXPECT_LT(tokens, 2000);
  EXPECT_GT(json->Find("steps")->AsInt64("steps").value(), 0);
  EXPECT_GT(json->Find("prompt_tokens")->AsInt64("prompt_tokens").value(), 0);

  // One that left before anything ran: all of its time is the queue's, and no engine had it.
  ASSERT_EQ(server.Admin("POST", "/admin/drain", "{\"group\":0}").status, 200);
  call.headers.back().second = "left-in-queue";
  call.body = R"({"messages":[{"role":"user","content":")" + secret + R"("}],"max_tokens":5})";
  call.timeout = std::chrono::milliseconds(300);
  EXPECT_FALSE(protocol::CallHttp(call).ok());
  ASSERT_TRUE(WaitUntil([&] { return !RecordOf(server, "left-in-queue").empty(); }))
      << server.output();
  EXPECT_THAT(RecordOf(server, "left-in-queue"),
              AllOf(HasSubstr(R"("end":"abort")"), HasSubstr(R"("engine":null)"),
                    HasSubstr(R"("completion_tokens":0)"), HasSubstr(R"("steps":0)")));
  EXPECT_THAT(server.output(), AllOf(HasSubstr("msg=\"slow request\" request_id=left-in-decode"),
                                     Not(HasSubstr(secret))));
}

}  // namespace
}  // namespace skein::tests
