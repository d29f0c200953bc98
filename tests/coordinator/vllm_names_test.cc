// Tests of vLLM's names: the same list as the recording rules, each over a family that exists.
#include "coordinator/vllm_names.h"

#include <fstream>
#include <map>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/metrics.h"

namespace skein::coordinator {
namespace {

using ::testing::HasSubstr;

// A histogram is three rules, and one family.
std::string Whole(std::string name) {
  for (const std::string_view part : {"_bucket", "_sum", "_count"}) {
    if (name.ends_with(part)) name.resize(name.size() - part.size());
  }
  return name;
}

TEST(VllmNamesTest, AreThoseOfTheRecordingRules) {
  std::map<std::string, std::string> rules, names;
  std::ifstream file("dashboards/vllm_aliases.rules.yaml");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kRecord = "record: \"", kExpr = "\", expr: ";
    const size_t name = line.find(kRecord), family = line.find(kExpr);
    if (name == std::string::npos || family == std::string::npos) continue;
    const size_t begin = name + kRecord.size(), of = family + kExpr.size();
    rules[Whole(line.substr(begin, family - begin))] = Whole(line.substr(of, line.find('}') - of));
  }
  for (const MetricAlias& alias : VllmNames()) names.emplace(alias.name, alias.family);
  EXPECT_EQ(names, rules);
  EXPECT_GE(names.size(), 30u);
}

TEST(VllmNamesTest, StandBesideOurs) {
  protocol::MetricsRegistry registry(protocol::MetricLabels{{"model_name", "tiny"}});
  CoordinatorMetrics metrics(registry, 2, 5);
  registry.AddGauge({"skein_config_info", "The configuration."}).Set(1);
  AddVllmNames(registry);
  const std::string text = registry.Text();
  for (const MetricAlias& alias : VllmNames()) {
    EXPECT_THAT(text, HasSubstr("# TYPE " + std::string(alias.name) + " "));
  }
  EXPECT_THAT(text, HasSubstr("vllm:num_requests_running{model_name=\"tiny\",engine=\"1\"} 0\n"));
}

}  // namespace
}  // namespace skein::coordinator
