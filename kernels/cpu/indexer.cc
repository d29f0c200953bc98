// Scoring and choosing compressed rows. A score is one dot product per head, heads ascending; tasks
// are stretches of columns, so long contexts use every thread. Selection keeps the best k in a
// buffer of 2k and decides on integer keys, so ties always go to the lower column.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "kernels/cpu/family.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/pool_row.h"

namespace skein::kernels::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

int64_t VisibleColumns(const StepRows& rows, int64_t t, int ratio, int64_t num_columns) {
  return std::min<int64_t>(num_columns, (IndexAt(rows.position, t) + 1) / ratio);
}

template <CpuIsa isa>
struct IndexScoresKernel {
  static constexpr int64_t kTaskColumns = 256;

  static absl::Status Supports(const IndexScores::Problem& problem) {
    return Support()
        .Is("q", problem.dtype, DType::kBf16)
        .Is("wide", problem.wide, DType::kF32)
        .Want(problem.format != KvFormat::kF64, "format", KvFormatName(problem.format),
              "all but f64")
        .Positive("heads", problem.heads)
        .Positive("head_dim", problem.head_dim)
        .Positive("ratio", problem.ratio)
        .Take();
  }
  // Floats of one thread: queries, weights, some keys.
  static int64_t ThreadFloats(const IndexScores::Problem& problem) {
    return RoundUpToUnit(int64_t{problem.heads} * problem.head_dim) + RoundUpToUnit(problem.heads) +
           RoundUpToUnit(kKeysTogether * problem.head_dim);
  }
  static size_t WorkspaceBytes(const IndexScores::Problem& problem) {
    return Scratch::Bytes<float>(ThreadFloats(problem) * kMaxThreads);
  }
  static absl::Status Run(const IndexScores::Problem& problem, const IndexScores::Args& args,
                          Workspace workspace, DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    if (absl::Status status = CheckThreads(stream); !status.ok()) return status;
    Scratch scratch(workspace);
    float* floats = scratch.Take<float>(ThreadFloats(problem) * NumThreads(stream));
    if (absl::Status status = scratch.Check(IndexScores::kId); !status.ok()) return status;
    const int64_t columns = args.score.dim(1);
    const int64_t per_row = (columns + kTaskColumns - 1) / kTaskColumns;
    const int64_t work = args.score.size() * problem.heads * problem.head_dim;
    ForEachTask(stream, args.q.dim(0) * per_row, work, [&](int64_t task, int thread) {
      const int64_t t = task / per_row;
      if (IndexAt(args.rows.sequence, t) < 0) return;
      const int64_t begin = task % per_row * kTaskColumns;
      Stretch(problem, args, t, begin, std::min(columns, begin + kTaskColumns),
              floats + ThreadFloats(problem) * thread);
    });
    return absl::OkStatus();
  }
  // Columns [begin, end) of row t.
  static void Stretch(const IndexScores::Problem& problem, const IndexScores::Args& args, int64_t t,
                      int64_t begin, int64_t end, float* floats) {
    float* score = reinterpret_cast<float*>(args.score.row(t));
    const int64_t visible =
        std::min(end, VisibleColumns(args.rows, t, problem.ratio, args.score.dim(1)));
    std::fill(score + begin, score + end, kMinusInfinity);
    if (begin >= visible) return;
    const int64_t heads = problem.heads;
    const int64_t dim = problem.head_dim;
    float* q = floats;
    float* weight = q + RoundUpToUnit(heads * dim);
    float* some_keys = weight + RoundUpToUnit(heads);
    for (int64_t h = 0; h < heads; ++h) {
      const uint16_t* head = reinterpret_cast<const uint16_t*>(args.q.row(t)) + h * args.q.step(1);
      Lanes<isa>().widen(head, dim, q + h * dim);
      const uint16_t raw = reinterpret_cast<const uint16_t*>(args.weight.row(t))[h];
      weight[h] = DecodeBf16(EncodeBf16(DecodeBf16(raw) * args.weight_scale));
    }
    HistoryRows history(args.rows, IndexAt(args.rows.sequence, t), problem.ratio);
    PoolReader keys(args.keys);
    const auto score_columns = [&](int64_t from, int64_t to) {
      for (int64_t j = from; j < to; j += kKeysTogether) {
        const int64_t some = std::min(kKeysTogether, to - j);
        for (int64_t i = 0; i < some; ++i) {
          keys.Load<isa>(history.Find(j + i), some_keys + i * dim);
        }
        Lanes<isa>().index_scores({q, weight, heads, dim, some_keys, some, score + j});
      }
    };
    if (args.candidates.absent()) {
      score_columns(begin, visible);
      return;
    }
    const int32_t* blocks = reinterpret_cast<const int32_t*>(args.candidates.row(t));
    for (int64_t i = 0; i < args.candidates.dim(1) && blocks[i] >= 0; ++i) {
      const int64_t from = int64_t{blocks[i]} * args.candidate_block;
      score_columns(std::max(begin, from), std::min(visible, from + args.candidate_block));
    }
  }
};

