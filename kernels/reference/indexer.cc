// Reference scoring and choosing of compressed rows: scores, candidate blocks, top-k by full sort.
// Plain code in the calling thread; equal scores always go to the lower column.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/reference/element.h"
#include "kernels/reference/pool_row.h"
#include "kernels/reference/register.h"

namespace skein::kernels::reference {
namespace {

// Columns of row t that are visible and exist.
int64_t VisibleColumns(const StepRows& rows, int64_t t, int ratio, int64_t num_columns) {
  return std::min<int64_t>(num_columns, (IndexAt(rows.position, t) + 1) / ratio);
}

template <typename Acc>
struct IndexScoresKernel {
  static absl::Status Run(const IndexScores::Problem& problem, const IndexScores::Args& args,
                          Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    for (int64_t t = 0; t < args.q.dim(0); ++t) {
      if (IndexAt(args.rows.sequence, t) >= 0) Row(problem, args, t);
    }
    return absl::OkStatus();
  }
  static void Row(const IndexScores::Problem& problem, const IndexScores::Args& args, int64_t t) {
    const int64_t num_columns = args.score.dim(1);
    const int64_t visible = VisibleColumns(args.rows, t, problem.ratio, num_columns);
    const size_t dim = static_cast<size_t>(problem.head_dim);
    std::vector<Acc> query(static_cast<size_t>(problem.heads) * dim), key(dim);
    std::vector<Acc> weight = LoadRow<Acc>(args.weight, t);
    for (Acc& w : weight) w = RoundTo(problem.dtype, w * static_cast<Acc>(args.weight_scale));
    for (int64_t h = 0; h < problem.heads; ++h) {
      LoadSpan(args.q, t * args.q.step(0) + h * args.q.step(1), problem.head_dim,
               query.data() + static_cast<size_t>(h) * dim);
    }
    std::vector<Acc> score(static_cast<size_t>(num_columns), -std::numeric_limits<Acc>::infinity());
    for (int64_t j = 0; j < visible; ++j) {
      if (!IsCandidate(args, t, j)) continue;
      const int64_t sequence = IndexAt(args.rows.sequence, t);
      LoadPoolRow(args.keys, HistoryRow(args.rows, sequence, problem.ratio, j), key.data());
      Acc sum = 0;
      for (size_t h = 0; h < static_cast<size_t>(problem.heads); ++h) {
        const Acc dot = Dot(query.data() + h * dim, key.data(), problem.head_dim);
        sum += weight[h] * (dot < 0 ? Acc{0} : dot);
      }
      score[static_cast<size_t>(j)] = sum;
    }
    StoreSpan(args.score, t * args.score.step(0), num_columns, score.data());
  }
  static bool IsCandidate(const IndexScores::Args& args, int64_t t, int64_t column) {
    if (args.candidates.absent()) return true;
    const int32_t* blocks = args.candidates.as<int32_t>() + t * args.candidates.step(0);
    const int32_t* end = blocks + args.candidates.dim(1);
    return std::find(blocks, end, static_cast<int32_t>(column / args.candidate_block)) != end;
  }
};

absl::Status IndexScoresSupports(const IndexScores::Problem& problem) {
  return Requirements()
      .Activation("q", problem.dtype)
      .Wide(problem.wide)
      .Positive("heads", problem.heads)
      .Positive("head_dim", problem.head_dim)
      .Positive("ratio", problem.ratio)
      .Take();
}

absl::Status NanError(OpId op, int64_t row) {
  const std::string_view name = OpName(op);
  return absl::InternalError(absl::StrCat(absl::string_view(name.data(), name.size()), ": row ",
                                          row, " has a score that is not a number"));
}

// The `count` largest finite values of `keys`, lower index first on equal keys, ascending by index.
std::vector<int32_t> Largest(const std::vector<double>& keys, int64_t count) {
  std::vector<int32_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&keys](int32_t a, int32_t b) {
    return keys[static_cast<size_t>(a)] > keys[static_cast<size_t>(b)];
  });
  std::vector<int32_t> chosen;
  for (const int32_t index : order) {
    if (static_cast<int64_t>(chosen.size()) == count) break;
    if (keys[static_cast<size_t>(index)] == -std::numeric_limits<double>::infinity()) break;
    chosen.push_back(index);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

// Visible scores of a row.
std::vector<double> VisibleScores(const StepRows& rows, int64_t t, int ratio,
                                  const TensorView& score) {
  std::vector<double> values(static_cast<size_t>(VisibleColumns(rows, t, ratio, score.dim(1))));
  LoadSpan(score, t * score.step(0), static_cast<int64_t>(values.size()), values.data());
  return values;
}

bool HasNan(const std::vector<double>& values) {
  return std::any_of(values.begin(), values.end(), [](double v) { return std::isnan(v); });
}

void StoreIndices(const TensorView& out, int64_t t, const std::vector<int32_t>& chosen) {
  int32_t* row = out.as<int32_t>() + t * out.step(0);
  for (int64_t i = 0; i < out.dim(1); ++i) {
    row[i] = i < static_cast<int64_t>(chosen.size()) ? chosen[static_cast<size_t>(i)] : -1;
  }
}

struct CandidateBlocksKernel {
  static absl::Status Run(const CandidateBlocks::Problem& problem,
                          const CandidateBlocks::Args& args, Workspace, DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    for (int64_t t = 0; t < args.score.dim(0); ++t) {
      if (IndexAt(args.rows.sequence, t) < 0) continue;
      const std::vector<double> score = VisibleScores(args.rows, t, problem.ratio, args.score);
      if (HasNan(score)) return NanError(CandidateBlocks::kId, t);
      const size_t block = static_cast<size_t>(problem.block);
      std::vector<double> largest((score.size() + block - 1) / block,
                                  -std::numeric_limits<double>::infinity());
      for (size_t j = 0; j < score.size(); ++j) {
        largest[j / block] = std::max(largest[j / block], score[j]);
      }
      if (!score.empty()) largest.back() = std::numeric_limits<double>::infinity();
      StoreIndices(args.candidates, t, Largest(largest, problem.count));
    }
    return absl::OkStatus();
  }
};

absl::Status CandidateBlocksSupports(const CandidateBlocks::Problem& problem) {
  return Requirements()
      .Wide(problem.wide)
      .Positive("block", problem.block)
      .Positive("count", problem.count)
      .Positive("ratio", problem.ratio)
      .Take();
}

struct TopKKernel {
  static absl::Status Run(const TopK::Problem& problem, const TopK::Args& args, Workspace,
                          DeviceStream) {
    if (absl::Status status = CheckArgs(problem, args); !status.ok()) return status;
    for (int64_t t = 0; t < args.score.dim(0); ++t) {
      if (IndexAt(args.rows.sequence, t) < 0) continue;
      const std::vector<double> score = VisibleScores(args.rows, t, problem.ratio, args.score);
      if (HasNan(score)) return NanError(TopK::kId, t);
      StoreIndices(args.selected, t, Largest(score, problem.k));
    }
    return absl::OkStatus();
  }
};

absl::Status TopKSupports(const TopK::Problem& problem) {
  return Requirements()
      .Wide(problem.wide)
      .Positive("k", problem.k)
      .Positive("ratio", problem.ratio)
      .Take();
}

}  // namespace

absl::Status RegisterIndexer(KernelRegistry& registry) {
  absl::Status status =
      RegisterBoth<IndexScores, IndexScoresKernel<double>, IndexScoresKernel<float>>(
          registry, DeterminismClass::kBatchInvariant, &IndexScoresSupports);
  if (status.ok()) {
    status = RegisterBoth<CandidateBlocks, CandidateBlocksKernel, CandidateBlocksKernel>(
        registry, DeterminismClass::kBitwise, &CandidateBlocksSupports);
  }
  if (status.ok()) {
    status = RegisterBoth<TopK, TopKKernel, TopKKernel>(registry, DeterminismClass::kBitwise,
                                                        &TopKSupports);
  }
  return status;
}

}  // namespace skein::kernels::reference
