// A real coordinator with a null worker, each on its core, in a directory of their own.
// Owns: both processes and the directory.
// Thread: main's. Must never leave a process or a file behind.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <unistd.h>

#include "absl/status/statusor.h"
#include "tests/bench/bench_process.h"

namespace skein::bench {

// A coordinator with its null worker, in a directory of their own.
class NullCluster {
 public:
  static absl::StatusOr<std::unique_ptr<NullCluster>> Start(const std::string& model,
                                                            bool two_cores, int64_t step_us);
  ~NullCluster() {
    worker_.reset();
    coordinator_.reset();
    ::unlink((directory_ + "/control").c_str());
    ::rmdir(directory_.c_str());
  }
  uint16_t port() const { return port_; }
  const BenchProcess& coordinator() const { return *coordinator_; }

 private:
  // Until the coordinator has heard that the group stands.
  absl::Status WaitServing() const;

  std::string directory_;
  std::optional<BenchProcess> coordinator_;
  std::optional<BenchProcess> worker_;
  uint16_t port_ = 0;
};

}  // namespace skein::bench
