// The table of kernel variants of a program and the strict choice among them. main() builds one
// registry, each backend registers by an explicit call, and ResolveAll turns a manifest into plain
// function pointers or one error that lists everything that is missing. Immutable once resolved;
// any thread may read it then.
#pragma once

#include <any>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/op.h"

namespace skein::kernels {

// One implementation of operator Op by one backend.
template <typename Op>
struct KernelVariant {
  std::string_view backend;  // "reference", "cpu"
  KernelTraits traits;
  // OK, or exactly what is missing for this problem.
  absl::Status (*supports)(const typename Op::Problem&) = nullptr;
  // Scratch bytes that any call within this problem needs.
  size_t (*workspace_bytes)(const typename Op::Problem&) = nullptr;
  absl::Status (*run)(const typename Op::Problem&, const typename Op::Args&, Workspace,
                      DeviceStream) = nullptr;
};

// Which backend serves each operator. No default: an operator without an entry is an error.
class KernelManifest {
 public:
  // Every operator by one backend.
  static KernelManifest Uniform(std::string_view backend);
  void Set(OpId op, std::string_view backend);
  void Erase(OpId op);
  // Empty if the operator has no entry.
  std::string_view backend(OpId op) const;

 private:
  std::array<std::string, kNumOps> backend_;
};

// `fallback` (may be empty: no default) for every operator, then (operator name, backend) pairs.
// InvalidArgument listing every name that is no operator.
absl::StatusOr<KernelManifest> ParseManifest(
    std::string_view fallback, const std::vector<std::pair<std::string, std::string>>& overrides);

// What a model needs of one operator: its problems, one per distinct shape.
template <typename Op>
struct Need {
  std::vector<typename Op::Problem> problems;
};

class KernelRegistry {
 public:
  // AlreadyExists if (operator, backend) is taken; InvalidArgument if a function is missing.
  template <typename Op>
  absl::Status Register(const KernelVariant<Op>& variant) {
    if (variant.supports == nullptr || variant.workspace_bytes == nullptr ||
        variant.run == nullptr) {
      return Incomplete(Op::kId, variant.backend);
    }
    return Insert(Op::kId, variant.backend, std::any(variant));
  }

  // The variant of Op by `backend`, or null.
  template <typename Op>
  const KernelVariant<Op>* Find(std::string_view backend) const {
    const std::any* entry = FindEntry(Op::kId, backend);
    return entry == nullptr ? nullptr : std::any_cast<KernelVariant<Op>>(entry);
  }

  // Backends that registered anything, sorted.
  std::vector<std::string> Backends() const;
  // Operators that `backend` registered, in OpId order.
  std::vector<OpId> Operators(std::string_view backend) const;

  // Resolves one operator against the manifest, checking every problem. Appends one line per
  // defect to `defects` and returns null if any was found. The caller reports all lines at once.
  template <typename Op>
  const KernelVariant<Op>* Resolve(const KernelManifest& manifest, const Need<Op>& need,
                                   std::vector<std::string>& defects) const {
    const std::string_view backend = manifest.backend(Op::kId);
    const KernelVariant<Op>* variant = backend.empty() ? nullptr : Find<Op>(backend);
    if (variant == nullptr) {
      defects.push_back(MissingText(Op::kId, backend));
      return nullptr;
    }
    bool good = true;
    for (const auto& problem : need.problems) {
      if (absl::Status status = variant->supports(problem); !status.ok()) {
        defects.push_back(UnsupportedText(Op::kId, backend, status));
        good = false;
      }
    }
    return good ? variant : nullptr;
  }

 private:
  absl::Status Insert(OpId op, std::string_view backend, std::any variant);
  const std::any* FindEntry(OpId op, std::string_view backend) const;
  static absl::Status Incomplete(OpId op, std::string_view backend);
  std::string MissingText(OpId op, std::string_view backend) const;
  static std::string UnsupportedText(OpId op, std::string_view backend, const absl::Status& status);

  std::map<std::pair<OpId, std::string>, std::any> entries_;
};

}  // namespace skein::kernels
