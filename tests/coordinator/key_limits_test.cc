// Tests of the limits of keys: rates, tokens a minute, sequences at a time, what a refusal says.
#include "coordinator/api/key_limits.h"

#include <string>

#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

using Clock = KeyLimiter::Clock;

Clock::time_point At(double seconds) {
  return Clock::time_point(std::chrono::hours(1)) +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

ApiKey Key(KeyLimits limits, std::string id = "alice") {
  ApiKey key;
  key.id = std::move(id);
  key.limits = limits;
  return key;
}

double Wait(const std::optional<ApiError>& error) {
  if (!error.has_value()) return 0;
  EXPECT_EQ(error->status, 429);
  EXPECT_EQ(error->code, "rate_limit_exceeded");
  return error->wait_s.value_or(-1);
}

TEST(KeyLimiterTest, AKeyWithoutLimitsHasNone) {
  KeyLimiter limiter;
  const ApiKey key = Key({});
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(limiter.CountRequest(key, At(0)).has_value());
    EXPECT_FALSE(limiter.Check(key, {1'000'000, 8}, At(0)).has_value());
    limiter.Begin(key, {1'000'000, 8}, At(0));
  }
}

TEST(KeyLimiterTest, BoundsRequestsASecond) {
  KeyLimiter limiter;
  const ApiKey key = Key({.requests_per_second = 2});
  EXPECT_FALSE(limiter.CountRequest(key, At(0)).has_value());
  EXPECT_FALSE(limiter.CountRequest(key, At(0)).has_value());
  const auto refused = limiter.CountRequest(key, At(0));
  EXPECT_NEAR(Wait(refused), 0.5, 1e-6);
  EXPECT_EQ(refused->message, "the API key alice may have 2 requests a second; retry later");
  EXPECT_NEAR(Wait(limiter.CountRequest(key, At(0.25))), 0.25, 1e-6) << "the refused did not count";
  EXPECT_FALSE(limiter.CountRequest(key, At(0.5)).has_value());
  int taken = 0;
  for (int i = 0; i < 1000; ++i) taken += limiter.CountRequest(key, At(1 + i * 0.01)) ? 0 : 1;
  EXPECT_NEAR(taken, 20, 2) << "two a second over ten seconds";
  EXPECT_FALSE(limiter.CountRequest(Key({.requests_per_second = 2}, "bob"), At(0)).has_value());
}

TEST(KeyLimiterTest, ARateBelowOneLetsTheFirstIn) {
  KeyLimiter limiter;
  const ApiKey key = Key({.requests_per_second = 0.1});
  EXPECT_FALSE(limiter.CountRequest(key, At(0)).has_value());
  EXPECT_NEAR(Wait(limiter.CountRequest(key, At(0))), 10, 1e-6);
}

TEST(KeyLimiterTest, BoundsPromptTokensAMinute) {
  KeyLimiter limiter;
  const ApiKey key = Key({.prompt_tokens_per_minute = 600});
  EXPECT_FALSE(limiter.Check(key, {400, 1}, At(0)).has_value());
  limiter.Begin(key, {400, 1}, At(0));
  EXPECT_NEAR(Wait(limiter.Check(key, {300, 1}, At(0))), 10, 1e-6) << "100 of them refill first";
  EXPECT_FALSE(limiter.Check(key, {200, 1}, At(0)).has_value());
  EXPECT_FALSE(limiter.Check(key, {300, 1}, At(10)).has_value());
  // More than there can ever be: when all is there, and then it is overdrawn.
  EXPECT_NEAR(Wait(limiter.Check(key, {1000, 1}, At(10))), 30, 1e-6);
  EXPECT_FALSE(limiter.Check(key, {1000, 1}, At(40)).has_value());
  limiter.Begin(key, {1000, 1}, At(40));
  EXPECT_NEAR(Wait(limiter.Check(key, {1, 1}, At(40))), 40.1, 1e-6);
}

TEST(KeyLimiterTest, BoundsGeneratedTokensAMinute) {
  KeyLimiter limiter;
  const ApiKey key = Key({.output_tokens_per_minute = 60});
  limiter.Begin(key, {5, 1}, At(0));
  limiter.End(key, {5, 1}, 90, At(0));
  EXPECT_NEAR(Wait(limiter.Check(key, {5, 1}, At(0))), 31, 1e-6) << "30 too many, and one";
  EXPECT_FALSE(limiter.Check(key, {5, 1}, At(31)).has_value());
}

TEST(KeyLimiterTest, BoundsSequencesAtATime) {
  KeyLimiter limiter;
  const ApiKey key = Key({.concurrency = 3});
  limiter.Begin(key, {5, 2}, At(0));
  EXPECT_FALSE(limiter.Check(key, {5, 1}, At(0)).has_value());
  const auto refused = limiter.Check(key, {5, 2}, At(0));
  EXPECT_EQ(Wait(refused), 1);
  EXPECT_FALSE(refused->is_final);
  EXPECT_TRUE(limiter.Check(key, {5, 4}, At(0))->is_final) << "a retry cannot cure it";
  limiter.End(key, {5, 2}, 0, At(1));
  EXPECT_FALSE(limiter.Check(key, {5, 3}, At(1)).has_value());
}

TEST(KeyLimiterTest, WhatRanBeforeTheFirstLimitIsCounted) {
  KeyLimiter limiter;
  limiter.Begin(Key({}), {1, 2}, At(0));
  const ApiKey limited = Key({.concurrency = 3});
  EXPECT_FALSE(limiter.Check(limited, {1, 1}, At(1)).has_value());
  limiter.Begin(limited, {1, 1}, At(1));
  EXPECT_TRUE(limiter.Check(limited, {1, 1}, At(1)).has_value());
  limiter.End(Key({}), {1, 2}, 10, At(2));
  EXPECT_FALSE(limiter.Check(limited, {1, 2}, At(2)).has_value());
  EXPECT_TRUE(limiter.Check(limited, {1, 3}, At(2)).has_value()) << "one of the limited runs still";
}

TEST(KeyLimiterTest, NewLimitsOfAKeyAreInForceAtOnce) {
  KeyLimiter limiter;
  limiter.Begin(Key({.concurrency = 5}), {1, 5}, At(0));
  EXPECT_TRUE(limiter.Check(Key({.concurrency = 5}), {1, 1}, At(0)).has_value());
  EXPECT_FALSE(limiter.Check(Key({.concurrency = 6}), {1, 1}, At(0)).has_value());
  EXPECT_FALSE(limiter.Check(Key({}), {1, 100}, At(0)).has_value());
  const ApiKey rated = Key({.requests_per_second = 1});
  EXPECT_FALSE(limiter.CountRequest(rated, At(0)).has_value());
  EXPECT_TRUE(limiter.CountRequest(rated, At(0)).has_value());
}

}  // namespace
}  // namespace skein::coordinator
