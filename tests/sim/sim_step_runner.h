// The device of a simulated worker: a plan is answered at a later virtual time by FakeWorker, which
// reads every row back and knows of each what it must be. Steps run one after the other; some are
// slow, fail, stand still, or end the process.
// Owned by the worker's actor. One thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/base/step_deadline.h"
#include "tests/scheduler/fake_worker.h"
#include "tests/sim/sim_system.h"
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
  uint32_t slow_one_in = 0;   // steps that take twenty times as long
  uint32_t fail_one_in = 0;   // steps that fail
  uint32_t hang_one_in = 0;   // steps that never end
  uint32_t death_one_in = 0;  // steps that end the process
};

// Whom the device tells what became of it.
struct DeviceEvents {
  std::function<void(int oracle, std::string what)> on_violation;
  std::function<void(std::string why)> on_death;  // the process ends of its own doing
};

class SimStepRunner final : public worker::StepRunner {
 public:
  // `options` outlive the runner and may change. `wrong_model`: results differ from the others'.
  SimStepRunner(SimSystem& system, const DeviceOptions& options, bool wrong_model,
                DeviceEvents events, protocol::Waker& actor);

  absl::Status Submit(protocol::StepPlan plan) override;
  absl::Status Reset() override;
  absl::Duration RunningFor() const override;
  std::vector<protocol::StepResult> TakeResults() override;

 private:
  using Job = std::optional<protocol::StepPlan>;  // nothing: forget all

  void After(absl::Duration delay, void (SimStepRunner::*what)());
  void Next();
  void Finish();
  void Stuck();
  protocol::StepResult Run(const protocol::StepPlan& plan);
  bool Has(const protocol::StepPlan& plan, int32_t token) const;

  SimSystem& system_;
  const DeviceOptions& options_;
  const bool wrong_model_;
  const DeviceEvents events_;
  protocol::Waker& actor_;
  FakeWorker memory_;
  std::deque<Job> jobs_;
  std::optional<absl::Time> began_;  // of the step that runs
  protocol::StepDeadline deadline_;
  std::vector<protocol::StepResult> results_;
  size_t unanswered_ = 0;
  protocol::Epoch newest_;    // of the plans
  protocol::Epoch finished_;  // the newest that a reset ended
  protocol::StepId last_step_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace skein::tests
