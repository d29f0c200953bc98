// Tests of protocol/metrics: zero from the start, closed label sets, the text form, name rules.
#include "protocol/metrics/metrics.h"

#include <algorithm>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::protocol {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsTest, EverySeriesIsZeroFromTheStart) {
  MetricsRegistry registry(MetricLabels{{"model_name", "tiny"}});
  registry.AddCounters({"skein_requests_total", "Finished requests."},
                       {{"api", {"chat", "completions"}}, {"finished_reason", {"stop", "length"}}});
  registry.AddGauge({"skein_requests_running", "Running now."});
  const std::string text = registry.Text();
  for (const char* api : {"chat", "completions"}) {
    for (const char* reason : {"stop", "length"}) {
      EXPECT_THAT(text, HasSubstr(std::string("skein_requests_total{model_name=\"tiny\",api=\"") +
                                  api + "\",finished_reason=\"" + reason + "\"} 0\n"));
    }
  }
  EXPECT_THAT(text, HasSubstr("# HELP skein_requests_total Finished requests.\n"
                              "# TYPE skein_requests_total counter\n"));
  EXPECT_THAT(text, HasSubstr("skein_requests_running{model_name=\"tiny\"} 0\n"));
}

TEST(MetricsTest, HandlesCountWhatTheyName) {
  MetricsRegistry registry({});
  CounterFamily family =
      registry.AddCounters({"skein_a_total", "A."}, {{"x", {"p", "q"}}, {"y", {"r", "s", "t"}}});
  family.At({"q", "s"}).Increment();
  family.At({"q", "s"}).Increment(2.5);
  family.At({"p", "t"}).Increment(-1);  // ignored
  family.At({"p", "t"}).Increment(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(family.At({"q", "s"}).value(), 3.5);
  EXPECT_EQ(family.At({"p", "t"}).value(), 0);
  EXPECT_THAT(registry.Text(), HasSubstr("skein_a_total{x=\"q\",y=\"s\"} 3.5\n"));
  Gauge gauge = registry.AddGauge({"skein_depth", "Depth."});
  gauge.Set(4);
  gauge.Add(-1);
  EXPECT_EQ(gauge.value(), 3);
}

TEST(MetricsTest, AnAliasCopiesAWholeFamily) {
  MetricsRegistry registry({});
  const double bounds[] = {1};
  Histogram histogram = registry.AddHistogram({"skein_wait_seconds", "Wait."}, bounds);
  CounterFamily family = registry.AddCounters({"skein_a_total", "A."}, {{"x", {"p", "q"}}});
  registry.AddAlias("vllm:wait", "skein_wait_seconds");
  registry.AddAlias("vllm:a_total", "skein_a_total");
  registry.AddAlias("vllm:b_total", "skein_a_total");
  histogram.Observe(0.5);
  family.At({"q"}).Increment(3);
  const std::string text = registry.Text();
  EXPECT_THAT(text, HasSubstr("# TYPE vllm:wait histogram\n"));
  EXPECT_THAT(text, HasSubstr("vllm:wait_bucket{le=\"1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("skein_wait_seconds_bucket{le=\"1\"} 1\n"));
  for (const char* name : {"skein_a_total", "vllm:a_total", "vllm:b_total"}) {
    EXPECT_THAT(text, HasSubstr(std::string("\n") + name + "{x=\"q\"} 3\n"));
  }
}

TEST(MetricsTest, HistogramsHaveCumulativeBuckets) {
  MetricsRegistry registry({});
  const double bounds[] = {0.1, 1};
  Histogram histogram = registry.AddHistogram({"skein_wait_seconds", "Wait."}, bounds);
  histogram.Observe(0.05);
  histogram.Observe(0.5);
  histogram.Observe(7);
  histogram.Observe(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(histogram.count(), 3u);
  EXPECT_DOUBLE_EQ(histogram.sum(), 7.55);
  const std::string text = registry.Text();
  EXPECT_THAT(text, HasSubstr("skein_wait_seconds_bucket{le=\"1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("skein_wait_seconds_bucket{le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("skein_wait_seconds_count 3\n"));
}

TEST(MetricsTest, ABufferFillsTheSameBucketsWhenItIsFlushed) {
  MetricsRegistry registry({});
  const double bounds[] = {0.1, 1};
  Histogram direct = registry.AddHistogram({"skein_direct_seconds", "Direct."}, bounds);
  Histogram histogram = registry.AddHistogram({"skein_wait_seconds", "Wait."}, bounds);
  HistogramBuffer buffer(histogram, bounds);
  for (const double value : {0.0, 0.1, 0.5, 0.5, 1.0, 7.0, -1.0}) direct.Observe(value);
  for (const double value : {0.0, 0.1, 1.0, 7.0, -1.0}) buffer.Observe(value);
  buffer.Observe(0.5, 2);
  buffer.Observe(std::numeric_limits<double>::quiet_NaN(), 3);
  EXPECT_EQ(histogram.count(), 0u);
  EXPECT_EQ(buffer.count(), 7u);
  for (int flush = 0; flush < 2; ++flush) {
    buffer.Flush();
    EXPECT_EQ(histogram.count(), 7u);
    EXPECT_EQ(buffer.count(), 7u);
    EXPECT_DOUBLE_EQ(histogram.sum(), direct.sum());
  }
  const std::string text = registry.Text();
  for (const std::string name : {"skein_wait_seconds", "skein_direct_seconds"}) {
    EXPECT_THAT(text, HasSubstr(name + "_bucket{le=\"0.1\"} 3\n"));
    EXPECT_THAT(text, HasSubstr(name + "_bucket{le=\"1\"} 6\n"));
    EXPECT_THAT(text, HasSubstr(name + "_bucket{le=\"+Inf\"} 7\n"));
  }
}

TEST(MetricsTest, LabelValuesAreEscaped) {
  MetricsRegistry registry(MetricLabels{{"model_name", "a\"b\\c\nd"}});
  registry.AddGauge({"skein_x", "X."});
  EXPECT_THAT(registry.Text(), HasSubstr("skein_x{model_name=\"a\\\"b\\\\c\\nd\"} 0\n"));
}

TEST(MetricsTest, ProcessNumbersAreRead) {
  MetricsRegistry registry({});
  const std::string text = registry.Text();
  for (const char* name : {"process_cpu_seconds_total ", "process_resident_memory_bytes ",
                           "process_open_fds ", "process_start_time_seconds "}) {
    EXPECT_THAT(text, HasSubstr(std::string("\n") + name));
  }
  EXPECT_THAT(text, Not(HasSubstr("process_resident_memory_bytes 0\n")));
}

TEST(MetricsTest, HandlesAreSafeFromManyThreads) {
  MetricsRegistry registry({});
  Counter counter = registry.AddCounter({"skein_n_total", "N."});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([counter]() mutable {
      for (int i = 0; i < 1000; ++i) counter.Increment();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.value(), 4000);
}

TEST(MetricsTest, BucketTablesAscend) {
  for (const auto bounds :
       {TimeToFirstTokenBounds(), InterTokenBounds(), RequestLatencyBounds(), TokenCountBounds(),
        StepTokenBounds(), StepBatchBounds(), StepDurationBounds(), MessageLatencyBounds()}) {
    ASSERT_GT(bounds.size(), 5u);
    EXPECT_TRUE(std::is_sorted(bounds.begin(), bounds.end()));
    EXPECT_EQ(std::adjacent_find(bounds.begin(), bounds.end()), bounds.end());
  }
  EXPECT_EQ(InterTokenBounds().front(), 0.001);
  EXPECT_EQ(TokenCountBounds().back(), 1e6);
}

TEST(MetricsDeathTest, BrokenDeclarationsAndUnknownLabelsEndTheProcess) {
  MetricsRegistry registry({});
  CounterFamily family = registry.AddCounters({"skein_a_total", "A."}, {{"x", {"p"}}});
  EXPECT_DEATH(family.At({"z"}), "label x has no value .*z.*add it to its set");
  EXPECT_DEATH(family.At({"p", "p"}), "a family with 1 labels was asked for 2");
  EXPECT_DEATH(registry.AddCounter({"skein_a_total", "A."}), "skein_a_total: declared twice");
  EXPECT_DEATH(registry.AddCounter({"skein_b", "B."}), "_total is the ending of counters");
  EXPECT_DEATH(registry.AddGauge({"skein_b_total", "B."}), "_total is the ending of counters");
  EXPECT_DEATH(registry.AddGauge({"vllm:b", "B."}), "must be skein_ and lower case");
  EXPECT_DEATH(registry.AddGauge({"skein_b", ""}), "the help text is missing");
}

}  // namespace
}  // namespace skein::protocol
