// Registration, the choice of a member, epochs that never repeat.
#include "coordinator/worker_table.h"

#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

protocol::RegisterWorker Registration() {
  protocol::RegisterWorker registration;
  registration.build = "0.1.0";
  registration.geometry = {4, 8, 2, 16, 32};
  return registration;
}

protocol::ActorId Worker(uint32_t node) { return {protocol::NodeId(node), 0}; }

protocol::GroupFormed Formed(const GroupMember& member) {
  return {member.group, member.rank, member.epoch};
}

TEST(WorkerTable, RefusesAnotherProtocolWithBothVersions) {
  WorkerTable table(protocol::Term(1));
  protocol::RegisterWorker registration = Registration();
  registration.protocol_version = protocol::kProtocolVersion + 6;
  const absl::Status status = table.Register(Worker(3), registration);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "worker 3 speaks protocol 7 (build 0.1.0), this coordinator 1");
  EXPECT_EQ(table.num_workers(), 0U);
}

TEST(WorkerTable, RefusesAnEmptyGeometry) {
  for (auto field : {&protocol::CacheGeometry::block_tokens, &protocol::CacheGeometry::num_blocks,
                     &protocol::CacheGeometry::num_slots, &protocol::CacheGeometry::max_rows,
                     &protocol::CacheGeometry::max_model_len}) {
    WorkerTable table(protocol::Term(1));
    protocol::RegisterWorker registration = Registration();
    registration.geometry.*field = 0;
    EXPECT_EQ(table.Register(Worker(1), registration).message(),
              "worker 1 offers an empty cache geometry");
  }
}

TEST(WorkerTable, ARefusedRegistrationForgetsTheEarlierOne) {
  WorkerTable table(protocol::Term(1));
  ASSERT_TRUE(table.Register(Worker(1), Registration()).ok());
  protocol::RegisterWorker other = Registration();
  other.protocol_version = 9;
  EXPECT_FALSE(table.Register(Worker(1), other).ok());
  EXPECT_FALSE(table.Form().has_value());
}

TEST(WorkerTable, FormsWithTheFirstWorkerAndANewEpoch) {
  WorkerTable table(protocol::Term(3));
  EXPECT_FALSE(table.Form().has_value());
  ASSERT_TRUE(table.Register(Worker(2), Registration()).ok());
  ASSERT_TRUE(table.Register(Worker(1), Registration()).ok());
  const auto first = table.Form();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->worker, Worker(1));
  EXPECT_EQ(first->epoch.value(), (uint64_t{3} << 32) + 1);
  EXPECT_FALSE(first->formed);
  const auto second = table.Form();
  EXPECT_EQ(second->epoch.value(), (uint64_t{3} << 32) + 2);
  EXPECT_EQ(table.registration(Worker(1)), Registration());
}

TEST(WorkerTable, ConfirmsTheMemberOnce) {
  WorkerTable table(protocol::Term(1));
  ASSERT_TRUE(table.Register(Worker(1), Registration()).ok());
  const GroupMember old = *table.Form();
  const GroupMember member = *table.Form();
  EXPECT_FALSE(table.Confirm(Worker(1), Formed(old))) << "an earlier epoch";
  EXPECT_FALSE(table.Confirm(Worker(2), Formed(member))) << "another worker";
  EXPECT_TRUE(table.Confirm(Worker(1), Formed(member)));
  EXPECT_TRUE(table.member()->formed);
  EXPECT_FALSE(table.Confirm(Worker(1), Formed(member))) << "a second time";
  table.Dissolve();
  EXPECT_FALSE(table.Confirm(Worker(1), Formed(member)));
  EXPECT_EQ(table.num_workers(), 1U);
}

TEST(WorkerTable, RemovingTheMemberEndsTheGroup) {
  WorkerTable table(protocol::Term(1));
  ASSERT_TRUE(table.Register(Worker(1), Registration()).ok());
  ASSERT_TRUE(table.Register(Worker(2), Registration()).ok());
  ASSERT_TRUE(table.Form().has_value());
  EXPECT_FALSE(table.Remove(Worker(2)));
  EXPECT_TRUE(table.member().has_value());
  EXPECT_TRUE(table.Remove(Worker(1)));
  EXPECT_FALSE(table.member().has_value());
  EXPECT_FALSE(table.Remove(Worker(1)));
}

}  // namespace
}  // namespace skein::coordinator
