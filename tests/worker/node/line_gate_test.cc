// Tests of worker/node/line_gate with a clock of their own.
#include "worker/node/line_gate.h"

#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const absl::Time kStart = absl::UnixEpoch();

std::string Lines(int first, int count) {
  std::string text;
  for (int i = first; i < first + count; ++i) text += "line " + std::to_string(i) + "\n";
  return text;
}

std::string Pass(LineGate& gate, const std::string& lines, absl::Time now) {
  std::string out;
  gate.Pass(lines, now, out);
  return out;
}

TEST(LineGateTest, ABurstPassesWholeThenTheRestIsCounted) {
  LineGate gate;
  EXPECT_EQ(Pass(gate, Lines(0, 2000), kStart), Lines(0, 2000));
  EXPECT_EQ(gate.suppressed(), 0u);
  EXPECT_EQ(Pass(gate, Lines(2000, 10), kStart), "");
  EXPECT_EQ(gate.suppressed(), 10u);
  EXPECT_EQ(Pass(gate, Lines(2010, 600), kStart + absl::Seconds(1)), Lines(2010, 500));
}

TEST(LineGateTest, TheLastLineOfABurstComesWhenItIsQuiet) {
  LineGate gate;
  EXPECT_THAT(Pass(gate, Lines(0, 5000), kStart), StartsWith("line 0\n"));
  EXPECT_EQ(gate.TakeNotice(kStart), 3000u);
  EXPECT_EQ(gate.TakeLast(kStart), "") << "it may go on";
  EXPECT_EQ(gate.quiet_at(), kStart + LineGate::kQuiet);
  EXPECT_EQ(gate.TakeLast(gate.quiet_at()), "line 4999\n");
  EXPECT_EQ(gate.quiet_at(), absl::InfiniteFuture());
  EXPECT_EQ(gate.TakeNotice(kStart + absl::Hours(1)), 0u) << "it was told";
}

TEST(LineGateTest, NoticesComeAtMostOnceASecondWhileItGoesOn) {
  LineGate gate;
  Pass(gate, Lines(0, 2000), kStart);
  int notices = 0;
  uint64_t told = 0;
  for (int ms = 0; ms < 3000; ms += 10) {
    const absl::Time now = kStart + absl::Milliseconds(ms);
    Pass(gate, Lines(0, 1000), now);
    const uint64_t count = gate.TakeNotice(now);
    notices += count > 0 ? 1 : 0;
    told += count;
  }
  EXPECT_EQ(notices, 3);
  told += gate.TakeNotice(kStart + absl::Seconds(4));
  EXPECT_EQ(told, gate.suppressed());
}

TEST(LineGateTest, AnErrorPassesOnceASecond) {
  LineGate gate;
  Pass(gate, Lines(0, 2000), kStart);
  const std::string error = "ts=1 level=error msg=x\n";
  const std::string json = "{\"ts\":\"1\",\"level\":\"error\",\"msg\":\"y\"}\n";
  EXPECT_EQ(Pass(gate, Lines(0, 3) + error + error, kStart), error);
  Pass(gate, Lines(0, 600), kStart + absl::Seconds(1));  // takes what was refilled
  EXPECT_THAT(Pass(gate, json, kStart + absl::Seconds(1)), HasSubstr("\"msg\":\"y\""));
}

TEST(LineGateTest, ALineThatPassesLaterReplacesTheOneHeldBack) {
  LineGate gate;
  Pass(gate, Lines(0, 2001), kStart);
  EXPECT_EQ(Pass(gate, "new\n", kStart + absl::Milliseconds(50)), "new\n");
  EXPECT_EQ(gate.TakeLast(kStart + absl::Seconds(1)), "") << "never an older line after a newer";
}

}  // namespace
}  // namespace skein::worker
