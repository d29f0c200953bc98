// Matrix products of a warpgroup with f32 sums: 64 rows of A times 8, 16, 32 columns of B and 32
// codes of K in one instruction that starts from zero. Device code.
// Fragments of the sums: lane l of warp w has rows 16 w + l / 4 (and + 8) and columns
// 8 j + l % 4 * 2 (and + 1): sum[4 j + 2 * upper row + column].
#pragma once

#include <cstdint>

namespace skein::kernels::sm90::wgmma {

// Registers and shared memory are ready for the products that follow.
__device__ inline void Fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void Commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All but the last `kPending` groups are done.
template <int kPending>
__device__ void Wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from reading sums before the wait that stands above it.
template <int kCount>
__device__ void Settle(float (&sum)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}

// An operand in shared memory, K contiguous: blocks of 8 rows by 16 bytes, themselves contiguous,
// `along_k` bytes from one to the next along K and `along_rows` along rows.
__device__ inline uint64_t PlainOperand(uint32_t address, uint32_t along_k, uint32_t along_rows) {
  return uint64_t{(address & 0x3FFFF) >> 4} | uint64_t{along_k >> 4} << 16 |
         uint64_t{along_rows >> 4} << 32;
}
// The same with rows of 128 bytes whose 16-byte pieces are swizzled: piece c of row r lies at
// c ^ (r & 7). The address of row 0 is a multiple of 1024.
__device__ inline uint64_t SwizzledOperand(uint32_t address) {
  return uint64_t{(address & 0x3FFFF) >> 4} | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

// A of e5m2 codes in registers, B of e4m3 codes.
__device__ inline void Product(float (&d)[4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e4m3 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 0, 1, "
      "1;"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ inline void Product(float (&d)[8], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e5m2.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7}, "
      "{%8,%9,%10,%11}, %12, 0, 1, 1;"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
        "=f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ inline void Product(float (&d)[16], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e5m2.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,"
      "%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, 0, 1, 1;"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
        "=f"(d[7]), "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]),
        "=f"(d[14]), "=f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// A and B of e4m3 codes in shared memory.
__device__ inline void Product(float (&d)[4], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0,%1,%2,%3}, %4, %5, 0, 1, 1;"
               : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
               : "l"(a), "l"(b));
}

__device__ inline void Product(float (&d)[8], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, 0, "
      "1, 1;"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
        "=f"(d[7])
      : "l"(a), "l"(b));
}

__device__ inline void Product(float (&d)[16], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,"
      "%11,%12,%13,%14,%15}, %16, %17, 0, 1, 1;"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
        "=f"(d[7]), "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]),
        "=f"(d[14]), "=f"(d[15])
      : "l"(a), "l"(b));
}

}  // namespace skein::kernels::sm90::wgmma
