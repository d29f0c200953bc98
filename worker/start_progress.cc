#include "worker/start_progress.h"

#include <algorithm>
#include <utility>

namespace skein::worker {

std::string_view StartPhaseName(StartPhase phase) {
  static constexpr std::array<std::string_view, kNumStartPhases> kNames = {
      "preflight", "weights", "engram", "graph_capture", "warmup"};
  return kNames[static_cast<size_t>(phase)];
}

StartProgress::StartProgress(Sink sink, std::function<absl::Time()> clock)
    : sink_(std::move(sink)), clock_(std::move(clock)), began_(clock_()), ended_(began_) {}

void StartProgress::Settle(absl::Time now) {
  if (phase_ != StartPhase::kCount) took_[static_cast<size_t>(phase_)] += now - phase_began_;
  phase_began_ = ended_ = now;
}

void StartProgress::Tell(int percent) {
  if (percent <= told_) return;
  told_ = percent;
  if (sink_) sink_(phase_, percent);
}

void StartProgress::Begin(StartPhase phase) {
  Settle(clock_());
  if (phase_ == phase) return;
  phase_ = phase;
  told_ = -1;
  Tell(0);
}

void StartProgress::Advance(uint64_t done, uint64_t total) {
  if (phase_ == StartPhase::kCount || total == 0) return;
  Tell(static_cast<int>(100.0 * static_cast<double>(std::min(done, total)) /
                        static_cast<double>(total)));
}

void StartProgress::End() {
  Settle(clock_());
  phase_ = StartPhase::kCount;
}

}  // namespace skein::worker
