// How the ranks of a host come to share memory: the first makes it and hands its descriptor to the
// others over datagram sockets with names in the host's network namespace. Nothing has a file, so
// nothing is left behind, whoever is killed and when. Thread: the owner of the group.
// Must never take memory from a process of another user.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace skein::protocol {

// Longest name of a communicator: with its rank it is the name of a socket.
inline constexpr size_t kCommunicatorNameMax = 90;

struct HostMeeting {
  std::string name;  // of the communicator, equal on all ranks, never used before
  int rank = 0;
  std::vector<int> ranks = {0};  // that meet, in ascending order
  size_t bytes = 0;     // of the memory, equal on all ranks
  int abort_fd = -1;    // readable: give up
  absl::Time deadline;  // monotonic
};

// The descriptor of memory that all ranks have, zeroed and of fixed size; closed by the caller.
// Returns when every rank has it. DeadlineExceeded names the ranks that did not come, Aborted when
// `abort_fd` became readable, FailedPrecondition when another rank wants another size.
absl::StatusOr<int> ShareMemory(const HostMeeting& meeting);

}  // namespace skein::protocol
