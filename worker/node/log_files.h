// The log files of a node: DIRECTORY/skein.log and older ones skein.log.1, .2, ...; rotated by
// size, so that all together never exceed files_max x file_bytes_max, and given up first when the
// disk runs full. Supervisor's thread. Must never wait for the disk (no fsync) or end anything for
// want of space.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/node/descriptor.h"

namespace skein::worker {

// Of the file system that holds the directory.
struct DiskSpace {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
};

struct LogFilesOptions {
  std::string directory;
  uint64_t file_bytes_max = 64 << 20;
  int files_max = 8;
  // Of a directory; tests have their own.
  std::function<DiskSpace(const std::string&)> disk_space;
};

class LogFiles final {
 public:
  // Makes the directory when it is missing and locks it. FailedPrecondition when it cannot be
  // written, or another supervisor has it.
  static absl::StatusOr<std::unique_ptr<LogFiles>> Create(LogFilesOptions options);

  // Appends whole lines. False: they are lost, for want of space; tried again by Write after
  // kRetryAfter.
  bool Write(std::string_view lines, absl::Time now);

  // Why the last Write lost its lines: "0 KiB of its disk are free, and logs leave 51 KiB to
  // others".
  const std::string& problem() const { return problem_; }

  // Removes the oldest files while the disk is short, and holds writing back while it stays so.
  // Called every few seconds.
  void CheckDisk();

  const std::string& directory() const { return options_.directory; }
  uint64_t rotations() const { return rotations_; }

  static constexpr absl::Duration kRetryAfter = absl::Seconds(1);

 private:
  explicit LogFiles(LogFilesOptions options) : options_(std::move(options)) {}
  std::string PathOf(int age) const;
  bool Open();
  void Rotate();
  bool RemoveOldest();
  bool Append(std::string_view lines);

  LogFilesOptions options_;
  Descriptor lock_;
  Descriptor file_;
  uint64_t bytes_ = 0;  // of the newest file
  uint64_t rotations_ = 0;
  bool is_held_back_ = false;  // the disk is short
  absl::Time retry_at_ = absl::InfinitePast();
  std::string problem_;
};

}  // namespace skein::worker
