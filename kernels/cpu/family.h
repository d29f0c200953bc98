// What the operator families of the cpu backend share: statements of support, scratch memory carved
// from the workspace, and registration for an instruction set. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/arg_check.h"
#include "kernels/cpu/lane_kernels.h"
#include "kernels/cpu/register.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/formats.h"
#include "kernels/kernel_registry.h"

namespace skein::kernels::cpu {

// Threads that a workspace provides scratch for; a larger pool is refused by the operators that
// need scratch per thread.
inline constexpr int kMaxThreads = 64;

// The requirements of a problem; all that are missed end up in one message.
class Support {
 public:
  // `supported` lists what would do.
  Support& Want(bool good, std::string_view name, std::string_view required,
                std::string_view supported) {
    if (good) return *this;
    absl::StrAppend(&missing_, missing_.empty() ? "" : "; ", Text(name), ": required ",
                    Text(required), ", supported ", Text(supported));
    return *this;
  }
  Support& Is(std::string_view name, DType dtype, DType supported) {
    return Want(dtype == supported, name, DTypeName(dtype), DTypeName(supported));
  }
  // bf16 or f32.
  Support& Float(std::string_view name, DType dtype) {
    return Want(dtype == DType::kBf16 || dtype == DType::kF32, name, DTypeName(dtype),
                "bf16 or f32");
  }
  Support& Positive(std::string_view name, int64_t value) {
    return Want(value > 0, name, std::to_string(value), "a positive number");
  }
  absl::Status Take() const {
    return missing_.empty() ? absl::OkStatus() : absl::UnimplementedError(missing_);
  }

 private:
  static absl::string_view Text(std::string_view text) { return {text.data(), text.size()}; }
  std::string missing_;
};

// Hands out parts of a workspace, each aligned to 64 bytes.
class Scratch {
 public:
  explicit Scratch(Workspace workspace) : workspace_(workspace) {}

  template <typename T>
  T* Take(int64_t count) {
    T* part = reinterpret_cast<T*>(static_cast<std::byte*>(workspace_.data) + used_);
    used_ += Bytes<T>(count);
    return part;
  }
  // InvalidArgument if more was taken than the workspace holds. Ask before using a part.
  absl::Status Check(OpId op) const {
    if (used_ <= workspace_.bytes) return absl::OkStatus();
    const std::string_view name = OpName(op);
    return absl::InvalidArgumentError(absl::StrCat(
        absl::string_view(name.data(), name.size()), ": workspace has ", workspace_.bytes,
        " bytes, the call needs ", used_, "; raise max_rows of the problem"));
  }
  template <typename T>
  static size_t Bytes(int64_t count) {
    return (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
  }

 private:
  Workspace workspace_;
  size_t used_ = 0;
};

// e4m3 codes as f32.
inline constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values = {};
  for (size_t code = 0; code < values.size(); ++code) {
    values[code] = DecodeE4m3(static_cast<uint8_t>(code));
  }
  return values;
}();

// Element i of a rank-1 i32 view.
inline int64_t IndexAt(const TensorView& view, int64_t i) { return view.as<int32_t>()[i]; }

// A kernel that needs no scratch derives from this.
template <typename Op>
struct WithoutWorkspace {
  static size_t WorkspaceBytes(const typename Op::Problem&) { return 0; }
};

// Refuses a pool larger than kMaxThreads.
absl::Status CheckThreads(DeviceStream stream);

// Registers Kernel<isa>::Run of the resolved instruction set. Kernel also has Supports and
// Workspace functions of the problem.
template <typename Op, template <CpuIsa> typename Kernel>
absl::Status RegisterFor(KernelRegistry& registry, CpuIsa isa, DeterminismClass determinism) {
  using Scalar = Kernel<CpuIsa::kScalar>;
  using Avx2 = Kernel<CpuIsa::kAvx2>;
  using Avx512 = Kernel<CpuIsa::kAvx512>;
  const bool scalar = isa == CpuIsa::kScalar;
  const bool wide = isa == CpuIsa::kAvx512;
  return registry.Register<Op>({"cpu",
                                {scalar ? "any"
                                 : wide ? "x86-64 avx512"
                                        : "x86-64 avx2",
                                 false, determinism},
                                &Scalar::Supports,
                                &Scalar::WorkspaceBytes,
                                scalar ? &Scalar::Run
                                : wide ? &Avx512::Run
                                       : &Avx2::Run});
}

}  // namespace skein::kernels::cpu
