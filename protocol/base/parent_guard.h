// The child's end of its supervisor's socket. A thread waits on it: end of file means that the
// supervisor is gone, and _exit(70); a byte is its question whether this process still works, which
// is answered while the loop of the process goes round. The thread takes no lock and calls nothing
// of a device, so it works while every other thread is stuck. Created by main() before anything
// that can block; must never be the only containment.
#pragma once

#include <atomic>
#include <cstdint>
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

  // The loop of this process went round. From the first call on the supervisor is answered (by the
  // line "alive") only if that happened since the last answer. Any thread; takes no lock.
  void OnRound() { rounds_.fetch_add(1, std::memory_order_relaxed); }

  // Ends the watch: the parent may go from here on.
  ~ParentGuard();
  ParentGuard(const ParentGuard&) = delete;
  ParentGuard& operator=(const ParentGuard&) = delete;

 private:
  ParentGuard(int pipe_fd, int stop_fd);
  void Watch() const;

  const int pipe_fd_;
  const int stop_fd_;
  std::atomic<uint64_t> rounds_ = 0;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace skein::protocol
