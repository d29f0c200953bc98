// Tests of the load with a scripted server and a clock of the test's own: arrivals, concurrency,
// times, tokens and errors come out exactly.
#include "worker/node/commands/bench_load.h"

#include <algorithm>
#include <atomic>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace skein::worker {
namespace {

using ::testing::ElementsAre;

// One thing that an answer does, so many seconds after it was sent.
struct Act {
  double after_s = 0;
  std::string bytes;
  bool ends = false;
  int status = 200;
  absl::Status result = absl::OkStatus();
};

// Answers every request by the same script. Time passes only in Poll.
class ScriptedTarget final : public BenchTarget {
 public:
  explicit ScriptedTarget(std::vector<Act> script) : script_(std::move(script)) {}

  double NowSeconds() override { return now_s_; }
  void Start(uint64_t request, const std::string& body) override {
    bodies.push_back(body);
    for (const Act& act : script_) due_.push_back({now_s_ + act.after_s, request, act});
    open_max = std::max(open_max, ++open_);
  }
  void Poll(double until_s, Receiver& receiver) override {
    ASSERT_LT(++polls_, 10'000) << "the load does not end";
    on_time(now_s_);
    const auto next = std::min_element(due_.begin(), due_.end(),
                                       [](const Due& a, const Due& b) { return a.at_s < b.at_s; });
    if (next == due_.end() || next->at_s > until_s) {
      now_s_ = until_s;
      return;
    }
    const Due due = *next;
    due_.erase(next);
    now_s_ = due.at_s;
    if (!due.act.bytes.empty()) {
      receiver.OnBody(due.request, due.act.status, due.act.bytes, now_s_);
    }
    if (!due.act.ends) return;
    --open_;
    receiver.OnEnd(due.request, due.act.status, due.act.result, now_s_);
  }

  std::vector<std::string> bodies;
  int open_max = 0;
  std::function<void(double now_s)> on_time = [](double) {};  // called by every Poll

 private:
  struct Due {
    double at_s;
    uint64_t request;
    Act act;
  };
  const std::vector<Act> script_;
  std::vector<Due> due_;
  double now_s_ = 0;
  int open_ = 0;
  int polls_ = 0;
};

std::string Text(std::string_view text) {
  return "data: {\"choices\":[{\"index\":0,\"text\":\"" + std::string(text) +
         "\",\"finish_reason\":null}],\"usage\":null}\n\n";
}
const std::string kUsage =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":5,"
    "\"skein\":{\"steps\":3,\"draft_tokens\":4,\"accepted_draft_tokens\":2}}}\n\n";
const std::string kDone = "data: [DONE]\n\n";

// First text after 0.5 s, then a gap of 0.25 s, whole after 1 s.
std::vector<Act> GoodScript() {
  return {{0.125,
           "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\","
           "\"content\":\"\"},\"finish_reason\":null}]}\n\n"},
          {0.5, Text("a")},
          {0.75, Text("b") + kUsage.substr(0, 20)},
          {0.875, kUsage.substr(20)},
          {1, kDone, true}};
}

BenchWorkload Workload(std::vector<double> arrivals, bool is_open_loop) {
  BenchWorkload workload;
  workload.is_open_loop = is_open_loop;
  for (const double arrival : arrivals) {
    workload.requests.push_back({arrival, "body " + std::to_string(workload.requests.size()), 5});
  }
  return workload;
}

TEST(BenchLoadTest, ReadsTimesAndTokensOfAStream) {
  const BenchWorkload workload = Workload({0}, false);
  ScriptedTarget target(GoodScript());
  const std::vector<BenchRecord> records = BenchLoad(workload, 0, target).Run();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_TRUE(records[0].ok()) << records[0].message;
  EXPECT_EQ(records[0].first_s, 0.5);
  EXPECT_EQ(records[0].last_s, 0.75);
  EXPECT_EQ(records[0].end_s, 1);
  EXPECT_THAT(records[0].gaps_s, ElementsAre(0.25));
  EXPECT_EQ(records[0].input_tokens, 7);
  EXPECT_EQ(records[0].output_tokens, 5);
  EXPECT_EQ(records[0].steps, 3);
  EXPECT_EQ(records[0].draft_tokens, 4);
  EXPECT_EQ(records[0].accepted_draft_tokens, 2);
  EXPECT_THAT(target.bodies, ElementsAre("body 0"));
}

std::vector<double> TimesOf(const std::vector<BenchRecord>& records, double BenchRecord::*member) {
  std::vector<double> times;
  for (const BenchRecord& record : records) times.push_back(record.*member);
  return times;
}

TEST(BenchLoadTest, AClosedLoopSendsWhenAnAnswerEnded) {
  const BenchWorkload workload = Workload({0, 0, 0, 0, 0}, false);
  ScriptedTarget target(GoodScript());
  const auto records = BenchLoad(workload, 2, target).Run();
  EXPECT_EQ(target.open_max, 2);
  EXPECT_THAT(TimesOf(records, &BenchRecord::sent_s), ElementsAre(0, 0, 1, 1, 2));
  EXPECT_THAT(TimesOf(records, &BenchRecord::scheduled_s), ElementsAre(0, 0, 1, 1, 2));
  EXPECT_THAT(TimesOf(records, &BenchRecord::end_s), ElementsAre(1, 1, 2, 2, 3));
}

TEST(BenchLoadTest, AnOpenLoopSendsOnTimeWhateverIsOpen) {
  const BenchWorkload workload = Workload({0, 0.25, 0.375, 3}, true);
  ScriptedTarget target(GoodScript());
  const auto records = BenchLoad(workload, 0, target).Run();
  EXPECT_EQ(target.open_max, 3);
  EXPECT_THAT(TimesOf(records, &BenchRecord::sent_s), ElementsAre(0, 0.25, 0.375, 3));
  EXPECT_THAT(TimesOf(records, &BenchRecord::first_s), ElementsAre(0.5, 0.75, 0.875, 3.5));
}

// What waits for room is late, and its latency counts from when it was due.
TEST(BenchLoadTest, AnOpenLoopWithABoundCountsFromTheArrival) {
  const BenchWorkload workload = Workload({0, 0.25, 0.375}, true);
  ScriptedTarget target(GoodScript());
  const auto records = BenchLoad(workload, 1, target).Run();
  EXPECT_EQ(target.open_max, 1);
  EXPECT_THAT(TimesOf(records, &BenchRecord::scheduled_s), ElementsAre(0, 0.25, 0.375));
  EXPECT_THAT(TimesOf(records, &BenchRecord::sent_s), ElementsAre(0, 1, 2));
  EXPECT_THAT(TimesOf(records, &BenchRecord::first_s), ElementsAre(0.5, 1.5, 2.5));
}

TEST(BenchLoadTest, AnAnswerWithoutTextBeginsWithItsEnd) {
  const BenchWorkload workload = Workload({0}, false);
  ScriptedTarget target(
      {{0.25, "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n" + kDone,
        true}});
  const auto records = BenchLoad(workload, 0, target).Run();
  EXPECT_TRUE(records[0].ok());
  EXPECT_EQ(records[0].first_s, 0.25);
}

// A stop keeps what had ended, in order, and says nothing of the rest.
TEST(BenchLoadTest, AStopKeepsWhatHadEnded) {
  const BenchWorkload workload = Workload({0, 0.25, 0.375, 3, 4}, true);
  ScriptedTarget target(GoodScript());
  std::atomic<bool> stop = false;
  target.on_time = [&stop](double now_s) { stop = now_s >= 1.25; };
  const auto records = BenchLoad(workload, 0, target, &stop).Run();
  EXPECT_THAT(TimesOf(records, &BenchRecord::end_s), ElementsAre(1, 1.25));
  stop = true;
  EXPECT_TRUE(BenchLoad(workload, 0, target, &stop).Run().empty());
}

BenchRecord RecordOf(std::vector<Act> script) {
  const BenchWorkload workload = Workload({0}, false);
  ScriptedTarget target(std::move(script));
  return BenchLoad(workload, 0, target).Run()[0];
}

TEST(BenchLoadTest, ANegativeCountFailsTheRequest) {
  const BenchRecord record = RecordOf(
      {{0.5, Text("a") + "data: {\"choices\":[],\"usage\":{\"completion_tokens\":-3}}\n\n" + kDone,
        true}});
  EXPECT_EQ(record.error, "malformed_usage");
  EXPECT_EQ(record.message, "usage says completion_tokens -3, a count is 0 or more");
  EXPECT_EQ(record.output_tokens, 0);
}

TEST(BenchLoadTest, NamesEveryKindOfFailure) {
  const BenchRecord refused = RecordOf(
      {{0.5, "{\"error\":{\"message\":\"full\",\"code\":\"server_overloaded\"}}", true, 503}});
  EXPECT_EQ(refused.error, "http_503 server_overloaded");
  EXPECT_EQ(refused.message, "full");
  EXPECT_EQ(RecordOf({{0.5, "<html>", true, 502}}).error, "http_502");
  const BenchRecord failed =
      RecordOf({{0.5, Text("a")},
                {0.6, "data: {\"error\":{\"message\":\"lost\",\"code\":\"x\"}}\n\n", true}});
  EXPECT_EQ(failed.error, "stream_error x");
  EXPECT_EQ(failed.message, "lost");
  const BenchRecord open = RecordOf({{0.5, Text("a"), true}});
  EXPECT_EQ(open.error, "cut");
  EXPECT_EQ(open.message, "the stream ended without [DONE]");
  EXPECT_EQ(RecordOf({{1, "", true, 200, absl::DataLossError("cut")}}).error, "cut");
  EXPECT_EQ(RecordOf({{1, "", true, 0, absl::UnavailableError("refused")}}).error, "connect");
  EXPECT_EQ(RecordOf({{1, "", true, 0, absl::DeadlineExceededError("late")}}).error, "timeout");
  EXPECT_EQ(RecordOf({{1, kDone, true}}).error, "no_output");
  EXPECT_EQ(RecordOf({{1, "data: {\n\n" + kDone, true}}).error, "malformed_event");
}

}  // namespace
}  // namespace skein::worker
