// Tests of the command skein whoholds: flags, JSON, exit codes.
#include "worker/node/commands/whoholds.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/json/json.h"
#include "tests/worker/node/fake_proc.h"

namespace skein::worker {
namespace {

using ::testing::HasSubstr;

int RunCommand(std::vector<std::string> arguments) { return RunWhoholds(arguments); }

TEST(WhoholdsCommandTest, WrongFlagsAreUsageErrors) {
  FakeProc proc;
  proc.AddDevice(0);
  const std::string glob = proc.device_glob();
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--no-such"},
                                             {"--proc-root"},
                                             {"0", "1"},
                                             {"--kill-orphans", "--proc-root", "/elsewhere"},
                                             {"--proc-root", "/dev"},
                                             {"--proc-root", "/no/such", "--dev-glob", glob},
                                             {"7", "--dev-glob", glob}}) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(RunCommand(arguments), 64) << arguments.front();
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("skein: "));
  }
}

TEST(WhoholdsCommandTest, PrintsJsonWithVerdictAndEscapedCommand) {
  FakeProc proc;
  proc.AddDevice(0);
  proc.AddDevice(1);
  proc.Add({.pid = 100, .arguments = {"evil\x1b]0;\x07"}, .descriptors = {proc.device(1)}});
  const std::vector<std::string> common = {"--json", "--proc-root", proc.proc(), "--dev-glob",
                                           proc.device_glob()};
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(RunCommand(common), 3);
  const auto json = protocol::ParseJson(::testing::internal::GetCapturedStdout());
  ASSERT_TRUE(json.ok()) << json.status();
  const protocol::JsonValue& holder = json->Find("holders")->elements()[0];
  EXPECT_EQ(holder.Find("verdict")->string(), "foreign");
  EXPECT_EQ(holder.Find("command")->string(), "evil\\x1b]0;\\x07");
  EXPECT_EQ(json->Find("exit_code")->AsInt64("exit_code").value(), 3);

  std::vector<std::string> other = common;
  other.push_back("0");
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(RunCommand(other), 0) << "GPU 0 is free";
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("\"holders\":[]"));
}

TEST(WhoholdsCommandTest, WithoutAGpuThereIsNothingToHold) {
  FakeProc proc;
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(RunCommand({"--dev-glob", proc.device_glob()}), 0);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "no GPU is visible here\n");
}

}  // namespace
}  // namespace skein::worker
