// The waiting line: bounds in requests and tokens, shares of flows, order within one.
#include "scheduler/admission.h"

#include <list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace skein::scheduler {
namespace {

Sequence Waiting(uint64_t id, size_t tokens, int32_t priority = 0) {
  Sequence sequence;
  sequence.id = protocol::SequenceId(id);
  sequence.tokens.assign(tokens, 7);
  sequence.rank = RankOf(priority, 0);
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

// Flows that always have something to wait for, each with sequences of its own size.
class Contention {
 public:
  explicit Contention(std::vector<std::pair<uint32_t, size_t>> weights_and_tokens)
      : admission_({.queued_requests_max = 1000, .queued_tokens_max = 1'000'000}) {
    for (const auto& [weight, tokens] : weights_and_tokens) {
      flows_.push_back({"flow" + std::to_string(flows_.size()), weight, tokens});
    }
  }

  void Add(size_t flow, int32_t priority = 0) {
    Sequence& added = sequences_.emplace_back(Waiting(++last_id_, flows_[flow].tokens, priority));
    admission_.Join(&added, flows_[flow].name, flows_[flow].weight);
    admission_.Push(&added);
    EXPECT_TRUE(admission_.CheckFlows().ok()) << admission_.CheckFlows();
  }
  // Starts the first and lets it generate; its flow. Another one comes in its place.
  size_t Serve(uint64_t generated = 0) {
    Sequence* const first = admission_.Front();
    EXPECT_NE(first, nullptr);
    const size_t flow = std::stoul(first->flow->name.substr(4));
    admission_.Start(first, first->length());
    admission_.Charge(*first, generated);
    served_[flow] += first->length() + generated;
    admission_.Leave(first);
    EXPECT_TRUE(admission_.CheckFlows().ok()) << admission_.CheckFlows();
    return flow;
  }
  double Share(size_t flow) const {
    double all = 0;
    for (const auto& [at, tokens] : served_) all += static_cast<double>(tokens);
    return static_cast<double>(served_.at(flow)) / all;
  }
  Admission& admission() { return admission_; }
  void Reset() { served_.clear(); }

 private:
  struct Source {
    std::string name;
    uint32_t weight;
    size_t tokens;
  };
  Admission admission_;
  std::vector<Source> flows_;
  std::list<Sequence> sequences_;
  std::map<size_t, uint64_t> served_;
  uint64_t last_id_ = 0;
};

// rule: A2
TEST(Admission, FlowsGetTheirSharesInTokensWhateverTheirSizes) {
  Contention line({{1, 100}, {3, 7}, {6, 31}});
  for (size_t flow = 0; flow < 3; ++flow) {
    for (int i = 0; i < 3; ++i) line.Add(flow);
  }
  for (int i = 0; i < 2000; ++i) line.Add(line.Serve());
  EXPECT_NEAR(line.Share(0), 0.1, 0.005);
  EXPECT_NEAR(line.Share(1), 0.3, 0.015);
  EXPECT_NEAR(line.Share(2), 0.6, 0.03);
}

TEST(Admission, WhatIsGeneratedCountsAsWell) {
  Contention line({{1, 10}, {1, 10}});
  for (size_t flow = 0; flow < 2; ++flow) line.Add(flow), line.Add(flow);
  // The second flow's answers are nine times as long.
  for (int i = 0; i < 2000; ++i) {
    const bool second = line.admission().Front()->flow->name == "flow1";
    line.Add(line.Serve(second ? 90 : 0));
  }
  EXPECT_NEAR(line.Share(0), 0.5, 0.025);
}

TEST(Admission, PriorityOfOneFlowTakesNothingFromAnother) {
  Contention line({{1, 10}, {1, 10}});
  for (int i = 0; i < 3; ++i) line.Add(0, -100), line.Add(1, 100);
  for (int i = 0; i < 200; ++i) {
    const size_t flow = line.Serve();
    line.Add(flow, flow == 0 ? -100 : 100);
  }
  EXPECT_NEAR(line.Share(1), 0.5, 0.025);
}

TEST(Admission, AFlowThatWasIdleHasNoClaimToWhatItDidNotAskFor) {
  Contention line({{1, 10}, {1, 10}});
  line.Add(0);
  line.Add(0);
  for (int i = 0; i < 500; ++i) line.Add(line.Serve());
  line.Reset();
  line.Add(1);
  line.Add(1);
  for (int i = 0; i < 200; ++i) line.Add(line.Serve());
  EXPECT_NEAR(line.Share(0), 0.5, 0.025) << "the newcomer must not be served alone";
}

TEST(Admission, LeavingTheLineForAMomentForgivesNothing) {
  Contention line({{1, 10}, {1, 10}});
  line.Add(0);
  line.Add(0);
  line.Add(1);
  // The second flow has one sequence at a time, which comes when the last one has been served.
  for (int i = 0; i < 1000; ++i) {
    const size_t flow = line.Serve();
    line.Add(flow);
  }
  EXPECT_NEAR(line.Share(1), 0.5, 0.025);
}

TEST(Admission, AWalkGivesTheOrderOfStarts) {
  Contention line({{2, 10}, {3, 25}, {1, 4}});
  for (size_t flow = 0; flow < 3; ++flow) {
    for (int i = 0; i < 8; ++i) line.Add(flow, i % 3);
  }
  std::vector<Sequence*> walked;
  line.admission().BeginWalk();
  while (Sequence* sequence = line.admission().Next()) walked.push_back(sequence);
  ASSERT_EQ(walked.size(), 24U);
  for (Sequence* expected : walked) {
    Sequence* const first = line.admission().Front();
    ASSERT_EQ(first->id, expected->id);
    line.admission().Start(first, first->length());
  }
  EXPECT_EQ(line.admission().Front(), nullptr);
}

TEST(Admission, WhoRanBeforeKeepsItsPlaceAndPaysOnce) {
  Contention line({{1, 10}, {1, 10}});
  line.Add(0);
  Sequence* const first = line.admission().Front();
  line.admission().Start(first, 10);
  for (int i = 0; i < 3; ++i) line.Add(0), line.Add(1);
  for (int i = 0; i < 4; ++i) line.Serve();
  line.admission().Push(first);
  EXPECT_EQ(line.admission().Front(), first) << "it was admitted before all of them";
  const uint64_t tag = first->flow->tag;
  line.admission().Start(first, 10);
  EXPECT_EQ(first->flow->tag, tag);
}

// rule: A2
TEST(Admission, WaitingGainsALevelEveryTenSeconds) {
  EXPECT_LT(RankOf(0, 0), RankOf(-1, 10'001)) << "it waited for more than a level";
  EXPECT_GT(RankOf(0, 0), RankOf(-1, 9'999));
  EXPECT_LT(RankOf(100, 0), RankOf(-100, 2'000'001)) << "the last of all is served some time";
}

TEST(Admission, FlowsWithoutSequencesAreForgotten) {
  Admission admission({.queued_requests_max = 10, .queued_tokens_max = 100});
  for (uint64_t i = 0; i < 100; ++i) {
    Sequence sequence = Waiting(i + 1, 1);
    admission.Join(&sequence, "flow" + std::to_string(i), 1);
    admission.Push(&sequence);
    admission.Start(&sequence, 1);
    admission.Leave(&sequence);
  }
  EXPECT_LE(admission.num_flows(), 2U);
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
