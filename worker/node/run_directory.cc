// mkdtemp, a lock file and the sweep of directories whose owner is dead.
// Supervisor's thread. Must never follow a link out of the base directory.
#include "worker/node/run_directory.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "protocol/base/directory_probe.h"
#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using protocol::Concat;

constexpr time_t kBeingMadeS = 60;
// Of sockaddr_un, less the longest name that we make below a base.
constexpr size_t kSocketPathBytesMax = 107;
constexpr std::string_view kLongestName = "/skein-run.XXXXXX/admin.sock";
constexpr std::string_view kRemedy = "; make room there or give a directory that can be written";

std::vector<std::string> Entries(const std::string& path) {
  std::vector<std::string> names;
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) return names;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  ::closedir(directory);
  return names;
}

// Our directories are flat: files and sockets only.
void RemoveFlat(const std::string& path) {
  for (const std::string& name : Entries(path)) ::unlink(Concat(path, "/", name).c_str());
  ::rmdir(path.c_str());
}

bool IsPrivateDirectory(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::geteuid() && (status.st_mode & 0077) == 0;
}

bool IsOld(const std::string& path) {
  struct stat status {};
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return ::lstat(path.c_str(), &status) == 0 && now.tv_sec - status.st_mtim.tv_sec > kBeingMadeS;
}

void Sweep(const std::string& base) {
  for (const std::string& name : Entries(base)) {
    const std::string path = Concat(base, "/", name);
    if (name.rfind(kRunPrefix, 0) != 0 || !IsPrivateDirectory(path)) continue;
    const Descriptor lock(::open((path + "/lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    // Without a lock file it is being made this moment, or whoever made it died right then.
    if (!lock.valid() && errno == ENOENT && IsOld(path)) ::rmdir(path.c_str());
    if (!lock.valid() || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) continue;
    RemoveFlat(path);
  }
}

absl::Status Refused(std::string_view path, std::string_view reason) {
  return absl::FailedPreconditionError(
      Concat("node.run_directory (--run-directory): ", path, ": ", reason));
}

absl::Status Refused(std::string_view path, std::string_view what, int error) {
  return Refused(path, Concat(what, ": ", std::strerror(error), kRemedy));
}

absl::StatusOr<std::string> ChooseBase(std::string_view configured) {
  std::string base(configured.empty() ? kDefaultRunBase : configured);
  absl::Status status = TryRunBase(base);
  if (!status.ok() && configured.empty()) {
    base = kFallbackRunBase;
    status = TryRunBase(base);
  }
  if (!status.ok()) return status;
  // Others may have theirs in the usual one; a named one is made private.
  ::mkdir(base.c_str(), configured.empty() ? 0755 : 0700);
  return base;
}

}  // namespace

std::string AbsolutePath(std::string_view path) {
  std::error_code error;  // no working directory: the path stays what it is
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (path.empty() || error) return std::string(path);
  std::string normal = absolute.lexically_normal().string();
  if (normal.size() > 1 && normal.back() == '/') normal.pop_back();
  return normal;
}

absl::Status TryRunBase(const std::string& base) {
  constexpr size_t kBytesMax = kSocketPathBytesMax - kLongestName.size();
  if (base.size() > kBytesMax) {
    return Refused(base, Concat("has ", base.size(), " bytes, and sockets there allow ", kBytesMax,
                                "; give a shorter path, such as /run/skein"));
  }
  const absl::Status tried = protocol::TryDirectory(base, protocol::Durability::kNone);
  return tried.ok() ? tried : Refused(base, Concat(protocol::StatusText(tried), kRemedy));
}

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::Create(std::string_view base) {
  absl::StatusOr<std::string> chosen = ChooseBase(base);
  if (!chosen.ok()) return chosen.status();
  Sweep(*chosen);
  std::string path = Concat(*chosen, "/", kRunPrefix, "XXXXXX");
  if (::mkdtemp(path.data()) == nullptr) {
    return Refused(path, "cannot be made", errno);
  }
  Descriptor lock(::open((path + "/lock").c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!lock.valid() || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    RemoveFlat(path);
    return Refused(path, "its lock cannot be taken", error);
  }
  Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.valid()) ::flock(directory.get(), LOCK_EX | LOCK_NB);
  return std::unique_ptr<RunDirectory>(
      new RunDirectory(std::move(path), std::move(lock), std::move(directory)));
}

RunDirectory::~RunDirectory() { RemoveFlat(path_); }

absl::StatusOr<std::string> RunDirectory::WriteFile(std::string_view name,
                                                    std::string_view text) const {
  std::string path = Concat(path_, "/", name);
  const Descriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return Refused(path, "cannot be written", errno);
  errno = ENOSPC;  // what a short write means
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return Refused(path, "cannot be written", errno);
  }
  return path;
}

}  // namespace skein::worker
