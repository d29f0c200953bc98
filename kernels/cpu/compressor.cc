// Pooling of the tokens of a completed group: rows are found, then one lane kernel per latent.
#include "kernels/cpu/family.h"

namespace skein::kernels::cpu {
namespace {

template <CpuIsa isa>
struct CompressKernel : WithoutWorkspace<Compress> {
  static constexpr int kMaxRatio = 128;

  static absl::Status Supports(const Compress::Problem& problem) {
    return Support()
        .Is("latent", problem.dtype, DType::kBf16)
        .Is("wide", problem.wide, DType::kF32)
        .Positive("dim", problem.dim)
        .Want(problem.ratio > 0 && problem.ratio <= kMaxRatio, "ratio",
              std::to_string(problem.ratio), "1 to 128")
        .Take();
  }
  static absl::Status Run(const Compress::Problem& problem, const Compress::Args& args, Workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const int64_t groups = args.group_row.dim(0);
    const int64_t work = groups * problem.dim * problem.ratio * 16;
    ForEachTask(stream, groups, work, [&](int64_t g, int) {
      const int64_t row = IndexAt(args.group_row, g);
      if (row < 0) return;
      const int64_t sequence = IndexAt(args.rows.sequence, row);
      if (sequence < 0) return;
      const int64_t first_position = IndexAt(args.rows.first_position, sequence);
      const int64_t first_row = IndexAt(args.rows.first_row, sequence);
      const int64_t oldest = IndexAt(args.rows.position, row) - problem.ratio + 1;
      const float* tokens[kMaxRatio];
      for (int64_t u = 0; u < problem.ratio; ++u) {
        const int64_t position = oldest + u;
        if (position >= first_position) {
          const int64_t at = first_row + position - first_position;
          tokens[u] = reinterpret_cast<const float*>(args.fresh.row(at));
        } else {
          const int64_t slot = IndexAt(args.rows.slot, sequence);
          tokens[u] = reinterpret_cast<const float*>(
              args.ring.row_data(slot * args.ring_rows + position % args.ring_rows));
        }
      }
      Lanes<isa>().compress(tokens, problem.ratio, problem.dim,
                            reinterpret_cast<uint16_t*>(args.latent.row(g)));
    });
    return absl::OkStatus();
  }
};

}  // namespace

absl::Status RegisterCompressor(KernelRegistry& registry, CpuIsa isa) {
  return RegisterFor<Compress, CompressKernel>(registry, isa, DeterminismClass::kBatchInvariant);
}

}  // namespace skein::kernels::cpu