// Order of a score as an integer: larger score first, then the lower index. -0 counts as +0.
uint64_t SelectionKey(float score, int64_t index) {
  uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  bits ^= (bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u;
  return (uint64_t{bits} << 32) | (0xFFFFFFFFu - static_cast<uint32_t>(index));
}

// The `count` largest keys of a stream of them.
class Selection {
 public:
  // `buffer` holds 2 * count keys.
  Selection(uint64_t* buffer, int64_t count) : buffer_(buffer), count_(count) {}
  void Add(uint64_t key) {
    if (key <= least_) return;
    buffer_[size_++] = key;
    if (size_ == 2 * count_) Shrink();
  }
  // Indices of the chosen, ascending, padded by -1.
  void Store(int32_t* out) {
    if (size_ > count_) Shrink();
    for (int64_t i = 0; i < size_; ++i) {
      out[i] = static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(buffer_[i]));
    }
    std::sort(out, out + size_);
    std::fill(out + size_, out + count_, -1);
  }

 private:
  void Shrink() {
    std::nth_element(buffer_, buffer_ + count_ - 1, buffer_ + size_, std::greater<uint64_t>());
    size_ = count_;
    least_ = buffer_[count_ - 1];
  }
  uint64_t* buffer_;
  int64_t count_;
  int64_t size_ = 0;
  uint64_t least_ = 0;
};

// Remembers the first row with a NaN.
class NanRow {
 public:
  void Report(int64_t row) {
    int64_t seen = row_.load();
    while (row < seen && !row_.compare_exchange_weak(seen, row)) {
    }
  }
  absl::Status Take(OpId op) const {
    if (row_.load() == kNone) return absl::OkStatus();
    const std::string_view name = OpName(op);
    return absl::InternalError(absl::StrCat(absl::string_view(name.data(), name.size()), ": row ",
                                            row_.load(), " has a score that is not a number"));
  }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> row_ = kNone;
};

