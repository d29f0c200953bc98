// Tests of skein status, drain and rollout: texts from answers, flags, and a listener that is not
// there.
#include "worker/node/commands/cluster.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::worker {
namespace {

using ::testing::HasSubstr;

protocol::JsonValue Parse(const char* text) { return *protocol::ParseJson(text); }

TEST(ClusterTextTest, StatusFitsEightyColumns) {
  const std::string text = ClusterStatusText(Parse(R"({
    "build": "0.1.0", "protocol": "1.1", "config_hash": "0123456789abcdef", "term": 4711,
    "ready": true, "draining": false, "closed": true, "running": 12, "waiting": 3,
    "waiting_tokens": 900, "requests_ended": 100000, "requests_failed": 2,
    "groups": [
      {"group": 0, "state": "ready", "epoch": 7, "workers": [1], "running": 12, "blocks": 2048,
       "blocks_used": 300, "cordoned": false, "probation": false},
      {"group": 1, "state": "draining", "epoch": 8, "workers": [], "running": 0, "blocks": 0,
       "blocks_used": 0, "cordoned": true, "probation": true}],
    "workers": [{"worker": 1, "state": "ready", "build": "0.1.0-with-a-long-name",
       "backend": "cpu", "last_step": 123456, "heard_age_s": 0.04, "progress_age_s": 1.25}],
    "rollout": {"state": "halted", "phase": "checking", "group": 1, "groups": 2, "replaced": 1,
       "reason": "the canary's tokens differ"}})"));
  EXPECT_THAT(text, HasSubstr("ready, draining; 12 running, 3 waiting (900 tokens); 100000 ended"));
  EXPECT_THAT(text, HasSubstr("0      ready          7      1       12     300 of 2048"));
  EXPECT_THAT(text, HasSubstr("cordoned probation"));
  EXPECT_THAT(text, HasSubstr("1      ready    0.1.0-with cpu"));
  EXPECT_THAT(text, HasSubstr("rollout halted, group 1 checking, 1 of 2 replaced\n"
                              "  the canary's tokens differ\n"));
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    if (text.compare(begin, 11, "coordinator") == 0) continue;
    EXPECT_LE(end - begin, 80u) << text.substr(begin, end - begin);
  }
}

TEST(ClusterTextTest, SlowRequestsAreALineEach) {
  const std::string text = SlowRequestsText(Parse(R"({"threshold_s": 30, "requests": [
      {"request_id": "a-request-id-that-is-longer-than-its-column", "end": "length",
       "total_s": 61.25, "queued_s": 40.5, "prefill_s": 1.25, "decode_s": 19.5,
       "prompt_tokens": 512, "completion_tokens": 4096}]})"));
  EXPECT_THAT(text, HasSubstr("a-request-id-that-is-longe length     61.2    40.5     1.2    19.5"
                              "    512   4096\n"));
  EXPECT_EQ(SlowRequestsText(Parse("{}")).find('\n') + 1, SlowRequestsText(Parse("{}")).size());
}

TEST(ClusterTextTest, AnIdleRolloutIsOneWord) {
  EXPECT_EQ(RolloutText(Parse(R"({"state": "idle", "phase": "waiting"})")), "rollout idle\n");
}

TEST(ClusterTextTest, WhatAWorkerSaysOfItselfObeysNoTerminal) {
  EXPECT_EQ(RolloutText(Parse(
                R"({"state": "halted", "group": 0, "phase": "checking", "replaced": 0, "groups": 1,
                    "reason": "build \u001b[2J\u009b1m\nnew"})")),
            "rollout halted, group 0 checking, 0 of 1 replaced\n"
            "  build \\x1b[2J\\xc2\\x9b1m\\x0anew\n");
}

struct Refusal {
  int (*command)(std::span<const std::string>);
  std::vector<std::string> arguments;
  int code;
  std::string text;
};

TEST(ClusterCommandTest, SaysWhatIsWrong) {
  char path[] = "/tmp/skein_base_XXXXXX";
  const std::string empty = ::mkdtemp(path);
  const Refusal refusals[] = {
      {&RunStatus, {"--jsn"}, 64, "skein status does not know \"--jsn\""},
      {&RunStatus, {"extra"}, 64, "skein status does not know \"extra\""},
      {&RunStatus, {"--admin"}, 64, "--admin needs a value"},
      {&RunStatus, {"--admin", "10.0.0.1:9"}, 64, "10.0.0.1"},
      {&RunStatus,
       {"--run-directory", empty},
       75,
       "no skein runs with a run directory in " + empty},
      {&RunStatus, {"--admin", "unix:" + empty + "/none"}, 75, "no coordinator answers"},
      {&RunDrain, {"two"}, 64, "\"two\" is no group"},
      {&RunDrain, {"0", "--timeout", "-1"}, 64, "--timeout: \"-1\""},
      {&RunRollout, {}, 64, "\"\" is none of start, status"},
      {&RunRollout, {"begin"}, 64, "\"begin\" is none of start, status"},
      {&RunRollout, {"start", "--token-file", empty + "/none"}, 75, "no skein runs"},
  };
  for (const Refusal& refusal : refusals) {
    std::vector<std::string> arguments = refusal.arguments;
    if (refusal.code == 75 && arguments.front() == "start") {
      arguments.insert(arguments.end(), {"--run-directory", empty});
    }
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(refusal.command(arguments), refusal.code) << refusal.text;
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(refusal.text));
  }
  std::filesystem::remove_all(empty);
}

TEST(ClusterCommandTest, HelpNamesTheFlags) {
  for (const auto& command : {&RunStatus, &RunDrain, &RunRollout}) {
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(command(std::vector<std::string>{"--help"}), 0);
    EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("--admin ADDRESS"));
  }
}

}  // namespace
}  // namespace skein::worker
