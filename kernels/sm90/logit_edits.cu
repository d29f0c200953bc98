// Edits of logits: a block per row copies it through the mask, then edits the tokens that have an
// entry.
#include <limits>

#include "kernels/ops/logit_edits.h"
#include "kernels/sm90/family.cuh"

namespace skein::kernels::sm90 {
namespace {

constexpr unsigned kThreads = 256;

struct EditParameters {
  const float* raw;
  int64_t raw_step;
  float* logits;
  int64_t logits_step;
  const LogitEdit* edits;
  const TokenEdit* entries;
  const int32_t* drafts;
  const uint32_t* mask;
  int64_t mask_step;
  int vocab;
};

__global__ void __launch_bounds__(kThreads) EditLogitsKernel(EditParameters p) {
  cuda::BeginAfterLast();
  const int64_t r = blockIdx.x;
  const LogitEdit edit = p.edits[r];
  const float* raw = p.raw + r * p.raw_step;
  float* z = p.logits + r * p.logits_step;
  const uint32_t* words = edit.mask_row < 0 ? nullptr : p.mask + edit.mask_row * p.mask_step;
  const auto allowed = [words](int v) {
    return words == nullptr || (words[v / 32] >> (v % 32) & 1) != 0;
  };
  for (int v = static_cast<int>(threadIdx.x); v < p.vocab; v += static_cast<int>(kThreads)) {
    z[v] = allowed(v) ? raw[v] : -std::numeric_limits<float>::infinity();
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < edit.num_entries;
       e += static_cast<int>(kThreads)) {
    const TokenEdit entry = p.entries[edit.first_entry + e];
    if (entry.token < 0 || entry.token >= p.vocab || !allowed(entry.token)) continue;
    int32_t drafted = 0;
    for (int d = 0; d < edit.num_drafts; ++d) {
      drafted += p.drafts[edit.first_draft + d] == entry.token ? 1 : 0;
    }
    z[entry.token] = EditedLogit(raw[entry.token], entry, drafted, edit);
  }
}

struct EditLogitsOp {
  static absl::Status Supports(const EditLogits::Problem& problem) {
    return Support().Is("wide", problem.wide, DType::kF32).Positive("vocab", problem.vocab).Take();
  }
  static size_t WorkspaceBytes(const EditLogits::Problem&) { return 0; }
  static absl::Status Run(const EditLogits::Problem& problem, const EditLogits::Args& args,
                          Workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    EditParameters p;
    p.raw = args.raw.as<float>();
    p.raw_step = args.raw.step(0);
    p.logits = args.logits.as<float>();
    p.logits_step = args.logits.step(0);
    p.edits = args.edits.as<LogitEdit>();
    p.entries = args.entries.absent() ? nullptr : args.entries.as<TokenEdit>();
    p.drafts = args.drafts.absent() ? nullptr : args.drafts.as<int32_t>();
    p.mask = args.mask.absent() ? nullptr : args.mask.as<uint32_t>();
    p.mask_step = args.mask.absent() ? 0 : args.mask.step(0);
    p.vocab = problem.vocab;
    return cuda::Launch(EditLogits::kId, EditLogitsKernel,
                        dim3(static_cast<unsigned>(args.raw.dim(0))), kThreads, 0, stream, p);
  }
};

}  // namespace

absl::Status RegisterLogitEdits(KernelRegistry& registry) {
  return RegisterKernel<EditLogits, EditLogitsOp>(registry, DeterminismClass::kBitwise);
}

}  // namespace skein::kernels::sm90