template <CpuIsa isa>
struct CandidateBlocksKernel {
  static absl::Status Supports(const CandidateBlocks::Problem& problem) {
    return Support()
        .Is("wide", problem.wide, DType::kF32)
        .Positive("block", problem.block)
        .Positive("count", problem.count)
        .Positive("ratio", problem.ratio)
        .Take();
  }
  static size_t WorkspaceBytes(const CandidateBlocks::Problem& problem) {
    return Scratch::Bytes<uint64_t>(int64_t{problem.count} * 2 * kMaxThreads);
  }
  static absl::Status Run(const CandidateBlocks::Problem& problem,
                          const CandidateBlocks::Args& args, Workspace workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    if (absl::Status status = CheckThreads(stream); !status.ok()) return status;
    Scratch scratch(workspace);
    const int64_t per_thread = int64_t{problem.count} * 2;
    uint64_t* keys = scratch.Take<uint64_t>(per_thread * NumThreads(stream));
    if (absl::Status status = scratch.Check(CandidateBlocks::kId); !status.ok()) return status;
    NanRow bad;
    ForEachTask(stream, args.score.dim(0), args.score.size() * 64, [&](int64_t t, int thread) {
      if (IndexAt(args.rows.sequence, t) < 0) return;
      if (!Row(problem, args, t, keys + per_thread * thread)) bad.Report(t);
    });
    return bad.Take(CandidateBlocks::kId);
  }
  // False if a NaN was met.
  static bool Row(const CandidateBlocks::Problem& problem, const CandidateBlocks::Args& args,
                  int64_t t, uint64_t* keys) {
    const float* score = reinterpret_cast<const float*>(args.score.row(t));
    const int64_t visible = VisibleColumns(args.rows, t, problem.ratio, args.score.dim(1));
    const int64_t blocks = (visible + problem.block - 1) / problem.block;
    Selection selection(keys, problem.count);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t end = std::min<int64_t>(visible, (b + 1) * problem.block);
      float largest = kMinusInfinity;
      for (int64_t j = b * problem.block; j < end; ++j) {
        if (std::isnan(score[j])) return false;
        largest = score[j] > largest ? score[j] : largest;
      }
      if (b + 1 == blocks) largest = std::numeric_limits<float>::infinity();
      if (largest != kMinusInfinity) selection.Add(SelectionKey(largest, b));
    }
    selection.Store(reinterpret_cast<int32_t*>(args.candidates.row(t)));
    return true;
  }
};

template <CpuIsa isa>
struct TopKKernel {
  static absl::Status Supports(const TopK::Problem& problem) {
    return Support()
        .Is("wide", problem.wide, DType::kF32)
        .Positive("k", problem.k)
        .Positive("ratio", problem.ratio)
        .Take();
  }
  static size_t WorkspaceBytes(const TopK::Problem& problem) {
    return Scratch::Bytes<uint64_t>(int64_t{problem.k} * 2 * kMaxThreads);
  }
  static absl::Status Run(const TopK::Problem& problem, const TopK::Args& args, Workspace workspace,
                          DeviceStream stream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    if (absl::Status status = CheckThreads(stream); !status.ok()) return status;
    Scratch scratch(workspace);
    const int64_t per_thread = int64_t{problem.k} * 2;
    uint64_t* keys = scratch.Take<uint64_t>(per_thread * NumThreads(stream));
    if (absl::Status status = scratch.Check(TopK::kId); !status.ok()) return status;
    NanRow bad;
    ForEachTask(stream, args.score.dim(0), args.score.size() * 128, [&](int64_t t, int thread) {
      if (IndexAt(args.rows.sequence, t) < 0) return;
      const float* score = reinterpret_cast<const float*>(args.score.row(t));
      const int64_t visible = VisibleColumns(args.rows, t, problem.ratio, args.score.dim(1));
      Selection selection(keys + per_thread * thread, problem.k);
      for (int64_t j = 0; j < visible; ++j) {
        if (std::isnan(score[j])) {
          bad.Report(t);
          return;
        }
        if (score[j] != kMinusInfinity) selection.Add(SelectionKey(score[j], j));
      }
      selection.Store(reinterpret_cast<int32_t*>(args.selected.row(t)));
    });
    return bad.Take(TopK::kId);
  }
};

}  // namespace

absl::Status RegisterIndexer(KernelRegistry& registry, CpuIsa isa) {
  constexpr DeterminismClass kBits = DeterminismClass::kBitwise;
  absl::Status status =
      RegisterFor<IndexScores, IndexScoresKernel>(registry, isa, DeterminismClass::kBatchInvariant);
  if (status.ok())
    status = RegisterFor<CandidateBlocks, CandidateBlocksKernel>(registry, isa, kBits);
  if (status.ok()) status = RegisterFor<TopK, TopKKernel>(registry, isa, kBits);
  return status;
}

}  // namespace skein::kernels::cpu
