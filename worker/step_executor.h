// The device thread: runs plans in order on a loaded model and leaves results for the actor. Owns
// the model and the thread. Submit, Reset and TakeResults belong to the actor thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <semaphore>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "protocol/actor/actor.h"
#include "protocol/actor/mailbox.h"
#include "protocol/base/step_deadline.h"
#include "protocol/messages/step.h"
#include "worker/loaded_model.h"
#include "worker/step_runner.h"
#include "worker/watchdog.h"

namespace skein::worker {

// The result of one plan on a loaded model: refused, failed, or with a summary per sequence.
protocol::StepResult RunPlan(LoadedModel& model, const protocol::StepPlan& plan);

class StepExecutor final : public StepRunner {
 public:
  using StepHook = std::function<void(const protocol::StepPlan&)>;
  // `actor` is woken when a result is left; it outlives the executor. `before_step`, if any, runs
  // on the device thread before each plan. Returns when the device thread ran a step of its own.
  StepExecutor(std::unique_ptr<LoadedModel> model, protocol::Waker& actor,
               StepHook before_step = nullptr, std::unique_ptr<StepWatchdog> watchdog = nullptr);
  // Ends the thread after the step it is in.
  ~StepExecutor() override;
  StepExecutor(const StepExecutor&) = delete;
  StepExecutor& operator=(const StepExecutor&) = delete;

  absl::Status Submit(protocol::StepPlan plan) override;
  absl::Status Reset() override;
  std::vector<protocol::StepResult> TakeResults() override;
  absl::Duration RunningFor() const override;

 private:
  struct ForgetAll {};
  struct End {};
  using Job = std::variant<protocol::StepPlan, ForgetAll, End>;

  // Wakes the device thread.
  class Doorbell final : public protocol::Waker {
   public:
    void Wake() override { semaphore_.release(); }
    void Wait() { semaphore_.acquire(); }

   private:
    std::counting_semaphore<> semaphore_{0};
  };

  void Loop();
  void WarmUp();
  bool Run(Job& job);
  protocol::StepResult RunWatched(const protocol::StepPlan& plan);

  std::unique_ptr<LoadedModel> model_;
  const StepHook before_step_;
  const std::unique_ptr<StepWatchdog> watchdog_;  // null: nobody watches
  protocol::StepDeadline deadline_;               // device thread
  std::atomic<bool> ending_ = false;
  size_t unanswered_ = 0;  // plans whose result was not taken; actor thread
  Doorbell doorbell_;
  protocol::Mailbox<Job> jobs_;
  protocol::Mailbox<protocol::StepResult> results_;
  std::binary_semaphore warm_{0};
  std::thread thread_;
};

}  // namespace skein::worker
