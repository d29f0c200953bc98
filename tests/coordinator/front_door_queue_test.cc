// The front door refuses at once: not ready, draining, too many requests, too many tokens.
#include "coordinator/front_door_queue.h"

#include <gtest/gtest.h>

#include "tests/protocol/virtual_context.h"

namespace skein::tests {
namespace {

using coordinator::FrontDoorQueue;
using coordinator::SubmitRequest;

SubmitRequest Prompt(uint64_t id, size_t tokens) {
  SubmitRequest request;
  request.id = protocol::RequestId(id);
  request.prompt_ids.assign(tokens, 5);
  request.stop.max_tokens = 1;
  return request;
}

TEST(FrontDoorQueue, RefusesUntilAGroupIsReady) {
  CountingWaker waker;
  FrontDoorQueue door({.queued_requests_max = 2, .queued_tokens_max = 10}, waker);
  const absl::Status status = door.TrySubmit(Prompt(1, 1));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "no worker group is ready; retry later");
  door.SetReady(true);
  EXPECT_TRUE(door.ready());
  EXPECT_TRUE(door.TrySubmit(Prompt(1, 1)).ok());
  EXPECT_EQ(waker.count(), 1);
}

TEST(FrontDoorQueue, RefusesWhatIsTooLateAlready) {
  CountingWaker waker;
  const auto now = std::chrono::steady_clock::time_point(std::chrono::hours(1));
  FrontDoorQueue door({.queued_requests_max = 2, .queued_tokens_max = 10}, waker,
                      [now] { return now; });
  door.SetReady(true);
  SubmitRequest late = Prompt(1, 1);
  late.deadline = now;
  EXPECT_EQ(door.TrySubmit(late).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(door.waiting_requests(), 0U);
  late.deadline = now + std::chrono::milliseconds(1);
  EXPECT_TRUE(door.TrySubmit(late).ok());
}

// rule: A1, AB6
TEST(FrontDoorQueue, BoundsRequests) {
  CountingWaker waker;
  FrontDoorQueue door({.queued_requests_max = 2, .queued_tokens_max = 10}, waker);
  door.SetReady(true);
  ASSERT_TRUE(door.TrySubmit(Prompt(1, 1)).ok());
  ASSERT_TRUE(door.TrySubmit(Prompt(2, 1)).ok());
  const absl::Status status = door.TrySubmit(Prompt(3, 1));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "2 requests wait, at most 2 may; retry later");
  EXPECT_EQ(status.GetPayload("skein.full_bound"), "queue_requests");
  EXPECT_EQ(door.waiting_requests(), 2U);
  EXPECT_EQ(door.waiting_tokens(), 2U);
  // Taking the events is not the end of waiting: the loop says when a request runs.
  EXPECT_EQ(door.TakeAll().size(), 2U);
  EXPECT_EQ(door.TrySubmit(Prompt(3, 1)).code(), absl::StatusCode::kResourceExhausted);
  door.Leave(1, "");
  EXPECT_TRUE(door.TrySubmit(Prompt(3, 1)).ok());
}

// rule: A1, AB6
TEST(FrontDoorQueue, BoundsTokens) {
  CountingWaker waker;
  FrontDoorQueue door({.queued_requests_max = 5, .queued_tokens_max = 10}, waker);
  door.SetReady(true);
  ASSERT_TRUE(door.TrySubmit(Prompt(1, 7)).ok());
  const absl::Status status = door.TrySubmit(Prompt(2, 4));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "7 prompt tokens wait, 4 more exceed the limit of 10; retry later");
  EXPECT_EQ(status.GetPayload("skein.full_bound"), "queue_tokens");
  EXPECT_TRUE(door.TrySubmit(Prompt(3, 3)).ok());
  door.SetQueuedTokensMax(11);
  EXPECT_TRUE(door.TrySubmit(Prompt(4, 1)).ok());
  EXPECT_EQ(door.waiting_tokens(), 11U);
}

TEST(FrontDoorQueue, AnEmptyLineTakesAPromptBeyondTheTokenBound) {
  CountingWaker waker;
  FrontDoorQueue door({.queued_requests_max = 5, .queued_tokens_max = 10}, waker);
  door.SetReady(true);
  EXPECT_TRUE(door.TrySubmit(Prompt(1, 500)).ok());
}

