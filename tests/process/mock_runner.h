// Runs plans on the mock model with the memory of a real worker: rows lie in cache blocks, and the
// token of a step is computed from what the blocks of its slot hold. A stale, misplaced or shared
// row therefore gives a wrong token.
// Submit, Reset and TakeResults belong to the actor thread; steps run on a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "protocol/actor/actor.h"
#include "protocol/messages/step.h"
#include "worker/step_runner.h"

namespace skein::tests {

// What a step takes: `step`, and `row` for each of its rows.
struct MockSpeed {
  absl::Duration step = absl::Milliseconds(5);
  absl::Duration row = absl::ZeroDuration();
};

// The tokens that cache blocks and slots hold; runs one plan without any delay.
class MockMemory {
 public:
  explicit MockMemory(const protocol::CacheGeometry& geometry);
  protocol::StepResult Run(const protocol::StepPlan& plan);
  void Forget();

 private:
  struct Slot {
    std::vector<protocol::BlockId> table;
  };
  absl::Status Place(const protocol::SequenceStep& step);
  protocol::RowSummary Sample(const protocol::SequenceStep& step) const;

  const protocol::CacheGeometry geometry_;
  std::vector<int32_t> cells_;  // by block and position in it
  std::vector<Slot> slots_;
};

class MockRunner final : public worker::StepRunner {
 public:
  // `actor` outlives the runner.
  MockRunner(const protocol::CacheGeometry& geometry, const MockSpeed& speed,
             protocol::Waker& actor);
  ~MockRunner() override;

  absl::Status Submit(protocol::StepPlan plan) override;
  absl::Status Reset() override;
  std::vector<protocol::StepResult> TakeResults() override;

 private:
  void Loop();
  // What is next: a plan, or nothing for a reset. False at the end.
  bool Next(std::optional<protocol::StepPlan>& job);
  // False when the end came first.
  bool Spend(absl::Duration duration);

  const MockSpeed speed_;
  protocol::Waker& actor_;
  MockMemory memory_;  // of the step thread
  std::mutex mutex_;   // of what follows
  std::condition_variable changed_;
  std::deque<std::optional<protocol::StepPlan>> jobs_;
  std::vector<protocol::StepResult> results_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace skein::tests
