// Eight bf16 numbers at once: rows are read and written sixteen bytes at a time where all their
// addresses allow it, else one number at a time with the same arithmetic.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include <cuda_runtime.h>

#include "kernels/formats.h"
#include "kernels/tensor_view.h"

namespace skein::kernels::sm90 {

// Host: rows along the last dimension begin at multiples of `bytes`; so does one that is absent.
inline bool RowsAligned(const TensorView& view, size_t bytes) {
  bool aligned = reinterpret_cast<uintptr_t>(view.data) % bytes == 0;
  for (int i = 0; i + 1 < view.rank; ++i) {
    aligned = aligned && static_cast<size_t>(view.step(i)) * DTypeBytes(view.dtype) % bytes == 0;
  }
  return aligned;
}

// Host: numbers that a thread takes along rows of bf16, eight or one.
inline int WidthOf(int channels, std::initializer_list<TensorView> rows) {
  bool aligned = channels % 8 == 0;
  for (const TensorView& view : rows) aligned = aligned && RowsAligned(view, 16);
  return aligned ? 8 : 1;
}

// `kWidth` bf16 numbers that lie together, as f32; kWidth is 8 or 1.
template <int kWidth>
struct Span {
  static_assert(kWidth == 8 || kWidth == 1);
  using Bits = std::conditional_t<kWidth == 8, uint4, uint16_t>;
  float value[kWidth];

  __device__ static Bits LoadBits(const uint16_t* from) {
    return *reinterpret_cast<const Bits*>(from);
  }
  __device__ static Span Decode(const Bits& bits) {
    Span span;
    if constexpr (kWidth == 1) {
      span.value[0] = DecodeBf16(bits);
    } else {
      const uint32_t pair[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        span.value[2 * i] = __uint_as_float(pair[i] << 16);
        span.value[2 * i + 1] = __uint_as_float(pair[i] & 0xFFFF0000);
      }
    }
    return span;
  }
  __device__ static Span Load(const uint16_t* from) { return Decode(LoadBits(from)); }
  __device__ void Store(uint16_t* to) const {
    if constexpr (kWidth == 1) {
      *to = EncodeBf16(value[0]);
    } else {
      uint32_t pair[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        pair[i] = EncodeBf16(value[2 * i]) | uint32_t{EncodeBf16(value[2 * i + 1])} << 16;
      }
      *reinterpret_cast<uint4*>(to) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
    }
  }
};

// The row and the first channel of a thread's span.
struct Place {
  int64_t row;
  int channel;
};

// Item `item` of rows of `channels`, `kWidth` channels an item.
template <int kWidth>
__device__ Place PlaceOf(int64_t item, int channels) {
  const int items = channels / kWidth;
  if (item <= std::numeric_limits<uint32_t>::max()) {  // a division of half the width
    const uint32_t row = static_cast<uint32_t>(item) / static_cast<uint32_t>(items);
    const uint32_t rest = static_cast<uint32_t>(item) - row * static_cast<uint32_t>(items);
    return {row, static_cast<int>(rest) * kWidth};
  }
  return {item / items, static_cast<int>(item % items) * kWidth};
}

}  // namespace skein::kernels::sm90
