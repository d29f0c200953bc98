// Registration, the choice of a member, epochs that never repeat.
#include "coordinator/worker_table.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace skein::coordinator {
namespace {

constexpr absl::Time kNow = absl::UnixEpoch();

protocol::RegisterWorker Registration() {
  protocol::RegisterWorker registration;
  registration.build = "0.1.0";
  registration.geometry = {4, 8, 2, 16, 32};
  return registration;
}

protocol::ActorId Worker(uint32_t node) { return {protocol::NodeId(node), 0}; }

protocol::GroupFormed Formed(const WorkerGroup& group) {
  return {group.group, group.ranks.front().rank, group.epoch};
}

TEST(WorkerTable, RefusesAnotherProtocolWithBothVersions) {
  WorkerTable table(protocol::Term(1), 1, 1);
  protocol::RegisterWorker registration = Registration();
  registration.protocol_major = 7;
  registration.protocol_minor = 2;
  const absl::Status status = table.Register(Worker(3), registration);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            absl::StrCat("worker 3 speaks protocol 7.2 (build 0.1.0), this coordinator ",
                         protocol::kProtocolMajor, ".", protocol::kProtocolMinor, " (build ",
                         SKEIN_VERSION, ") and its neighbours; start a build of one of them"));
  EXPECT_EQ(table.num_workers(), 0U);
}

TEST(WorkerTable, NeighbouringMinorsSpeakToEachOther) {
  WorkerTable table(protocol::Term(1), 1, 1);
  protocol::RegisterWorker registration = Registration();
  for (const uint32_t minor : {protocol::kProtocolMinor - 1, protocol::kProtocolMinor + 1}) {
    registration.protocol_minor = minor;
    EXPECT_TRUE(table.Register(Worker(1), registration).ok()) << minor;
  }
  registration.protocol_minor = protocol::kProtocolMinor + 2;
  EXPECT_FALSE(table.Register(Worker(1), registration).ok());
}

TEST(WorkerTable, RefusesAnotherModelWithBothNames) {
  WorkerTable table(protocol::Term(1), 2, 1, "words");
  protocol::RegisterWorker registration = Registration();
  registration.model = "weights";
  registration.tokenizer = "other";
  EXPECT_EQ(table.Register(Worker(1), registration).message(),
            "worker 1 has the vocabulary other, this coordinator encodes with words; give both the "
            "same model directory");
  registration.tokenizer = "words";
  ASSERT_TRUE(table.Register(Worker(1), registration).ok());
  // A worker of the minor before names no vocabulary.
  registration.tokenizer = "";
  ASSERT_TRUE(table.Register(Worker(2), registration).ok());
  registration.model = "others";
  EXPECT_EQ(table.Register(Worker(2), registration).message(),
            "worker 2 has the weights others, this cluster serves weights; stop the cluster to "
            "change its model");
}

TEST(WorkerTable, RemembersIncarnationsAndProgress) {
  WorkerTable table(protocol::Term(1), 1, 1);
  protocol::RegisterWorker registration = Registration();
  registration.incarnation = protocol::Incarnation(8);
  EXPECT_EQ(table.LastIncarnation(Worker(1)), protocol::Incarnation(0));
  ASSERT_TRUE(table.Register(Worker(1), registration).ok());
  const absl::Time start = absl::UnixEpoch() + absl::Hours(1);
  table.Heard(Worker(1), start);
  table.Beat(Worker(1), {protocol::StepId(0), 1}, start + absl::Seconds(1));
  EXPECT_EQ(table.workers().at(Worker(1)).progressed, start) << "no step ended";
  EXPECT_EQ(table.workers().at(Worker(1)).queued_plans, 1U);
  table.Beat(Worker(1), {protocol::StepId(4), 0}, start + absl::Seconds(2));
  EXPECT_EQ(table.workers().at(Worker(1)).progressed, start + absl::Seconds(2));
  EXPECT_EQ(table.num_dead(), 0U);
  table.Remove(Worker(1));
  EXPECT_EQ(table.num_dead(), 1U);
  EXPECT_EQ(table.LastIncarnation(Worker(1)), protocol::Incarnation(8));
}

