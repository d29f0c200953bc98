// How far a worker has come in its start, and how long each part took: for the supervisor, which
// shows it, the metrics and the report. Thread: the one that starts the worker.
// Must never wait for whoever is told.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/time/time.h"

namespace skein::worker {

enum class StartPhase : uint8_t { kPreflight, kWeights, kEngram, kGraphCapture, kWarmup, kCount };
inline constexpr size_t kNumStartPhases = static_cast<size_t>(StartPhase::kCount);

// "preflight", "weights", "engram", "graph_capture", "warmup".
std::string_view StartPhaseName(StartPhase phase);

class StartProgress {
 public:
  // Told when a phase begins, with 0, and whenever its whole percentage grows.
  using Sink = std::function<void(StartPhase phase, int percent)>;

  explicit StartProgress(Sink sink, std::function<absl::Time()> clock);

  // The phase begins, the one before ends. A phase may come back; its times add up.
  void Begin(StartPhase phase);
  // So much of the phase is done.
  void Advance(uint64_t done, uint64_t total);
  // The start is over.
  void End();

  absl::Duration Took(StartPhase phase) const { return took_[static_cast<size_t>(phase)]; }
  absl::Duration total() const { return ended_ - began_; }

 private:
  void Settle(absl::Time now);
  void Tell(int percent);

  const Sink sink_;
  const std::function<absl::Time()> clock_;
  const absl::Time began_;
  absl::Time ended_;
  absl::Time phase_began_;
  StartPhase phase_ = StartPhase::kCount;
  int told_ = -1;  // percent of the phase
  std::array<absl::Duration, kNumStartPhases> took_{};
};

}  // namespace skein::worker
