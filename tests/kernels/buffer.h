// Memory for operator tests: values with guard bytes around them and gaps between rows, so that a
// write outside the output and an element left unwritten are both seen. Deterministic inputs from a
// counter: a row's values depend on its identity, not on the rows beside it.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <new>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/formats.h"
#include "kernels/philox.h"
#include "kernels/tensor_view.h"

namespace skein::kernels {

// Where the bytes of buffers and workspaces come from: the heap, or memory that a device reads too.
// Set before the first buffer is made.
struct TestMemory {
  void* (*allocate)(size_t bytes);
  void (*release)(void* data, size_t bytes);
};
inline TestMemory& MemoryOfTests() {
  static TestMemory memory = {[](size_t bytes) { return ::operator new(bytes); },
                              [](void* data, size_t) { ::operator delete(data); }};
  return memory;
}
template <typename T>
struct TestAllocator {
  using value_type = T;
  TestAllocator() = default;
  template <typename U>
  explicit TestAllocator(const TestAllocator<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(MemoryOfTests().allocate(count * sizeof(T))); }
  void deallocate(T* data, size_t count) { MemoryOfTests().release(data, count * sizeof(T)); }
  friend bool operator==(const TestAllocator&, const TestAllocator&) { return true; }
};
using Bytes = std::vector<uint8_t, TestAllocator<uint8_t>>;

// Uniform and normal-like numbers of (seed, row, index).
class TestRandom {
 public:
  TestRandom(uint64_t seed, uint32_t row) : seed_(seed), row_(row) {}
  uint32_t Bits() { return Philox({count_++, row_, 0, 0}, static_cast<uint32_t>(seed_), 77)[0]; }
  // [0, below)
  int64_t Below(int64_t below) { return static_cast<int64_t>(Bits()) % below; }
  // (-1, 1)
  float Signed() { return static_cast<float>(static_cast<int32_t>(Bits())) * 0x1p-31f; }
  // Sum of four uniforms: bell-shaped, |x| < 4.
  float Bell() { return (Signed() + Signed() + Signed() + Signed()) * 1.0f; }

 private:
  uint64_t seed_;
  uint32_t row_;
  uint32_t count_ = 0;
};

// A tensor of any dtype with `gap` poisoned elements after each row of the last dimension and guard
// bytes on both sides. The view's strides step over the gaps.
class Buffer {
 public:
  Buffer() = default;
  Buffer(DType dtype, std::initializer_list<int64_t> shape, int64_t gap = 0, uint8_t poison = 0xA5)
      : Buffer(dtype, std::vector<int64_t>(shape), gap, poison) {}
  Buffer(DType dtype, const std::vector<int64_t>& shape, int64_t gap, uint8_t poison)
      : poison_(poison) {
    view_.dtype = dtype;
    view_.rank = static_cast<int>(shape.size());
    int64_t step = 1;
    for (int i = view_.rank - 1; i >= 0; --i) {
      const size_t at = static_cast<size_t>(i);
      view_.shape[at] = shape[at];
      view_.stride[at] = step;
      step *= shape[at];
      if (i == view_.rank - 1 && view_.rank > 1) step += gap;
    }
    bytes_.assign(kGuard * 2 + static_cast<size_t>(step) * DTypeBytes(dtype), poison);
  }

  // Views are made on demand, so that a copied buffer views its own bytes.
  TensorView view() const {
    TensorView view = view_;
    view.data = const_cast<uint8_t*>(bytes_.data()) + kGuard;
    return view;
  }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(bytes_.data() + kGuard);
  }
  const Bytes& bytes() const { return bytes_; }
  uint8_t poison() const { return poison_; }

