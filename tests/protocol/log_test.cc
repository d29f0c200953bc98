// Tests of protocol/base/log: forms, escaping, levels, buckets, CHECK.
#include "protocol/base/log.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace skein::protocol {
namespace {

using ::testing::Test;

class LogTest : public Test {
 protected:
  void Install(LogForm form, LogLevel level) {
    LogOptions options;
    options.form = form;
    options.level = level;
    options.process = "log-test";
    options.sink = [this](std::string_view line) { lines_.emplace_back(line); };
    InstallLog(std::move(options));
  }
  void TearDown() override { InstallLog(LogOptions{}); }

  std::vector<std::string> lines_;
};

TEST_F(LogTest, KeyValueLineNamesLevelProcessAndFields) {
  Install(LogForm::kKeyValue, LogLevel::kInfo);
  SKEIN_LOG(kInfo, "group formed").Field("group", GroupId(2)).Field("epoch", 7).Field("ok", true);
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_TRUE(absl::StrContains(
      lines_[0], "Z level=info process=log-test msg=\"group formed\" group=2 epoch=7 ok=true\n"))
      << lines_[0];
}

TEST_F(LogTest, JsonLineEscapes) {
  Install(LogForm::kJson, LogLevel::kInfo);
  SKEIN_LOG(kWarn, "odd")
      .Field("text",
             "a\"b\n\xC2\x9B"
             "31m")
      .Field("seconds", 0.5);
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_TRUE(
      absl::StrContains(lines_[0], R"("msg":"odd","text":"a\"b\u000a\u009b31m","seconds":0.5})"))
      << lines_[0];
}

TEST_F(LogTest, LevelsBelowTheConfiguredOneAreSilent) {
  Install(LogForm::kKeyValue, LogLevel::kWarn);
  SKEIN_LOG(kInfo, "quiet");
  SKEIN_LOG(kWarn, "loud");
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_TRUE(absl::StrContains(lines_[0], "msg=loud"));
}

TEST_F(LogTest, ALineHasABound) {
  Install(LogForm::kKeyValue, LogLevel::kInfo);
  SKEIN_LOG(kInfo, "long").Field("text", std::string(100'000, 'x')).Field("next", 1);
  SKEIN_LOG(kInfo, "long").Field("text", std::string(100'000, '\n'));
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_LT(lines_[0].size(), 2200u);
  EXPECT_TRUE(absl::StrContains(lines_[0], "xxx..."));
  EXPECT_TRUE(absl::StrContains(lines_[1], "\\u000a...\""));
}

TEST_F(LogTest, ACallSiteIsLimitedAndCountsWhatItHeldBack) {
  Install(LogForm::kKeyValue, LogLevel::kInfo);
  const uint64_t before = LogLinesSuppressed();
  for (int i = 0; i < 1000; ++i) SKEIN_LOG(kInfo, "flood").Field("i", i);
  EXPECT_GE(lines_.size(), 20u);
  EXPECT_LT(lines_.size(), 200u);
  EXPECT_EQ(LogLinesSuppressed() - before, 1000 - lines_.size());
  SKEIN_LOG(kInfo, "another site");
  EXPECT_TRUE(absl::StrContains(lines_.back(), "another site"));
}

TEST(LogSiteTest, ErrorsPassOnceASecondAndReportTheSuppressed) {
  LogSite site;
  uint64_t suppressed = 0;
  const int64_t second_ns = 1'000'000'000;
  const int64_t start_ns = 1'000'000'000 * second_ns;  // after any real time of this process
  int passed = 0;
  for (int i = 0; i < 100; ++i) {
    passed += site.Admit(LogLevel::kError, start_ns, suppressed) ? 1 : 0;
  }
  EXPECT_EQ(passed, 21);  // 20 of the site and the guaranteed one
  ASSERT_TRUE(site.Admit(LogLevel::kError, start_ns + 2 * second_ns, suppressed));
  EXPECT_EQ(suppressed, 79u);
}

TEST(LogBucketTest, RefillsWithTime) {
  LogBucket bucket(10);
  int64_t now_ns = 5'000'000'000;
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(bucket.TryTake(now_ns));
  EXPECT_FALSE(bucket.TryTake(now_ns));
  EXPECT_TRUE(bucket.TryTake(now_ns + 100'000'000));
  EXPECT_FALSE(bucket.TryTake(now_ns + 100'000'000));
}

TEST(CheckTest, PassesSilentlyAndEndsTheProcessWithTheText) {
  SKEIN_CHECK(1 + 1 == 2) << "never printed";
  EXPECT_DEATH(SKEIN_CHECK(1 + 1 == 3) << "invariant 4: sum=" << 2,
               "CHECK failed at .*log_test.cc:[0-9]+: 1 \\+ 1 == 3 invariant 4: sum=2");
}

}  // namespace
}  // namespace skein::protocol
