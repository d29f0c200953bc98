// Telling files apart by device, inode and time of change.
// Supervisor's thread. Must never hold more than two programs open.
#include "worker/node/program_history.h"

#include <utility>

#include <fcntl.h>
#include <sys/stat.h>

namespace skein::worker {
namespace {

constexpr int kFailedStartsMax = 2;

}  // namespace

// Without a file when there is none or it cannot be opened.
ProgramHistory::Program ProgramHistory::Find(const std::string& path) {
  Program found;
  found.file = Descriptor(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat status {};
  if (!found.file.valid() || ::fstat(found.file.get(), &status) != 0) return {};
  found.device = status.st_dev;
  found.inode = status.st_ino;
  found.changed = status.st_mtim;
  return found;
}

bool ProgramHistory::Same(const Program& a, const Program& b) {
  return a.device == b.device && a.inode == b.inode && a.changed.tv_sec == b.changed.tv_sec &&
         a.changed.tv_nsec == b.changed.tv_nsec;
}

bool ProgramHistory::IsReplaced(const std::string& path) const {
  if (went_back_) return false;
  const Program found = Find(path);
  return found.file.valid() && !Same(found, current_);
}

void ProgramHistory::Look(const std::string& path) {
  if (went_back_) return;
  Program found = Find(path);
  if (!found.file.valid() || Same(found, current_)) return;
  if (current_.was_ready) before_ = std::move(current_);
  current_ = std::move(found);
}

void ProgramHistory::OnReady() {
  current_.was_ready = true;
  current_.failed_starts = 0;
}

bool ProgramHistory::OnFailedStart() {
  return !current_.was_ready && ++current_.failed_starts >= kFailedStartsMax && GoBack();
}

bool ProgramHistory::GoBack() {
  if (!before_ || went_back_) return false;
  current_ = *std::exchange(before_, std::nullopt);
  went_back_ = true;
  return true;
}

}  // namespace skein::worker
