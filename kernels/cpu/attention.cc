// Sparse latent attention: the entries of a row are decoded once into f32 and serve all heads. With
// many rows the threads share rows, with few they share the entries and then the heads of one row;
// the arithmetic of a head is the same either way.
#include <algorithm>

#include "kernels/cpu/family.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/pool_row.h"

namespace skein::kernels::cpu {
namespace {

// One entry of a row: where it lies and which row of that pool it is.
enum class Source : uint8_t { kFresh, kRing, kHistory };
struct EntryRef {
  Source source = Source::kFresh;
  int64_t row = 0;
};

template <CpuIsa isa>
struct SparseAttentionKernel {
  using Problem = SparseAttention::Problem;
  using Args = SparseAttention::Args;

  // Scratch of one row in work.
  struct RowScratch {
    EntryRef* refs = nullptr;  // [capacity]
    float* entries = nullptr;  // [capacity, dim]
  };

  static absl::Status Supports(const Problem& problem) {
    return Support()
        .Is("q", problem.dtype, DType::kBf16)
        .Want(problem.window_format != KvFormat::kF64 && problem.history_format != KvFormat::kF64,
              "pools", "f64", "all other formats")
        .Positive("heads", problem.heads)
        .Positive("head_dim", problem.head_dim)
        .Want(problem.window >= 0 && problem.selected >= 0, "window and selected", "negative",
              "counts from 0")
        .Positive("ratio", problem.ratio)
        .Take();
  }
  static int64_t Capacity(const Problem& problem) {
    return std::max(1, problem.window + problem.selected);
  }
  // Scores and queries of the heads that a thread takes side by side.
  static int64_t HeadFloats(const Problem& problem) {
    return (RoundUpToUnit(Capacity(problem)) + problem.head_dim) * kHeadsTogether;
  }
  static size_t WorkspaceBytes(const Problem& problem) {
    const int64_t capacity = Capacity(problem);
    return Scratch::Bytes<EntryRef>(capacity * kMaxThreads) +
           Scratch::Bytes<float>(capacity * problem.head_dim * kMaxThreads) +
           Scratch::Bytes<float>(HeadFloats(problem) * kMaxThreads);
  }

  static absl::Status Run(const Problem& problem, const Args& args, Workspace workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    if (absl::Status status = CheckThreads(stream); !status.ok()) return status;
    const int64_t rows = args.q.dim(0);
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t window = IndexAt(args.window_end, t) - IndexAt(args.window_begin, t);
      if (IndexAt(args.rows.sequence, t) >= 0 && window > problem.window) {
        return absl::InvalidArgumentError(absl::StrCat("sparse_attention: row ", t, " has ", window,
                                                       " window entries, the problem allows ",
                                                       problem.window));
      }
    }
    const int64_t threads = NumThreads(stream);
    const int64_t capacity = Capacity(problem);
    const int64_t head_floats = HeadFloats(problem);
    Scratch scratch(workspace);
    EntryRef* refs = scratch.Take<EntryRef>(capacity * threads);
    float* entries = scratch.Take<float>(capacity * problem.head_dim * threads);
    float* head = scratch.Take<float>(head_floats * threads);
    if (absl::Status status = scratch.Check(SparseAttention::kId); !status.ok()) return status;
    const int64_t row_work = capacity * problem.head_dim * (2 * problem.heads + 1);
    if (rows >= 2 * threads) {
      ForEachTask(stream, rows, rows * row_work, [&](int64_t t, int thread) {
        const RowScratch mine = {refs + capacity * thread,
                                 entries + capacity * problem.head_dim * thread};
        Row(problem, args, t, mine, head + head_floats * thread, head_floats, {});
      });
      return absl::OkStatus();
    }
    for (int64_t t = 0; t < rows; ++t) {
      Row(problem, args, t, {refs, entries}, head, head_floats, stream);
    }
    return absl::OkStatus();
  }

  // Row t; its entries and heads are shared over the threads of `stream`.
  static void Row(const Problem& problem, const Args& args, int64_t t, const RowScratch& scratch,
                  float* head, int64_t head_floats, DeviceStream stream) {
    if (IndexAt(args.rows.sequence, t) < 0) return;
    const int64_t count = FindEntries(problem, args, t, scratch.refs);
    const int64_t dim = problem.head_dim;
    ForEachTask(stream, (count + 31) / 32, count * dim * 4, [&](int64_t task, int) {
      const int64_t end = std::min(count, task * 32 + 32);
      PoolReader fresh(args.fresh), ring(args.ring), history(args.history);
      for (int64_t j = task * 32; j < end; ++j) {
        const EntryRef& ref = scratch.refs[j];
        PoolReader& reader = ref.source == Source::kFresh  ? fresh
                             : ref.source == Source::kRing ? ring
                                                           : history;
        reader.Load<isa>(ref.row, scratch.entries + j * dim);
      }
    });
    const int64_t some = std::min<int64_t>(kHeadsTogether, problem.heads);
    const int64_t tasks = (problem.heads + some - 1) / some;
    ForEachTask(stream, tasks, problem.heads * count * dim * 2, [&](int64_t task, int thread) {
      float* floats = head + head_floats * thread;
      HeadsCall call;
      call.heads = std::min(some, problem.heads - task * some);
      call.q = floats;
      call.sink = args.sink.as<float>() + task * some;
      call.entries = scratch.entries;
      call.count = count;
      call.dim = dim;
      call.scale = args.scale;
      call.score = floats + kHeadsTogether * dim;
      call.score_step = RoundUpToUnit(Capacity(problem));
      call.out = reinterpret_cast<uint16_t*>(args.out.row(t)) + task * some * args.out.step(1);
      call.out_step = args.out.step(1);
      for (int64_t i = 0; i < call.heads; ++i) {
        const int64_t h = task * some + i;
        const uint16_t* q = reinterpret_cast<const uint16_t*>(args.q.row(t)) + h * args.q.step(1);
        Lanes<isa>().widen(q, dim, floats + i * dim);
      }
      Lanes<isa>().attention_heads(call);
    });
  }

  // Window entries by position, then selected rows as listed. Returns their number.
  static int64_t FindEntries(const Problem& problem, const Args& args, int64_t t, EntryRef* refs) {
    const int64_t sequence = IndexAt(args.rows.sequence, t);
    const int64_t first_position = IndexAt(args.rows.first_position, sequence);
    const int64_t first_row = IndexAt(args.rows.first_row, sequence);
    const int64_t slot_row = IndexAt(args.rows.slot, sequence) * args.ring_rows;
    int64_t count = 0;
    for (int64_t p = IndexAt(args.window_begin, t); p < IndexAt(args.window_end, t); ++p) {
      refs[count++] = p >= first_position ? EntryRef{Source::kFresh, first_row + p - first_position}
                                          : EntryRef{Source::kRing, slot_row + p % args.ring_rows};
    }
    if (args.selected.absent() || problem.selected == 0) return count;
    HistoryRows history(args.rows, sequence, problem.ratio);
    const int32_t* selected = reinterpret_cast<const int32_t*>(args.selected.row(t));
    for (int64_t i = 0; i < problem.selected; ++i) {
      if (selected[i] >= 0) refs[count++] = {Source::kHistory, history.Find(selected[i])};
    }
    return count;
  }
};

}  // namespace

absl::Status RegisterAttention(KernelRegistry& registry, CpuIsa isa) {
  return RegisterFor<SparseAttention, SparseAttentionKernel>(registry, isa,
                                                             DeterminismClass::kBatchInvariant);
}

}  // namespace skein::kernels::cpu
