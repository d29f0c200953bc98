// Write new, fsync, rename, fsync the directory; a checksum tells a torn file.
// Must never take an unreadable file for an absent one.
#include "protocol/base/term_file.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "protocol/base/directory_probe.h"
#include "protocol/base/fingerprint.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

// A descriptor for the time of a scope.
class OpenFile {
 public:
  explicit OpenFile(int fd) : fd_(fd) {}
  ~OpenFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  bool valid() const { return fd_ >= 0; }
  int get() const { return fd_; }

 private:
  const int fd_;
};

// A term stays below 2^32: attempts carry it in their upper half.
constexpr uint64_t kTermMax = 0xFFFF'FFFF;

std::string Body(uint64_t term) { return Concat("skein term ", term); }

std::string FileText(uint64_t term) {
  return Concat(Body(term), " ", Fingerprint(Body(term)), "\n");
}

absl::Status Torn(const std::string& path, std::string_view reason) {
  return absl::FailedPreconditionError(
      Concat("node.state_directory: ", path, " ", reason,
             "; a term must never repeat: end every worker of this cluster, then remove the file"));
}

// 0 when there is no file.
absl::StatusOr<uint64_t> ReadTerm(const std::string& path) {
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) {
    if (errno == ENOENT) return uint64_t{0};
    return Torn(path, Concat("cannot be read (", std::strerror(errno), ")"));
  }
  char text[128];
  const ssize_t count = ::read(file.get(), text, sizeof text);
  if (count < 0) return Torn(path, Concat("cannot be read (", std::strerror(errno), ")"));
  const std::string_view line(text, static_cast<size_t>(count));
  constexpr std::string_view kStart = "skein term ";
  uint64_t term = 0;
  if (line.substr(0, kStart.size()) == kStart) {
    std::from_chars(line.data() + kStart.size(), line.data() + line.size(), term);
  }
  if (term == 0 || FileText(term) != line) {
    return Torn(path, Concat("is torn (", line.size(), " bytes that are no term with its sum)"));
  }
  return term;
}

absl::Status WriteError(const std::string& path) {
  return absl::UnavailableError(Concat("node.state_directory: cannot write ", path, ": ",
                                       std::strerror(errno), "; the coordinator needs its term"));
}

absl::Status WriteTerm(const std::string& directory, const std::string& path, uint64_t term) {
  const std::string next = path + ".next";
  const std::string text = FileText(term);
  {
    const OpenFile file(
        ::open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid() ||
        ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        ::fsync(file.get()) != 0) {
      return WriteError(next);
    }
  }
  const OpenFile folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (::rename(next.c_str(), path.c_str()) != 0 || !folder.valid() || ::fsync(folder.get()) != 0) {
    return WriteError(path);
  }
  return absl::OkStatus();
}

bool IsPrivate(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::geteuid() && (status.st_mode & 0022) == 0;
}

}  // namespace

absl::StatusOr<std::string> TryStateDirectory(std::string_view configured,
                                              std::string_view run_base,
                                              std::string_view preferred) {
  std::string path(configured);
  if (configured.empty()) {
    path = preferred;
    if (IsPrivate(path) && TryDirectory(path, Durability::kFsync).ok()) return path;
    path = Concat(run_base, "/skein-state.", ::geteuid());
  }
  const auto refuse = [&path](std::string_view reason) {
    return absl::InvalidArgumentError(
        Concat("node.state_directory (--state-directory): ", path, ": ", reason));
  };
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0 && !IsPrivate(path)) {
    return refuse("must be a directory of this user that nobody else can write");
  }
  // Known at the start, not when the first term is due: read-only and full disks, /proc.
  const absl::Status tried = TryDirectory(path, Durability::kFsync);
  if (!tried.ok()) return refuse(Concat(StatusText(tried), "; make room there or choose another"));
  return path;
}

absl::StatusOr<std::string> ChooseStateDirectory(std::string_view configured,
                                                 std::string_view run_base,
                                                 std::string_view preferred) {
  SKEIN_ASSIGN_OR_RETURN(std::string path, TryStateDirectory(configured, run_base, preferred));
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return path;
  return absl::InvalidArgumentError(Concat("node.state_directory (--state-directory): ", path,
                                           ": cannot be made: ", std::strerror(errno)));
}

uint64_t SecondsSinceBoot() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec);
}

absl::Status TermFile::Check() const { return ReadTerm(path()).status(); }

absl::StatusOr<uint64_t> TermFile::Next(uint64_t floor) const {
  const OpenFile lock(
      ::open((path() + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) return WriteError(path() + ".lock");
  // Not waited for: its holder may be stopped. The start of the coordinator is tried again.
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::UnavailableError(
        Concat(path(), ": another supervisor takes a term this moment; it is tried again"));
  }
  SKEIN_ASSIGN_OR_RETURN(const uint64_t last, ReadTerm(path()));
  const uint64_t term = std::max(last + 1, std::max<uint64_t>(floor, 1));
  if (term > kTermMax) return Torn(path(), Concat("holds ", last, ", the last term there is"));
  SKEIN_RETURN_IF_ERROR(WriteTerm(directory_, path(), term));
  return term;
}

}  // namespace skein::protocol
