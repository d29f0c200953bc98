// Copies from global to shared memory that run beside the computation, and swizzled addresses.
// Device code.
#pragma once

#include <cstdint>

namespace skein::kernels::sm90 {

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Both ends must be aligned to the size.
__device__ inline void CopyAsync16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void CopyAsync4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the last `kPending` groups of this thread have arrived.
template <int kPending>
__device__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// What this thread wrote to shared memory becomes visible to matrix products after a barrier.
__device__ inline void FenceForProducts() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace skein::kernels::sm90
