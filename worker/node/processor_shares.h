// The processors of a node, shared out among its workers so that no two compute on the same one.
// Pure but for asking the kernel which processors this process may use. Supervisor's thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace skein::worker {

// Numbers of the processors that this process may use, in order; never empty.
std::vector<int> AllowedProcessors();

// One share per worker: neighbouring processors, sizes that differ by at most one. With fewer
// processors than workers several workers have the same one.
std::vector<std::vector<int>> ShareProcessors(std::span<const int> processors, int64_t workers);

}  // namespace skein::worker
