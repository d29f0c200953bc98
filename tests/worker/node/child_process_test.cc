// Tests of worker/node/child_process: what a child gets, how its end is told, and refusals.
#include "worker/node/child_process.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using protocol::Concat;
using ::testing::HasSubstr;

class ChildProcessTest : public ::testing::Test {
 protected:
  ChildProcessTest() : containment_(Containment::Probe()) {}

  ChildStart Shell(std::string_view script) const {
    ChildStart start;
    start.leaf_name = "child.1";
    start.program = "/bin/sh";
    start.arguments = {"-c", std::string(script)};
    return start;
  }

  // Waits for the end and returns it with everything the child wrote.
  static ChildEnd Finish(ChildProcess& child, std::string& output) {
    char text[4096];
    pollfd wait{child.output_fd(), POLLIN, 0};
    while (::poll(&wait, 1, 10'000) == 1) {
      const ssize_t count = ::read(child.output_fd(), text, sizeof text);
      if (count <= 0) break;
      output.append(text, static_cast<size_t>(count));
    }
    pollfd end{child.process_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&end, 1, 10'000), 1);
    const auto reaped = child.Reap();
    EXPECT_TRUE(reaped.has_value());
    return reaped.value_or(ChildEnd{});
  }

  std::unique_ptr<Containment> containment_;
};

TEST_F(ChildProcessTest, OutputAndExitCodeArrive) {
  auto child = ChildProcess::Start(Shell("echo out; echo err >&2; exit 7"), *containment_);
  ASSERT_TRUE(child.ok()) << child.status();
  std::string output;
  const ChildEnd end = Finish(*child, output);
  EXPECT_EQ(end.exit_code, 7);
  EXPECT_EQ(end.Describe(), "exit code 7");
  EXPECT_EQ(output, "out\nerr\n");
}

TEST_F(ChildProcessTest, TheChildHasOnlyItsFourDescriptorsAndNoCore) {
  auto child = ChildProcess::Start(Shell("ulimit -c; exec ls /proc/self/fd"), *containment_);
  ASSERT_TRUE(child.ok());
  std::string output;
  Finish(*child, output);
  // 3 is the supervisor's socket, 4 the directory that ls reads.
  EXPECT_EQ(output, "0\n0\n1\n2\n3\n4\n");
}

TEST_F(ChildProcessTest, WhatItInheritsIsWhereItLooks) {
  char path[] = "/tmp/skein_inherit_XXXXXX";
  const Descriptor file(::mkostemp(path, O_CLOEXEC));
  ASSERT_TRUE(file.valid());
  const auto links = [&](int listen_fd, int lock_fd) {
    ChildStart start = Shell("for n in 4 5 6; do readlink /proc/self/fd/$n || echo none; done");
    start.leaf_name = Concat("child.", listen_fd, ".", lock_fd);  // each in a leaf of its own
    start.listen_fd = listen_fd;
    start.lock_fd = lock_fd;
    auto child = ChildProcess::Start(start, *containment_);
    EXPECT_TRUE(child.ok());
    std::string output;
    Finish(*child, output);
    return output;
  };
  EXPECT_EQ(links(file.get(), -1), Concat(path, "\nnone\nnone\n"));
  EXPECT_EQ(links(-1, file.get()), Concat("none\n", path, "\nnone\n"));
  EXPECT_EQ(links(file.get(), file.get()), Concat(path, "\n", path, "\nnone\n"));
  ::unlink(path);
}

TEST_F(ChildProcessTest, AWorkerIsInitOfItsNamespace) {
  if (!containment_->pid_namespaces()) GTEST_SKIP() << containment_->description();
  ChildStart start = Shell("echo $$");
  start.own_pid_namespace = true;
  auto child = ChildProcess::Start(start, *containment_);
  ASSERT_TRUE(child.ok()) << child.status();
  std::string output;
  Finish(*child, output);
  EXPECT_EQ(output, "1\n");
}

TEST_F(ChildProcessTest, ClosingTheLinkIsSeenByTheChild) {
  auto child = ChildProcess::Start(Shell("echo up; read line <&3; echo ended"), *containment_);
  ASSERT_TRUE(child.ok());
  pollfd up{child->output_fd(), POLLIN, 0};  // not before: the child would see its parent gone
  ASSERT_EQ(::poll(&up, 1, 10'000), 1);
  ::shutdown(child->link_fd(), 2);
  std::string output;
  EXPECT_EQ(Finish(*child, output).exit_code, 0);
  EXPECT_EQ(output, "up\nended\n");
}

TEST_F(ChildProcessTest, SignalsGoToTheHandle) {
  auto child = ChildProcess::Start(Shell("exec sleep 1000"), *containment_);
  ASSERT_TRUE(child.ok());
  EXPECT_FALSE(child->Reap().has_value());
  child->Signal(SIGTERM);
  std::string output;
  const ChildEnd end = Finish(*child, output);
  EXPECT_EQ(end.signal, SIGTERM);
  EXPECT_EQ(end.Describe(), "signal 15 (Terminated)");
  child->Signal(SIGTERM);  // after the end: nothing happens
}

TEST_F(ChildProcessTest, KillReachesWhatLeftTheSession) {
  if (!containment_->leaves()) GTEST_SKIP() << containment_->description();
  auto child = ChildProcess::Start(
      Shell("setsid sh -c 'kill -STOP $$' & setsid sleep 1000 & echo ready; wait"), *containment_);
  ASSERT_TRUE(child.ok());
  char text[16];
  pollfd wait{child->output_fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&wait, 1, 10'000), 1);
  ASSERT_GT(::read(child->output_fd(), text, sizeof text), 0);
  child->Kill();
  std::string output;
  EXPECT_EQ(Finish(*child, output).signal, SIGKILL);
  const auto leaf = child->TakeLeaf();
  ASSERT_TRUE(leaf.has_value());
  for (int tries = 0; tries < 200 && !leaf->empty(); ++tries) ::poll(nullptr, 0, 5);
  EXPECT_TRUE(leaf->empty());
  EXPECT_TRUE(leaf->Remove());
}

TEST_F(ChildProcessTest, MissingAndSetIdProgramsAreRefused) {
  ChildStart start = Shell("true");
  start.program = "/no/such/program";
  auto child = ChildProcess::Start(start, *containment_);
  EXPECT_EQ(child.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(protocol::StatusText(child.status())),
              HasSubstr("/no/such/program is missing or not executable"));
  char path[] = "/tmp/skein_program_XXXXXX";
  ASSERT_NE(::mkdtemp(path), nullptr);
  start.program = std::string(path) + "/setid";
  std::ofstream(start.program) << "#!/bin/sh\n";
  ASSERT_EQ(::chmod(start.program.c_str(), 04755), 0);
  child = ChildProcess::Start(start, *containment_);
  EXPECT_THAT(std::string(protocol::StatusText(child.status())),
              HasSubstr("is set-id, which clears the parent-death signal"));
  std::filesystem::remove_all(path);
}

}  // namespace
}  // namespace skein::worker
