// Ends the process when a step does not end: a thread that takes no lock, allocates nothing and
// calls nothing of a device, so it works while every other thread stands still. Owns the thread.
// Begin, End, Pause and Resume belong to the device thread. Must never end a process whose steps
// end.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "protocol/base/exit_codes.h"

namespace skein::worker {

using protocol::kExitStepDeadline;

class StepWatchdog {
 public:
  struct Options {
    // After the report, how long the step may still end by itself.
    absl::Duration grace = absl::Seconds(2);
  };

  // Internal when the thread cannot be made.
  static absl::StatusOr<std::unique_ptr<StepWatchdog>> Create(const Options& options);
  ~StepWatchdog();
  StepWatchdog(const StepWatchdog&) = delete;
  StepWatchdog& operator=(const StepWatchdog&) = delete;

  // The step (or phase) of this number runs from now on and may take `allowed`; an infinite time is
  // never over.
  void Begin(uint64_t step, absl::Duration allowed);
  void End();
  // The step waits for another rank from now on, until Resume: such time is not its own.
  void Pause();
  void Resume();
  // Since when the step runs; nothing between steps. Any thread.
  std::optional<absl::Time> running_since() const;
  // Steps that were past their deadline. Any thread.
  uint64_t num_hangs() const { return num_hangs_; }

 private:
  StepWatchdog(const Options& options, int stop_fd);
  void Loop();
  // The step is past its deadline: says so, and ends the process unless the step ends in time.
  void Judge(uint64_t turn);

  const int64_t grace_ns_;
  const int stop_fd_;
  std::atomic<uint64_t> turn_{0};  // odd while a step runs; rises with each Begin and End
  std::atomic<uint64_t> step_{0};
  std::atomic<uint64_t> num_hangs_{0};
  std::atomic<int64_t> began_ns_{0};
  std::atomic<int64_t> deadline_ns_{0};
  std::atomic<int64_t> excused_ns_{0};  // what the watchdog was late and the step waited, this turn
  std::atomic<int64_t> paused_ns_{0};   // since when the step waits; 0: it does not
  std::thread thread_;
};

}  // namespace skein::worker
