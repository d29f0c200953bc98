// Tests of the flags of skein bench: names, values, what is refused and why.
#include "worker/node/commands/bench_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

BenchOptions Parse(std::vector<std::string> arguments) {
  const auto options = ParseBenchOptions(arguments);
  EXPECT_TRUE(options.ok()) << options.status();
  return options.value_or(BenchOptions());
}

std::string Error(std::vector<std::string> arguments) {
  const auto options = ParseBenchOptions(arguments);
  EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(protocol::StatusText(options.status()));
}

TEST(BenchOptionsTest, ReadsTheVocabulary) {
  const BenchOptions options = Parse({"--base-url",
                                      "http://10.0.0.1:9000/",
                                      "--endpoint=/v1/chat/completions",
                                      "--model",
                                      "m",
                                      "--dataset-name",
                                      "random",
                                      "--random-input-len",
                                      "100",
                                      "--random-range-ratio",
                                      "0.5",
                                      "--num-prompts",
                                      "10",
                                      "--request-rate",
                                      "2.5",
                                      "--burstiness",
                                      "0.5",
                                      "--max-concurrency",
                                      "4",
                                      "--seed",
                                      "9",
                                      "--ignore-eos",
                                      "--goodput",
                                      "ttft:500",
                                      "tpot:50",
                                      "--save-result",
                                      "--percentile-metrics",
                                      "ttft,itl",
                                      "--metric-percentiles",
                                      "50,99.9"});
  EXPECT_EQ(options.host, "10.0.0.1");
  EXPECT_EQ(options.port, 9000);
  EXPECT_EQ(options.endpoint, "/v1/chat/completions");
  EXPECT_EQ(options.model, "m");
  EXPECT_EQ(options.random_input_len, 100);
  EXPECT_EQ(options.random_range_ratio, 0.5);
  EXPECT_EQ(options.num_prompts, 10);
  EXPECT_EQ(options.request_rate, 2.5);
  EXPECT_EQ(options.burstiness, 0.5);
  EXPECT_EQ(options.max_concurrency, 4);
  EXPECT_EQ(options.seed, 9);
  EXPECT_TRUE(options.ignore_eos);
  EXPECT_TRUE(options.save_result);
  EXPECT_THAT(options.goodput, ElementsAre(Pair("ttft", 500), Pair("tpot", 50)));
  EXPECT_THAT(options.percentile_metrics, ElementsAre("ttft", "itl"));
  EXPECT_THAT(options.metric_percentiles, ElementsAre(50, 99.9));
}

TEST(BenchOptionsTest, KnowsHttpsAndWhomItTrusts) {
  const BenchOptions options = Parse({"--base-url", "https://h:8443", "--ca-file", "ca.pem"});
  EXPECT_TRUE(options.tls);
  EXPECT_EQ(options.host, "h");
  EXPECT_EQ(options.port, 8443);
  EXPECT_EQ(options.ca_file, "ca.pem");
  EXPECT_EQ(Parse({"--base-url", "https://h"}).port, 443);
  EXPECT_FALSE(Parse({"--base-url", "http://h"}).tls);
  EXPECT_THAT(Error({"--ca-file", "ca.pem"}), HasSubstr("--ca-file is given without TLS"));
}

TEST(BenchOptionsTest, KnowsTheProfilesAndTheInfiniteRate) {
  EXPECT_EQ(Parse({"--request-rate", "inf"}).request_rate, 0);
  EXPECT_THAT(Parse({"--slo", "interactive"}).goodput,
              ElementsAre(Pair("ttft", 1500), Pair("tpot", 15)));
  EXPECT_THAT(Parse({"--slo", "chat"}).goodput, ElementsAre(Pair("ttft", 500), Pair("tpot", 50)));
  EXPECT_THAT(Parse({"--slo", "tight"}).goodput, ElementsAre(Pair("ttft", 450), Pair("tpot", 40)));
  EXPECT_TRUE(Parse({"--slo", "batch"}).goodput.empty());
  EXPECT_THAT(Parse({"--compare", "a", "b", "c"}).compare, ElementsAre("a", "b", "c"));
}

