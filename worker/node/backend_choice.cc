// The choice itself: sm90 where a GPU is visible and the build has it, else cpu, with the reason.
// Supervisor's thread. Must never open a device: seeing its node is enough.
#include "worker/node/backend_choice.h"

#include <vector>

#include <dirent.h>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using protocol::Concat;

// The first nvidia<number> node, or empty.
std::string VisibleGpu(const std::string& device_directory) {
  std::string found;
  DIR* directory = ::opendir(device_directory.c_str());
  if (directory == nullptr) return found;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string_view name = entry->d_name;
    const bool numbered = name.size() > 6 && name.substr(0, 6) == "nvidia" &&
                          name.find_first_not_of("0123456789", 6) == std::string_view::npos;
    if (numbered && (found.empty() || name < found)) found = name;
  }
  ::closedir(directory);
  return found.empty() ? found : Concat(device_directory, "/", found);
}

bool Contains(const std::vector<std::string>& names, std::string_view name) {
  for (const std::string& candidate : names) {
    if (candidate == name) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<BackendChoice> ChooseBackend(std::string_view configured, std::string_view built,
                                            const std::string& device_directory) {
  const std::vector<std::string> names =
      absl::StrSplit(protocol::ToAbsl(built), ',', absl::SkipEmpty());
  if (configured != "auto") {
    if (Contains(names, configured)) {
      return BackendChoice{std::string(configured), "named by the configuration"};
    }
    return absl::FailedPreconditionError(
        Concat("worker.backend (--backend): \"", configured, "\" is not in this build, which has ",
               absl::StrJoin(names, ", "), "; name one of them or auto"));
  }
  const std::string gpu = VisibleGpu(device_directory);
  if (gpu.empty()) {
    return BackendChoice{"cpu", Concat("no ", device_directory, "/nvidia[0-9]* is visible")};
  }
  if (!Contains(names, "sm90")) {
    return BackendChoice{"cpu", Concat(gpu, " is visible, but sm90 is not in this build")};
  }
  return BackendChoice{"sm90", Concat(gpu, " is visible")};
}

}  // namespace skein::worker
