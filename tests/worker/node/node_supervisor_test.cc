// Tests of worker/node/node_supervisor with small shell children, each in a process of its own: the
// supervisor takes the signals of the process. Whole trees: tests/process/lifecycle_test.cc.
#include "worker/node/node_supervisor.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace skein::worker {
namespace {

using ::testing::HasSubstr;

ChildSpec Shell(ChildRole role, std::string_view script) {
  ChildSpec spec;
  spec.role = role;
  spec.name = role == ChildRole::kCoordinator ? "coordinator" : "worker.0";
  spec.program = "/bin/sh";
  // What the supervisor appends becomes $1, $2 and $3 of the script.
  spec.arguments = {"-c", std::string(script), "shell"};
  return spec;
}

struct Outcome {
  int code = -1;
  std::string output;
};

// Runs a supervisor in a forked process, which receives SIGTERM once each child reported "stop".
Outcome Supervise(std::vector<ChildSpec> children, protocol::NodeConfig node = {},
                  const std::function<void(SupervisorOptions&)>& adjust = nullptr) {
  node.stop_timeout = absl::Seconds(1);
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(ends[1], 1);
    ::dup2(ends[1], 2);
    auto containment = Containment::Probe();
    SupervisorOptions options;
    size_t reports = 0;
    const size_t expected = children.size();
    options.children = std::move(children);
    options.node = node;
    options.drain_timeout = absl::Seconds(5);
    options.containment = containment.get();
    options.on_report = [&reports, expected](const ChildSpec& child, std::string_view line) {
      const std::string text = "report of " + child.name + ": " + std::string(line) + "\n";
      [[maybe_unused]] const ssize_t written = ::write(1, text.data(), text.size());
      if (line == "stop" && ++reports == expected) ::kill(::getpid(), SIGTERM);
    };
    if (adjust) adjust(options);
    auto supervisor = NodeSupervisor::Create(std::move(options));
    const int code = supervisor.ok() ? (*supervisor)->Run() : 99;
    containment.reset();
    ::_exit(code);
  }
  ::close(ends[1]);
  Outcome outcome;
  char text[4096];
  for (ssize_t count = 0; (count = ::read(ends[0], text, sizeof text)) > 0;) {
    outcome.output.append(text, static_cast<size_t>(count));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return outcome;
}

TEST(NodeSupervisorTest, ChildrenGetTheirCountersAndReportOverTheLink) {
  const Outcome outcome =
      Supervise({Shell(ChildRole::kWorker, "echo $1 $2; echo stop >&3; sleep 100")});
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("--supervisor-fd=3 --incarnation="));
  EXPECT_THAT(outcome.output, HasSubstr("report of worker.0: stop\n"));
}

TEST(NodeSupervisorTest, WorkersAreStoppedAfterTheCoordinator) {
  const Outcome outcome =
      Supervise({Shell(ChildRole::kCoordinator,
                       "trap 'echo coordinator drained; exit 0' TERM; echo $2; echo stop >&3; "
                       "while true; do sleep 0.01; done"),
                 Shell(ChildRole::kWorker,
                       "trap 'echo worker stopped; exit 0' TERM; echo stop >&3; "
                       "while true; do sleep 0.01; done")});
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("--term="));
  const size_t drained = outcome.output.find("coordinator drained");
  const size_t stopped = outcome.output.find("worker stopped");
  ASSERT_NE(drained, std::string::npos) << outcome.output;
  ASSERT_NE(stopped, std::string::npos) << outcome.output;
  EXPECT_LT(drained, stopped);
}

