// Appending, rotation by rename, and giving way when the disk is short.
// Supervisor's thread. Must never follow a link to a file of others.
#include "worker/node/log_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using protocol::Concat;

// Logs give way when less than this is free: a twentieth of the disk, at most 256 MiB.
constexpr uint64_t kFreeBytesMin = 256 << 20;
constexpr uint64_t kFreeShare = 20;

DiskSpace SpaceOf(const std::string& directory) {
  struct statvfs status {};
  if (::statvfs(directory.c_str(), &status) != 0) return {};
  return {status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize};
}

absl::Status Refuse(std::string_view directory, std::string_view reason) {
  return absl::FailedPreconditionError(
      Concat("log.directory (--log-directory): ", directory, ": ", reason));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LogFiles>> LogFiles::Create(LogFilesOptions options) {
  if (!options.disk_space) options.disk_space = SpaceOf;
  const std::string directory = options.directory;
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return Refuse(directory, Concat("cannot be made: ", std::strerror(errno)));
  }
  std::unique_ptr<LogFiles> files(new LogFiles(std::move(options)));
  files->lock_ = Descriptor(::open((directory + "/skein.log.lock").c_str(),
                                   O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!files->lock_.valid()) {
    return Refuse(directory, Concat("cannot be written: ", std::strerror(errno)));
  }
  if (::flock(files->lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return Refuse(directory, "another supervisor writes there; give each one a directory");
  }
  if (!files->Open()) return Refuse(directory, Concat("no log file: ", std::strerror(errno)));
  // Files beyond the present limit are of an earlier configuration.
  for (int age = std::max(files->options_.files_max, 1); ::unlink(files->PathOf(age).c_str()) == 0;
       ++age) {
  }
  files->CheckDisk();
  return files;
}

std::string LogFiles::PathOf(int age) const {
  const std::string path = options_.directory + "/skein.log";
  return age == 0 ? path : Concat(path, ".", age);
}

bool LogFiles::Open() {
  file_ = Descriptor(
      ::open(PathOf(0).c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  struct stat status {};
  if (!file_.valid() || ::fstat(file_.get(), &status) != 0) return false;
  bytes_ = static_cast<uint64_t>(status.st_size);
  return true;
}

void LogFiles::Rotate() {
  file_.Close();
  ::unlink(PathOf(options_.files_max - 1).c_str());  // with one file: the newest itself
  for (int age = options_.files_max - 2; age >= 0; --age) {
    ::rename(PathOf(age).c_str(), PathOf(age + 1).c_str());
  }
  ++rotations_;
  Open();
}

bool LogFiles::RemoveOldest() {
  for (int age = options_.files_max - 1; age >= 1; --age) {
    if (::unlink(PathOf(age).c_str()) == 0) return true;
  }
  return false;
}

void LogFiles::CheckDisk() {
  do {
    const DiskSpace space = options_.disk_space(options_.directory);
    const uint64_t least = std::min(kFreeBytesMin, space.total_bytes / kFreeShare);
    is_held_back_ = space.free_bytes < least;
    if (is_held_back_) {
      problem_ = Concat(space.free_bytes >> 10, " KiB of its disk are free, and logs leave ",
                        least >> 10, " KiB to others");
    }
  } while (is_held_back_ && RemoveOldest());
}

bool LogFiles::Append(std::string_view lines) {
  if (!file_.valid() && !Open()) {
    problem_ = std::strerror(errno);
    return false;
  }
  errno = ENOSPC;  // what a short write means
  const ssize_t written = ::write(file_.get(), lines.data(), lines.size());
  if (written == static_cast<ssize_t>(lines.size())) {
    bytes_ += lines.size();
    return true;
  }
  problem_ = std::strerror(errno);
  // Half a line would look like a whole one: what was written in part is taken back.
  if (written > 0) {
    [[maybe_unused]] const int cut = ::ftruncate(file_.get(), static_cast<off_t>(bytes_));
  }
  return false;
}

bool LogFiles::Write(std::string_view lines, absl::Time now) {
  if (is_held_back_ || now < retry_at_) return false;
  if (bytes_ > 0 && bytes_ + lines.size() > options_.file_bytes_max) Rotate();
  if (Append(lines) || (RemoveOldest() && Append(lines))) return true;
  retry_at_ = now + kRetryAfter;
  return false;
}

}  // namespace skein::worker
