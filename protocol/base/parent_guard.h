// Ends this process when its supervisor is gone: a thread waits on a pipe (or socket) whose other
// end only the supervisor holds, and end of file means _exit(70). The thread takes no lock and
// calls nothing of a device, so it works while every other thread is stuck. Created by main()
// before anything that can block; must never be the only containment.
#pragma once

#include <memory>
#include <string_view>
#include <thread>

#include "absl/status/statusor.h"
#include "protocol/base/exit_codes.h"

namespace skein::protocol {

class ParentGuard final {
 public:
  // Takes over `pipe_fd`, our end of the supervisor's pipe or socket. InvalidArgument when it is
  // not an open descriptor, Internal when the thread cannot be made.
  static absl::StatusOr<std::unique_ptr<ParentGuard>> Create(int pipe_fd);

  // Tells the supervisor one line, such as "ready http://127.0.0.1:8000"; lost when it does not
  // listen. Never blocks. Any thread.
  void Report(std::string_view line) const;

  // Ends the watch: the parent may go from here on.
  ~ParentGuard();
  ParentGuard(const ParentGuard&) = delete;
  ParentGuard& operator=(const ParentGuard&) = delete;

 private:
  ParentGuard(int pipe_fd, int stop_fd);

  const int pipe_fd_;
  const int stop_fd_;
  std::thread thread_;
};

}  // namespace skein::protocol