TEST(NodeSupervisorTest, CodesOfRefusalEndTheNodeAndOthersAreRestarted) {
  for (const int code : {64, 65, 78}) {
    const Outcome refused = Supervise({Shell(ChildRole::kWorker, "exit " + std::to_string(code))});
    EXPECT_EQ(refused.code, code) << refused.output;
  }
  protocol::NodeConfig node;
  node.restarts_max = 2;
  node.backoff_min = absl::Milliseconds(1);
  node.backoff_max = absl::Milliseconds(2);
  const Outcome outcome = Supervise({Shell(ChildRole::kCoordinator, "echo run; exit 3")}, node);
  EXPECT_EQ(outcome.code, 75) << outcome.output;
  size_t runs = 0;
  for (size_t at = outcome.output.find("run\n"); at != std::string::npos;
       at = outcome.output.find("run\n", at + 1)) {
    ++runs;
  }
  EXPECT_EQ(runs, 3u) << "the first start and two restarts";
}

// The numbers after `name` in the output, in order.
std::vector<std::string> ValuesOf(const std::string& output, const std::string& name) {
  std::vector<std::string> values;
  for (size_t at = output.find(name); at != std::string::npos; at = output.find(name, at + 1)) {
    const size_t begin = at + name.size();
    values.push_back(output.substr(begin, output.find_first_not_of("0123456789", begin) - begin));
  }
  return values;
}

TEST(NodeSupervisorTest, TheNextIncarnationIsToldHowTheLastOneEnded) {
  char path[] = "/tmp/skein_ends_XXXXXX";
  ASSERT_NE(::mkdtemp(path), nullptr);
  // Ends another way each time; the number of the run is kept in a file.
  const std::string script =
      "n=$(cat " + std::string(path) + "/n 2>/dev/null || echo 0); echo $((n+1)) >" +
      std::string(path) +
      "/n; echo told$3; echo ready >&3; case $n in 0) exit 3;; 1) exit 70;; 2) exit 76;; "
      "3) exit 75;; 4) exit 0;; *) echo stop >&3; sleep 100;; esac";
  protocol::NodeConfig node;
  node.restarts_max = 100;
  node.backoff_min = absl::Milliseconds(1);
  node.backoff_max = absl::Milliseconds(2);
  const Outcome outcome = Supervise({Shell(ChildRole::kWorker, script)}, node);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(ValuesOf(outcome.output, "told--predecessor-end="),
            (std::vector<std::string>{"0", "1", "2", "1", "2", "3"}))
      << outcome.output;
  std::filesystem::remove_all(path);
}

TEST(NodeSupervisorTest, AnOrderedEndIsNotCountedUnlessItWasNeverReady) {
  char path[] = "/tmp/skein_ends_XXXXXX";
  ASSERT_NE(::mkdtemp(path), nullptr);
  const std::string count =
      std::string("n=$(cat ") + path + "/n 2>/dev/null || echo 0); echo $((n+1)) >" + path + "/n; ";
  protocol::NodeConfig node;
  node.restarts_max = 2;
  node.backoff_min = absl::Milliseconds(1);
  node.backoff_max = absl::Milliseconds(2);
  const Outcome ordered = Supervise(
      {Shell(ChildRole::kWorker, count + "echo ready >&3; if [ $n -lt 8 ]; then exit 0; fi; "
                                         "echo stop >&3; sleep 100")},
      node);
  EXPECT_EQ(ordered.code, 0) << ordered.output;
  EXPECT_THAT(ordered.output, ::testing::Not(HasSubstr("failed too often")));
  EXPECT_THAT(ordered.output, HasSubstr("child ended as asked, its successor starts"));
  const Outcome never = Supervise({Shell(ChildRole::kCoordinator, "exit 0")}, node);
  EXPECT_EQ(never.code, 75) << "it would go on for ever";
  EXPECT_THAT(never.output, HasSubstr("child failed too often"));
  std::filesystem::remove_all(path);
}

// A program in a directory of its own, and another that takes its place by rename.
class ReplacedProgramTest : public ::testing::Test {
 protected:
  ReplacedProgramTest() {
    char path[] = "/tmp/skein_replaced_XXXXXX";
    directory_ = ::mkdtemp(path);
    // A binary: a script cannot be executed once no path leads to it.
    std::filesystem::copy_file("/bin/sh", directory_ + "/worker");
    node_.restarts_max = 1;
    node_.backoff_min = absl::Milliseconds(1);
    node_.backoff_max = absl::Milliseconds(2);
  }
  ~ReplacedProgramTest() override { std::filesystem::remove_all(directory_); }

