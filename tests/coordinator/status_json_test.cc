// The snapshot for operators, byte for byte: readers are programs.
#include "coordinator/api/status_json.h"

#include <gtest/gtest.h>

namespace skein::coordinator {
namespace {

TEST(StatusJsonTest, WritesEveryField) {
  ClusterStatus status;
  status.term = 7;
  status.ready = true;
  status.running = 2;
  status.waiting = 1;
  status.waiting_tokens = 40;
  status.requests_ended = 5;
  GroupStatus group;
  group.state = "ready";
  group.epoch = 9;
  group.workers = {1, 2};
  group.running = 2;
  group.moving = 3;
  group.step_age = absl::Milliseconds(1500);
  group.blocks = 64;
  group.blocks_used = 3;
  GroupStatus missing;
  missing.group = 1;
  missing.state = "starting";
  status.groups = {group, missing};
  WorkerStatus worker;
  worker.node = 1;
  worker.incarnation = 12;
  worker.build = "0.1.0";
  worker.protocol = "1.1";
  worker.backend = worker.numerics = "cpu";
  worker.features = {"drafts"};
  worker.state = "ready";
  worker.last_step = 33;
  worker.heard_age = absl::Microseconds(20'999);
  worker.progress_age = absl::Seconds(2);
  status.workers = {worker};
  EXPECT_EQ(
      StatusJson(status, {"0.1.0", "1.1", "abc"}),
      R"({"build":"0.1.0","protocol":"1.1","config_hash":"abc","term":7,"ready":true,)"
      R"("draining":false,"closed":false,"running":2,"waiting":1,"waiting_tokens":40,)"
      R"("requests_ended":5,"requests_failed":0,"quarantined_prompts":0,"groups":[)"
      R"({"group":0,"state":"ready","epoch":9,"worker":1,"workers":[1,2],"running":2,"moving":3,)"
      R"("step_age_s":1.5,)"
      R"("blocks":64,"blocks_used":3,"cordoned":false,"probation":false},)"
      R"({"group":1,"state":"starting","epoch":0,"worker":null,"workers":[],)"
      R"("running":0,"moving":0,)"
      R"("step_age_s":null,)"
      R"("blocks":0,"blocks_used":0,"cordoned":false,"probation":false}],"workers":[)"
      R"({"worker":1,"state":"ready","incarnation":12,"build":"0.1.0","protocol":"1.1",)"
      R"("backend":"cpu","numerics":"cpu","features":["drafts"],"last_step":33,)"
      R"("queued_plans":0,"step_running_ms":0,"heard_age_s":0.02,"progress_age_s":2.0}],"rollout":)"
      R"({"state":"idle","phase":"waiting","group":0,"groups":0,"replaced":0,)"
      R"("failed_starts":0,"build":"","reason":""}})");
}

TEST(StatusJsonTest, ARolloutSaysWhyItHalted) {
  RolloutStatus rollout;
  rollout.state = RolloutState::kHalted;
  rollout.phase = RolloutPhase::kChecking;
  rollout.reason = "differs";
  EXPECT_EQ(RolloutJson(rollout),
            R"({"state":"halted","phase":"checking","group":0,"groups":0,"replaced":0,)"
            R"("failed_starts":0,"build":"","reason":"differs"})");
}

}  // namespace
}  // namespace skein::coordinator
