// Affinity masks in, lists of numbers out.
#include "worker/node/processor_shares.h"

#include <sched.h>

namespace skein::worker {

std::vector<int> AllowedProcessors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> processors;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) processors.push_back(i);
    }
  }
  if (processors.empty()) processors.push_back(0);
  return processors;
}

std::vector<std::vector<int>> ShareProcessors(std::span<const int> processors, int64_t workers) {
  const auto count = static_cast<int64_t>(processors.size());
  std::vector<std::vector<int>> shares;
  for (int64_t i = 0; i < workers; ++i) {
    if (count < workers) {
      shares.push_back({processors[static_cast<size_t>(i % count)]});
      continue;
    }
    const auto begin = processors.begin() + i * count / workers;
    const auto end = processors.begin() + (i + 1) * count / workers;
    shares.emplace_back(begin, end);
  }
  return shares;
}

}  // namespace skein::worker
