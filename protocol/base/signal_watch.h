// Stop signals as a callback on a thread of their own, and the duties of a process that is init of
// its PID namespace: it handles TERM and ABRT itself, because the kernel ignores their defaults
// there, and reaps what its helpers leave.
// Created by main() before any other thread: they inherit the blocked signals. Must never run
// anything but the callback outside the caller's threads.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"

namespace skein::protocol {

class SignalWatch final {
 public:
  // `on_stop(count)` is called for the first, second, ... SIGTERM or SIGINT, on the watch's thread;
  // it must not block. Internal when the kernel refuses a descriptor or thread.
  static absl::StatusOr<std::unique_ptr<SignalWatch>> Create(std::function<void(int)> on_stop);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  SignalWatch(int signal_fd, int stop_fd, std::function<void(int)> on_stop);
  void Loop();

  const int signal_fd_;
  const int stop_fd_;
  const std::function<void(int)> on_stop_;
  std::thread thread_;
};

}  // namespace skein::protocol
