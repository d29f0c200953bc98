// Tests of the arithmetic of skein bench: every figure from records made by hand.
#include "worker/node/commands/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/json/json.h"

namespace skein::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// Two answers of 5 and 1 tokens, and a refusal.
std::vector<BenchRecord> Records() {
  BenchRecord a;
  a.scheduled_s = 0;
  a.sent_s = 0.002;
  a.first_s = 0.1;
  a.last_s = 0.5;
  a.end_s = 0.6;
  a.gaps_s = {0.1, 0.3};
  a.input_tokens = 10;
  a.output_tokens = 5;
  a.steps = 2;
  a.draft_tokens = 6;
  a.accepted_draft_tokens = 3;
  BenchRecord b;
  b.scheduled_s = b.sent_s = 1;
  b.first_s = b.last_s = 1.3;
  b.end_s = 2;
  b.input_tokens = 20;
  b.output_tokens = 1;
  b.steps = 1;
  BenchRecord c;
  c.scheduled_s = c.sent_s = 0.5;
  c.end_s = 0.55;
  c.error = "http_503 queue";
  c.message = "full";
  return {a, b, c};
}

BenchOptions Options() {
  BenchOptions options;
  options.goodput = {{"ttft", 200}, {"tpot", 100}};
  options.metric_percentiles = {50, 99};
  options.model = "m";
  return options;
}

TEST(BenchReportTest, AddsUpWhatSucceeded) {
  const BenchReport report = MakeReport(Options(), Records());
  EXPECT_EQ(report.completed, 2);
  EXPECT_EQ(report.failed, 1);
  EXPECT_THAT(report.errors, ElementsAre(Pair("http_503 queue", 1)));
  EXPECT_EQ(report.first_error, "full");
  EXPECT_EQ(report.duration_s, 2);
  EXPECT_EQ(report.input_tokens, 30);
  EXPECT_EQ(report.output_tokens, 6);
  EXPECT_EQ(report.request_throughput, 1);
  EXPECT_EQ(report.output_throughput, 3);
  EXPECT_EQ(report.total_token_throughput, 18);
  EXPECT_EQ(report.peak_concurrency, 2);
  EXPECT_DOUBLE_EQ(report.late_start_ms_max, 2);
  EXPECT_EQ(report.acceptance_length, 2);
  EXPECT_EQ(report.draft_acceptance, 0.5);
  // TTFT 100 and 300 ms, TPOT 100 ms and none: only the first is within the bounds.
  EXPECT_EQ(report.good, 1);
  EXPECT_EQ(report.request_goodput, 0.5);
}

TEST(BenchReportTest, MeasuresLatencies) {
  const BenchReport report = MakeReport(Options(), Records());
  ASSERT_EQ(report.latencies.size(), 4u);
  const BenchLatency& ttft = report.latencies[0];
  EXPECT_EQ(ttft.name, "ttft");
  EXPECT_EQ(ttft.count, 2u);
  EXPECT_DOUBLE_EQ(ttft.mean, 200);
  EXPECT_DOUBLE_EQ(ttft.median, 200);
  EXPECT_NEAR(ttft.standard_deviation, 100, 1e-9);
  EXPECT_NEAR(ttft.percentiles[1].second, 298, 1e-9);
  const BenchLatency& tpot = report.latencies[1];
  EXPECT_EQ(tpot.count, 1u);
  EXPECT_DOUBLE_EQ(tpot.mean, 100);
  const BenchLatency& itl = report.latencies[2];
  EXPECT_EQ(itl.count, 2u);
  EXPECT_DOUBLE_EQ(itl.mean, 200);
  const BenchLatency& e2el = report.latencies[3];
  EXPECT_NEAR(e2el.mean, 400, 1e-9);
}

TEST(BenchReportTest, PercentilesAreLinear) {
  const std::vector<double> values = {1, 2, 3, 4, 5};
  EXPECT_EQ(LinearPercentile(values, 0), 1);
  EXPECT_EQ(LinearPercentile(values, 50), 3);
  EXPECT_DOUBLE_EQ(LinearPercentile(values, 90), 4.6);
  EXPECT_EQ(LinearPercentile(values, 100), 5);
  EXPECT_EQ(LinearPercentile({}, 50), 0);
}

TEST(BenchReportTest, NothingIsNoDivisionByZero) {
  const BenchReport report = MakeReport(Options(), {});
  EXPECT_EQ(report.request_throughput, 0);
  EXPECT_EQ(report.acceptance_length, 0);
  EXPECT_EQ(report.draft_acceptance, -1);
}

TEST(BenchReportTest, WritesOneJsonObject) {
  const BenchReport report = MakeReport(Options(), Records());
  const auto parsed = protocol::ParseJson(ReportJson(Options(), report, "2025-01-02T03:04:05Z"));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto number = [&](std::string_view key) {
    const protocol::JsonValue* value = parsed->Find(key);
    return value == nullptr ? -1 : value->AsDouble(key).value_or(-1);
  };
  EXPECT_EQ(number("completed"), 2);
  EXPECT_EQ(number("request_goodput"), 0.5);
  EXPECT_EQ(number("acceptance_length"), 2);
  EXPECT_DOUBLE_EQ(number("mean_ttft_ms"), 200);
  EXPECT_NEAR(number("p99_ttft_ms"), 298, 1e-9);
  EXPECT_NEAR(number("median_e2el_ms"), 400, 1e-9);
  EXPECT_EQ(parsed->Find("model_id")->string(), "m");
  EXPECT_EQ(parsed->Find("request_rate")->string(), "inf");
  EXPECT_EQ(parsed->Find("date")->string(), "2025-01-02T03:04:05Z");
  EXPECT_TRUE(parsed->Find("max_concurrency")->IsNull());
  EXPECT_EQ(parsed->Find("errors")->Find("http_503 queue")->AsInt64("").value(), 1);
}

TEST(BenchReportTest, PrintsATable) {
  std::vector<BenchRecord> records = Records();
  records[2].message = "full\x1b[2J";
  const std::string table = ReportTable(Options(), MakeReport(Options(), records));
  EXPECT_THAT(table, HasSubstr("Successful requests:                                      2\n"));
  EXPECT_THAT(table, HasSubstr("  http_503 queue:                                         1\n"));
  EXPECT_THAT(table, HasSubstr("  first: full\\x1b[2J\n"));
  EXPECT_THAT(table, HasSubstr("Mean TTFT (ms):                                      200.00\n"));
  EXPECT_THAT(table, HasSubstr("P99 TTFT (ms):                                       298.00\n"));
  EXPECT_THAT(table, HasSubstr("Request goodput (req/s):                               0.50\n"));
}

}  // namespace
}  // namespace skein::worker
