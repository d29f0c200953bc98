// Tests of what the HTTP edge counts: what a client sends is one of a few labels, and a refusal is
// counted under what refused it.
#include "coordinator/http_metrics.h"

#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Kind = ApiEvent::Kind;

class HttpMetricsTest : public ::testing::Test {
 protected:
  protocol::MetricsRegistry registry_{{}};
  HttpMetrics metrics_{registry_};
};

TEST_F(HttpMetricsTest, LabelsAreThoseOfAClosedSet) {
  const std::string before = registry_.Text();
  metrics_.Count({Kind::kResponse, "/v1/models/tiny", "GET", "", 200});
  metrics_.Count({Kind::kResponse, "/secret", "BREW", "", 418});
  EXPECT_EQ(metrics_.http_requests.At({"/v1/models", "GET", "200"}).value(), 1);
  EXPECT_EQ(metrics_.http_requests.At({"other", "other", "other"}).value(), 1);
  const std::string after = registry_.Text();
  EXPECT_THAT(after, Not(HasSubstr("secret")));
  const auto lines = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(lines(before), lines(after)) << "every series was there from the start";
}

TEST_F(HttpMetricsTest, AnEndIsCountedByInterfaceAndReason) {
  metrics_.Count({Kind::kGeneration, "/v1/chat/completions", "POST", "stop", 200});
  metrics_.Count({Kind::kGeneration, "/v1/messages", "POST", "abort", 499});
  EXPECT_EQ(metrics_.requests.At({"chat", "stop"}).value(), 1);
  EXPECT_EQ(metrics_.requests.At({"messages", "abort"}).value(), 1);
  EXPECT_EQ(metrics_.client_disconnects.value(), 1);
}

TEST_F(HttpMetricsTest, ARefusalIsCountedUnderWhatRefused) {
  metrics_.CountRefusal("server_overloaded", 503);
  metrics_.CountRefusal("context_length_exceeded", 400);
  metrics_.CountRefusal("never_heard_of", 400);
  EXPECT_EQ(metrics_.admission_rejections.At({"queue_requests"}).value(), 1);
  EXPECT_EQ(metrics_.admission_rejections.At({"too_long"}).value(), 1);
  EXPECT_EQ(metrics_.bad_requests.At({"context_length_exceeded"}).value(), 1);
  EXPECT_EQ(metrics_.bad_requests.At({"other"}).value(), 1);
}

}  // namespace
}  // namespace skein::coordinator
