// Reference of the edits of logits: one token after the other, in the format of the logits.
#include "kernels/ops/logit_edits.h"

#include <algorithm>
#include <limits>

#include "kernels/reference/element.h"
#include "kernels/reference/register.h"

namespace skein::kernels::reference {
namespace {

struct EditLogitsKernel {
  static absl::Status Run(const EditLogits::Problem& problem, const EditLogits::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    for (int64_t r = 0; r < args.raw.dim(0); ++r) {
      if (problem.wide == DType::kF64) {
        Row<double>(problem, args, r);
      } else {
        Row<float>(problem, args, r);
      }
    }
    return absl::OkStatus();
  }

  template <typename Real>
  static void Row(const EditLogits::Problem& problem, const EditLogits::Args& args, int64_t r) {
    const LogitEdit& edit = args.edits.as<LogitEdit>()[r];
    std::vector<Real> z = LoadRow<Real>(args.raw, r);
    for (int32_t v = 0; v < problem.vocab; ++v) {
      Real& value = z[static_cast<size_t>(v)];
      if (!Allowed(args, edit, v)) {
        value = -std::numeric_limits<Real>::infinity();
        continue;
      }
      for (int32_t e = 0; e < edit.num_entries; ++e) {
        const TokenEdit& entry = args.entries.as<TokenEdit>()[edit.first_entry + e];
        if (entry.token == v) value = EditedLogit(value, entry, Drafted(args, edit, v), edit);
      }
    }
    StoreSpan(args.logits, r * args.logits.step(0), problem.vocab, z.data());
  }

  static bool Allowed(const EditLogits::Args& args, const LogitEdit& edit, int32_t v) {
    if (edit.mask_row < 0) return true;
    const auto* words = reinterpret_cast<const uint32_t*>(args.mask.row(edit.mask_row));
    return (words[v / 32] >> (v % 32) & 1) != 0;
  }

  static int32_t Drafted(const EditLogits::Args& args, const LogitEdit& edit, int32_t v) {
    if (edit.num_drafts == 0) return 0;
    const int32_t* drafts = args.drafts.as<int32_t>() + edit.first_draft;
    return static_cast<int32_t>(std::count(drafts, drafts + edit.num_drafts, v));
  }
};

absl::Status Supports(const EditLogits::Problem& problem) {
  return Requirements().Wide(problem.wide).Positive("vocab", problem.vocab).Take();
}

}  // namespace

absl::Status RegisterLogitEdits(KernelRegistry& registry) {
  return RegisterBoth<EditLogits, EditLogitsKernel, EditLogitsKernel>(
      registry, DeterminismClass::kBitwise, &Supports);
}

}  // namespace skein::kernels::reference
