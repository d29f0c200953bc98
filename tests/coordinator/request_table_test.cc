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

}  // namespace
}  // namespace skein::tests
