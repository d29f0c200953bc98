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
// Deaths that a sequence may go through beside others, probation not among them. Beyond them it
// waits until each is settled, so that no number of groups makes it cost more.
inline constexpr uint32_t kCountedReplaysMax = 3;

class Suspicion {
 public:
  // Worker `node` died while it computed the sequence up to `length` tokens. Whether the death was
  // the worker's own doing is not known yet; the mark counts until Settle says otherwise.
  void Mark(uint32_t node, uint32_t length) {
    unsettled_.push_back({node, !on_probation(), true});
    if (!on_probation()) ++counted_replays_;
    ++marks_;
    length_ = std::max(length_, length);
    steps_past_ = 0;
  }

  // It is known how the worker ended. False, and nothing happens, without an unsettled death of it.
  bool Settle(uint32_t node, bool own) {
    const auto found = std::find_if(unsettled_.begin(), unsettled_.end(),
                                    [&](const Death& death) { return death.node == node; });
    if (found == unsettled_.end()) return false;
    if (!own) {
      if (found->marked) --marks_;
      if (found->counted) --counted_replays_;
    }
    unsettled_.erase(found);
    return true;
  }

  // A step of it was committed, `computed` tokens are done. Past the deaths for long enough, the
  // sequence did not cause them; whether they count as replays is still to be settled.
  void Survive(uint32_t computed) {
    if (marks_ == 0 || computed < length_ || ++steps_past_ < kStepsToClear) return;
    marks_ = 0;
    for (Death& death : unsettled_) death.marked = false;
    length_ = 0;
    steps_past_ = 0;
  }

  bool marked() const { return marks_ > 0; }
  uint32_t marks() const { return marks_; }
  uint32_t counted_replays() const { return counted_replays_; }
  bool on_probation() const { return marks_ >= kProbationMarks; }
  // It was alone when its last worker died, or too many died: it waits for the verdict, and runs
  // nowhere.
  bool held() const {
    return (marks_ > kProbationMarks && Waits(&Death::marked)) ||
           (counted_replays_ > kCountedReplaysMax && Waits(&Death::counted));
  }
  // The verdict: that death was the worker's own doing, as those before.
  bool condemned() const { return marks_ > kProbationMarks && !Waits(&Death::marked); }
  // The other verdict: so were too many beside others.
  bool worn_out() const { return counted_replays_ > kCountedReplaysMax && !Waits(&Death::counted); }

 private:
  // A death that nobody has judged yet.
  struct Death {
    uint32_t node;
    bool counted;  // it raised counted_replays_
    bool marked;   // it raised marks_, and was not survived since
  };
  bool Waits(bool Death::*why) const {
    return std::any_of(unsettled_.begin(), unsettled_.end(),
                       [why](const Death& death) { return death.*why; });
  }

  uint32_t marks_ = 0;            // unsettled ones included
  uint32_t counted_replays_ = 0;  // the same
  uint32_t length_ = 0;           // tokens that were being computed at the deaths
  uint32_t steps_past_ = 0;       // committed beyond them
  std::vector<Death> unsettled_;
};

}  // namespace skein::scheduler
