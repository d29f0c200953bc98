#include "kernels/device.h"

#include <cstdlib>
#include <fstream>
#include <string_view>
#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstring>

namespace skein::kernels {
namespace {

#if defined(__x86_64__)
std::string BrandName() {
  unsigned int top = 0, unused_b = 0, unused_c = 0, unused_d = 0;
  if (__get_cpuid(0x80000000u, &top, &unused_b, &unused_c, &unused_d) == 0 || top < 0x80000004u) {
    return "x86-64";
  }
  char text[49] = {};
  for (unsigned int part = 0; part < 3; ++part) {
    unsigned int words[4] = {};
    __get_cpuid(0x80000002u + part, &words[0], &words[1], &words[2], &words[3]);
    std::memcpy(text + part * 16, words, 16);
  }
  const std::string name = text;
  const size_t first = name.find_first_not_of(' ');
  if (first == std::string::npos) return "x86-64";
  return name.substr(first, name.find_last_not_of(' ') - first + 1);
}

std::string FeatureList() {
  __builtin_cpu_init();
  std::string list;
  const auto add = [&list](bool present, const char* name) {
    if (!present) return;
    if (!list.empty()) list += ' ';
    list += name;
  };
  add(__builtin_cpu_supports("avx2") != 0, "avx2");
  add(__builtin_cpu_supports("fma") != 0, "fma");
  unsigned int unused_a = 0, unused_b = 0, leaf_c = 0, unused_d = 0;
  __get_cpuid(1, &unused_a, &unused_b, &leaf_c, &unused_d);
  add((leaf_c & bit_F16C) != 0, "f16c");
  add(__builtin_cpu_supports("avx512f") != 0, "avx512f");
  return list;
}
#else
std::string BrandName() { return "unknown processor"; }
std::string FeatureList() { return ""; }
#endif

// Memory that can be had without swapping, reclaimable file pages included; 0 if unknown.
uint64_t AvailableBytes() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    constexpr std::string_view kKey = "MemAvailable:";
    if (line.starts_with(kKey)) return std::strtoull(line.c_str() + kKey.size(), nullptr, 10) << 10;
  }
  return 0;
}

}  // namespace

DeviceProperties HostProperties() {
  DeviceProperties properties;
  properties.name = BrandName();
  properties.features = FeatureList();
  const unsigned int threads = std::thread::hardware_concurrency();
  properties.num_cores = threads == 0 ? 1 : static_cast<int>(threads);
  properties.free_bytes = AvailableBytes();
  return properties;
}

absl::StatusOr<void*> HostDevice::Allocate(size_t bytes) {
  constexpr size_t kAlignment = 256;
  void* memory = nullptr;
  if (::posix_memalign(&memory, kAlignment, bytes) != 0) {
    return absl::ResourceExhaustedError("the host has no " + std::to_string(bytes) +
                                        " bytes of memory");
  }
  std::memset(memory, 0, bytes);
  return memory;
}

void HostDevice::Free(void* memory) { std::free(memory); }

absl::Status HostDevice::CopyIn(void* to, const void* from_host, size_t bytes) {
  if (to != from_host && bytes > 0) std::memcpy(to, from_host, bytes);
  return absl::OkStatus();
}

absl::Status HostDevice::CopyOut(void* to_host, const void* from, size_t bytes) {
  return CopyIn(to_host, from, bytes);
}

namespace {

class HostGraph final : public StepGraph {
 public:
  explicit HostGraph(std::function<absl::Status()> queue) : queue_(std::move(queue)) {}
  absl::Status Launch() override { return queue_(); }
  uint64_t num_nodes() const override { return 1; }

 private:
  std::function<absl::Status()> queue_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StepGraph>> HostDevice::Capture(
    const std::function<absl::Status()>& queue) {
  return std::make_unique<HostGraph>(queue);
}

}  // namespace skein::kernels
