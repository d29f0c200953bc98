// What a sequence has to do with the deaths of workers: marks, probation, the verdict. A request
// that kills its worker must not walk through the cluster, and one that was only beside it must not
// pay. Plain state of a sequence. Must never count a death that came from outside.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace skein::scheduler {

// Marks from which on a sequence runs alone, in one group; one more and it is refused.
inline constexpr uint32_t kProbationMarks = 2;
// Steps past the positions that the dying workers computed, after which a sequence is cleared.
inline constexpr uint32_t kStepsToClear = 8;
// Deaths that a sequence may go through beside others, probation not among them.
inline constexpr uint32_t kCountedReplaysMax = 3;

class Suspicion {
 public:
  // Worker `node` died while it computed the sequence up to `length` tokens. Whether the death was
  // the worker's own doing is not known yet; the mark counts until Settle says otherwise.
  void Mark(uint32_t node, uint32_t length) {
    if (!on_probation()) ++counted_replays_;
    counted_.push_back(!on_probation());
    unsettled_.push_back(node);
    ++marks_;
    length_ = std::max(length_, length);
    steps_past_ = 0;
  }

  // It is known how the worker ended. Nothing happens without an unsettled death of it.
  void Settle(uint32_t node, bool own) {
    const auto found = std::find(unsettled_.begin(), unsettled_.end(), node);
    if (found == unsettled_.end()) return;
    const auto counted = counted_.begin() + (found - unsettled_.begin());
    if (!own) {
      if (marks_ > 0) --marks_;
      if (*counted) --counted_replays_;
    }
    unsettled_.erase(found);
    counted_.erase(counted);
  }

  // A step of it was committed, `computed` tokens are done. Past the deaths for long enough, the
  // sequence did not cause them.
  void Survive(uint32_t computed) {
    if (marks_ == 0 || computed < length_ || ++steps_past_ < kStepsToClear) return;
    marks_ = 0;
    unsettled_.clear();
    counted_.clear();
    length_ = 0;
    steps_past_ = 0;
  }

  bool marked() const { return marks_ > 0; }
  uint32_t marks() const { return marks_; }
  uint32_t counted_replays() const { return counted_replays_; }
  bool on_probation() const { return marks_ >= kProbationMarks; }
  // It was alone when its last worker died: it waits for the verdict, and runs nowhere.
  bool held() const { return marks_ > kProbationMarks && !unsettled_.empty(); }
  // The verdict: that death was the worker's own doing, as those before.
  bool condemned() const { return marks_ > kProbationMarks && unsettled_.empty(); }

 private:
  uint32_t marks_ = 0;  // unsettled ones included
  uint32_t counted_replays_ = 0;
  uint32_t length_ = 0;              // tokens that were being computed at the deaths
  uint32_t steps_past_ = 0;          // committed beyond them
  std::vector<uint32_t> unsettled_;  // nodes
  std::vector<bool> counted_;        // of each unsettled one: it raised counted_replays_
};

}  // namespace skein::scheduler
