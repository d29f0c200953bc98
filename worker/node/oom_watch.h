// Whether the node's own memory limit made the kernel kill something: the counters of the nearest
// cgroup above the leaves that has a memory controller, v2 or v1. For leaves without one.
// Supervisor's thread. Must never count a kill for lack of memory of the whole host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace skein::worker {

// Kills because the limit of the cgroup (or one below it) was reached: of the text of memory.events
// (v2) or memory.oom_control (v1). Nothing when the text has no such counters.
std::optional<uint64_t> LimitKills(std::string_view text);

// The file with the counters, from the texts of /proc/self/mountinfo and /proc/self/cgroup; empty
// when there is none.
std::string LimitKillsFile(std::string_view mountinfo, std::string_view cgroup);

class OomWatch final {
 public:
  // `file`: see LimitKillsFile; empty: never anything.
  explicit OomWatch(std::string file);
  // Of this process's cgroup.
  static OomWatch OfThisProcess();

  // There was such a kill since the last call.
  bool TakeKill();

 private:
  std::optional<uint64_t> Read() const;

  const std::string file_;
  std::optional<uint64_t> seen_;
};

}  // namespace skein::worker
