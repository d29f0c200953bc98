// What a kernel is given beside its arguments: where it runs and scratch memory. The stream handle
// is opaque: a backend's own registration header says what it points to (the CPU backend: its
// thread pool; null means the calling thread alone).
#pragma once

#include <cstddef>
#include <string>

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
  std::string name;      // processor or GPU
  std::string features;  // "avx2 fma f16c", "sm_90"
  int num_cores = 0;     // threads or streaming multiprocessors
};

// Properties of the host processor.
DeviceProperties HostProperties();

}  // namespace skein::kernels
