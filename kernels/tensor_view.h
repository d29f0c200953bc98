// Non-owning typed views of device or host memory: what every operator takes. Plain structs, free
// to copy, no ownership, no device call. Strides count elements; the last dimension is contiguous.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace skein::kernels {

// kE2m1x2 packs two codes in a byte, the even element in the low nibble; its shape counts bytes.
enum class DType : uint8_t { kF64, kF32, kBf16, kE4m3, kE8m0, kE2m1x2, kI32, kI64, kU8 };

// Bytes of one element (of one byte-pair for kE2m1x2).
constexpr size_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBf16:
      return 2;
    case DType::kE4m3:
    case DType::kE8m0:
    case DType::kE2m1x2:
    case DType::kU8:
      return 1;
  }
  return 0;
}

// A view of up to four dimensions. A default view (rank 0, null) means "absent".
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, 4> shape = {};
  std::array<int64_t, 4> stride = {};

  bool absent() const { return rank == 0; }
  int64_t dim(int index) const { return shape[static_cast<size_t>(index)]; }
  int64_t step(int index) const { return stride[static_cast<size_t>(index)]; }
  // Elements over all dimensions.
  int64_t size() const {
    int64_t total = rank == 0 ? 0 : 1;
    for (int i = 0; i < rank; ++i) total *= dim(i);
    return total;
  }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  // First byte of row `index` of the leading dimension.
  std::byte* row(int64_t index) const {
    return static_cast<std::byte*>(data) + static_cast<size_t>(index * step(0)) * DTypeBytes(dtype);
  }
};

// A dense row-major view.
inline TensorView MakeView(const void* data, DType dtype, std::initializer_list<int64_t> shape) {
  TensorView view;
  view.data = const_cast<void*>(data);
  view.dtype = dtype;
  for (int64_t extent : shape) view.shape[static_cast<size_t>(view.rank++)] = extent;
  int64_t step = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.stride[static_cast<size_t>(i)] = step;
    step *= view.shape[static_cast<size_t>(i)];
  }
  return view;
}

}  // namespace skein::kernels
