// Tests of worker/node/child_end: whose doing an end was.
#include "worker/node/child_end.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace skein::worker {
namespace {

TEST(ChildEndTest, FaultsAndOwnExitsAreItsOwnDoing) {
  for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE}) {
    EXPECT_EQ(JudgeEnd({.signal = signal}), PredecessorEnd::kOwn) << signal;
  }
  for (const int code : {1, 65, 76, 78, 127}) {
    EXPECT_EQ(JudgeEnd({.exit_code = code}), PredecessorEnd::kOwn) << code;
  }
}

TEST(ChildEndTest, SignalsFromOutsideAndExitsAfterALossAreNot) {
  for (const int signal : {SIGKILL, SIGTERM, SIGHUP, SIGPIPE}) {
    EXPECT_EQ(JudgeEnd({.signal = signal}), PredecessorEnd::kOutside) << signal;
  }
  for (const int code : {70, 75}) {
    EXPECT_EQ(JudgeEnd({.exit_code = code}), PredecessorEnd::kOutside) << code;
  }
  EXPECT_EQ(JudgeEnd({}), PredecessorEnd::kOrdered);
}

TEST(ChildEndTest, OutOfMemoryInItsOwnLeafIsItsOwnThoughASigkill) {
  const ChildEnd end = {.signal = SIGKILL, .oom_killed = true};
  EXPECT_EQ(JudgeEnd(end), PredecessorEnd::kOwn);
  EXPECT_EQ(end.Describe(), "signal 9 (Killed), out of memory in its own leaf");
}

}  // namespace
}  // namespace skein::worker