TEST(WorkerTable, RefusesAnEmptyGeometry) {
  for (auto field : {&protocol::CacheGeometry::block_tokens, &protocol::CacheGeometry::num_blocks,
                     &protocol::CacheGeometry::num_slots, &protocol::CacheGeometry::max_rows,
                     &protocol::CacheGeometry::max_model_len}) {
    WorkerTable table(protocol::Term(1), 1, 1);
    protocol::RegisterWorker registration = Registration();
    registration.geometry.*field = 0;
    EXPECT_THAT(std::string(table.Register(Worker(1), registration).message()),
                ::testing::MatchesRegex("worker 1 offers an empty cache geometry:.* (of )?0[ ,;].*"
                                        "none may be 0: run the same build on both"));
  }
}

TEST(WorkerTable, ARefusedRegistrationForgetsTheEarlierOne) {
  WorkerTable table(protocol::Term(1), 1, 1);
  ASSERT_TRUE(table.Register(Worker(1), Registration()).ok());
  protocol::RegisterWorker other = Registration();
  other.protocol_major = 9;
  EXPECT_FALSE(table.Register(Worker(1), other).ok());
  EXPECT_EQ(table.Form(kNow), nullptr);
}

TEST(WorkerTable, FormsWithTheFirstWorkerAndANewEpoch) {
  WorkerTable table(protocol::Term(3), 1, 1);
  EXPECT_EQ(table.Form(kNow), nullptr);
  ASSERT_TRUE(table.Register(Worker(2), Registration()).ok());
  ASSERT_TRUE(table.Register(Worker(1), Registration()).ok());
  const WorkerGroup* first = table.Form(kNow);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->group, protocol::GroupId(0));
  ASSERT_EQ(first->ranks.size(), 1U);
  EXPECT_EQ(first->ranks[0].worker, Worker(1));
  EXPECT_EQ(first->ranks[0].rank, protocol::RankId(0));
  EXPECT_EQ(first->epoch.value(), (uint64_t{3} << 32) + 1);
  EXPECT_FALSE(first->formed());
  EXPECT_EQ(table.num_spares(), 1U);
  EXPECT_EQ(table.Form(kNow), nullptr) << "it has its worker";
  table.Dissolve(protocol::GroupId(0));
  EXPECT_EQ(table.Form(kNow)->epoch.value(), (uint64_t{3} << 32) + 2);
  EXPECT_EQ(table.registration(Worker(1)), Registration());
}

TEST(WorkerTable, EachWorkerServesItsGroupInWhateverOrderTheyCome) {
  WorkerTable table(protocol::Term(1), 3, 1);
  for (const uint32_t node : {3U, 1U, 2U}) {
    ASSERT_TRUE(table.Register(Worker(node), Registration()).ok());
    const WorkerGroup* group = table.Form(kNow);
    ASSERT_NE(group, nullptr);
    EXPECT_EQ(group->group, protocol::GroupId(node - 1));
    EXPECT_EQ(group->ranks[0].worker, Worker(node));
    EXPECT_EQ(table.Form(kNow), nullptr);
    EXPECT_EQ(table.Find(Worker(node)), group);
  }
  EXPECT_EQ(table.num_workers(), 3U);
  EXPECT_EQ(table.num_spares(), 0U);
}

TEST(WorkerTable, ASpareServesAnyGroupWhoseWorkerIsMissing) {
  WorkerTable table(protocol::Term(1), 2, 1);
  for (const uint32_t node : {1U, 2U, 3U}) {
    ASSERT_TRUE(table.Register(Worker(node), Registration()).ok());
  }
  ASSERT_NE(table.Form(kNow), nullptr);
  ASSERT_NE(table.Form(kNow), nullptr);
  EXPECT_EQ(table.num_spares(), 1U);
  EXPECT_EQ(table.Remove(Worker(2)), protocol::GroupId(1));
  const WorkerGroup* group = table.Form(kNow);
  ASSERT_NE(group, nullptr);
  EXPECT_EQ(group->group, protocol::GroupId(1));
  EXPECT_EQ(group->ranks[0].worker, Worker(3)) << "its own group, 0, has its worker";
  // The worker that returns is the spare now.
  ASSERT_TRUE(table.Register(Worker(2), Registration()).ok());
  EXPECT_EQ(table.Form(kNow), nullptr);
  EXPECT_EQ(table.Find(Worker(2)), nullptr);
}

