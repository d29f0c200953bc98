#include "coordinator/expert_balance.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "protocol/base/log.h"

namespace skein::coordinator {
namespace {

// A new placement computes the caches of all sequences of the group again. It has to be worth that:
// the busiest rank has so much more than the mean one, and so much less of it afterwards.
constexpr double kImbalanceMin = 1.1;
constexpr double kGainMin = 0.05;
// Even rows differ by chance: an imbalance by about the root of ranks per row. The gain has to be
// more by so many of it.
constexpr double kChance = 2;
// Rows that each expert of a layer has on the mean before the layer says anything.
constexpr double kRowsPerExpertMin = 16;
constexpr absl::Duration kHalfLife = absl::Seconds(60);
constexpr absl::Duration kGaugePeriod = absl::Seconds(1);

using scheduler::ExpertCounts;

double Total(const std::vector<double>& counts) {
  return std::accumulate(counts.begin(), counts.end(), 0.0);
}

bool Enough(const std::vector<double>& counts) {
  return Total(counts) >= kRowsPerExpertMin * static_cast<double>(counts.size());
}

template <typename A, typename B>
bool SameShape(const A& a, const B& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.size() == y.size(); });
}

template <typename Counts>
void Add(ExpertCounts& to, const Counts& counts) {
  for (size_t i = 0; i < to.size(); ++i) {
    for (size_t e = 0; e < to[i].size(); ++e) to[i][e] += counts[i][e];
  }
}

std::vector<double> Nothing(const std::vector<double>& counts) {
  return std::vector<double>(counts.size());
}

void Halve(ExpertCounts& counts) {
  for (std::vector<double>& layer : counts) {
    for (double& count : layer) count /= 2;
  }
}

ExpertCounts Sum(ExpertCounts a, const ExpertCounts& b) {
  Add(a, b);
  return a;
}

}  // namespace

void ExpertBalance::Count(protocol::GroupId id, const protocol::ExpertLoad& load) {
  if (load.counts.empty()) return;
  Group& group = groups_[id.value()];
  const ExpertCounts& known = group.counts[0][0];
  if ((!known.empty() && !SameShape(known, load.counts)) ||
      (!group.placement.empty() && !SameShape(group.placement, load.counts))) {
    SKEIN_LOG(kWarn, "expert counts of another shape dropped").Field("group", id);
    return;
  }
  if (known.empty()) {
    ExpertCounts none;
    for (const auto& layer : load.counts) none.emplace_back(layer.size());
    for (Halves& halves : group.counts) halves.fill(none);
  }
  // In step with no number of ranks or lanes, and each half has its share of every few steps.
  const int half = std::popcount(group.counted++) % 2;
  Add(group.counts[load.prefill ? 1 : 0][static_cast<size_t>(half)], load.counts);
}

protocol::ExpertPlacement ExpertBalance::Present(const Group& group,
                                                 const ExpertCounts& counts) const {
  return group.placement.empty() ? scheduler::ContiguousPlacement(counts, num_ranks_)
                                 : group.placement;
}

bool ExpertBalance::Propose(protocol::GroupId id, absl::Time now) {
  if (interval_ == absl::ZeroDuration() || num_ranks_ == 1 || under_way()) return false;
  Group& group = groups_[id.value()];
  if (group.checked == absl::Time()) group.checked = now;
  if (now - group.checked < interval_) return false;
  group.checked = now;
  ExpertCounts made_of = Sum(group.counts[0][0], group.counts[1][0]);
  ExpertCounts judge = Sum(group.counts[0][1], group.counts[1][1]);
  double rows = 0;
  for (size_t i = 0; i < judge.size(); ++i) {
    if (!Enough(made_of[i]) || !Enough(judge[i])) made_of[i] = judge[i] = Nothing(judge[i]);
    rows += Total(judge[i]);
  }
  if (rows == 0) return false;
  const protocol::ExpertPlacement present = Present(group, judge);
  const double imbalance = scheduler::Imbalance(judge, present, num_ranks_);
  if (imbalance < kImbalanceMin) return false;
  group.proposed = scheduler::Rebalance(made_of, present, num_ranks_);
  const double after = scheduler::Imbalance(judge, group.proposed, num_ranks_);
  if (imbalance - after < kGainMin + kChance * std::sqrt(num_ranks_ / rows)) return false;
  SKEIN_LOG(kInfo, "experts change places")
      .Field("group", id)
      .Field("imbalance", imbalance)
      .Field("after", after);
  group.state = State::kQuiet;
  group.since = now;
  return true;
}

void ExpertBalance::Begin(protocol::GroupId id) {
  Group& group = groups_[id.value()];
  SKEIN_CHECK(group.state == State::kQuiet) << "a placement that was not proposed";
  group.before = std::exchange(group.placement, std::exchange(group.proposed, {}));
  group.state = State::kForming;
}

void ExpertBalance::Formed(protocol::GroupId id, absl::Time now) {
  Group& group = groups_[id.value()];
  group.counts = {};
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
  SKEIN_LOG(kWarn, "experts stay where they were: an epoch ended, or a group does not serve")
      .Field("group", id);
}

void ExpertBalance::Forget(protocol::GroupId id) {
  Ended(id);
  groups_[id.value()].placement.clear();
}

bool ExpertBalance::under_way() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const Group& group) { return group.state != State::kServing; });
}

double ExpertBalance::WorstImbalance(size_t phase) const {
  double worst = 1;
  for (const Group& group : groups_) {
    ExpertCounts counts = Sum(group.counts[phase][0], group.counts[phase][1]);
    for (std::vector<double>& layer : counts) {
      if (!Enough(layer)) layer = Nothing(layer);
    }
    if (counts.empty()) continue;
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
    for (Halves& halves : group.counts) {
      for (ExpertCounts& counts : halves) Halve(counts);
    }
  }
}

}  // namespace skein::coordinator