// rule: A1, AB6
TEST(FrontDoorQueue, RefusesNewcomersWhileTheDelayStands) {
  CountingWaker waker;
  auto now = std::chrono::steady_clock::time_point(std::chrono::hours(1));
  FrontDoorQueue door({.queued_requests_max = 9,
                       .queued_tokens_max = 100,
                       .delay_max = std::chrono::milliseconds(500)},
                      waker, [&now] { return now; });
  door.SetReady(true);
  ASSERT_TRUE(door.TrySubmit(Prompt(1, 1)).ok());
  ASSERT_TRUE(door.TrySubmit(Prompt(2, 1)).ok());
  now += std::chrono::milliseconds(1499);
  ASSERT_TRUE(door.TrySubmit(Prompt(3, 1)).ok());
  now += std::chrono::milliseconds(1);
  const absl::Status status = door.TrySubmit(Prompt(4, 1));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "3 requests wait, none of which began within 0.5 s for longer than a second; retry "
            "later");
  EXPECT_EQ(status.GetPayload("skein.full_bound"), "queue_delay");
  EXPECT_EQ(door.waiting_requests(), 3U) << "those that were accepted wait on";
  // Another key's first request does not wait behind them, its second one would behind the first.
  SubmitRequest other = Prompt(6, 1);
  other.flow = "other";
  EXPECT_TRUE(door.TrySubmit(other).ok());
  other.id = protocol::RequestId(7);
  EXPECT_EQ(door.TrySubmit(other).GetPayload("skein.full_bound"), "queue_delay");
  door.Leave(1, "other");
  // Who waited too long runs; then one that did not.
  door.NoteStart(std::chrono::milliseconds(1500));
  door.Leave(1, "");
  EXPECT_FALSE(door.TrySubmit(Prompt(4, 1)).ok());
  door.NoteStart(std::chrono::milliseconds(400));
  door.Leave(1, "");
  EXPECT_TRUE(door.TrySubmit(Prompt(4, 1)).ok());
  // An empty line takes anybody.
  now += std::chrono::seconds(10);
  EXPECT_FALSE(door.TrySubmit(Prompt(5, 1)).ok());
  door.Leave(1, "");
  door.Leave(1, "");
  EXPECT_TRUE(door.TrySubmit(Prompt(5, 1)).ok());
}

// What is away for a planned time is waited for, and what waited for it has its second from then.
TEST(FrontDoorQueue, NoDelayStandsWhileNothingCanRun) {
  CountingWaker waker;
  auto now = std::chrono::steady_clock::time_point(std::chrono::hours(1));
  FrontDoorQueue door({.queued_requests_max = 9,
                       .queued_tokens_max = 100,
                       .delay_max = std::chrono::milliseconds(500)},
                      waker, [&now] { return now; });
  door.SetReady(false, true);
  ASSERT_TRUE(door.TrySubmit(Prompt(1, 1)).ok());
  now += std::chrono::seconds(10);
  EXPECT_TRUE(door.TrySubmit(Prompt(2, 1)).ok());
  door.SetReady(true);
  EXPECT_TRUE(door.TrySubmit(Prompt(3, 1)).ok());
  now += std::chrono::milliseconds(1500);
  EXPECT_FALSE(door.TrySubmit(Prompt(4, 1)).ok());
}

TEST(FrontDoorQueue, KeepsTheOrderOfEvents) {
  CountingWaker waker;
  FrontDoorQueue door({.queued_requests_max = 5, .queued_tokens_max = 10}, waker);
  door.SetReady(true);
  ASSERT_TRUE(door.TrySubmit(Prompt(8, 1)).ok());
  door.Cancel({protocol::RequestId(8)});
  EXPECT_EQ(door.mailbox_depth(), 2U);
  auto events = door.TakeAll();
  EXPECT_EQ(door.mailbox_depth(), 0U);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(std::get<SubmitRequest>(events[0]).id, protocol::RequestId(8));
  EXPECT_EQ(std::get<coordinator::CancelRequest>(events[1]).id, protocol::RequestId(8));
  EXPECT_EQ(waker.count(), 2);
}

TEST(FrontDoorQueue, DrainingRefusesEverything) {
  CountingWaker waker;
  FrontDoorQueue door({.queued_requests_max = 5, .queued_tokens_max = 10}, waker);
  door.SetReady(true);
  door.StartDraining();
  EXPECT_EQ(waker.count(), 1);
  const absl::Status status = door.TrySubmit(Prompt(1, 1));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "the server is draining; retry on another server");
  EXPECT_TRUE(door.draining());
}

}  // namespace
}  // namespace skein::tests
