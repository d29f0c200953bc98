#include "scheduler/speculation_policy.h"

#include <algorithm>
#include <array>
#include <utility>

namespace skein::scheduler {

namespace {

constexpr double kPriorRate = 0.7;  // of acceptance, before anything was measured
constexpr double kRateMin = 0.02;   // of a draft once it is reached
constexpr double kRateMax = 0.98;
constexpr double kRateWeight = 1.0 / 64;     // of one draft in an average over all sequences
constexpr double kRatePrior = 4;             // drafts that the first measured ones must outweigh
constexpr double kHistoryDecay = 15.0 / 16;  // of what a sequence's earlier steps say
constexpr double kHistoryPrior = 4;          // drafts that a sequence's own history must outweigh
constexpr double kCostWeight = 1.0 / 8;      // of one measurement
constexpr double kCostRatioMax = 3;          // a slower measurement counts as so much slower
constexpr double kGainMin = 1.02;            // drafting must promise this much over none
// Without a draft for so many steps, a few steps try again: the text may have become easier. Each
// attempt in vain doubles the wait.
constexpr uint32_t kStepsUntilProbe = 1024;
constexpr uint32_t kStepsUntilProbeMax = 16'384;
constexpr uint32_t kProbeSteps = 8;
constexpr uint32_t kProbeDepth = 2;
constexpr uint32_t kProbeSequences = 8;
// All attempts together take at most this share of the measured time.
constexpr double kProbeShare = 0.005;
// What feeding the drafter adds to a step, for the account of the attempts.
constexpr double kFeedShare = 0.05;
// The drafter is fed for so long before an attempt, and after the last draft for so many steps for
// each that drafted, up to the same bound.
constexpr uint32_t kStepsFed = 32;
constexpr uint32_t kStepsFedEach = 4;
// A step drafts for so many times more sequences than any before: what was never measured is
// approached, so that a dear surprise is a small one.
constexpr uint32_t kGrowth = 4;
// Chances are told apart to a thousandth: ranking is then a matter of counting.
constexpr size_t kSurvivalLevels = 1024;
// Numbers of drafts whose throughput is compared; all of them while there are no more.
constexpr uint32_t kCountsTried = 1024;

// How much better than the average a sequence's drafts did.
double OwnFactor(const DraftHistory& history) {
  return (kHistoryPrior + history.accepted) / (kHistoryPrior + history.expected);
}

double Bounded(double rate) { return std::clamp(rate, kRateMin, kRateMax); }

// Sizes are measured one by one up to 8 and by eighths of their power of two above.
uint32_t BucketOf(uint32_t size) {
  uint32_t step = 1;
  while (size / step >= 16) step *= 2;
  return size / step * step;
}

}  // namespace

void CostCurve::Observe(uint32_t size, double cost) {
  const uint32_t bucket = BucketOf(size);
  const auto at = std::lower_bound(points_.begin(), points_.end(), bucket,
                                   [](const Point& p, uint32_t s) { return p.size < s; });
  if (at == points_.end() || at->size != bucket) {
    points_.insert(at, {bucket, cost, 1});
    return;
  }
  // The first measurements count alike: the very first is often slow, and soon outweighed.
  const double weight = std::max(kCostWeight, 1 / ++at->count);
  at->cost += weight * (std::min(cost, kCostRatioMax * at->cost) - at->cost);
}

double CostCurve::At(uint32_t size) const {
  if (points_.empty()) return 0;
  const auto above = std::lower_bound(points_.begin(), points_.end(), size,
                                      [](const Point& p, uint32_t s) { return p.size < s; });
  if (above == points_.begin()) return points_.front().cost * size / points_.front().size;
  if (points_.size() == 1) return points_.front().cost;
  const Point& high = above == points_.end() ? points_.back() : *above;
  const Point& low = above == points_.end() ? points_[points_.size() - 2] : *(above - 1);
  const double slope = std::max(0.0, (high.cost - low.cost) / (high.size - low.size));
  return low.cost + slope * (size - low.size);
}

SpeculationPolicy::SpeculationPolicy(const SpeculationSettings& settings)
    : settings_(settings),
      position_rate_(settings.max_depth, kPriorAcceptance),
      position_seen_(settings.max_depth, 0),
      steps_fed_(kStepsFed),
      steps_until_probe_(kStepsUntilProbe) {}

// All drafts that may be made, the likeliest to be reached and accepted first. Survival falls with
// the index, so a sequence's drafts come in their order.
void SpeculationPolicy::Rank(std::span<const Candidate> candidates) {
  drafts_.clear();
  for (uint32_t i = 0; i < candidates.size(); ++i) {
    double survival = 1;
    const uint32_t depth = std::min(
        {candidates[i].depth_max, settings_.max_depth, drafted_max_ > 0 ? kDepthMax : kProbeDepth});
    const double own = OwnFactor(candidates[i].history);
    for (uint32_t index = 0; index < depth; ++index) {
      survival *= Bounded(position_rate_[index] * own);
      drafts_.push_back({static_cast<float>(survival), i});
    }
  }
  SortBySurvival();
}

// A stable sort by level of survival, in two passes: the order does not depend on anything else.
void SpeculationPolicy::SortBySurvival() {
  std::array<uint32_t, kSurvivalLevels> begin{};
  const auto level = [](const Draft& draft) {
    return kSurvivalLevels - 1 -
           static_cast<size_t>(draft.survival * static_cast<float>(kSurvivalLevels - 1));
  };
  for (const Draft& draft : drafts_) ++begin[level(draft)];
  uint32_t sum = 0;
  for (uint32_t& at : begin) sum += std::exchange(at, sum);
  ranked_.resize(drafts_.size());
  for (const Draft& draft : drafts_) ranked_[begin[level(draft)]++] = draft;
}

// The number of leading drafts of the ranking with the most expected tokens per time. The search
// over all numbers is safe: it depends on committed steps alone.
uint32_t SpeculationPolicy::BestCount(uint32_t rows, uint32_t tokens, size_t num_candidates,
                                      double* throughput) {
  depths_.assign(num_candidates, 0);
  uint32_t best = 0;
  uint32_t num_drafted = 0;
  double expected = tokens;
  *throughput = expected / std::max(1.0, forward_.At(rows));
  double needed = *throughput * kGainMin;
  const auto all = static_cast<uint32_t>(ranked_.size());
  const uint32_t stride = (all + kCountsTried - 1) / kCountsTried;
  for (uint32_t count = 1; count <= all; ++count) {
    const Draft& draft = ranked_[count - 1];
    expected += static_cast<double>(draft.survival);
    if (depths_[draft.candidate]++ == 0) ++num_drafted;
    if (count % stride != 0 && count != all) continue;
    const double time = forward_.At(rows + count) + draft_.At(num_drafted);
    if (expected / std::max(1.0, time) > needed) {
      needed = *throughput = expected / std::max(1.0, time);
      best = count;
    }
  }
  return best;
}

// The first `count` drafts of the ranking become the choice, those of as many sequences as the
// measurements allow; returns how many did.
uint32_t SpeculationPolicy::Take(uint32_t count, Choice& choice) const {
  const uint32_t most = std::max(1u, kGrowth * drafted_max_);
  uint32_t drafted = 0;
  uint32_t taken = 0;
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t& depth = choice.depths[ranked_[i].candidate];
    if (depth == 0 && drafted == most) continue;
    drafted += depth == 0 ? 1 : 0;
    ++depth;
    ++taken;
  }
  return taken;
}

