// Reading locks and the file that the supervisor's loop touches.
// A command's thread. Must never hold a lock longer than the look.
#include "worker/node/live_nodes.h"

#include <algorithm>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "protocol/base/strings.h"
#include "worker/node/descriptor.h"
#include "worker/node/run_directory.h"

namespace skein::worker {
namespace {

using protocol::Concat;

constexpr int64_t kAliveSecondsMax = 10;

// Somebody holds its lock: a shared lock is refused then, and given back at once otherwise.
bool IsLocked(const std::string& path) {
  const Descriptor lock(::open((path + "/lock").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  return lock.valid() && ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0;
}

}  // namespace

std::vector<std::string> LiveRunDirectories(const std::vector<std::string>& bases) {
  std::vector<std::string> found;
  for (const std::string& base : bases) {
    const std::string_view own_name = std::string_view(base).substr(base.rfind('/') + 1);
    if (own_name.starts_with(kRunPrefix) && IsLocked(base)) {
      found.push_back(base);
      continue;
    }
    DIR* directory = ::opendir(base.c_str());
    if (directory == nullptr) continue;
    while (const dirent* entry = ::readdir(directory)) {
      const std::string_view name = entry->d_name;
      const std::string path = Concat(base, "/", name);
      if (name.substr(0, kRunPrefix.size()) == kRunPrefix && IsLocked(path)) found.push_back(path);
    }
    ::closedir(directory);
  }
  std::sort(found.begin(), found.end());
  return found;
}

absl::StatusOr<std::string> FindRunDirectory(std::string_view configured) {
  std::vector<std::string> bases = {AbsolutePath(configured)};
  if (configured.empty()) bases = {std::string(kDefaultRunBase), std::string(kFallbackRunBase)};
  std::vector<std::string> found = LiveRunDirectories(bases);
  if (found.size() == 1) return found.front();
  const std::string where = absl::StrJoin(bases, " or ");
  if (found.empty()) {
    return absl::NotFoundError(
        Concat("no skein runs with a run directory in ", where,
               "; name another with --run-directory, or the listener with --admin ADDRESS"));
  }
  return absl::InvalidArgumentError(Concat("several run here: ", absl::StrJoin(found, ", "),
                                           "; name one of them with --run-directory"));
}

absl::Status CheckSupervisorLoop(const std::string& run_directory) {
  const std::string path = run_directory + "/alive";
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    return absl::UnavailableError(
        Concat(path, " is missing: the supervisor's loop did not run yet"));
  }
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const int64_t age = now.tv_sec - status.st_mtim.tv_sec;
  if (age <= kAliveSecondsMax) return absl::OkStatus();
  return absl::UnavailableError(Concat("the supervisor's loop showed no life for ", age, " s"));
}

}  // namespace skein::worker