TEST(WorkerTable, AReservedGroupWaitsForItsWorkerWhichServesNoOther) {
  WorkerTable table(protocol::Term(1), 2, 1);
  for (const uint32_t node : {1, 2, 3}) {
    ASSERT_TRUE(table.Register(Worker(node), Registration()).ok());
  }
  ASSERT_NE(table.Form(kNow), nullptr);
  ASSERT_NE(table.Form(kNow), nullptr);
  table.Reserve(protocol::GroupId(0));
  table.Remove(Worker(1));
  EXPECT_EQ(table.Form(kNow), nullptr) << "the spare does not take its place";
  table.Remove(Worker(2));
  ASSERT_TRUE(table.Register(Worker(1), Registration()).ok());
  const WorkerGroup* formed = table.Form(kNow);
  ASSERT_NE(formed, nullptr);
  EXPECT_EQ(formed->group, protocol::GroupId(0));
  EXPECT_EQ(formed->ranks.front().worker, Worker(1));
  EXPECT_EQ(table.Form(kNow)->ranks.front().worker, Worker(3)) << "the other group has the spare";
  table.Release(protocol::GroupId(0));
  table.Remove(Worker(1));
  ASSERT_TRUE(table.Register(Worker(4), Registration()).ok());
  EXPECT_EQ(table.Form(kNow)->ranks.front().worker, Worker(4));
}

TEST(WorkerTable, ConfirmsTheMemberOnce) {
  WorkerTable table(protocol::Term(1), 2, 1);
  ASSERT_TRUE(table.Register(Worker(1), Registration()).ok());
  const WorkerGroup old = *table.Form(kNow);
  table.Dissolve(protocol::GroupId(0));
  const WorkerGroup group = *table.Form(kNow);
  EXPECT_EQ(table.Confirm(Worker(1), Formed(old)), nullptr) << "an earlier epoch";
  EXPECT_EQ(table.Confirm(Worker(2), Formed(group)), nullptr) << "another worker";
  const WorkerGroup* formed = table.Confirm(Worker(1), Formed(group));
  ASSERT_NE(formed, nullptr);
  EXPECT_TRUE(formed->formed());
  EXPECT_EQ(table.Confirm(Worker(1), Formed(group)), nullptr) << "a second time";
  table.Dissolve(protocol::GroupId(0));
  EXPECT_EQ(table.Confirm(Worker(1), Formed(group)), nullptr);
  EXPECT_FALSE(table.group(protocol::GroupId(0)).has_value());
  EXPECT_EQ(table.num_workers(), 1U);
}

TEST(WorkerTable, RemovingAMemberEndsItsGroupAlone) {
  WorkerTable table(protocol::Term(1), 2, 1);
  for (const uint32_t node : {1U, 2U, 3U}) {
    ASSERT_TRUE(table.Register(Worker(node), Registration()).ok());
  }
  ASSERT_NE(table.Form(kNow), nullptr);
  ASSERT_NE(table.Form(kNow), nullptr);
  EXPECT_EQ(table.Remove(Worker(3)), std::nullopt) << "a spare";
  EXPECT_EQ(table.Remove(Worker(1)), protocol::GroupId(0));
  EXPECT_FALSE(table.group(protocol::GroupId(0)).has_value());
  EXPECT_TRUE(table.group(protocol::GroupId(1)).has_value());
  EXPECT_EQ(table.Remove(Worker(1)), std::nullopt);
}

// Two groups of two ranks: worker n has the shard of rank (n - 1) % 2.
class RanksTable : public ::testing::Test {
 protected:
  absl::Status Register(uint32_t node) {
    protocol::RegisterWorker registration = Registration();
    registration.rank = protocol::RankId((node - 1) % 2);
    registration.num_ranks = 2;
    return table_.Register(Worker(node), registration);
  }
  // The workers of the next group that can be formed, by rank.
  std::vector<uint32_t> Form(absl::Time now = kNow) {
    std::vector<uint32_t> nodes;
    const WorkerGroup* group = table_.Form(now);
    if (group == nullptr) return nodes;
    for (const GroupRank& rank : group->ranks) nodes.push_back(rank.worker.node.value());
    return nodes;
  }
  using Nodes = std::vector<uint32_t>;

