// Barriers in shared memory that count arrivals of threads and of their copies: what passes stages
// between warps that fill and warps that use them. Device code.
#pragma once

#include <cstdint>

#include "kernels/sm90/async_copy.cuh"

namespace skein::kernels::sm90 {

// Addresses of barriers are shared-memory addresses. `count` arrivals end a phase.
__device__ inline void InitArrivals(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ inline void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and lets the phase wait for `bytes` of boxes as well.
__device__ inline void ArriveExpecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Until the phase of the given parity has ended.
__device__ inline void WaitForPhase(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN_%=;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Whether it has; who then uses what the phase was about waits for it as well.
__device__ inline bool PhaseHasEnded(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// What is the same in all lanes of a warp, so that the compiler knows it: descriptors of products
// then cost no moves between registers.
__device__ inline uint32_t Uniform(uint32_t value) { return __shfl_sync(0xffffffff, value, 0); }

// A ring of stages: which one is next, and the parity of its phase.
template <int kStages>
struct Ring {
  uint32_t stage = 0, parity = 0;

  __device__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace skein::kernels::sm90
