// Number formats of a run and the memory of its activations. An Arena is filled at start and never
// grows; the layers hold views of it. Thread: the device thread.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <vector>

#include "kernels/ops/kv_cache.h"
#include "kernels/tensor_view.h"

namespace skein::worker {

// Which formats stand for what the specification calls bf16 and fp32, and whether the quantisers of
// the forward pass are on.
struct Numerics {
  kernels::DType act = kernels::DType::kBf16;  // activations
  kernels::DType wide = kernels::DType::kF32;  // "fp32" values
  bool quantise = true;                        // activation, cache and index quantisers
  kernels::KvFormat window = kernels::KvFormat::kFp8Group32;
  kernels::KvFormat history = kernels::KvFormat::kFp4Group16;
  kernels::KvFormat index = kernels::KvFormat::kFp4Group32;
  kernels::KvFormat open = kernels::KvFormat::kF32;  // open compressor groups

  // The model's own formats, fp32 as f32: production backends.
  static Numerics Model() { return {}; }
  // The model's formats with double wherever it says fp32: the oracle.
  static Numerics Exact() {
    Numerics n;
    n.wide = kernels::DType::kF64;
    n.open = kernels::KvFormat::kF64;
    return n;
  }
  // No rounding and no quantiser at all (conformance mode nq): double throughout.
  static Numerics Unquantised() {
    Numerics n = Exact();
    n.act = kernels::DType::kF64;
    n.quantise = false;
    n.window = n.history = n.index = kernels::KvFormat::kF64;
    return n;
  }
};

// Zeroed, 64-byte aligned memory for views; freed with the arena.
class Arena {
 public:
  kernels::TensorView Allocate(kernels::DType dtype, std::initializer_list<int64_t> shape) {
    kernels::TensorView view = kernels::MakeView(nullptr, dtype, shape);
    view.data = Bytes(static_cast<size_t>(view.size()) * kernels::DTypeBytes(dtype));
    return view;
  }
  void* Bytes(size_t bytes);
  size_t total_bytes() const { return total_; }

 private:
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  size_t total_ = 0;
};

// The first `rows` rows of a view.
inline kernels::TensorView Rows(kernels::TensorView view, int64_t rows) {
  view.shape[0] = rows;
  return view;
}

// Columns [begin, begin + count) of the last dimension of a two-dimensional view.
inline kernels::TensorView Columns(kernels::TensorView view, int64_t begin, int64_t count) {
  view.data = view.as<std::byte>() + static_cast<size_t>(begin) * kernels::DTypeBytes(view.dtype);
  view.shape[1] = count;
  return view;
}

// The same dense memory under another shape.
inline kernels::TensorView Reshape(const kernels::TensorView& view,
                                   std::initializer_list<int64_t> shape) {
  return kernels::MakeView(view.data, view.dtype, shape);
}

}  // namespace skein::worker
