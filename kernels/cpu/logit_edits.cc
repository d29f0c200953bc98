// Edits of logits: a copy of the row through the mask, then the few tokens that have an entry. Rows
// are shared over the threads.
#include "kernels/ops/logit_edits.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/family.h"

namespace skein::kernels::cpu {
namespace {

constexpr float kNotAllowed = -std::numeric_limits<float>::infinity();

// Copies what the words allow of `raw`; words of ones and of zeros at once.
void CopyAllowed(const float* raw, const uint32_t* words, int64_t vocab, float* z) {
  for (int64_t begin = 0; begin < vocab; begin += 32) {
    const int64_t end = std::min(vocab, begin + 32);
    const uint32_t word = words[begin / 32];
    if (word == ~0u) {
      std::copy(raw + begin, raw + end, z + begin);
      continue;
    }
    std::fill(z + begin, z + end, kNotAllowed);
    if (word == 0) continue;
    for (int64_t v = begin; v < end; ++v) {
      if ((word >> (v - begin) & 1) != 0) z[v] = raw[v];
    }
  }
}

template <CpuIsa isa>
struct EditLogitsKernel : WithoutWorkspace<EditLogits> {
  static absl::Status Supports(const EditLogits::Problem& problem) {
    return Support().Is("wide", problem.wide, DType::kF32).Positive("vocab", problem.vocab).Take();
  }
  static absl::Status Run(const EditLogits::Problem& problem, const EditLogits::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    ForEachTask(stream, args.raw.dim(0), args.raw.size(),
                [&](int64_t r, int) { Row(problem, args, r); });
    return absl::OkStatus();
  }

  static void Row(const EditLogits::Problem& problem, const EditLogits::Args& args, int64_t r) {
    const LogitEdit& edit = args.edits.as<LogitEdit>()[r];
    const float* raw = reinterpret_cast<const float*>(args.raw.row(r));
    float* z = reinterpret_cast<float*>(args.logits.row(r));
    const uint32_t* words = edit.mask_row < 0
                                ? nullptr
                                : reinterpret_cast<const uint32_t*>(args.mask.row(edit.mask_row));
    if (words == nullptr) {
      std::copy(raw, raw + problem.vocab, z);
    } else {
      CopyAllowed(raw, words, problem.vocab, z);
    }
    const int32_t* drafts =
        edit.num_drafts == 0 ? nullptr : args.drafts.as<int32_t>() + edit.first_draft;
    for (int32_t e = 0; e < edit.num_entries; ++e) {
      const TokenEdit& entry = args.entries.as<TokenEdit>()[edit.first_entry + e];
      const int32_t v = entry.token;
      if (v < 0 || v >= problem.vocab) continue;
      if (words != nullptr && (words[v / 32] >> (v % 32) & 1) == 0) continue;
      const auto drafted = static_cast<int32_t>(std::count(drafts, drafts + edit.num_drafts, v));
      z[v] = EditedLogit(raw[v], entry, drafted, edit);
    }
  }
};

}  // namespace

absl::Status RegisterLogitEdits(KernelRegistry& registry, CpuIsa isa) {
  return RegisterFor<EditLogits, EditLogitsKernel>(registry, isa, DeterminismClass::kBitwise);
}

}  // namespace skein::kernels::cpu
