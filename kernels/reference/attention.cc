// Reference sparse latent attention: window entries, then selected rows, one softmax with sink.
// Plain code in the calling thread; an unselected row is never read.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/element.h"
#include "kernels/reference/pool_row.h"
#include "kernels/reference/register.h"

namespace skein::kernels::reference {
namespace {

template <typename Acc>
struct SparseAttentionKernel {
  static absl::Status Run(const SparseAttention::Problem& problem,
                          const SparseAttention::Args& args, Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    std::vector<Acc> entries;
    for (int64_t t = 0; t < args.q.dim(0); ++t) {
      if (IndexAt(args.rows.sequence, t) < 0) continue;
      entries.clear();
      LoadWindow(problem, args, t, entries);
      LoadSelected(problem, args, t, entries);
      for (int64_t h = 0; h < problem.heads; ++h) Head(problem, args, t, h, entries);
    }
    return absl::OkStatus();
  }

  static void LoadWindow(const SparseAttention::Problem& problem, const SparseAttention::Args& args,
                         int64_t t, std::vector<Acc>& entries) {
    const int64_t sequence = IndexAt(args.rows.sequence, t);
    const int64_t first_position = IndexAt(args.rows.first_position, sequence);
    const int64_t dim = problem.head_dim;
    for (int64_t p = IndexAt(args.window_begin, t); p < IndexAt(args.window_end, t); ++p) {
      entries.resize(entries.size() + static_cast<size_t>(dim));
      Acc* entry = entries.data() + entries.size() - dim;
      if (p >= first_position) {
        LoadPoolRow(args.fresh, IndexAt(args.rows.first_row, sequence) + p - first_position, entry);
      } else {
        const int64_t slot = IndexAt(args.rows.slot, sequence);
        LoadPoolRow(args.ring, slot * args.ring_rows + p % args.ring_rows, entry);
      }
    }
  }

  static void LoadSelected(const SparseAttention::Problem& problem,
                           const SparseAttention::Args& args, int64_t t,
                           std::vector<Acc>& entries) {
    if (args.selected.absent()) return;
    const int64_t sequence = IndexAt(args.rows.sequence, t);
    for (int64_t i = 0; i < problem.selected; ++i) {
      const int64_t j = IndexAt(args.selected, t * args.selected.step(0) + i);
      if (j < 0) continue;
      entries.resize(entries.size() + static_cast<size_t>(problem.head_dim));
      LoadPoolRow(args.history, HistoryRow(args.rows, sequence, problem.ratio, j),
                  entries.data() + entries.size() - problem.head_dim);
    }
  }

  static void Head(const SparseAttention::Problem& problem, const SparseAttention::Args& args,
                   int64_t t, int64_t h, const std::vector<Acc>& entries) {
    const size_t dim = static_cast<size_t>(problem.head_dim);
    const size_t count = entries.size() / dim;
    std::vector<Acc> q(dim), out(dim), score(count);
    LoadSpan(args.q, t * args.q.step(0) + h * args.q.step(1), problem.head_dim, q.data());
    Acc largest = -std::numeric_limits<Acc>::infinity();
    for (size_t j = 0; j < count; ++j) {
      score[j] =
          Dot(q.data(), entries.data() + j * dim, problem.head_dim) * static_cast<Acc>(args.scale);
      largest = std::max(largest, score[j]);
    }
    const Acc sink = args.sink.as<float>()[h];
    if (count > 0) largest = std::max(largest, sink);
    Acc sum = 0;
    for (size_t j = 0; j < count; ++j) {
      const Acc w = std::exp(score[j] - largest);
      sum += w;
      for (size_t c = 0; c < dim; ++c) out[c] += w * entries[j * dim + c];
    }
    if (count > 0) {
      sum += std::exp(sink - largest);
      for (Acc& value : out) value /= sum;
    }
    StoreSpan(args.out, t * args.out.step(0) + h * args.out.step(1), problem.head_dim, out.data());
  }
};

absl::Status SparseAttentionSupports(const SparseAttention::Problem& problem) {
  return Requirements()
      .Activation("q", problem.dtype)
      .Positive("heads", problem.heads)
      .Positive("head_dim", problem.head_dim)
      .Positive("ratio", problem.ratio)
      .Take();
}

}  // namespace

absl::Status RegisterAttention(KernelRegistry& registry) {
  return RegisterBoth<SparseAttention, SparseAttentionKernel<double>, SparseAttentionKernel<float>>(
      registry, DeterminismClass::kBatchInvariant, &SparseAttentionSupports);
}

}  // namespace skein::kernels::reference
