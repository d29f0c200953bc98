// Tests of what the HTTP edge counts: what a client sends is one of a few labels, and a refusal is
// counted under what refused it.
#include "coordinator/http_metrics.h"

#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/metrics.h"

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
}

TEST_F(HttpMetricsTest, AnswersAreInFlightFromTheirRequestToTheirEnd) {
  metrics_.Count({Kind::kRequest, "/v1/messages"});
  metrics_.Count({Kind::kRequest, "/v1/messages"});
  metrics_.Count({Kind::kResponse, "/v1/messages", "POST", "", 499});
  EXPECT_EQ(metrics_.http_inflight.At({"/v1/messages"}).value(), 1);
  EXPECT_EQ(metrics_.http_inflight.At({"/v1/completions"}).value(), 0);
}

TEST_F(HttpMetricsTest, WhatTheListenerRefusesHasItsName) {
  metrics_.Count({Kind::kMalformed, "", "", "host"});
  metrics_.Count({Kind::kMalformed, "", "", "target_bytes"});
  metrics_.Count({Kind::kMalformed, "", "", "made_up"});
  metrics_.Count({Kind::kTimeout, "", "", "body"});
  metrics_.Count({Kind::kLimit, "", "", "connections"});
  EXPECT_EQ(metrics_.http_malformed.At({"host"}).value(), 1);
  EXPECT_EQ(metrics_.http_malformed.At({"target_bytes"}).value(), 1);
  EXPECT_EQ(metrics_.http_malformed.At({"other"}).value(), 1);
  EXPECT_EQ(metrics_.http_timeouts.At({"body"}).value(), 1);
  EXPECT_EQ(metrics_.http_limits.At({"connections"}).value(), 1);
}

TEST_F(HttpMetricsTest, StreamsAreSlowUntilTheyAreNot) {
  metrics_.Count({Kind::kSlowStream});
  metrics_.Count({Kind::kSlowStream});
  metrics_.Count({Kind::kPromptStream});
  EXPECT_EQ(metrics_.slow_streams.value(), 1);
}

TEST_F(HttpMetricsTest, TokensForNobodyAndGrammarsAreCounted) {
  metrics_.Count({Kind::kLateTokens, "", "", "", 0, 6});
  metrics_.Count({Kind::kLateTokens, "", "", "", 0, 1});
  EXPECT_EQ(metrics_.tokens_after_disconnect.value(), 7);
  metrics_.Count({Kind::kGrammar, "", "", "ok", 0, 0.25});
  metrics_.Count({Kind::kGrammar, "", "", "too_complex", 0, 0.5});
  EXPECT_EQ(metrics_.grammar_compilations.At({"ok"}).value(), 1);
  EXPECT_EQ(metrics_.grammar_compilations.At({"too_complex"}).value(), 1);
  EXPECT_EQ(metrics_.grammar_compilation_time.sum(), 0.75);
}

TEST(CoordinatorMetricsTest, ReasoningIsOfItsEngine) {
  protocol::MetricsRegistry registry{{}};
  CoordinatorMetrics metrics(registry, 2, 0);
  metrics.Count({Kind::kReasoning, "/v1/messages", "POST", "", 0, 30, 1});
  EXPECT_EQ(metrics.engines[1].reasoning_tokens.value(), 30);
  EXPECT_EQ(metrics.engines[1].request_reasoning_tokens.count(), 1u);
  EXPECT_EQ(metrics.engines[0].request_reasoning_tokens.count(), 0u);
  metrics.Count({Kind::kResponse, "/health", "GET", "", 200});
  EXPECT_EQ(metrics.http_requests.At({"/health", "GET", "200"}).value(), 1);
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
