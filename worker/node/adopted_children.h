// Processes that came to the supervisor as subreaper, because whoever started them died.
// Supervisor's thread. Must never touch a child that the supervisor started itself.
#pragma once

#include <functional>

namespace skein::worker {

// True for the pid of a child that the supervisor started and has not reaped.
using IsOwnChild = std::function<bool(int pid)>;

// Reaps those that ended.
void ReapAdopted(const IsOwnChild& is_own);

// SIGKILL by handle to those that live; how many there are. Does not wait.
int KillAdopted(const IsOwnChild& is_own);

// The same until a round finds none, for the end of the supervisor; a second at most.
void EndAdopted(const IsOwnChild& is_own);

}  // namespace skein::worker
