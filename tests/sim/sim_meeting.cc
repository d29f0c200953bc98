#include "tests/sim/sim_meeting.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace skein::tests {

void SimMeeting::Join(uint32_t rank, SimRank& who, const protocol::ExpertPlacement& placement) {
  if (rank >= ranks_.size() || ranks_[rank] != nullptr) {
    on_violation_(absl::StrCat("two ranks ", rank, " meet under one name"));
    return;
  }
  if (!placement_) placement_ = placement;
  if (*placement_ != placement) {
    on_violation_(absl::StrCat("rank ", rank, " has experts elsewhere than the others believe"));
    return;
  }
  ranks_[rank] = &who;
  if (broken_) return who.OnBroken();
  if (std::find(ranks_.begin(), ranks_.end(), nullptr) != ranks_.end()) return;
  for (SimRank* each : std::vector<SimRank*>(ranks_)) each->OnMet();
}

void SimMeeting::Begin(uint32_t rank, const protocol::StepPlan& plan) {
  begun_[rank] = {plan.epoch, plan.step, plan.lane, plan.plan_hash};
  for (const std::optional<StepName>& other : begun_) {
    if (!other) return;
    if (*other == *begun_[rank]) continue;
    on_violation_(absl::StrCat("rank ", rank, " of group ", plan.group.value(), " begins step ",
                               plan.step.value(), " of lane ", plan.lane, ", another one step ",
                               other->step.value(), " of lane ", other->lane));
    return;
  }
  begun_.assign(ranks_.size(), std::nullopt);
  for (SimRank* each : std::vector<SimRank*>(ranks_)) each->OnStepBegun();
}

void SimMeeting::Leave(uint32_t rank) {
  ranks_[rank] = nullptr;
  if (std::exchange(broken_, true)) return;
  for (SimRank* each : std::vector<SimRank*>(ranks_)) {
    if (each != nullptr) each->OnBroken();
  }
}

std::shared_ptr<SimMeeting> SimMeetings::Find(const std::string& name, uint32_t num_ranks) {
  std::weak_ptr<SimMeeting>& known = meetings_[name];
  std::shared_ptr<SimMeeting> meeting = known.lock();
  if (meeting == nullptr) {
    meeting = std::make_shared<SimMeeting>(num_ranks, on_violation_);
    known = meeting;
  }
  return meeting;
}

}  // namespace skein::tests
