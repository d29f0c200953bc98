// mkdir, open, write, fsync, and everything back.
// Any thread. Must never follow a link.
#include "protocol/base/directory_probe.h"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

// Room for what is written at a start: the configuration of the children is the largest.
constexpr size_t kProbeBytes = 16 << 10;

absl::Status Failed(std::string_view what) {
  return absl::UnavailableError(Concat(what, ": ", std::strerror(errno)));
}

absl::Status TryFile(int fd, Durability durability) {
  const std::array<char, kProbeBytes> bytes{};
  errno = ENOSPC;  // what a short write means
  if (::write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
    return Failed("nothing can be written there");
  }
  if (durability == Durability::kFsync && ::fsync(fd) != 0) {
    return Failed("what is written there does not reach the disk (fsync)");
  }
  return absl::OkStatus();
}

// The name is a new one: what a killed start left behind must not fail the next.
absl::Status TryWrite(const std::string& path, Durability durability) {
  std::string name = path + "/probe.XXXXXX";
  const int fd = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) return Failed("nothing can be written there");
  const absl::Status status = TryFile(fd, durability);
  ::close(fd);
  ::unlink(name.c_str());
  return status;
}

absl::Status TryEntries(const std::string& path) {
  const int directory = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return Failed("cannot be opened");
  const absl::Status status = ::fsync(directory) == 0
                                  ? absl::OkStatus()
                                  : Failed("its entries do not reach the disk (fsync)");
  ::close(directory);
  return status;
}

}  // namespace

absl::Status TryDirectory(const std::string& path, Durability durability) {
  const bool made = ::mkdir(path.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) return Failed("cannot be made");
  absl::Status status = TryWrite(path, durability);
  if (status.ok() && durability == Durability::kFsync) status = TryEntries(path);
  if (made) ::rmdir(path.c_str());
  return status;
}

}  // namespace skein::protocol
