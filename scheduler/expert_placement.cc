#include "scheduler/expert_placement.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>

#include "protocol/base/log.h"

namespace skein::scheduler {
namespace {

using Ranks = std::span<uint16_t>;  // of the experts of a layer
using Counts = std::span<const double>;

std::vector<double> LoadOf(Counts counts, std::span<const uint16_t> ranks, uint32_t num_ranks) {
  SKEIN_CHECK(counts.size() == ranks.size());
  std::vector<double> load(num_ranks);
  for (size_t e = 0; e < counts.size(); ++e) load[ranks[e]] += counts[e];
  return load;
}

struct Swap {
  size_t from, to;  // experts of the two ranks
  double moved;     // rows
};

// An exchange reads two experts again: it moves so much of what a rank has on the mean.
constexpr double kMovedMin = 0.002;

// Of two ranks whose loads differ by `gap`, the experts whose exchange brings them closest, by more
// than `least`.
std::optional<Swap> BestSwap(Counts counts, Ranks ranks, uint16_t busy, uint16_t idle, double gap,
                             double least) {
  std::optional<Swap> best;
  for (size_t a = 0; a < ranks.size(); ++a) {
    if (ranks[a] != busy) continue;
    for (size_t b = 0; b < ranks.size(); ++b) {
      if (ranks[b] != idle) continue;
      const double moved = std::min(counts[a] - counts[b], gap - (counts[a] - counts[b]));
      if (moved > least && (!best || moved > best->moved)) best = Swap{a, b, moved};
    }
  }
  return best;
}

// One exchange between the busiest rank and the idlest one that it can exchange with. False: none
// makes it less busy by enough.
bool SwapOnce(Counts counts, Ranks ranks, uint32_t num_ranks) {
  const std::vector<double> load = LoadOf(counts, ranks, num_ranks);
  std::vector<uint16_t> order(num_ranks);
  std::iota(order.begin(), order.end(), uint16_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](uint16_t a, uint16_t b) { return load[a] < load[b]; });
  const uint16_t busy = order.back();
  const double least = std::accumulate(load.begin(), load.end(), 0.0) / num_ranks * kMovedMin;
  for (const uint16_t idle : order) {
    const std::optional<Swap> swap =
        BestSwap(counts, ranks, busy, idle, load[busy] - load[idle], least);
    if (!swap) continue;
    std::swap(ranks[swap->from], ranks[swap->to]);
    return true;
  }
  return false;
}

}  // namespace

protocol::ExpertPlacement ContiguousPlacement(const ExpertCounts& counts, uint32_t num_ranks) {
  protocol::ExpertPlacement placement;
  for (const std::vector<double>& layer : counts) {
    std::vector<uint16_t>& ranks = placement.emplace_back();
    for (uint64_t rank = 0; rank < num_ranks; ++rank) {
      ranks.resize(layer.size() * (rank + 1) / num_ranks, static_cast<uint16_t>(rank));
    }
  }
  return placement;
}

double Imbalance(const ExpertCounts& counts, const protocol::ExpertPlacement& placement,
                 uint32_t num_ranks) {
  SKEIN_CHECK(counts.size() == placement.size());
  double sum = 0;
  int layers = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const std::vector<double> load = LoadOf(counts[i], placement[i], num_ranks);
    const double total = std::accumulate(load.begin(), load.end(), 0.0);
    if (total <= 0) continue;
    sum += *std::max_element(load.begin(), load.end()) * num_ranks / total;
    ++layers;
  }
  return layers == 0 ? 1 : sum / layers;
}

protocol::ExpertPlacement Rebalance(const ExpertCounts& counts,
                                    const protocol::ExpertPlacement& present, uint32_t num_ranks) {
  SKEIN_CHECK(counts.size() == present.size());
  protocol::ExpertPlacement placement = present;
  for (size_t i = 0; i < counts.size(); ++i) {
    // Far more than a layer needs: whatever the rounding of sums, this ends.
    for (size_t n = 0; n < counts[i].size() && SwapOnce(counts[i], placement[i], num_ranks); ++n) {
    }
  }
  return placement;
}

}  // namespace skein::scheduler
