// Planted faults: what parses, and what the errors say.
#include "protocol/config/fault_list.h"

#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

TEST(FaultListTest, NothingIsPlantedByDefault) {
  const auto faults = ParseFaults("");
  ASSERT_TRUE(faults.ok());
  EXPECT_FALSE(faults->abort_on_token || faults->hang_on_token || faults->exit_at_start ||
               faults->lose_blocks || faults->wedge_on_token);
}

TEST(FaultListTest, EachFaultHasItsNumber) {
  const auto faults =
      ParseFaults(
          "abort_on_token:7,hang_on_token:8,exit_at_start:78,lose_blocks:2,wedge_on_token:0");
  ASSERT_TRUE(faults.ok()) << faults.status();
  EXPECT_EQ(faults->abort_on_token, 7);
  EXPECT_EQ(faults->hang_on_token, 8);
  EXPECT_EQ(faults->exit_at_start, 78);
  EXPECT_EQ(faults->lose_blocks, 2);
  EXPECT_EQ(faults->wedge_on_token, 0);
}

TEST(FaultListTest, ErrorsNameTheEntry) {
  EXPECT_EQ(ParseFaults("abort").status().message(),
            "\"abort\" is no fault; there are abort_on_token:ID, hang_on_token:ID, "
            "exit_at_start:CODE, lose_blocks:WORKER and wedge_on_token:ID");
  EXPECT_EQ(ParseFaults("hang_on_token:-1").status().message(),
            "\"hang_on_token:-1\" must be hang_on_token:NUMBER, with a number from 0 on");
  EXPECT_EQ(ParseFaults("hang_on_token").status().message(),
            "\"hang_on_token\" must be hang_on_token:NUMBER, with a number from 0 on");
  EXPECT_EQ(ParseFaults("exit_at_start:1,exit_at_start:2").status().message(),
            "exit_at_start is given twice");
  EXPECT_FALSE(ParseFaults(",").ok());
  EXPECT_FALSE(ParseFaults("hang_on_token:8,").ok());
}

}  // namespace
}  // namespace skein::protocol
