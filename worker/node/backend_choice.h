// `--backend auto` becomes a name, once, before any process starts: the one place that probes.
// Pure but for looking at device nodes. Must never be used by a worker, which takes names only.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace skein::worker {

struct BackendChoice {
  std::string backend;
  std::string reason;
};

// `configured`: auto or a name. `built`: comma-separated backends of this build.
// `device_directory`: where /dev/nvidia0 and so on would be. FailedPrecondition when a name is not
// in the build.
absl::StatusOr<BackendChoice> ChooseBackend(std::string_view configured, std::string_view built,
                                            const std::string& device_directory);

}  // namespace skein::worker
