// What dead supervisors of this user left behind, found by the mark in its environment. The way of
// the sweep where there are no cgroup leaves.
// Supervisor's thread, before any child. Must never signal a process whose supervisor lives, nor
// one that is no longer the process which was looked at.
#pragma once

#include <string>
#include <vector>

#include "worker/node/process_entry.h"

namespace skein::worker {

// Processes of this user below `proc_root` with the mark of a supervisor that is dead; ascending.
std::vector<ProcessEntry> FindOrphans(const std::string& proc_root);

// SIGKILL by handle, after start time and mark were compared again, until none of them is left or a
// second is over. The number that ended.
int EndOrphans(const std::vector<ProcessEntry>& orphans);

// Ends the orphans when `ends_them`, and lists them in the log either way. The number that ended.
int SweepOrphans(bool ends_them);

}  // namespace skein::worker
