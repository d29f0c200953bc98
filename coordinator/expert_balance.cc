#include "coordinator/expert_balance.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "protocol/base/log.h"

namespace skein::coordinator {
namespace {

// A new placement computes the caches of all sequences of the group again. It has to be worth that:
// the busiest rank has so much more than the mean one, and so much less of it afterwards.
constexpr double kImbalanceMin = 1.1;
constexpr double kGainMin = 0.05;
// Rows that each expert of a layer has on the mean before they say anything.
constexpr double kRowsPerExpertMin = 16;
constexpr absl::Duration kHalfLife = absl::Seconds(60);
constexpr absl::Duration kGaugePeriod = absl::Seconds(1);

double Total(const std::vector<double>& counts) {
  return std::accumulate(counts.begin(), counts.end(), 0.0);
}

// False: they are of different shapes.
bool Add(scheduler::ExpertCounts& to, const std::vector<std::vector<uint32_t>>& counts) {
  if (to.empty()) {
    for (const auto& layer : counts) to.emplace_back(layer.size());
  }
  if (to.size() != counts.size()) return false;
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i].size() != counts[i].size()) return false;
  }
  for (size_t i = 0; i < to.size(); ++i) {
    for (size_t e = 0; e < to[i].size(); ++e) to[i][e] += counts[i][e];
  }
  return true;
}

}  // namespace

void ExpertBalance::Count(protocol::GroupId id, const protocol::ExpertLoad& load) {
  if (load.counts.empty()) return;
  Group& group = groups_[id.value()];
  // Both kinds have the shape of the first that was counted.
  if (Add(group.counts[load.prefill ? 1 : 0], load.counts)) return;
  SKEIN_LOG(kWarn, "expert counts of another shape dropped").Field("group", id);
}

scheduler::ExpertCounts ExpertBalance::Evidence(const Group& group) const {
  scheduler::ExpertCounts sum = group.counts[0].empty() ? group.counts[1] : group.counts[0];
  if (sum.empty()) return sum;
  if (group.counts[1].size() == sum.size() && !group.counts[0].empty()) {
    for (size_t i = 0; i < sum.size(); ++i) {
      for (size_t e = 0; e < sum[i].size(); ++e) sum[i][e] += group.counts[1][i][e];
    }
  }
  const bool enough = Total(sum[0]) >= kRowsPerExpertMin * static_cast<double>(sum[0].size());
  return enough ? sum : scheduler::ExpertCounts{};
}

protocol::ExpertPlacement ExpertBalance::Present(const Group& group,
                                                 const scheduler::ExpertCounts& counts) const {
  return group.placement.empty() ? scheduler::ContiguousPlacement(counts, num_ranks_)
                                 : group.placement;
}

bool ExpertBalance::Propose(protocol::GroupId id, absl::Time now) {
  if (interval_ == absl::ZeroDuration() || num_ranks_ == 1 || under_way()) return false;
  Group& group = groups_[id.value()];
  if (group.checked == absl::Time()) group.checked = now;
  if (now - group.checked < interval_) return false;
  group.checked = now;
  const scheduler::ExpertCounts counts = Evidence(group);
  if (counts.empty()) return false;
  const protocol::ExpertPlacement present = Present(group, counts);
  const double imbalance = scheduler::Imbalance(counts, present, num_ranks_);
  if (imbalance < kImbalanceMin) return false;
  group.proposed = scheduler::Rebalance(counts, present, num_ranks_);
  const double after = scheduler::Imbalance(counts, group.proposed, num_ranks_);
  if (imbalance - after < kGainMin) return false;
  SKEIN_LOG(kInfo, "experts change places")
      .Field("group", id)
      .Field("imbalance", imbalance)
      .Field("after", after);
  group.state = State::kQuiet;
  group.since = now;
  return true;
}

void ExpertBalance::Begin(protocol::GroupId id, absl::Time) {
  Group& group = groups_[id.value()];
  SKEIN_CHECK(group.state == State::kQuiet) << "a placement that was not proposed";
  group.before = std::exchange(group.placement, std::exchange(group.proposed, {}));
  group.state = State::kForming;
}

void ExpertBalance::Formed(protocol::GroupId id, absl::Time now) {
  Group& group = groups_[id.value()];
  if (group.state != State::kForming) return;
  group.state = State::kServing;
  group.before.clear();
  metrics_.rebalances.At({"ok"}).Increment();
  metrics_.rebalance_seconds.Observe(absl::ToDoubleSeconds(now - group.since));
}

void ExpertBalance::Ended(protocol::GroupId id) {
  Group& group = groups_[id.value()];
  const State state = std::exchange(group.state, State::kServing);
  if (state == State::kServing) return;
  if (state == State::kForming) group.placement = std::exchange(group.before, {});
  metrics_.rebalances.At({"failed"}).Increment();
  SKEIN_LOG(kWarn, "experts stay where they were: the group's epoch ended").Field("group", id);
}

bool ExpertBalance::under_way() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const Group& group) { return group.state != State::kServing; });
}

double ExpertBalance::WorstImbalance(size_t phase) const {
  double worst = 1;
  for (const Group& group : groups_) {
    const scheduler::ExpertCounts& counts = group.counts[phase];
    if (counts.empty() || (!group.placement.empty() && group.placement.size() != counts.size())) {
      continue;
    }
    worst = std::max(worst, scheduler::Imbalance(counts, Present(group, counts), num_ranks_));
  }
  return worst;
}

void ExpertBalance::Tick(absl::Time now) {
  if (num_ranks_ == 1 || now - ticked_ < kGaugePeriod) return;
  ticked_ = now;
  metrics_.expert_imbalance.At({"decode"}).Set(WorstImbalance(0));
  metrics_.expert_imbalance.At({"prefill"}).Set(WorstImbalance(1));
  if (now - halved_ < kHalfLife) return;
  halved_ = now;
  for (Group& group : groups_) {
    for (scheduler::ExpertCounts& counts : group.counts) {
      for (std::vector<double>& layer : counts) {
        for (double& count : layer) count /= 2;
      }
    }
  }
}

}  // namespace skein::coordinator
