#include "worker/model/kernel_set.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace skein::worker {

namespace {
constexpr size_t kAlignment = 64;
}  // namespace

absl::Status KernelSet::Finish() {
  if (!defects_.empty()) {
    std::sort(defects_.begin(), defects_.end());
    defects_.erase(std::unique(defects_.begin(), defects_.end()), defects_.end());
    return absl::UnimplementedError(absl::StrCat(
        "these operators cannot be served; choose another backend for them in the kernel manifest"
        " (--backend, worker.kernels):\n",
        absl::StrJoin(defects_, "\n")));
  }
  storage_ = std::make_unique<std::byte[]>(workspace_bytes_ + kAlignment);
  auto base = reinterpret_cast<uintptr_t>(storage_.get());
  base = (base + kAlignment - 1) / kAlignment * kAlignment;
  runtime_->workspace = {reinterpret_cast<void*>(base), workspace_bytes_};
  return absl::OkStatus();
}

}  // namespace skein::worker
