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

// The word at the same place of another block's shared memory.
__device__ inline float Load(uint32_t address, uint32_t rank) {
  uint32_t there;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
  return value;
}

__device__ inline float4 LoadFour(uint32_t address, uint32_t rank) {
  uint32_t there;
  float4 value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(there)
               : "memory");
  return value;
}

}  // namespace skein::kernels::sm90::cluster
