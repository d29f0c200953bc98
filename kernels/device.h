// What a kernel is given beside its arguments, and the device that it runs on: memory, order,
// replay. The stream handle is opaque: a backend's own registration header says what it points to
// (the CPU backend: its thread pool; null means the calling thread alone).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace skein::kernels {

struct DeviceStream {
  void* handle = nullptr;
};

// Scratch memory of one call, aligned to 64 bytes. Its content is undefined before and after.
struct Workspace {
  void* data = nullptr;
  size_t bytes = 0;
};

// What is known of the device that a backend would run on; printed at start.
struct DeviceProperties {
  std::string name;           // processor or GPU
  std::string features;       // "avx2 fma f16c", "sm_90"
  int num_cores = 0;          // threads or streaming multiprocessors
  uint64_t memory_bytes = 0;  // of its own memory; 0: it has none but the host's
  uint64_t free_bytes = 0;    // of the memory that Device::Allocate gives; 0: not known
};

// Properties of the host processor.
DeviceProperties HostProperties();

// A recorded sequence of kernels and copies. Dies before its device. Thread: the device's.
class StepGraph {
 public:
  virtual ~StepGraph() = default;
  // Queues the whole recording as one launch.
  virtual absl::Status Launch() = 0;
  // Kernels and copies in it.
  virtual uint64_t num_nodes() const = 0;
};

// Owns the memory of a model and the order of its work. Everything is queued in one order and is
// done after Wait. One thread at a time.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceProperties properties() const = 0;
  // What the kernels of the device's backend take.
  virtual DeviceStream stream() = 0;

  // Zeroed memory for kernels, aligned to 256 bytes. ResourceExhausted says how much was asked for
  // and how much there is.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  // Zeroed memory of the host that copies run from and to; the device reads it too.
  virtual absl::StatusOr<void*> AllocateHost(size_t bytes) = 0;
  // Frees what either of the two gave.
  virtual void Free(void* memory) = 0;

  // Queue a copy; the host's side stays untouched until Wait.
  virtual absl::Status CopyIn(void* to, const void* from_host, size_t bytes) = 0;
  virtual absl::Status CopyOut(void* to_host, const void* from, size_t bytes) = 0;
  // Queues a copy within the memory of kernels.
  virtual absl::Status Move(void* to, const void* from, size_t bytes) = 0;
  // The order itself as libraries of the driver take it (cudaStream_t); null on a host.
  virtual void* queue() { return nullptr; }
  // Asked while Wait waits, for work that cannot end without others. An error has ended what the
  // device waits for, and becomes that of Wait. Null: nobody is asked. A host never waits.
  using Watch = std::function<absl::Status()>;
  virtual void SetWatch(Watch) {}
  // Until everything queued is done. Internal names the operator that found a defect (NaN scores or
  // logits) and its row, or what the device reports.
  virtual absl::Status Wait() = 0;

  // True where kernels work on the host's memory and calls return when they are done.
  virtual bool is_host() const = 0;
  // Kernels and copies that were queued one by one, graphs apart.
  virtual uint64_t num_launches() const = 0;
  // Records what `queue` queues instead of running it; a host keeps the call and makes it at every
  // launch. An error of `queue` or a call that cannot be recorded ends the recording and is
  // returned.
  virtual absl::StatusOr<std::unique_ptr<StepGraph>> Capture(
      const std::function<absl::Status()>& queue) = 0;
};

// The host itself: kernels of the backends `reference` and `cpu`.
class HostDevice final : public Device {
 public:
  // `stream`: what the backend's kernels take; what it points to outlives the device.
  explicit HostDevice(DeviceStream stream = {}) : stream_(stream) {}

  DeviceProperties properties() const override { return HostProperties(); }
  DeviceStream stream() override { return stream_; }
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  absl::StatusOr<void*> AllocateHost(size_t bytes) override { return Allocate(bytes); }
  void Free(void* memory) override;
  absl::Status CopyIn(void* to, const void* from_host, size_t bytes) override;
  absl::Status CopyOut(void* to_host, const void* from, size_t bytes) override;
  absl::Status Move(void* to, const void* from, size_t bytes) override {
    return CopyIn(to, from, bytes);
  }
  absl::Status Wait() override { return absl::OkStatus(); }
  bool is_host() const override { return true; }
  uint64_t num_launches() const override { return 0; }
  absl::StatusOr<std::unique_ptr<StepGraph>> Capture(
      const std::function<absl::Status()>& queue) override;

 private:
  DeviceStream stream_;
};

}  // namespace skein::kernels