// Begins an attempt if it is due and within its share of time, and charges its estimated time.
void SpeculationPolicy::MayBeginProbe(uint32_t rows, uint32_t num_sequences) {
  if (probe_steps_left_ > 0 || steps_without_draft_ < steps_until_probe_) return;
  const uint32_t drafted = std::min(num_sequences, kProbeSequences);
  const double plain = forward_.At(rows);
  const double step = forward_.At(rows + drafted * kProbeDepth) - plain + draft_.At(drafted);
  const double cost = kProbeSteps * step + kStepsFed * kFeedShare * plain;
  if (probe_us_ + cost > kProbeShare * total_us_) return;
  probe_us_ += cost;
  probe_steps_left_ = kStepsFed + kProbeSteps;
}

// A step for which drafting does not seem to pay: none, or the few drafts of an attempt.
void SpeculationPolicy::Rest(std::span<const Candidate> candidates, uint32_t rows, Choice& choice) {
  if (steps_without_draft_ == steps_fed_) steps_fed_ = 0;
  ++steps_without_draft_;
  MayBeginProbe(rows, static_cast<uint32_t>(candidates.size()));
  if (probe_steps_left_ == 0) return;
  --probe_steps_left_;
  if (probe_steps_left_ >= kProbeSteps) return;  // the drafter is fed first
  uint32_t left = kProbeSequences;
  for (size_t i = 0; i < candidates.size() && left > 0; ++i) {
    choice.depths[i] = std::min({candidates[i].depth_max, settings_.max_depth, kProbeDepth});
    left -= choice.depths[i] > 0 ? 1 : 0;
  }
  if (probe_steps_left_ > 0) return;
  steps_without_draft_ = 0;
  steps_fed_ = 0;
  steps_until_probe_ = std::min(2 * steps_until_probe_, kStepsUntilProbeMax);
}

