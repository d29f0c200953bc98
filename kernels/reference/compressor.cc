// Reference pooling of a completed group of tokens into one latent. Plain code, calling thread.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/element.h"
#include "kernels/reference/pool_row.h"
#include "kernels/reference/register.h"

namespace skein::kernels::reference {
namespace {

template <typename Acc>
struct CompressKernel {
  static absl::Status Run(const Compress::Problem& problem, const Compress::Args& args, Workspace,
                          DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    const size_t dim = static_cast<size_t>(problem.dim);
    const size_t ratio = static_cast<size_t>(problem.ratio);
    std::vector<Acc> tokens(ratio * dim * 2), latent(dim), weight(ratio);
    for (int64_t g = 0; g < args.group_row.dim(0); ++g) {
      const int64_t row = IndexAt(args.group_row, g);
      if (row < 0 || IndexAt(args.rows.sequence, row) < 0) continue;
      LoadTokens(problem, args, row, tokens.data());
      for (size_t c = 0; c < dim; ++c) {
        Acc largest = tokens[dim + c];
        for (size_t u = 1; u < ratio; ++u) {
          largest = std::max(largest, tokens[u * dim * 2 + dim + c]);
        }
        Acc sum = 0;
        for (size_t u = 0; u < ratio; ++u) {
          weight[u] = std::exp(tokens[u * dim * 2 + dim + c] - largest);
          sum += weight[u];
        }
        latent[c] = 0;
        for (size_t u = 0; u < ratio; ++u) latent[c] += weight[u] / sum * tokens[u * dim * 2 + c];
      }
      StoreSpan(args.latent, g * args.latent.step(0), problem.dim, latent.data());
    }
    return absl::OkStatus();
  }
  // kv then gate of each token of the group that ends at step row `row`, oldest first.
  static void LoadTokens(const Compress::Problem& problem, const Compress::Args& args, int64_t row,
                         Acc* out) {
    const int64_t sequence = IndexAt(args.rows.sequence, row);
    const int64_t first_position = IndexAt(args.rows.first_position, sequence);
    const int64_t last = IndexAt(args.rows.position, row);
    const int64_t width = int64_t{problem.dim} * 2;
    for (int64_t p = last - problem.ratio + 1; p <= last; ++p, out += width) {
      if (p >= first_position) {
        const int64_t at = IndexAt(args.rows.first_row, sequence) + p - first_position;
        LoadSpan(args.fresh, at * args.fresh.step(0), width, out);
      } else {
        const int64_t slot = IndexAt(args.rows.slot, sequence);
        LoadPoolRow(args.ring, slot * args.ring_rows + p % args.ring_rows, out);
      }
    }
  }
};

absl::Status CompressSupports(const Compress::Problem& problem) {
  return Requirements()
      .Activation("latent", problem.dtype)
      .Wide(problem.wide)
      .Positive("dim", problem.dim)
      .Positive("ratio", problem.ratio)
      .Take();
}

}  // namespace

absl::Status RegisterCompressor(KernelRegistry& registry) {
  return RegisterBoth<Compress, CompressKernel<double>, CompressKernel<float>>(
      registry, DeterminismClass::kBatchInvariant, &CompressSupports);
}

}  // namespace skein::kernels::reference
