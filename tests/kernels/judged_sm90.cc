// Conformance of the Hopper backend: buffers lie in host memory that the device reads and writes,
// so that the reference runs on the same bytes. Without a Hopper GPU the program says so and skips.
#include <array>
#include <cstdio>
#include <mutex>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "kernels/sm90/register.h"
#include "tests/kernels/buffer.h"
#include "tests/kernels/judged_backends.h"

namespace skein::kernels {
namespace {

constexpr size_t kArenaBytes = size_t{4} << 30;
constexpr size_t kAlign = 256;

// Mapped host memory, handed out in order and taken back as a whole when nothing is in use.
struct Arena {
  std::byte* data = nullptr;
  size_t used = 0;
  size_t live = 0;
  uint32_t* defects = nullptr;
};

Arena& TheArena() {
  static Arena arena;
  return arena;
}

void* Allocate(size_t bytes) {
  Arena& arena = TheArena();
  const size_t begin = arena.used;
  arena.used += (bytes + kAlign - 1) / kAlign * kAlign;
  if (arena.used > kArenaBytes) std::abort();
  ++arena.live;
  return arena.data + begin;
}

void Release(void*, size_t) {
  Arena& arena = TheArena();
  if (--arena.live == 0) arena.used = 0;
}

Sm90Stream& Stream() {
  static Sm90Stream stream;
  return stream;
}

std::string FindDevice() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return "there is no GPU here";
  cudaDeviceProp properties{};
  cudaGetDeviceProperties(&properties, 0);
  if (properties.major != 9)
    return absl::StrCat(properties.name, " is not of compute capability 9");
  Arena& arena = TheArena();
  void* data = nullptr;
  void* defects = nullptr;
  const unsigned flags = cudaHostAllocMapped | cudaHostAllocPortable;
  if (cudaHostAlloc(&data, kArenaBytes, flags) != cudaSuccess ||
      cudaHostAlloc(&defects, kNumOps * sizeof(uint32_t), flags) != cudaSuccess) {
    return "no mapped host memory";
  }
  arena.data = static_cast<std::byte*>(data);
  arena.defects = static_cast<uint32_t*>(defects);
  std::fill(arena.defects, arena.defects + kNumOps, 0u);
  Stream().defects = arena.defects;
  MemoryOfTests() = {&Allocate, &Release};
  return "";
}

}  // namespace

absl::Status RegisterJudged(KernelRegistry& registry) { return RegisterSm90Kernels(registry); }

DeviceStream JudgedStream(std::string_view backend) {
  return backend == "sm90" ? DeviceStream{&Stream()} : DeviceStream{};
}

absl::Status FinishCall(std::string_view backend) {
  if (backend != "sm90") return absl::OkStatus();
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
    std::fprintf(stderr, "the device is lost: %s\n", cudaGetErrorString(error));
    std::abort();
  }
  for (int op = 0; op < kNumOps; ++op) {
    if (const uint32_t row = std::exchange(TheArena().defects[op], 0u); row != 0) {
      return absl::InternalError(absl::StrCat("row ", row - 1, " has a defect"));
    }
  }
  return absl::OkStatus();
}

}  // namespace skein::kernels

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::string missing = skein::kernels::FindDevice();
  if (!missing.empty() && !GTEST_FLAG_GET(list_tests)) {
    std::printf("skipped: %s\n", missing.c_str());
    return 0;
  }
  return RUN_ALL_TESTS();
}