  void WriteNext(const std::string& script) const {
    std::ofstream(directory_ + "/next") << "#!/bin/sh\n" << script << '\n';
    std::filesystem::permissions(directory_ + "/next", std::filesystem::perms::owner_all);
  }
  // `script` sees the number of its run in $n, and takes its own place with $replace.
  Outcome Run(const std::string& script) const {
    ChildSpec spec =
        Shell(ChildRole::kWorker,
              "n=$(cat " + directory_ + "/n 2>/dev/null || echo 0); echo $((n+1)) >" + directory_ +
                  "/n; replace='mv " + directory_ + "/next " + directory_ + "/worker'; " + script);
    spec.program = directory_ + "/worker";
    return Supervise({spec}, node_, [this](SupervisorOptions& options) {
      options.start_timeout = absl::Milliseconds(300);
      options.counters_path = directory_ + "/counters";
    });
  }

  std::string directory_;
  protocol::NodeConfig node_;
};

constexpr char kReplaceOnce[] =
    "echo told$3; echo ready >&3; if [ $n = 0 ]; then $replace; exit 0; fi; echo stop >&3; sleep "
    "100";

TEST_F(ReplacedProgramTest, OneThatHangsIsEndedAndTheOneBeforeComesBack) {
  WriteNext("sleep 1000");
  const Outcome outcome = Run(kReplaceOnce);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("the new program says nothing and is ended"));
  EXPECT_THAT(outcome.output, HasSubstr("the one before it is started again"));
}

TEST_F(ReplacedProgramTest, OneThatEndsInOrderBeforeItIsReadyGivesWay) {
  WriteNext("exit 0");
  node_.restarts_max = 3;
  const Outcome outcome = Run(kReplaceOnce);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("the one before it is started again"));
  EXPECT_THAT(outcome.output, ::testing::Not(HasSubstr("failed too often")));
  EXPECT_EQ(ValuesOf(outcome.output, "told--predecessor-end="),
            (std::vector<std::string>{"0", "1"}))
      << "a failed start is told as one, whatever its code";
}

TEST_F(ReplacedProgramTest, OneThatSpeaksInTimeMayTakeLongToBeReady) {
  WriteNext("echo loaded >&3; sleep 1; echo stop >&3; sleep 100");
  const Outcome outcome = Run(kReplaceOnce);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, ::testing::Not(HasSubstr("is ended")));
}

TEST_F(ReplacedProgramTest, AnotherProgramEndsThePauseOfOneThatFailedTooOften) {
  WriteNext("echo ready >&3; echo stop >&3; sleep 100");
  const Outcome outcome = Run("if [ $n = 1 ]; then $replace; fi; exit 3");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("child failed too often"));
  EXPECT_THAT(outcome.output, HasSubstr("another program was installed, it is started at once"));
}

TEST(NodeSupervisorTest, LongAndUnfinishedLinesArePassedOn) {
  const Outcome outcome = Supervise(
      {Shell(ChildRole::kWorker, "head -c 10000 /dev/zero | tr '\\0' x; printf end; exit 65")});
  EXPECT_EQ(outcome.code, 65);
  EXPECT_THAT(outcome.output, HasSubstr("end\n"));
  EXPECT_GE(std::count(outcome.output.begin(), outcome.output.end(), 'x'), 10000);
}

TEST(NodeSupervisorTest, AMissingProgramIsAConfigurationError) {
  ChildSpec spec = Shell(ChildRole::kWorker, "true");
  spec.program = "/no/such/skein-worker";
  const Outcome outcome = Supervise({spec});
  EXPECT_EQ(outcome.code, 78);
  EXPECT_THAT(outcome.output, HasSubstr("/no/such/skein-worker is missing or not executable"));
}

}  // namespace
}  // namespace skein::worker
