// Which rank of a group holds which expert, from what was routed to each: pure functions, any
// thread. A rank always holds as many experts of a layer as the contiguous split gives it, so its
// memory never changes.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/messages/control.h"

namespace skein::scheduler {

// Rows that chose each expert: [layer][expert].
using ExpertCounts = std::vector<std::vector<double>>;

// The split of every layer into ranges of experts, rank after rank, as a worker loads it.
protocol::ExpertPlacement ContiguousPlacement(const ExpertCounts& counts, uint32_t num_ranks);

// Rows of the busiest rank over those of the mean one, averaged over the layers that have any; 1
// where none has. `placement` has the shape of the counts.
double Imbalance(const ExpertCounts& counts, const protocol::ExpertPlacement& placement,
                 uint32_t num_ranks);

// The placement after experts of busy ranks changed places with those of idle ones, a pair at a
// time, for as long as that makes the busiest rank of a layer less busy by more than a trifle.
// Never worse than `present`, and no expert moves for nothing. Equal arguments give equal
// placements.
protocol::ExpertPlacement Rebalance(const ExpertCounts& counts,
                                    const protocol::ExpertPlacement& present, uint32_t num_ranks);

}  // namespace skein::scheduler
