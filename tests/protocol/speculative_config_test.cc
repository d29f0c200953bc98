// Tests of the value of --speculative-config: what it sets and how bad ones are refused.
// Thread: single.
#include "protocol/config/speculative_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

using ::testing::HasSubstr;

std::string Error(std::string_view json) {
  const auto values = ReadSpeculativeConfig(json);
  return values.ok() ? "accepted" : std::string(StatusText(values.status()));
}

TEST(SpeculativeConfig, BothMembersSetTheirKeys) {
  const auto values = ReadSpeculativeConfig(R"({"num_speculative_tokens": 2, "method": "dspark"})");
  ASSERT_TRUE(values.ok()) << values.status();
  ASSERT_EQ(values->size(), 2U);
  EXPECT_EQ(values->at(0).path, "speculation.num_speculative_tokens");
  EXPECT_EQ(values->at(0).text, "2");
  EXPECT_EQ(values->at(1).path, "speculation.method");
  EXPECT_EQ(values->at(1).text, "dspark");
}

TEST(SpeculativeConfig, OneMemberIsEnough) {
  EXPECT_EQ(ReadSpeculativeConfig(R"( {"method":"none"})")->at(0).text, "none");
  EXPECT_EQ(ReadSpeculativeConfig(R"({"num_speculative_tokens":0})")->at(0).text, "0");
}

TEST(SpeculativeConfig, MethodsOfOtherServersAreRefusedWithTheRemedy) {
  for (const char* method : {"eagle", "eagle3", "ngram", "mtp", "deepseek_mtp", "draft_model"}) {
    EXPECT_EQ(Error(Concat(R"({"method": ")", method, R"("})")),
              Concat("method is \"", method,
                     "\"; this server drafts with the checkpoint's own head alone: give "
                     "\"dspark\", or \"none\" to decode without drafts"));
  }
}

TEST(SpeculativeConfig, WrongTypesAndMembersAreRefused) {
  EXPECT_EQ(Error(R"({"method": 5})"), "method is not a string; give \"dspark\" or \"none\"");
  EXPECT_EQ(Error(R"({"method": null})"), "method is not a string; give \"dspark\" or \"none\"");
  for (const char* number : {R"("5")", "5.0", "true", "[5]", "null", "1e1"}) {
    EXPECT_EQ(Error(Concat(R"({"num_speculative_tokens": )", number, "}")),
              "num_speculative_tokens is not an integer; give a number without quotes")
        << number;
  }
  EXPECT_EQ(Error(R"({"method": "dspark", "model": "x"})"),
            "unknown member \"model\"; leave it out: there are method and num_speculative_tokens, "
            "and the draft head is part of the checkpoint");
}

TEST(SpeculativeConfig, WhatIsNoObjectIsRefused) {
  EXPECT_THAT(Error("5"), HasSubstr("\"5\" is not a JSON object; give {\"method\": \"dspark\""));
  EXPECT_THAT(Error(""), HasSubstr("is not a JSON object"));
  EXPECT_THAT(Error("{}"), HasSubstr("sets nothing; give {"));
  EXPECT_THAT(Error(R"({"method": )"), HasSubstr("not a JSON object: line:1: a map as a key"));
  EXPECT_THAT(Error(R"({"method": "none", "method": "none"})"), HasSubstr("duplicate key"));
}

}  // namespace
}  // namespace skein::protocol