  WorkerTable table_{protocol::Term(1), 2, 2};
};

TEST_F(RanksTable, AGroupWaitsForAllItsRanks) {
  ASSERT_TRUE(Register(1).ok());
  ASSERT_TRUE(Register(3).ok());
  EXPECT_EQ(Form(), Nodes()) << "two that hold the same shard are no group";
  ASSERT_TRUE(Register(4).ok());
  EXPECT_EQ(Form(), Nodes({3, 4}));
  ASSERT_TRUE(Register(2).ok());
  EXPECT_EQ(Form(), Nodes({1, 2}));
  const WorkerGroup& group = *table_.group(protocol::GroupId(0));
  EXPECT_EQ(group.RankOf(Worker(2))->rank, protocol::RankId(1));
  EXPECT_EQ(group.RankOf(Worker(3)), nullptr);
  const protocol::GroupFormed formed{group.group, protocol::RankId(0), group.epoch};
  EXPECT_EQ(table_.Confirm(Worker(1), formed), nullptr) << "the other has not answered";
  EXPECT_NE(table_.Confirm(Worker(2), formed), nullptr);
}

TEST_F(RanksTable, AShardThatIsNotOfItsPlaceIsRefused) {
  protocol::RegisterWorker registration = Registration();
  EXPECT_EQ(table_.Register(Worker(2), registration).message(),
            "worker 2 has the shard of rank 0 of 1, its place is rank 1 of 2; give both the same "
            "scheduler.expert_parallel_size");
  registration.num_ranks = 2;
  EXPECT_FALSE(table_.Register(Worker(2), registration).ok());
  EXPECT_TRUE(table_.Register(Worker(1), registration).ok());
}

TEST_F(RanksTable, ASpareHasTheShardOfOneRank) {
  for (const uint32_t node : {1, 2, 3, 4, 5}) ASSERT_TRUE(Register(node).ok());
  EXPECT_EQ(Form(), Nodes({1, 2}));
  EXPECT_EQ(Form(), Nodes({3, 4}));
  EXPECT_EQ(table_.num_spares(), 1U);
  table_.Remove(Worker(4));
  EXPECT_EQ(Form(), Nodes()) << "the spare holds the shard of rank 0";
  table_.Remove(Worker(3));
  ASSERT_TRUE(Register(4).ok());
  EXPECT_EQ(Form(), Nodes({5, 4})) << "the rank that lives stays";
}

TEST_F(RanksTable, AWorkerWaitsAtItsPlaceForTheOthersOfItsGroup) {
  for (const uint32_t node : {1, 2, 4}) ASSERT_TRUE(Register(node).ok());
  table_.Remove(Worker(2));
  EXPECT_EQ(Form(), Nodes()) << "worker 1 is needed at home when 2 comes back";
  ASSERT_TRUE(Register(2).ok());
  EXPECT_EQ(Form(), Nodes({1, 2}));
}

TEST_F(RanksTable, AReservedGroupKeepsAllItsPlaces) {
  for (const uint32_t node : {1, 2, 3, 4, 5, 6}) ASSERT_TRUE(Register(node).ok());
  EXPECT_EQ(Form(), Nodes({1, 2}));
  EXPECT_EQ(Form(), Nodes({3, 4}));
  table_.Reserve(protocol::GroupId(0));
  table_.Remove(Worker(2));
  EXPECT_EQ(Form(), Nodes()) << "spare 6 does not take its place";
  table_.Release(protocol::GroupId(0));
  EXPECT_EQ(Form(), Nodes({1, 6}));
}

TEST_F(RanksTable, APostponedGroupIsFormedLater) {
  for (const uint32_t node : {1, 2}) ASSERT_TRUE(Register(node).ok());
  EXPECT_EQ(Form(), Nodes({1, 2}));
  table_.Dissolve(protocol::GroupId(0));
  table_.Postpone(protocol::GroupId(0), kNow + absl::Seconds(1));
  EXPECT_EQ(Form(kNow + absl::Milliseconds(999)), Nodes());
  EXPECT_EQ(Form(kNow + absl::Seconds(1)), Nodes({1, 2}));
}

}  // namespace
}  // namespace skein::coordinator
