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

// A thread's copy of 16 or 8 bytes to shared memory, zeros unless `exists`; copies of a thread are
// counted by groups.
template <int kBytes>
__device__ void CopyAhead(uint32_t to, const void* from, bool exists) {
  const int bytes = exists ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes),
                 "r"(bytes)
                 : "memory");
  }
}
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace skein::kernels::sm90
