// Requests of the control loop by example: one end each, checks that count as nothing, prompts that
// are refused after a verdict.
#include "coordinator/request_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/protocol/virtual_context.h"

namespace skein::tests {
namespace {

using coordinator::FinishReason;
using coordinator::SubmitRequest;
using coordinator::TokenDelta;
using protocol::RequestId;

class LastDelta final : public coordinator::TokenSink {
 public:
  void Deliver(TokenDelta delta) override {
    EXPECT_FALSE(last.finish.has_value()) << "a delta follows the last one";
    last = std::move(delta);
  }
  TokenDelta last;
};

class RequestTableTest : public ::testing::Test {
 protected:
  std::shared_ptr<LastDelta> Open(uint64_t id, std::vector<int32_t> prompt = {1, 2}) {
    auto sink = std::make_shared<LastDelta>();
    SubmitRequest request;
    request.id = RequestId(id);
    request.prompt_ids = std::move(prompt);
    request.arrival = std::chrono::steady_clock::now();
    request.sink = sink;
    if (id < coordinator::kFirstCheck) {
      // Through the door, which counts who waits.
      door_.SetReady(true);
      EXPECT_TRUE(door_.TrySubmit(request).ok());
      EXPECT_EQ(door_.TakeAll().size(), 1u);
    }
    EXPECT_TRUE(table_.Open(request, now_));
    return sink;
  }

