// What tells a file that was replaced or rewritten from the one that was read.
// Owns: nothing. Thread: any. Must never: open the file.
#pragma once

#include <cstdint>
#include <string>

#include <sys/stat.h>

namespace skein::protocol {

// Time of the last change, of the file's mode and owner too, in nanoseconds, number and size of a
// file: together, since time is coarse.
struct FileMark {
  int64_t changed_ns = 0;
  uint64_t number = 0;
  int64_t bytes = -1;  // there is none
  friend bool operator==(const FileMark&, const FileMark&) = default;
};

inline FileMark MarkOf(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  return {status.st_ctim.tv_sec * 1'000'000'000 + status.st_ctim.tv_nsec, status.st_ino,
          status.st_size};
}

}  // namespace skein::protocol
