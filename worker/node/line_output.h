// Where the lines of a node go, of its children and its own: the log files, or standard error. What
// cannot be written is lost and counted; standard error says so once when the files fail, and a
// line of the log when writing works again. Supervisor's thread. Must never wait for a reader or
// for the disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/time/time.h"
#include "worker/node/descriptor.h"
#include "worker/node/log_files.h"
#include "worker/node/progress_bar.h"

namespace skein::worker {

class LineOutput {
 public:
  static constexpr absl::Duration kCheckEvery = absl::Seconds(5);

  // Lines go to `files`; null: to the descriptor, which stays the caller's. With files it is told
  // when they fail.
  LineOutput(int fd, std::unique_ptr<LogFiles> files);

  // Where lines are shown: the descriptor, or one of its terminal whose writes never wait.
  int fd() const { return fd_; }

  // Lines, each ended by a newline.
  void Write(std::string_view lines);
  // What is drawn below the lines, where they go to a terminal; null: nothing.
  void SetBar(ProgressBar* bar) { bar_ = bar; }
  // Checks the disk and tells of lines that were lost, when due. Not from within the log's sink.
  void Tick(absl::Time now);
  absl::Time next() const { return check_at_; }

  uint64_t lines_lost() const { return lines_lost_; }

 private:
  bool WriteToDescriptor(std::string_view text);
  bool WritePieces(std::string_view text) const;
  void TellFailure();

  const Descriptor terminal_;
  const int fd_;
  ProgressBar* bar_ = nullptr;
  const std::unique_ptr<LogFiles> files_;
  absl::Time check_at_ = absl::InfinitePast();
  uint64_t lines_lost_ = 0;
  uint64_t lines_told_ = 0;   // of the lost ones
  bool works_again_ = false;  // the last write succeeded
  bool is_told_ = false;      // on the descriptor, that the files fail
};

}  // namespace skein::worker