TEST(BenchOptionsTest, SaysWhatIsWrong) {
  EXPECT_EQ(Error({"--num-prompt", "3"}),
            "--num-prompt is no flag of skein bench; --help lists them");
  EXPECT_EQ(Error({"fast"}), "\"fast\" is no flag; skein bench --help lists them");
  EXPECT_EQ(Error({"--num-prompts", "3x"}),
            "--num-prompts is \"3x\"; it must be a whole number from 1 to 10000000");
  EXPECT_EQ(Error({"--num-prompts"}),
            "--num-prompts is \"\"; it must be a whole number from 1 to 10000000");
  EXPECT_EQ(Error({"--request-rate", "-1"}),
            "--request-rate is \"-1\"; it must be a number from 1e-06 on");
  EXPECT_EQ(Error({"--goodput", "itl:5"}),
            "--goodput is \"itl:5\"; it must be ttft:MS, tpot:MS or e2el:MS");
  EXPECT_EQ(Error({"--slo", "fast"}),
            "--slo is \"fast\"; it must be interactive, chat, tight or batch");
  EXPECT_EQ(Error({"--slo", "chat", "--goodput", "ttft:1"}),
            "--slo and --goodput are both given; give one of them");
  EXPECT_EQ(Error({"--base-url", "ftp://a"}),
            "--base-url is \"ftp://a\"; it must be http://HOST:PORT or https://HOST:PORT");
  EXPECT_EQ(Error({"--dataset-name", "trace"}),
            "--dataset-name trace needs its file: add --dataset-path FILE");
  EXPECT_EQ(Error({"--dataset", "trace"}), Error({"--dataset-name", "trace"}));
  EXPECT_EQ(Error({"--dataset-name", "sonnet"}),
            "--dataset-name is \"sonnet\"; it must be random, sharegpt or trace");
  EXPECT_EQ(Error({"--compare", "a"}), "--compare needs at least two result files");
  EXPECT_EQ(Error({"--metric-percentiles", "101"}),
            "--metric-percentiles is \"101\"; it must be a list of numbers from 0 to 100");
}

TEST(BenchOptionsTest, RefusesNumbersThatAreNone) {
  for (const char* text : {"nan", "inf", "50,nan"}) {
    EXPECT_EQ(Error({"--metric-percentiles", text}),
              protocol::Concat("--metric-percentiles is \"", text,
                               "\"; it must be a list of numbers from 0 to 100"));
  }
  EXPECT_EQ(Error({"--goodput", "ttft:nan"}),
            "--goodput is \"ttft:nan\"; it must be ttft:MS, tpot:MS or e2el:MS");
  EXPECT_EQ(Error({"--num-prompts", "nan"}),
            "--num-prompts is \"nan\"; it must be a whole number from 1 to 10000000");
  EXPECT_EQ(Error({"--num-prompts", "1e300"}),
            "--num-prompts is \"1e300\"; it must be a whole number from 1 to 10000000");
  EXPECT_EQ(Error({"--random-input-len", "1e14"}),
            "--random-input-len is \"1e14\"; it must be a whole number from 1 to 16777216");
  EXPECT_EQ(Error({"--port", "65536"}),
            "--port is \"65536\"; it must be a whole number from 1 to 65535");
  EXPECT_EQ(Error({"--request-rate", "0"}),
            "--request-rate is \"0\"; it must be a number from 1e-06 on");
}

TEST(BenchOptionsTest, RefusesUrlsThatNameNoServer) {
  for (const char* url : {"http://a:nan", "http://a:-5", "http://a:1.5", "http://a:0",
                          "http://a:65536", "http://a/v1", "http://", "http://:80", "http://a:"}) {
    EXPECT_EQ(Error({"--base-url", url}),
              protocol::Concat("--base-url is \"", url,
                               "\"; it must be http://HOST:PORT or https://HOST:PORT"));
  }
  EXPECT_EQ(Parse({"--base-url", "http://a"}).port, 80);
}

TEST(BenchOptionsTest, RefusesSwitchesWithAndTextsWithoutValues) {
  EXPECT_EQ(Error({"--ignore-eos=false"}), "--ignore-eos is \"false\"; it must be without a value");
  EXPECT_EQ(Error({"--model", "--ignore-eos"}),
            "--model is \"\"; it must be a text; leave the flag out otherwise");
}

TEST(BenchOptionsTest, TheLastRateWins) {
  EXPECT_EQ(Parse({"--request-rate", "5", "--request-rate", "inf"}).request_rate, 0);
}

TEST(BenchOptionsTest, HelpNamesEveryModeAndFlag) {
  for (const char* text :
       {"closed loop", "open loop", "trace replay", "--compare A.json", "--random-range-ratio N",
        "--ignore-eos  ", "--dataset-path TEXT", "--goodput METRIC:MS", "--slo TEXT"}) {
    EXPECT_THAT(BenchHelp(), HasSubstr(text));
  }
}

}  // namespace
}  // namespace skein::worker
