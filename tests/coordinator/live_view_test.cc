// Tests of the live view's script: what it reads is exported. What it shows is in
// tests/client/browser.test.mjs.
#include "coordinator/api/live_view.h"

#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/metrics.h"

namespace skein::coordinator {
namespace {

using ::testing::HasSubstr;

TEST(LiveViewTest, EveryMetricThatItReadsExists) {
  protocol::MetricsRegistry registry(protocol::MetricLabels{{"model_name", "tiny"}});
  CoordinatorMetrics metrics(registry, 2, 5);
  const std::string text = registry.Text();
  std::set<std::string> names;
  const std::string script(kLiveScript);
  for (size_t at = script.find("skein_"); at != std::string::npos;
       at = script.find("skein_", at + 1)) {
    names.insert(script.substr(at, script.find('\'', at) - at));
  }
  EXPECT_GE(names.size(), 10u);
  for (const std::string& name : names) EXPECT_THAT(text, HasSubstr("# TYPE " + name + " "));
}

}  // namespace
}  // namespace skein::coordinator