  // Calls fn(element offset, flat index) for every element of the view.
  void ForEach(const std::function<void(int64_t, int64_t)>& fn) const {
    const int64_t last = view_.rank == 0 ? 0 : view_.dim(view_.rank - 1);
    const int64_t rows = last == 0 ? 0 : view_.size() / last;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t offset = RowOffset(r);
      for (int64_t i = 0; i < last; ++i) fn(offset + i, r * last + i);
    }
  }
  // Bytes that no view element covers still hold the poison.
  bool GuardsIntact() const {
    std::vector<bool> covered(bytes_.size());
    const size_t width = DTypeBytes(view_.dtype);
    ForEach([&](int64_t offset, int64_t) {
      for (size_t b = 0; b < width; ++b) {
        covered[kGuard + static_cast<size_t>(offset) * width + b] = true;
      }
    });
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if (!covered[i] && bytes_[i] != poison_) return false;
    }
    return true;
  }
  // Bytes of the elements of leading index `row`.
  std::vector<uint8_t> RowBytes(int64_t row) const {
    std::vector<uint8_t> out;
    const size_t width = DTypeBytes(view_.dtype);
    const int64_t per_row = view_.dim(0) == 0 ? 0 : view_.size() / view_.dim(0);
    ForEach([&](int64_t offset, int64_t flat) {
      if (flat / per_row != row) return;
      const uint8_t* from = bytes_.data() + kGuard + static_cast<size_t>(offset) * width;
      out.insert(out.end(), from, from + width);
    });
    return out;
  }
  // Element values as double, in order.
  std::vector<double> Values() const {
    std::vector<double> out;
    ForEach([&](int64_t offset, int64_t) { out.push_back(ValueAt(offset)); });
    return out;
  }
  double ValueAt(int64_t offset) const {
    const uint8_t* data = bytes_.data() + kGuard;
    switch (view_.dtype) {
      case DType::kF64:
        return reinterpret_cast<const double*>(data)[offset];
      case DType::kF32:
        return reinterpret_cast<const float*>(data)[offset];
      case DType::kBf16:
        return DecodeBf16(reinterpret_cast<const uint16_t*>(data)[offset]);
      case DType::kI32:
        return reinterpret_cast<const int32_t*>(data)[offset];
      case DType::kI64:
        return static_cast<double>(reinterpret_cast<const int64_t*>(data)[offset]);
      default:
        return data[offset];
    }
  }
  void Set(int64_t offset, double value) {
    switch (view_.dtype) {
      case DType::kF64:
        as<double>()[offset] = value;
        return;
      case DType::kF32:
        as<float>()[offset] = static_cast<float>(value);
        return;
      case DType::kBf16:
        as<uint16_t>()[offset] = EncodeBf16(static_cast<float>(value));
        return;
      case DType::kI32:
        as<int32_t>()[offset] = static_cast<int32_t>(value);
        return;
      case DType::kI64:
        as<int64_t>()[offset] = static_cast<int64_t>(value);
        return;
      default:
        as<uint8_t>()[offset] = static_cast<uint8_t>(value);
        return;
    }
  }
  // Fills every element, or those of leading index `row` alone, with make(flat index in row).
  void Fill(const std::function<double(int64_t)>& make) {
    ForEach([&](int64_t offset, int64_t flat) { Set(offset, make(flat)); });
  }
  void FillRow(int64_t row, const std::function<double(int64_t)>& make) {
    const int64_t per_row = view_.size() / view_.dim(0);
    ForEach([&](int64_t offset, int64_t flat) {
      if (flat / per_row == row) Set(offset, make(flat % per_row));
    });
  }

 private:
  static constexpr size_t kGuard = 64;

  int64_t RowOffset(int64_t flat_row) const {
    int64_t offset = 0;
    for (int i = view_.rank - 2; i >= 0; --i) {
      offset += flat_row % view_.dim(i) * view_.step(i);
      flat_row /= view_.dim(i);
    }
    return offset;
  }

  TensorView view_;
  uint8_t poison_ = 0xA5;
  Bytes bytes_;
};

// Scratch of a call, filled with NaN patterns so that a stale read is seen.
class TestWorkspace {
 public:
  explicit TestWorkspace(size_t bytes) : bytes_(bytes + 64, 0xFF), size_(bytes) {}
  Workspace get() {
    const uintptr_t at = reinterpret_cast<uintptr_t>(bytes_.data());
    return {reinterpret_cast<void*>((at + 63) / 64 * 64), size_};
  }

 private:
  Bytes bytes_;
  size_t size_;
};

}  // namespace skein::kernels
