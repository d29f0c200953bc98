// A host that pretends to be a device with memory of its own: kernels of the cpu backend work on
// it, and what crosses does so by copies alone. A step that forgets one computes with old bytes.
// Owns its memory. Thread: the test's. Must never: let both sides be one.
#pragma once

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "kernels/device.h"

namespace skein::tests {

class SplitDevice : public kernels::Device {
 public:
  // `bytes_max`: what it has; allocations beyond it are refused.
  explicit SplitDevice(size_t bytes_max) : bytes_max_(bytes_max) {}

  kernels::DeviceProperties properties() const override {
    kernels::DeviceProperties out{.name = "split", .features = "", .num_cores = 1};
    out.memory_bytes = bytes_max_;
    out.free_bytes = bytes_max_ - bytes_;
    return out;
  }
  kernels::DeviceStream stream() override { return {}; }
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    if (bytes_ + bytes > bytes_max_)
      return absl::ResourceExhaustedError("the split device is full");
    bytes_ += bytes;
    return host_.Allocate(bytes);
  }
  absl::StatusOr<void*> AllocateHost(size_t bytes) override { return host_.Allocate(bytes); }
  void Free(void* memory) override { host_.Free(memory); }
  absl::Status CopyIn(void* to, const void* from_host, size_t bytes) override {
    ++copies_;
    return host_.CopyIn(to, from_host, bytes);
  }
  absl::Status CopyOut(void* to_host, const void* from, size_t bytes) override {
    ++copies_;
    return host_.CopyOut(to_host, from, bytes);
  }
  absl::Status Move(void* to, const void* from, size_t bytes) override {
    return host_.Move(to, from, bytes);
  }
  void SetWatch(Watch watch) override { watch_ = std::move(watch); }
  // Asks as a device does that finds its work under way.
  absl::Status Wait() override { return watch_ ? watch_() : absl::OkStatus(); }
  bool is_host() const override { return false; }
  uint64_t num_launches() const override { return copies_; }
  absl::StatusOr<std::unique_ptr<kernels::StepGraph>> Capture(
      const std::function<absl::Status()>& queue) override {
    return host_.Capture(queue);
  }

 private:
  kernels::HostDevice host_;
  size_t bytes_max_;
  size_t bytes_ = 0;
  uint64_t copies_ = 0;
  Watch watch_;
};

}  // namespace skein::tests
