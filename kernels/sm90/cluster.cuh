// Blocks of a cluster: who they are, their barrier, and reading each other's shared memory.
// A kernel without clusters is a cluster of one. Device code.
#pragma once

#include <cstdint>

namespace skein::kernels::sm90::cluster {

__device__ inline uint32_t Size() {
  uint32_t size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
__device__ inline uint32_t Rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks; what they wrote to shared memory before is visible to all after.
__device__ inline void Synchronize() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// The two halves of Synchronize; warps must be converged.
__device__ inline void Arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
__device__ inline void Wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// A place of this block's shared memory in another block's.
__device__ inline uint32_t At(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// Sends to another block's memory; a barrier there counts the bytes.
__device__ inline void Send(uint32_t there, uint4 value, uint32_t barrier_there) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(there),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier_there)
      : "memory");
}
__device__ inline void Send(uint32_t there, float value, uint32_t barrier_there) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there),
      "r"(__float_as_uint(value)), "r"(barrier_there)
      : "memory");
}

// The same by the copy engine, from this block's memory: a multiple of 16 bytes.
__device__ inline void SendBytes(uint32_t there, uint32_t from, uint32_t bytes,
                                 uint32_t barrier_there) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(there),
      "r"(from), "r"(bytes), "r"(barrier_there)
      : "memory");
}

// Barriers that this thread set up are there for the copy engine and for other blocks.
__device__ inline void ShowBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Until the phase of the given parity of a barrier that counts what others send has ended.
__device__ inline void WaitForSent(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN_%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN_%=;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// The word at the same place of another block's shared memory.
__device__ inline float Load(uint32_t address, uint32_t rank) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];"
               : "=f"(value)
               : "r"(At(address, rank))
               : "memory");
  return value;
}

__device__ inline float4 LoadFour(uint32_t address, uint32_t rank) {
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(At(address, rank))
               : "memory");
  return value;
}

}  // namespace skein::kernels::sm90::cluster