SpeculationPolicy::Choice SpeculationPolicy::Choose(std::span<const Candidate> candidates,
                                                    uint32_t other_rows) {
  Choice choice;
  choice.depths.assign(candidates.size(), 0);
  if (settings_.max_depth == 0) return choice;
  if (settings_.adaptation == Adaptation::kFixed) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      choice.depths[i] = std::min(candidates[i].depth_max, settings_.max_depth);
    }
    choice.feed_drafter = true;
    return choice;
  }
  Rank(candidates);
  const auto tokens = static_cast<uint32_t>(candidates.size());
  const uint32_t rows = tokens + other_rows;
  double throughput = 0;
  const uint32_t count = BestCount(rows, tokens, candidates.size(), &throughput);
  const uint32_t taken = Take(count, choice);
  if (taken > 0) {
    // Once drafted, a row pays if its chance exceeds what its time would earn elsewhere.
    const double row_cost = forward_.At(rows + taken) - forward_.At(rows + taken - 1);
    choice.min_survival = static_cast<float>(
        std::clamp(row_cost * throughput * promised_ / std::max(kept_, kRateMin), 0.0, 1.0));
    steps_fed_ =
        drafted_max_ == 0 ? kStepsFedEach : std::min(steps_fed_ + kStepsFedEach, kStepsFed);
    steps_without_draft_ = 0;
    probe_steps_left_ = 0;
    steps_until_probe_ = kStepsUntilProbe;
  } else if (!candidates.empty()) {
    Rest(candidates, rows, choice);
  }
  choice.feed_drafter = steps_without_draft_ < steps_fed_ || probe_steps_left_ > 0;
  return choice;
}

void SpeculationPolicy::ObserveStep(const StepCost& cost) {
  if (cost.rows == 0 || cost.device_time_us == 0) return;
  const uint64_t draft_us = std::min(cost.draft_time_us, cost.device_time_us);
  forward_.Observe(cost.rows, static_cast<double>(cost.device_time_us - draft_us));
  if (cost.num_drafted > 0) draft_.Observe(cost.num_drafted, static_cast<double>(draft_us));
  drafted_max_ = std::max(drafted_max_, cost.num_drafted);
  total_us_ += static_cast<double>(cost.device_time_us);
}

void SpeculationPolicy::ObserveDrafts(std::span<const float> confidences, uint32_t num_accepted,
                                      DraftHistory& history) {
  if (confidences.empty()) return;  // nothing was learnt
  history.expected *= kHistoryDecay;
  history.accepted *= kHistoryDecay;
  for (uint32_t index = 0; index < confidences.size() && index < settings_.max_depth; ++index) {
    const bool accepted = index < num_accepted;
    const double outcome = accepted ? 1 : 0;
    history.expected += position_rate_[index];
    history.accepted += outcome;
    kept_ += kRateWeight * (outcome - kept_);
    promised_ += kRateWeight * (static_cast<double>(confidences[index]) - promised_);
    // The first drafts count by their number, so that the prior is soon forgotten.
    const double seen = kRatePrior + ++position_seen_[index];
    position_rate_[index] += std::max(kRateWeight, 1 / seen) * (outcome - position_rate_[index]);
    if (!accepted) break;  // later ones were not reached
  }
}

}  // namespace skein::scheduler
