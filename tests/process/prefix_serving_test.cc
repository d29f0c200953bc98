// A real server with the prefix cache: what a client gets after a hit is what it gets cold, the
// usage says what was not computed, salts keep apart, and the metrics add up.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/process/chat_client.h"
#include "tests/process/live_server.h"

namespace skein::tests {
namespace {

constexpr int64_t kBlock = 64;

ChatCall Completion(int32_t length, std::string salt = "") {
  ChatCall call;
  call.max_tokens = 24;
  call.cache_salt = std::move(salt);
  for (int32_t i = 0; i < length; ++i) call.prompt_ids.push_back(300 + i * 37 % 3000);
  return call;
}

// rule: PC1
TEST(PrefixServingTest, AHitChangesCachedTokensAndNothingElse) {
  LiveServer cold;
  ASSERT_TRUE(cold.StartReady({"--no-enable-prefix-caching"})) << cold.output();
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  int64_t found = 0;
  for (const int32_t length : {150, 150, 151, 300, 300, 640, 64, 65}) {
    const ChatAnswer want = Ask(cold.port(), Completion(length));
    const ChatAnswer got = Ask(server.port(), Completion(length));
    EXPECT_TRUE(SameAnswer(got, want)) << length;
    EXPECT_EQ(want.cached_tokens, 0);
    EXPECT_EQ(got.prompt_tokens, length);
    EXPECT_EQ(got.cached_tokens % kBlock, 0);
    EXPECT_LT(got.cached_tokens, length);
    found += got.cached_tokens;
  }
  EXPECT_EQ(Ask(server.port(), Completion(300)).cached_tokens, 256);
  EXPECT_GE(found, 128 + 128 + 256);
  EXPECT_TRUE(server.WaitForMetric("skein_prefix_cache_hits_tokens_total",
                                   static_cast<double>(found) + 256));
  EXPECT_GT(server.Metric("skein_prefix_cache_miss_tokens_total"), 0);
  const auto source = [&](const char* name) {
    return server.Metric(std::string("skein_prompt_tokens_by_source_total{source=\"") + name +
                         "\"}");
  };
  EXPECT_EQ(source("local_cache_hit"), static_cast<double>(found) + 256);
  EXPECT_EQ(source("local_compute") + source("local_cache_hit"),
            server.Metric("skein_prompt_tokens_total"));
  EXPECT_EQ(server.Metric("skein_kv_audit_violations_total"), 0);
}

// Of two groups that compute nothing the first takes a request: unless the other one has its
// prefix, for as long as that one has not more to do than the prefix is worth.
TEST(PrefixServingTest, AChatGoesOnWhereItsPrefixIsAndUnderLoadSpreads) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady({"--data-parallel-size", "2"})) << server.output();
  const auto prompts = [&](int engine) {
    return server.Metric("skein_prompt_tokens_total{engine=\"" + std::to_string(engine) + "\"}");
  };
  const ChatCall story = {.content = "Tell me about rivers.", .max_tokens = 400};
  const auto busy = OpenStreams(server.port(), story, 1);
  ASSERT_TRUE(busy[0]->WaitTokens(5)) << server.output();
  const double first_before = prompts(0);
  EXPECT_EQ(Ask(server.port(), Completion(300)).cached_tokens, 0);
  EXPECT_EQ(prompts(1), 300) << "the first group has a story to tell";
  EXPECT_EQ(busy[0]->Join().entries.size(), 400u);
  for (const int32_t length : {330, 400}) {
    EXPECT_GE(Ask(server.port(), Completion(length)).cached_tokens, 256);
  }
  EXPECT_EQ(prompts(0), first_before);
  EXPECT_EQ(prompts(1), 300 + 330 + 400);
  ChatCall many = Completion(410);
  many.max_tokens = 200;
  for (const auto& stream : OpenStreams(server.port(), many, 6)) {
    EXPECT_EQ(stream->Join().entries.size(), 200u);
  }
  EXPECT_GE(prompts(0), first_before + 410) << server.output();
  EXPECT_GE(prompts(1), 300 + 330 + 400 + 410);
}

// rule: P5
TEST(PrefixServingTest, SaltsShareNothing) {
  LiveServer server;
  ASSERT_TRUE(server.StartReady()) << server.output();
  const ChatAnswer first = Ask(server.port(), Completion(200));
  EXPECT_EQ(first.cached_tokens, 0);
  const ChatAnswer salted = Ask(server.port(), Completion(200, "mine"));
  EXPECT_EQ(salted.cached_tokens, 0);
  EXPECT_TRUE(SameAnswer(salted, first));
  const ChatAnswer again = Ask(server.port(), Completion(200, "mine"));
  EXPECT_EQ(again.cached_tokens, 192);
  EXPECT_TRUE(SameAnswer(again, first));
  EXPECT_EQ(Ask(server.port(), Completion(200)).cached_tokens, 192);
}

}  // namespace
}  // namespace skein::tests