  CountingWaker waker_;
  protocol::MetricsRegistry registry_{{}};
  coordinator::CoordinatorMetrics metrics_{registry_, 1, 0};
  coordinator::FrontDoorQueue door_{{.queued_requests_max = 16, .queued_tokens_max = 1000}, waker_};
  coordinator::RequestTable table_{door_, metrics_};
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

TEST_F(RequestTableTest, ADoomedRequestIsToldItsReason) {
  const auto sink = Open(1);
  table_.Doom(RequestId(1), absl::DeadlineExceededError("too late"));
  scheduler::SequenceDelta delta;
  delta.sequence = protocol::SequenceId(1);
  delta.cancelled = true;
  table_.DeliverEnd(delta);
  EXPECT_EQ(sink->last.error, absl::DeadlineExceededError("too late"));
  EXPECT_EQ(table_.size(), 0u);
  EXPECT_EQ(table_.num_ended(), 1u);
  EXPECT_EQ(table_.num_failed(), 0u) << "a deadline is the client's";
}

TEST_F(RequestTableTest, TheLastDeltaSaysHowLongItWaitedAndWhere) {
  const auto waited = Open(1);
  table_.Begin(RequestId(1), 0, 0, now_ + absl::Seconds(5));
  table_.Fail(RequestId(1), absl::InternalError("broken"));
  EXPECT_EQ(waited->last.engine, 0u);
  EXPECT_GE(waited->last.queued, std::chrono::seconds(5));
  EXPECT_LT(waited->last.queued, std::chrono::seconds(60));
  const auto never = Open(2);
  table_.Fail(RequestId(2), absl::DeadlineExceededError("too late"));
  EXPECT_EQ(never->last.engine, std::nullopt) << "it never began";
}

TEST_F(RequestTableTest, AClientThatLeftIsCountedByHowFarItsRequestWas) {
  const auto left = [this](const char* phase) {
    return metrics_.client_disconnects.At({phase}).value();
  };
  const auto sink = Open(1);
  table_.CountLeft(RequestId(1));
  EXPECT_EQ(left("queued"), 1);
  table_.Begin(RequestId(1), 0, 0, now_);
  table_.CountLeft(RequestId(1));
  EXPECT_EQ(left("prefill"), 1);
  scheduler::SequenceDelta delta;
  delta.sequence = protocol::SequenceId(1);
  delta.num_tokens = 1;
  std::vector<scheduler::CommittedToken> tokens(1);
  table_.Deliver(0, delta, tokens, {}, now_);
  table_.CountLeft(RequestId(1));
  table_.CountLeft(RequestId(99));
  EXPECT_EQ(left("decode"), 2) << "one that ended meanwhile had its tokens";
  EXPECT_EQ(left("queued") + left("prefill"), 2);
}

TEST_F(RequestTableTest, WhatAPromptFoundInTheCacheIsObservedOncePerRequest) {
  const auto sink = Open(1, std::vector<int32_t>(300, 7));
  table_.Begin(RequestId(1), 0, 256, now_);
  table_.Begin(RequestId(1), 0, 0, now_);
  EXPECT_EQ(metrics_.engines[0].request_cached_tokens.count(), 1u);
  EXPECT_EQ(metrics_.engines[0].request_cached_tokens.sum(), 256);
}

TEST_F(RequestTableTest, GivesExpiredRequestsOnceAndInTheOrderOfDeadlines) {
  const auto open_until = [this](uint64_t id, std::chrono::steady_clock::time_point deadline) {
    SubmitRequest request;
    request.id = RequestId(id);
    request.prompt_ids = {1};
    request.arrival = std::chrono::steady_clock::now();
    request.deadline = deadline;
    request.sink = std::make_shared<LastDelta>();
    EXPECT_TRUE(table_.Open(request, now_));
  };
  const auto past = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  open_until(1, past);
  open_until(2, past - std::chrono::seconds(1));
  open_until(3, std::chrono::steady_clock::time_point::max());
  open_until(4, past);
  table_.Fail(RequestId(4), absl::CancelledError("gone"));
  EXPECT_EQ(table_.TakeExpired(), (std::vector<RequestId>{RequestId(2), RequestId(1)}));
  EXPECT_TRUE(table_.TakeExpired().empty());
}

TEST_F(RequestTableTest, FailuresOfTheServerAreCountedAndChecksAreNot) {
  Open(1);
  table_.Fail(RequestId(1), absl::InternalError("broken"));
  Open(coordinator::kFirstCheck + 1);
  table_.Fail(RequestId(coordinator::kFirstCheck + 1), absl::InternalError("broken"));
  EXPECT_EQ(table_.num_ended(), 1u);
  EXPECT_EQ(table_.num_failed(), 1u);
}

TEST_F(RequestTableTest, AVerdictRefusesThePromptFromThenOn) {
  const auto sink = Open(1, {7, 8, 9});
  table_.Fail(RequestId(1), absl::AbortedError("it ended its workers"));
  EXPECT_EQ(sink->last.finish, FinishReason::kError);
  EXPECT_EQ(metrics_.quarantined_requests.value(), 1);
  EXPECT_EQ(table_.num_quarantined(), 1u);
  SubmitRequest again;
  again.id = RequestId(2);
  again.prompt_ids = {7, 8, 9};
  EXPECT_EQ(door_.TrySubmit(again),
            absl::AbortedError("this prompt ended its workers before; it is refused for 10 minutes "
                               "from then on"));
  again.prompt_ids = {7, 8};
  EXPECT_TRUE(door_.TrySubmit(again).ok());
}

// rule: ME3
// Two tokens in the first delivery, three in the second: the phases add up, and the time of one
// delivery is shared by its tokens.
TEST_F(RequestTableTest, ThePhasesOfARequestAddUp) {
  const auto sink = Open(1);
  const absl::Time opened = now_;
  const auto deliver = [&](uint32_t num_tokens, std::optional<scheduler::EndReason> ended) {
    scheduler::SequenceDelta delta;
    delta.sequence = protocol::SequenceId(1);
    delta.num_tokens = num_tokens;
    delta.ended = ended;
    std::vector<scheduler::CommittedToken> tokens(num_tokens);
    table_.Deliver(0, delta, tokens, {}, now_);
  };
  now_ += absl::Seconds(1);
  table_.Begin(RequestId(1), 0, 0, now_);
  now_ += absl::Seconds(2);
  deliver(2, std::nullopt);
  now_ += absl::Seconds(6);
  deliver(3, scheduler::EndReason::kLength);
  const coordinator::GroupMetrics& engine = metrics_.engines[0];
  // The arrival was taken from another clock a moment before Open.
  EXPECT_NEAR(engine.queue_time.sum(), absl::ToDoubleSeconds(now_ - opened) - 8, 0.1);
  EXPECT_DOUBLE_EQ(engine.prefill_time.sum(), 2);
  EXPECT_DOUBLE_EQ(engine.decode_time.sum(), 6);
  EXPECT_DOUBLE_EQ(engine.inference_time.sum(), 8);
  EXPECT_NEAR(engine.e2e_latency.sum(), 9, 0.1);
  EXPECT_DOUBLE_EQ(engine.time_per_output_token.sum(), 1.5);  // four after the first
  EXPECT_EQ(engine.inter_event_latency.count(), 1u);
  EXPECT_DOUBLE_EQ(engine.inter_event_latency.sum(), 6);
  EXPECT_EQ(engine.inter_token_latency.count(), 3u);
  EXPECT_DOUBLE_EQ(engine.inter_token_latency.sum(), 6);
}

// Each prompt token is counted once: as one that a step computes, or as one that was found.
TEST_F(RequestTableTest, SourcesOfPromptTokensAddUp) {
  const coordinator::GroupMetrics& engine = metrics_.engines[0];
  for (uint64_t id = 1; id <= 3; ++id) {
    const auto sink = Open(id, {7, 8, 9});
    const auto cached = static_cast<uint32_t>(id) - 1;
    table_.Begin(RequestId(id), 0, cached, now_);
    table_.Begin(RequestId(id), 0, 0, now_);  // of a replay: counted before
    EXPECT_EQ(engine.prompt_tokens.value(),
              engine.prompt_tokens_computed.value() + engine.prompt_tokens_cached.value());
  }
  EXPECT_EQ(engine.prompt_tokens.value(), 9);
  EXPECT_EQ(engine.prompt_tokens_cached.value(), 0 + 1 + 2);
}

// A chunk of the prompt that was scored is delivered, and is no token.
TEST_F(RequestTableTest, ScoresOfThePromptAreDeliveredAndNoToken) {
  const auto sink = Open(1);
  table_.Begin(RequestId(1), 0, 0, now_);
  scheduler::SequenceDelta delta;
  delta.sequence = protocol::SequenceId(1);
  delta.num_scores = 2;
  std::vector<protocol::TokenScore> scores = {{-1, {}}, {-2, {{3, -0.5F}}}};
  const std::vector<protocol::TokenScore> wanted = scores;
  table_.Deliver(0, delta, {}, scores, now_);
  EXPECT_EQ(sink->last.prompt_scores, wanted);
  EXPECT_TRUE(sink->last.tokens.empty());
  EXPECT_EQ(metrics_.engines[0].time_to_first_token.count(), 0u);
}

// An age grows between two rounds of the control loop; a worker that was never seen has none.
TEST_F(RequestTableTest, AgesOfWorkersAreThoseOfTheReading) {
  coordinator::WorkerMetrics& worker = metrics_.fleet.by_group[0];
  metrics_.Refresh(now_, 5000);
  EXPECT_EQ(worker.heartbeat_age.value(), 0);
  EXPECT_EQ(worker.last_progress.value(), 0);
  worker.times->heard_ns = absl::ToUnixNanos(now_);
  worker.times->progressed_ns = absl::ToUnixNanos(now_ - absl::Seconds(20));
  metrics_.Refresh(now_ + absl::Seconds(3), 5000);
  EXPECT_DOUBLE_EQ(worker.heartbeat_age.value(), 3);
  EXPECT_DOUBLE_EQ(worker.last_progress.value(), 5000 - 23);
}

// Only the workers of groups have series of their own.
TEST_F(RequestTableTest, RestartsCountByWorkerAndEnd) {
  metrics_.CountRestart(1, protocol::PredecessorEnd::kOwn);
  metrics_.CountRestart(7, protocol::PredecessorEnd::kOutside);
  EXPECT_EQ(metrics_.fleet.worker_restarts.At({"1", "own"}).value(), 1);
  EXPECT_EQ(metrics_.fleet.worker_restarts.At({"spare", "outside"}).value(), 1);
  EXPECT_EQ(metrics_.fleet.worker_restarts.At({"1", "outside"}).value(), 0);
}

}  // namespace
}  // namespace skein::tests
