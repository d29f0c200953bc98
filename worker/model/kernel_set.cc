#include "worker/model/kernel_set.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace skein::worker {

absl::Status KernelSet::Finish(Arena& arena) {
  if (!defects_.empty()) {
    std::sort(defects_.begin(), defects_.end());
    defects_.erase(std::unique(defects_.begin(), defects_.end()), defects_.end());
    return absl::UnimplementedError(absl::StrCat(
        "these operators cannot be served; choose another backend for them in the kernel manifest"
        " (--backend, worker.kernels):\n",
        absl::StrJoin(defects_, "\n")));
  }
  runtime_->workspace = {arena.Bytes(workspace_bytes_), workspace_bytes_};
  return arena.status();
}

}  // namespace skein::worker
