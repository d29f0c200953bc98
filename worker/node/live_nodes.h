// The supervisors that live on this host, found by their run directories and the locks in them.
// A command's thread. Must never change a run directory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace skein::worker {

// Run directories below the bases, or bases that are one, whose owner lives; ascending.
std::vector<std::string> LiveRunDirectories(const std::vector<std::string>& bases);

// The run directory of the one live supervisor below `configured` (or that itself; relative to the
// working directory), or where supervisors go without configuration. NotFound when there is none,
// InvalidArgument with all of them when several live.
absl::StatusOr<std::string> FindRunDirectory(std::string_view configured);

// OK when the supervisor's loop showed life in this run directory within ten seconds.
absl::Status CheckSupervisorLoop(const std::string& run_directory);

}  // namespace skein::worker
