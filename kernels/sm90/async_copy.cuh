// Addresses in shared memory, and its order beside the copy engine and matrix products. Device
// code.
#pragma once

#include <cstdint>

namespace skein::kernels::sm90 {

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// What this thread wrote to shared memory becomes visible to matrix products after a barrier.
__device__ inline void FenceForProducts() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace skein::kernels::sm90
