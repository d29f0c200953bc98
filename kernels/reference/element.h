// Reading and writing view elements of any dtype for the reference: load, compute in one
// accumulation type, round once at the store. A bf16 store rounds to f32 and that to bf16,
// as every bf16 store of the model is defined on an f32 value. Any thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/arg_check.h"
#include "kernels/formats.h"
#include "kernels/kernel_registry.h"
#include "kernels/tensor_view.h"

namespace skein::kernels::reference {

// The two accumulation types and the backend names under which they are registered.
template <typename Acc>
constexpr std::string_view BackendName() {
  return sizeof(Acc) == sizeof(double) ? "reference" : "reference-float";
}

template <typename Acc>
Acc LoadAt(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF64:
      return static_cast<Acc>(static_cast<const double*>(data)[index]);
    case DType::kF32:
      return static_cast<Acc>(static_cast<const float*>(data)[index]);
    case DType::kBf16:
      return static_cast<Acc>(DecodeBf16(static_cast<const uint16_t*>(data)[index]));
    default:
      return std::nan("");
  }
}

template <typename Acc>
void StoreAt(void* data, DType dtype, int64_t index, Acc value) {
  switch (dtype) {
    case DType::kF64:
      static_cast<double*>(data)[index] = static_cast<double>(value);
      return;
    case DType::kF32:
      static_cast<float*>(data)[index] = static_cast<float>(value);
      return;
    case DType::kBf16:
      static_cast<uint16_t*>(data)[index] = EncodeBf16(static_cast<float>(value));
      return;
    default:
      return;
  }
}

// The value that a store to `dtype` followed by a load gives.
template <typename Acc>
Acc RoundTo(DType dtype, Acc value) {
  double slot = 0;
  StoreAt(&slot, dtype, 0, value);
  return LoadAt<Acc>(&slot, dtype, 0);
}

// `count` elements from element `offset` of the view's memory.
template <typename Acc>
void LoadSpan(const TensorView& view, int64_t offset, int64_t count, Acc* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = LoadAt<Acc>(view.data, view.dtype, offset + i);
}

template <typename Acc>
void StoreSpan(const TensorView& view, int64_t offset, int64_t count, const Acc* values) {
  for (int64_t i = 0; i < count; ++i) StoreAt(view.data, view.dtype, offset + i, values[i]);
}

// Row `row` of a rank-2 view.
template <typename Acc>
std::vector<Acc> LoadRow(const TensorView& view, int64_t row) {
  std::vector<Acc> values(static_cast<size_t>(view.dim(1)));
  LoadSpan(view, row * view.step(0), view.dim(1), values.data());
  return values;
}

// All of a rank-1 view.
template <typename Acc>
std::vector<Acc> LoadVector(const TensorView& view) {
  std::vector<Acc> values(static_cast<size_t>(view.dim(0)));
  LoadSpan(view, 0, view.dim(0), values.data());
  return values;
}

// Dot product; doubles run in four chains for speed, floats in the plain sequence that the naive
// baseline is defined by.
template <typename Acc>
Acc Dot(const Acc* a, const Acc* b, int64_t count) {
  if constexpr (sizeof(Acc) == sizeof(float)) {
    Acc sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
    return sum;
  } else {
    Acc sum[4] = {0, 0, 0, 0};
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
      for (int64_t j = 0; j < 4; ++j) sum[j] += a[i + j] * b[i + j];
    }
    for (; i < count; ++i) sum[0] += a[i] * b[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
}

inline bool IsActivation(DType dtype) {
  return dtype == DType::kBf16 || dtype == DType::kF32 || dtype == DType::kF64;
}
inline bool IsWide(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF64; }

// The requirements of a problem, with the first one missed in the message.
class Requirements {
 public:
  Requirements& Activation(std::string_view name, DType dtype) {
    return Want(IsActivation(dtype), name, DTypeName(dtype), "bf16, f32 or f64");
  }
  Requirements& Wide(DType dtype) {
    return Want(IsWide(dtype), "wide", DTypeName(dtype), "f32 or f64");
  }
  Requirements& Positive(std::string_view name, int64_t value) {
    return Want(value > 0, name, std::to_string(value), "a positive number");
  }
  Requirements& Want(bool good, std::string_view name, std::string_view got,
                     std::string_view supported) {
    if (!good && status_.ok()) {
      status_ = absl::UnimplementedError(absl::StrCat(
          Text(name), " is ", Text(got), "; the reference supports ", Text(supported)));
    }
    return *this;
  }
  absl::Status Take() { return status_; }

 private:
  static absl::string_view Text(std::string_view text) { return {text.data(), text.size()}; }
  absl::Status status_;
};

template <typename Op>
size_t NoWorkspace(const typename Op::Problem&) {
  return 0;
}

// Registers Kernel<double> as "reference" and Kernel<float> as "reference-float".
template <typename Op, typename Doubles, typename Floats>
absl::Status RegisterBoth(KernelRegistry& registry, DeterminismClass determinism,
                          absl::Status (*supports)(const typename Op::Problem&)) {
  const KernelTraits traits{"any", false, determinism};
  absl::Status status = registry.Register<Op>(
      {BackendName<double>(), traits, supports, &NoWorkspace<Op>, &Doubles::Run});
  if (!status.ok()) return status;
  return registry.Register<Op>(
      {BackendName<float>(), traits, supports, &NoWorkspace<Op>, &Floats::Run});
}

}  // namespace skein::kernels::reference
