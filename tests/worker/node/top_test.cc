// Tests of skein top: sums from metrics, the screen, flags, and a listener that is not there.
#include "worker/node/commands/top.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::worker {
namespace {

using ::testing::HasSubstr;

constexpr char kMetrics[] =
    "# TYPE skein_generation_tokens_total counter\n"
    "skein_generation_tokens_total{engine=\"0\"} 30\n"
    "skein_generation_tokens_total{engine=\"1\"} 12\n"
    "skein_generation_tokens_total_not 5\n"
    "skein_spec_draft_tokens_total{method=\"dspark\"} 8\n"
    "skein_spec_accepted_tokens_total{method=\"dspark\"} 6\n"
    "skein_http_requests_total{code=\"200\",route=\"/v1/chat/completions\"} 7\n"
    "skein_http_requests_total{code=\"404\",route=\"other\"} 2\n"
    "skein_http_requests_total{code=\"499\",route=\"other\"} 9\n"
    "skein_http_requests_total{code=\"503\",route=\"other\"} 4\n"
    "skein_http_requests_total 1\n"
    "skein_worker_restarts_total{worker=\"1\"} 3\n"
    "skein_prompt_tokens_total{engine=\"0\"} nothing\n";

TEST(TopTest, CountsAreSumsOverLabels) {
  const TopCounts counts = ReadTopCounts(kMetrics);
  EXPECT_EQ(counts.generated, 42);
  EXPECT_EQ(counts.prompts, 0);
  EXPECT_EQ(counts.drafted, 8);
  EXPECT_EQ(counts.accepted, 6);
  EXPECT_EQ(counts.refused, 2);
  EXPECT_EQ(counts.failed, 4);
  EXPECT_EQ(counts.restarts, 3);
  EXPECT_EQ(ReadTopCounts("").generated, 0);
  EXPECT_EQ(ReadTopCounts("skein_http_requests_total{code=\"").failed, 0);
}

TEST(TopTest, TheScreenFitsEightyColumns) {
  const auto status = protocol::ParseJson(R"({"build": "0.1.0", "ready": true, "running": 3,
      "groups": [{"group": 0, "state": "ready", "workers": [1], "running": 3, "blocks": 200,
                  "blocks_used": 50},
                 {"group": 1, "state": "dead", "workers": [], "blocks": 0, "blocks_used": 0}],
      "workers": []})");
  const TopCounts now = {.generated = 1'000'000,
                         .prompts = 500'000,
                         .drafted = 1000,
                         .accepted = 620,
                         .cached = 400'000,
                         .refused = 20,
                         .failed = 10,
                         .restarts = 5};
  const std::string text = TopText(*status, now, {}, 2);
  EXPECT_THAT(text,
              HasSubstr("tokens/s   500000 generated, 250000 of prompts, 200000 of them cached\n"
                        "drafts     62 % kept\n"));
  EXPECT_THAT(text, HasSubstr("errors/s   10.0 answers 4xx, 5.0 answers 5xx; 5 worker restarts\n"));
  EXPECT_THAT(
      text, HasSubstr("cache 0    [" + std::string(13, '#') + std::string(37, '.') + "]  25 %\n"));
  EXPECT_THAT(text, HasSubstr("1      dead"));
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    EXPECT_LE(end - begin, 80u) << text.substr(begin, end - begin);
  }
}

TEST(TopTest, TheFirstLookAndARestartHaveNoWrongRates) {
  const auto status = protocol::ParseJson("{}");
  EXPECT_THAT(TopText(*status, {.generated = 9}, {}, 0), HasSubstr("with the next look"));
  EXPECT_THAT(TopText(*status, {.generated = 9}, {.generated = 900}, 1),
              HasSubstr("tokens/s   0 generated"));
}

TEST(TopTest, FlagsAreChecked) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--interval", "0"}, {"--interval", "x"}, {"--interval"}, {"--count", "0"},
      {"--count", "-1"},   {"--cuont", "1"},    {"words"},      {"--admin", "here"}};
  for (const std::vector<std::string>& arguments : wrong) {
    EXPECT_EQ(RunTop(arguments), 64) << testing::PrintToString(arguments);
  }
  EXPECT_EQ(RunTop(std::vector<std::string>{"--admin", "unix:/nowhere/admin.sock"}), 75);
  EXPECT_EQ(RunTop(std::vector<std::string>{"--help"}), 0);
}

}  // namespace
}  // namespace skein::worker
