// The device thread: runs plans in order on a loaded model and leaves results for the actor. Owns
// the model and the thread. Submit, Reset and TakeResults belong to the actor thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "protocol/actor/actor.h"
#include "protocol/actor/mailbox.h"
#include "protocol/base/clock.h"
#include "protocol/base/step_deadline.h"
#include "protocol/messages/control.h"
#include "protocol/messages/step.h"
#include "protocol/tensor/collective_group.h"
#include "protocol/tensor/ucx_group_port.h"
#include "worker/block_mover.h"
#include "worker/loaded_model.h"
#include "worker/metrics.h"
#include "worker/step_runner.h"
#include "worker/watchdog.h"

namespace skein::worker {

// Told the most rows that any rank of a group has in the step, before anything is computed.
using StepAgreed = std::function<void(int rows)>;

// The result of one plan on a loaded model: refused, failed, aborted, or with a summary per
// sequence. In a group, whose ranks all call it, one rank's error ends the step of all. `account`,
// if any, gets what the step was.
protocol::StepResult RunPlan(LoadedModel& model, const protocol::StepPlan& plan,
                             const StepAgreed& agreed = nullptr, StepAccount* account = nullptr);

// Over which, and as whom, an executor moves cache blocks.
struct ExecutorChannel {
  std::unique_ptr<protocol::BlockChannel> channel;
  CacheIdentity own;
};

class StepExecutor final : public StepRunner {
 public:
  using StepHook = std::function<void(const protocol::StepPlan&)>;
  // `actor` is woken when a result is left; it outlives the executor. `before_step`, if any, runs
  // on the device thread before each plan. `metrics`, if any, outlive the executor. Returns when
  // the device thread ran a step of its own. `ranks`: to ranks of other hosts; null: none is there.
  StepExecutor(std::unique_ptr<LoadedModel> model, protocol::Waker& actor,
               StepHook before_step = nullptr, std::unique_ptr<StepWatchdog> watchdog = nullptr,
               WorkerMetrics* metrics = nullptr,
               std::optional<ExecutorChannel> channel = std::nullopt,
               std::unique_ptr<protocol::UcxGroupPort> ranks = nullptr);
  // Ends the thread after the step it is in.
  ~StepExecutor() override;
  StepExecutor(const StepExecutor&) = delete;
  StepExecutor& operator=(const StepExecutor&) = delete;

  absl::Status Submit(protocol::StepPlan plan) override;
  absl::Status Reset() override;
  absl::Status Form(const protocol::FormGroup& group) override;
  std::optional<FormOutcome> TakeFormed() override {
    std::vector<FormOutcome> outcomes = formed_.TakeAll();
    if (outcomes.empty()) return std::nullopt;
    return std::move(outcomes.back());
  }
  std::vector<protocol::StepResult> TakeResults() override {
    std::vector<protocol::StepResult> results = results_.TakeAll();
    unanswered_ -= results.size();
    return results;
  }
  absl::Status Move(protocol::MoveBlocks move) override {
    if (mover_ == nullptr) return StepRunner::Move(std::move(move));
    mover_->Move(std::move(move));
    return absl::OkStatus();
  }
  std::vector<protocol::BlocksMoved> TakeMoved() override {
    if (mover_ == nullptr) return {};
    std::vector<protocol::BlocksMoved> moved = mover_->TakeMoved();
    for (const protocol::BlocksMoved& one : moved) {
      if (metrics_ != nullptr) metrics_->Count(one);
    }
    return moved;
  }
  absl::Duration RunningFor() const override;

  // For metrics; any thread.
  size_t num_plans_waiting() const { return jobs_.depth(); }
  size_t num_results_waiting() const { return results_.depth(); }
  uint64_t num_hangs() const { return watchdog_ == nullptr ? 0 : watchdog_->num_hangs(); }
  // Messages between ranks of epochs that were over.
  uint64_t num_stale() const { return ranks_ == nullptr ? 0 : ranks_->stale_dropped(); }

 private:
  // Shared by the device thread, which makes its calls, and the actor thread, which may abort it in
  // the middle of one: the only value of theirs that has no single owner.
  using Group = std::shared_ptr<protocol::CollectiveGroup>;
  struct Meet {
    Group group;
    protocol::Epoch epoch;
    std::string label;
    protocol::ExpertPlacement placement;
  };
  struct ForgetAll {};
  struct End {};
  using Job = std::variant<protocol::StepPlan, Meet, DeviceCall, ForgetAll, End>;

  // Takes the waits for other ranks out of the time of a step. Device thread.
  class Excuse final : public protocol::WaitObserver {
   public:
    explicit Excuse(StepWatchdog* watchdog) : watchdog_(watchdog) {}
    void OnWait() override {
      since_ = protocol::MonotonicNow();
      if (watchdog_ != nullptr) watchdog_->Pause();
    }
    void OnWaitOver() override {
      waited_ += protocol::MonotonicNow() - since_;
      if (watchdog_ != nullptr) watchdog_->Resume();
    }
    // The waits since the last call.
    absl::Duration TakeWaited() { return std::exchange(waited_, absl::ZeroDuration()); }

   private:
    StepWatchdog* const watchdog_;
    absl::Time since_;
    absl::Duration waited_;
  };

  // Wakes the device thread.
  class Doorbell final : public protocol::Waker {
   public:
    void Wake() override { semaphore_.release(); }
    void Wait() { semaphore_.acquire(); }

   private:
    std::counting_semaphore<> semaphore_{0};
  };

  std::unique_ptr<BlockMover> MakeMover(std::optional<ExecutorChannel> channel,
                                        protocol::Waker& actor) {
    if (!channel) return nullptr;
    return std::make_unique<BlockMover>(
        std::move(channel->channel), std::move(channel->own), ShapeOf(*model_), actor,
        [this](DeviceCall call) { return jobs_.TryPush(std::move(call)); });
  }
  void Loop();
  void WarmUp();
  bool Run(Job& job);
  void Join(Meet& meet);
  protocol::StepResult RunInGroup(const protocol::StepPlan& plan);
  protocol::StepResult RunWatched(const protocol::StepPlan& plan);
  void Count(const protocol::StepResult& result, const StepAccount& account);

  std::unique_ptr<protocol::UcxGroupPort> ranks_;  // outlives the groups
  std::unique_ptr<LoadedModel> model_;
  const StepHook before_step_;
  const std::unique_ptr<StepWatchdog> watchdog_;  // null: nobody watches
  WorkerMetrics* const metrics_;                  // null: nobody counts
  protocol::StepDeadline deadline_;               // device thread
  Excuse excuse_{watchdog_.get()};
  uint64_t last_step_ = 0;  // that was begun; device thread
  std::atomic<bool> ending_ = false;
  size_t unanswered_ = 0;  // plans whose result was not taken; actor thread
  size_t capacity_ = 0;    // of a group's collectives; 0: the model is whole
  Group forming_;          // of the newest epoch; actor thread
  Group group_;            // of the plans that run; device thread
  Doorbell doorbell_;
  protocol::Mailbox<Job> jobs_;
  protocol::Mailbox<protocol::StepResult> results_;
  protocol::Mailbox<FormOutcome> formed_;
  std::unique_ptr<BlockMover> mover_;  // null: no blocks are moved; outlives the device thread
  std::binary_semaphore warm_{0};
  std::thread thread_;
};

}  // namespace skein::worker
