// Tests of the workloads: the same seed gives the same requests, lengths, arrivals, datasets.
#include "worker/node/commands/bench_workload.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/base/strings.h"
#include "protocol/json/json.h"

namespace skein::worker {
namespace {

using protocol::JsonValue;

absl::StatusOr<int64_t> NoCounter(std::string_view) {
  return absl::UnavailableError("nobody counts");
}

JsonValue Body(const BenchRequest& request) { return protocol::ParseJson(request.body).value(); }

std::vector<int64_t> Prompt(const BenchRequest& request) {
  std::vector<int64_t> ids;
  const JsonValue body = Body(request);
  for (const JsonValue& id : body.Find("prompt")->elements()) {
    ids.push_back(id.AsInt64("id").value());
  }
  return ids;
}

std::string Error(const BenchOptions& options, std::string_view dataset) {
  const auto workload = MakeWorkload(options, dataset, NoCounter);
  EXPECT_FALSE(workload.ok());
  return std::string(protocol::StatusText(workload.status()));
}

TEST(BenchWorkloadTest, RandomPromptsFollowSeedAndLengths) {
  BenchOptions options;
  options.num_prompts = 50;
  options.random_input_len = 20;
  options.random_output_len = 10;
  options.random_range_ratio = 0.5;
  options.random_prefix_len = 3;
  options.ignore_eos = true;
  const BenchWorkload first = MakeWorkload(options, "", NoCounter).value();
  const BenchWorkload again = MakeWorkload(options, "", NoCounter).value();
  options.seed = 1;
  const BenchWorkload other = MakeWorkload(options, "", NoCounter).value();
  ASSERT_EQ(first.requests.size(), 50u);
  EXPECT_FALSE(first.is_open_loop);
  EXPECT_NE(first.requests[0].body, other.requests[0].body);
  const std::vector<int64_t> prefix = [&] {
    auto ids = Prompt(first.requests[0]);
    ids.resize(3);
    return ids;
  }();
  for (size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(first.requests[i].body, again.requests[i].body);
    std::vector<int64_t> ids = Prompt(first.requests[i]);
    EXPECT_GE(ids.size(), 13u);
    EXPECT_LE(ids.size(), 33u);
    for (const int64_t id : ids) EXPECT_TRUE(id >= 256 && id < 4000) << id;
    ids.resize(3);
    EXPECT_EQ(ids, prefix);
    const JsonValue body = Body(first.requests[i]);
    const int64_t output = body.Find("max_tokens")->AsInt64("").value();
    EXPECT_EQ(output, first.requests[i].output_len);
    EXPECT_TRUE(output >= 5 && output <= 15) << output;
    EXPECT_TRUE(body.Find("stream")->AsBool("").value());
    EXPECT_TRUE(body.Find("ignore_eos")->AsBool("").value());
    EXPECT_TRUE(body.Find("stream_options")->Find("include_usage")->AsBool("").value());
  }
}

TEST(BenchWorkloadTest, ArrivalsHaveTheRateAndAreFixed) {
  BenchOptions options;
  options.num_prompts = 4000;
  options.random_input_len = options.random_output_len = 1;
  options.request_rate = 10;
  for (const double burstiness : {1.0, 0.25, 4.0}) {
    options.burstiness = burstiness;
    const BenchWorkload workload = MakeWorkload(options, "", NoCounter).value();
    EXPECT_TRUE(workload.is_open_loop);
    EXPECT_EQ(workload.requests[0].arrival_s, 0);
    double sum = 0;
    double squares = 0;
    for (size_t i = 1; i < workload.requests.size(); ++i) {
      const double gap = workload.requests[i].arrival_s - workload.requests[i - 1].arrival_s;
      EXPECT_GE(gap, 0);
      sum += gap;
      squares += gap * gap;
    }
    const double mean = sum / 3999;
    EXPECT_NEAR(mean, 0.1, 0.01);
    // The squared coefficient of variation of a gamma distribution is 1 / shape.
    EXPECT_NEAR((squares / 3999 - mean * mean) / (mean * mean) * burstiness, 1, 0.15);
  }
}

TEST(BenchWorkloadTest, ChatPromptsAreText) {
  BenchOptions options;
  options.endpoint = "/v1/chat/completions";
  options.num_prompts = 1;
  options.random_input_len = 5;
  const JsonValue body = Body(MakeWorkload(options, "", NoCounter).value().requests[0]);
  const std::string_view text = body.Find("messages")->elements()[0].Find("content")->string();
  EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 5);
}

TEST(BenchWorkloadTest, ShareGptTakesLengthsFromTheAnswers) {
  BenchOptions options;
  options.dataset_name = "sharegpt";
  options.dataset_path = "s.json";
  options.num_prompts = 3;
  constexpr std::string_view kDataset =
      R"([{"conversations":[{"value":"q"},{"value":"four"}]},{"conversations":[{"value":"x"}]}])";
  const BenchWorkload workload =
      MakeWorkload(options, kDataset, [](std::string_view text) {
        return absl::StatusOr<int64_t>(static_cast<int64_t>(text.size()));
      }).value();
  ASSERT_EQ(workload.requests.size(), 3u);
  EXPECT_EQ(workload.requests[2].output_len, 4);
  EXPECT_EQ(Body(workload.requests[2]).Find("prompt")->string(), "q");
  EXPECT_EQ(Error(options, kDataset), "nobody counts");
  options.output_len = 9;
  EXPECT_EQ(MakeWorkload(options, kDataset, NoCounter).value().requests[0].output_len, 9);
  EXPECT_EQ(Error(options, "[]"),
            "s.json: no entry has \"conversations\" with two turns that have a \"value\"");
}

TEST(BenchWorkloadTest, ATraceSharesBlocksAndKeepsItsTimes) {
  BenchOptions options;
  options.dataset_name = "trace";
  options.dataset_path = "t.jsonl";
  options.trace_speed = 2;
  const BenchWorkload workload =
      MakeWorkload(options,
                   "{\"timestamp\":5000,\"input_length\":600,\"output_length\":2,"
                   "\"hash_ids\":[7,8]}\n\n"
                   "{\"timestamp\":1000,\"input_length\":520,\"output_length\":1,"
                   "\"hash_ids\":[7,9]}\n"
                   "{\"timestamp\":9000,\"prompt\":\"hi\",\"output_length\":3}\n",
                   NoCounter)
          .value();
  ASSERT_EQ(workload.requests.size(), 3u);
  EXPECT_TRUE(workload.is_open_loop);
  EXPECT_EQ(workload.requests[0].arrival_s, 0);
  EXPECT_EQ(workload.requests[1].arrival_s, 2);
  EXPECT_EQ(workload.requests[2].arrival_s, 4);
  std::vector<int64_t> a = Prompt(workload.requests[0]);
  std::vector<int64_t> b = Prompt(workload.requests[1]);
  EXPECT_EQ(a.size(), 520u);
  EXPECT_EQ(b.size(), 600u);
  EXPECT_NE(a[512], b[512]);
  a.resize(512);
  b.resize(512);
  EXPECT_EQ(a, b);
  EXPECT_EQ(Body(workload.requests[2]).Find("prompt")->string(), "hi");
}

TEST(BenchWorkloadTest, NamesTheLineOfATraceThatIsWrong) {
  BenchOptions options;
  options.dataset_name = "trace";
  options.dataset_path = "t.jsonl";
  EXPECT_THAT(Error(options, "\n{\"timestamp\":1,\"input_length\":0,\"output_length\":1}"),
              ::testing::StartsWith("t.jsonl:2: input_length"));
  EXPECT_THAT(Error(options, "{\"input_length\":1}"), ::testing::HasSubstr("timestamp"));
  for (const char* hashes : {"7", "[1,\"x\"]", "[-4]"}) {
    EXPECT_THAT(Error(options, protocol::Concat("{\"timestamp\":1,\"input_length\":1,\"hash_ids\":",
                                                hashes, ",\"output_length\":1}")),
                ::testing::StartsWith("t.jsonl:1: hash_ids is "));
  }
  EXPECT_EQ(Error(options, "\n"), "t.jsonl: the trace has no line");
}

}  // namespace
}  // namespace skein::worker
