// Number formats of a run, the memory of its activations and of what crosses between host and
// device. An Arena is filled at start and never grows; the layers hold views of it. Thread: the
// device thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
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

// Zeroed memory of one device for views, aligned to 64 bytes at least; freed with the arena. When
// the device has no more, views without data are given and status() says so.
class Arena {
 public:
  Arena() : Arena(std::make_shared<kernels::HostDevice>()) {}
  explicit Arena(std::shared_ptr<kernels::Device> device) : device_(std::move(device)) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  kernels::TensorView Allocate(kernels::DType dtype, std::initializer_list<int64_t> shape) {
    kernels::TensorView view = kernels::MakeView(nullptr, dtype, shape);
    view.data = Bytes(static_cast<size_t>(view.size()) * kernels::DTypeBytes(dtype));
    return view;
  }
  // A copy of `values` that kernels read; `dtype` and `shape` describe them.
  template <typename T>
  kernels::TensorView Constant(kernels::DType dtype, std::initializer_list<int64_t> shape,
                               std::span<const T> values) {
    return Copy(kernels::MakeView(values.data(), dtype, shape));
  }
  // A copy of dense host memory that kernels read; the view itself where they read the host's.
  kernels::TensorView Place(const kernels::TensorView& host) {
    return device_->is_host() || host.data == nullptr ? host : Copy(host);
  }
  void* Bytes(size_t bytes);
  void* HostBytes(size_t bytes);
  // Queues a copy of host memory, which must stay as it is, into memory of this arena.
  void Fill(void* to, const void* from, size_t bytes);

  size_t total_bytes() const { return total_; }
  kernels::Device& device() const { return *device_; }
  // ResourceExhausted when an allocation failed, what the device said of a copy.
  absl::Status status() const { return status_; }

 private:
  kernels::TensorView Copy(const kernels::TensorView& host);
  void* Own(absl::StatusOr<void*> memory);

  std::shared_ptr<kernels::Device> device_;
  std::vector<void*> blocks_;
  std::byte* slab_ = nullptr;  // small allocations of a device share one
  size_t slab_left_ = 0;
  size_t total_ = 0;
  absl::Status status_;
};

// Memory that crosses between host and device in one copy: a block on either side, laid out anew
// for every step with equal offsets. On a host both sides are one.
class Staging {
 public:
  // Counts a layout, holds nothing.
  Staging() = default;
  Staging(Arena& arena, size_t bytes);

  // Begins a layout; views follow one another, each aligned to 64 bytes, on the host's side.
  void Restart() { used_ = 0; }
  kernels::TensorView Next(kernels::DType dtype, std::initializer_list<int64_t> shape);
  // Ends the layout with this view, its last one, of which fewer rows may be left than were laid
  // out.
  void EndWith(const kernels::TensorView& last);
  size_t used() const { return used_; }

  // Zeroes the host's side of the layout.
  void Clear() { std::fill_n(host_side_, used_, std::byte{0}); }
  kernels::TensorView OnDevice(kernels::TensorView host) const;
  // Queue a copy of the whole layout.
  absl::Status CopyIn() const { return device_->CopyIn(device_side_, host_side_, used_); }
  absl::Status CopyOut() const { return device_->CopyOut(host_side_, device_side_, used_); }

 private:
  kernels::Device* device_ = nullptr;
  std::byte* host_side_ = nullptr;
  std::byte* device_side_ = nullptr;
  size_t bytes_ = 0;
  size_t used_ = 0;
};

// The first `rows` rows of a view.
inline kernels::TensorView Rows(kernels::TensorView view, int64_t rows) {
  view.shape[0] = rows;
  return view;
}

// Rows [begin, begin + count).
inline kernels::TensorView RowsFrom(kernels::TensorView view, int64_t begin, int64_t count) {
  view.data = view.row(begin);
  view.shape[0] = count;
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
