// The device of a simulated worker: a plan is answered at a later virtual time by FakeWorker, which
// reads every row back and knows of each what it must be. Steps run one after the other; some are
// slow, fail, stand still, or end the process. In a group of several ranks none runs a step before
// all have begun it, and none ends one that another left.
// Owned by the worker's actor. One thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "protocol/base/step_deadline.h"
#include "tests/scheduler/fake_worker.h"
#include "tests/sim/sim_meeting.h"
#include "tests/sim/sim_system.h"
#include "tests/sim/sim_transfers.h"
#include "worker/step_runner.h"

namespace skein::tests {

// Tokens of prompts that the model does not stand; the others are below 50.
inline constexpr int32_t kPoisonToken = 60;   // ends the process
inline constexpr int32_t kFailingToken = 61;  // fails the step

struct DeviceOptions {
  protocol::CacheGeometry geometry;
  absl::Duration step_min = absl::Milliseconds(5);
  absl::Duration step_max = absl::Milliseconds(20);
  uint32_t wrong_drafts_one_in = 4;
  uint32_t slow_one_in = 0;          // steps that take twenty times as long
  uint32_t fail_one_in = 0;          // steps that fail
  uint32_t hang_one_in = 0;          // steps that never end
  uint32_t death_one_in = 0;         // steps that end the process
  uint32_t lose_moves_one_in = 0;    // transfers of blocks that do not arrive
  uint32_t lose_experts_one_in = 6;  // loads of experts that fail
};

// Whom the device tells what became of it.
struct DeviceEvents {
  std::function<void(int oracle, std::string what)> on_violation;
  std::function<void(std::string why)> on_death;  // the process ends of its own doing
};

class SimStepRunner final : public worker::StepRunner, private SimRank {
 public:
  // `options` and `meetings` outlive the runner; the options may change. `wrong_model`: results
  // differ from the others'.
  SimStepRunner(SimSystem& system, SimMeetings& meetings, SimTransfers& transfers,
                const DeviceOptions& options, bool wrong_model, DeviceEvents events,
                protocol::Waker& actor);
  ~SimStepRunner() override;

  absl::Status Submit(protocol::StepPlan plan) override;
  absl::Status Reset() override;
  absl::Status Form(const protocol::FormGroup& group) override;
  std::optional<worker::FormOutcome> TakeFormed() override;
  absl::Duration RunningFor() const override;
  std::vector<protocol::StepResult> TakeResults() override;
  absl::Status Move(protocol::MoveBlocks move) override;
  std::vector<protocol::BlocksMoved> TakeMoved() override;

 private:
  struct Forget {};
  using Job = std::variant<Forget, protocol::FormGroup, protocol::StepPlan>;

  void OnMet() override;
  void OnStepBegun() override;
  void OnBroken() override;
  void Die() override;

  // Unless what is under way ends before.
  void After(absl::Duration delay, void (SimStepRunner::*what)());
  bool busy() const { return began_ || forming_; }
  const protocol::StepPlan& plan() const { return std::get<protocol::StepPlan>(jobs_.front()); }
  absl::Duration Deadline() const;
  void Next();
  void Meet();
  void CheckPlacement(const protocol::FormGroup& group);
  void Load();
  void Join();
  void CountExperts(protocol::ExpertLoad& load);
  void EndMeeting(absl::Status status);
  void GiveUpMeeting();
  void LeaveMeeting();
  void Begin();
  void Compute();
  void Finish();
  void GiveUp();
  void Abort();
  void Stuck();
  protocol::StepResult Run(const protocol::StepPlan& plan);
  // Unless the transfer ends before.
  void Later(absl::Duration delay, protocol::TransferId transfer,
             void (SimStepRunner::*what)(protocol::TransferId));
  void PackMove(protocol::TransferId transfer);
  void FetchMove(protocol::TransferId transfer);
  void UnpackMove(protocol::TransferId transfer);
  void ExpireMove(protocol::TransferId transfer);
  void EndMove(protocol::TransferId transfer, protocol::MoveStatus status);
  void ForgetMoves();
  bool Has(const protocol::StepPlan& plan, int32_t token) const;

  SimSystem& system_;
  const DeviceOptions& options_;
  const bool wrong_model_;
  const DeviceEvents events_;
  protocol::Waker& actor_;
  FakeWorker memory_;
  SimMeetings& meetings_;
  SimTransfers& transfers_;
  std::map<protocol::TransferId, protocol::MoveBlocks> moves_;  // sides under way
  std::map<protocol::TransferId, FakeWorker::Parcel> arrived_;  // and not unpacked
  std::vector<protocol::BlocksMoved> moved_;
  std::shared_ptr<SimMeeting> meeting_;  // of several ranks
  uint32_t rank_ = 0;                    // there
  protocol::ExpertPlacement placement_;  // as it was loaded; empty: at first
  std::optional<worker::FormOutcome> formed_;
  std::deque<Job> jobs_;
  bool forming_ = false;             // the first job is a meeting that is awaited
  std::optional<absl::Time> began_;  // of the step that runs
  bool computing_ = false;           // all ranks have begun it
  uint64_t turn_ = 0;                // jobs so far: what was planned for an earlier one is outdated
  protocol::StepDeadline deadline_;
  std::vector<protocol::StepResult> results_;
  size_t unanswered_ = 0;
  protocol::Epoch newest_;    // of the plans
  protocol::Epoch finished_;  // the newest that a reset ended
  protocol::StepId last_step_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace skein::tests
