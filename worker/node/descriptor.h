// A descriptor with an owner, and the text of a small kernel file.
// Any thread; values. Must never throw: kernel files vanish while they are read.
#pragma once

#include <string>
#include <utility>

namespace skein::worker {

// A descriptor that closes itself.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(Descriptor&& other) noexcept : fd_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Close();

 private:
  int fd_ = -1;
};

// The first 64 KiB of a file of /proc or of a cgroup; empty when it cannot be read, which is how
// the end of a process or the removal of a cgroup looks.
std::string ReadKernelFile(const std::string& path);

}  // namespace skein::worker
