// The waiting line: bounds in requests and tokens, order of priority and arrival.
#include "scheduler/admission.h"

#include <gtest/gtest.h>

namespace skein::scheduler {
namespace {

Sequence Waiting(uint64_t id, size_t tokens, int32_t priority = 0) {
  Sequence sequence;
  sequence.id = protocol::SequenceId(id);
  sequence.tokens.assign(tokens, 7);
  sequence.priority = priority;
  sequence.arrival = id;
  return sequence;
}

// rule: A1
TEST(Admission, RefusesMoreRequestsThanItsBound) {
  Admission admission({.queued_requests_max = 2, .queued_tokens_max = 100});
  Sequence a = Waiting(1, 3);
  Sequence b = Waiting(2, 4);
  admission.Push(&a);
  ASSERT_TRUE(admission.Check(1).ok());
  admission.Push(&b);
  const absl::Status status = admission.Check(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "queue_requests: 2 requests wait, at most 2 may");
  admission.Remove(&a);
  EXPECT_TRUE(admission.Check(1).ok());
}

// rule: A1
TEST(Admission, RefusesMoreTokensThanItsBound) {
  Admission admission({.queued_requests_max = 10, .queued_tokens_max = 8});
  Sequence a = Waiting(1, 6);
  admission.Push(&a);
  EXPECT_EQ(admission.num_tokens(), 6U);
  EXPECT_TRUE(admission.Check(2).ok());
  const absl::Status status = admission.Check(3);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "queue_tokens: 6 prompt tokens wait, 3 more exceed the limit of 8");
}

TEST(Admission, AnEmptyLineTakesAPromptBeyondTheTokenBound) {
  Admission admission({.queued_requests_max = 1, .queued_tokens_max = 8});
  EXPECT_TRUE(admission.Check(100).ok());
}

TEST(Admission, NoRequestsMayWaitAtABoundOfZero) {
  Admission admission({.queued_requests_max = 0, .queued_tokens_max = 8});
  EXPECT_EQ(admission.Check(1).message(), "queue_requests: 0 requests wait, at most 0 may");
}

TEST(Admission, ServesByPriorityThenArrival) {
  Admission admission({.queued_requests_max = 10, .queued_tokens_max = 100});
  EXPECT_EQ(admission.Front(), nullptr);
  Sequence late = Waiting(3, 1);
  Sequence early = Waiting(1, 1);
  Sequence urgent = Waiting(5, 1, -1);
  admission.Push(&late);
  EXPECT_EQ(admission.Front(), &late);
  admission.Push(&early);
  EXPECT_EQ(admission.Front(), &early);
  admission.Push(&urgent);
  EXPECT_EQ(admission.Front(), &urgent);
  EXPECT_TRUE(admission.Contains(&late));
  admission.Remove(&urgent);
  EXPECT_FALSE(admission.Contains(&urgent));
  EXPECT_EQ(admission.Front(), &early);
  EXPECT_EQ(admission.num_queued(), 2U);
  EXPECT_EQ(admission.num_tokens(), 2U);
}

TEST(AdmissionDeathTest, QueueingTwiceOrRemovingAStrangerIsABug) {
  Admission admission({.queued_requests_max = 10, .queued_tokens_max = 100});
  Sequence a = Waiting(9, 1);
  EXPECT_DEATH(admission.Remove(&a), "scheduler invariant 4: sequence 9 is not queued");
  admission.Push(&a);
  EXPECT_DEATH(admission.Push(&a), "scheduler invariant 4: sequence 9 is queued twice");
}

}  // namespace
}  // namespace skein::scheduler
