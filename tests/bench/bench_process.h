// A program under measurement: started on chosen cores, ready by its own word, watched through
// /proc, ended by handle.
// Owns: the process and the socket by which it knows that we live.
// Thread: main's. Must never leave a process behind.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/node/descriptor.h"

namespace skein::bench {

class BenchProcess {
 public:
  // Runs `program` with `--supervisor-fd=3` behind the arguments, or as two arguments when
  // `spaced`. `core` < 0: any.
  struct Spec {
    std::string program;
    std::vector<std::string> arguments;
    int core = -1;
  };
  static absl::StatusOr<BenchProcess> Start(const Spec& spec);
  BenchProcess(BenchProcess&& other) noexcept;
  BenchProcess& operator=(BenchProcess&&) = delete;
  ~BenchProcess();

  // Waits for a line "ready ..." and returns what follows the word. DeadlineExceeded or
  // Unavailable when it does not come.
  absl::StatusOr<std::string> WaitReady(absl::Duration limit);

  int pid() const { return pid_; }
  // User and system time of the process so far.
  double CpuSeconds() const;
  double ResidentMib() const;

 private:
  BenchProcess(int pid, worker::Descriptor socket) : pid_(pid), socket_(std::move(socket)) {}

  int pid_ = 0;
  worker::Descriptor socket_;
};

// This thread, and what it starts later, stays on the core.
void PinToCore(int core);
// Cores this process may use.
int UsableCores();

}  // namespace skein::bench
