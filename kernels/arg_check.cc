#include "kernels/arg_check.h"

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace skein::kernels {
namespace {

constexpr int64_t kAny = -1;

absl::string_view Abseil(std::string_view text) { return {text.data(), text.size()}; }

std::string Extents(std::initializer_list<int64_t> dims) {
  std::string text = "[";
  for (int64_t extent : dims) {
    absl::StrAppend(&text, text.size() == 1 ? "" : ", ");
    if (extent == kAny) {
      text += "any";
    } else {
      absl::StrAppend(&text, extent);
    }
  }
  return text + "]";
}

std::string Described(const TensorView& view) {
  if (view.absent()) return "absent";
  std::string text = "[";
  for (int i = 0; i < view.rank; ++i) absl::StrAppend(&text, i == 0 ? "" : ", ", view.dim(i));
  absl::StrAppend(&text, "] ", Abseil(DTypeName(view.dtype)));
  if (view.step(view.rank - 1) != 1) absl::StrAppend(&text, ", last dimension not contiguous");
  if (view.data == nullptr) text += ", null";
  return text;
}

// Collects the first defect of one call's arguments.
class ArgCheck {
 public:
  explicit ArgCheck(OpId op) : op_(op) {}

  ArgCheck& View(std::string_view name, const TensorView& view, DType dtype,
                 std::initializer_list<int64_t> dims) {
    if (!status_.ok() || Matches(view, dtype, dims)) return *this;
    status_ = absl::InvalidArgumentError(
        absl::StrCat(Abseil(OpName(op_)), ": ", Abseil(name), " is ", Described(view),
                     ", expected ", Extents(dims), " ", Abseil(DTypeName(dtype))));
    return *this;
  }

  // Only looked at when present.
  ArgCheck& Optional(std::string_view name, const TensorView& view, DType dtype,
                     std::initializer_list<int64_t> dims) {
    return view.absent() ? *this : View(name, view, dtype, dims);
  }

  ArgCheck& Pool(std::string_view name, const KvPool& pool, KvFormat format, int64_t dim) {
    const int64_t row_bytes = KvDataBytes(format, dim) + KvScaleBytes(format, dim);
    if (!status_.ok() || (pool.format == format && pool.dim == dim && pool.page_rows > 0 &&
                          pool.page_bytes >= pool.page_rows * row_bytes)) {
      return *this;
    }
    status_ = absl::InvalidArgumentError(
        absl::StrCat(Abseil(OpName(op_)), ": pool ", Abseil(name), " holds rows of ", pool.dim, " ",
                     Abseil(KvFormatName(pool.format)), " in pages of ", pool.page_rows, " rows, ",
                     pool.page_bytes, " bytes; expected ", dim, " ", Abseil(KvFormatName(format)),
                     ", ", row_bytes, " bytes a row"));
    return *this;
  }

  ArgCheck& True(bool condition, std::string_view defect) {
    if (status_.ok() && !condition) {
      status_ = absl::InvalidArgumentError(absl::StrCat(Abseil(OpName(op_)), ": ", Abseil(defect)));
    }
    return *this;
  }

  ArgCheck& Rows(const StepRows& rows, int64_t num_rows) {
    View("position", rows.position, DType::kI32, {num_rows});
    return View("sequence", rows.sequence, DType::kI32, {num_rows});
  }

  // The per-sequence part of a step.
  ArgCheck& Sequences(const StepRows& rows, bool with_blocks) {
    const int64_t num_sequences = rows.first_row.absent() ? 0 : rows.first_row.dim(0);
    View("first_row", rows.first_row, DType::kI32, {num_sequences});
    View("first_position", rows.first_position, DType::kI32, {num_sequences});
    View("slot", rows.slot, DType::kI32, {num_sequences});
    if (!with_blocks) return *this;
    True(rows.block_tokens > 0, "block_tokens must be positive");
    return View("block_table", rows.block_table, DType::kI32, {num_sequences, kAny});
  }

  absl::Status Take() { return std::move(status_); }

 private:
  static bool Matches(const TensorView& view, DType dtype, std::initializer_list<int64_t> dims) {
    if (view.dtype != dtype || view.rank != static_cast<int>(dims.size())) return false;
    int index = 0;
    for (int64_t extent : dims) {
      if (extent != kAny && view.dim(index) != extent) return false;
      ++index;
    }
    if (view.size() == 0) return true;
    return view.data != nullptr && view.step(view.rank - 1) == 1;
  }

  OpId op_;
  absl::Status status_;
};

int64_t RowsOf(const TensorView& view) { return view.absent() ? 0 : view.dim(0); }
int64_t CeilDiv(int64_t value, int64_t by) { return by <= 0 ? 0 : (value + by - 1) / by; }

void CheckWeight(ArgCheck& check, std::string_view name, const Weight& w, WeightFormat format,
                 int64_t n, int64_t k, int64_t block) {
  switch (format) {
    case WeightFormat::kBf16:
      check.View(name, w.codes, DType::kBf16, {n, k});
      return;
    case WeightFormat::kF32:
      check.View(name, w.codes, DType::kF32, {n, k});
      return;
    case WeightFormat::kE4m3Block:
      check.View(name, w.codes, DType::kE4m3, {n, k});
      check.View("scale of w", w.scale, DType::kE8m0, {CeilDiv(n, block), CeilDiv(k, block)});
      return;
    case WeightFormat::kE2m1Row32:
      check.View(name, w.codes, DType::kE2m1x2, {n, CeilDiv(k, 2)});
      check.View("scale of w", w.scale, DType::kE8m0, {n, CeilDiv(k, 32)});
      return;
  }
}

// y may be accumulated into; x carries scales only when it holds codes.
void CheckScale(ArgCheck& check, const TensorView& x, const TensorView& x_scale, int64_t k) {
  if (x.dtype != DType::kE4m3) return;
  check.View("x_scale", x_scale, DType::kE8m0, {RowsOf(x), CeilDiv(k, 32)});
}

}  // namespace

std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "f64";
    case DType::kF32:
      return "f32";
    case DType::kBf16:
      return "bf16";
    case DType::kE4m3:
      return "e4m3";
    case DType::kE8m0:
      return "e8m0";
    case DType::kE2m1x2:
      return "e2m1x2";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
  }
  return "unknown dtype";
}

std::string_view KvFormatName(KvFormat format) {
  switch (format) {
    case KvFormat::kFp8Group32:
      return "fp8_group32";
    case KvFormat::kFp4Group16:
      return "fp4_group16";
    case KvFormat::kFp4Group32:
      return "fp4_group32";
    case KvFormat::kBf16:
      return "bf16";
    case KvFormat::kF32:
      return "f32";
    case KvFormat::kF64:
      return "f64";
  }
  return "unknown format";
}

absl::Status CheckArgs(const PerTokenCast::Problem& problem, const PerTokenCast::Args& args) {
  const int64_t rows = RowsOf(args.x);
  return ArgCheck(PerTokenCast::kId)
      .View("x", args.x, problem.x_dtype, {rows, problem.channels})
      .View("codes", args.codes, DType::kE4m3, {rows, problem.channels})
      .View("scale", args.scale, DType::kE8m0, {rows, CeilDiv(problem.channels, problem.group)})
      .Take();
}

absl::Status CheckArgs(const CastBack::Problem& problem, const CastBack::Args& args) {
  const int64_t rows = RowsOf(args.y);
  const int64_t per_byte = problem.codes_dtype == DType::kE2m1x2 ? 2 : 1;
  return ArgCheck(CastBack::kId)
      .View("y", args.y, problem.y_dtype, {rows, problem.channels})
      .View("codes", args.codes, problem.codes_dtype, {rows, CeilDiv(problem.channels, per_byte)})
      .View("scale", args.scale, DType::kE8m0, {rows, CeilDiv(problem.channels, problem.group)})
      .Take();
}

absl::Status CheckArgs(const FakeQuant::Problem& problem, const FakeQuant::Args& args) {
  ArgCheck check(FakeQuant::kId);
  if (args.x.rank == 3) {
    check.View("x", args.x, problem.dtype, {kAny, kAny, problem.channels});
  } else {
    check.View("x", args.x, problem.dtype, {kAny, problem.channels});
  }
  return check.Take();
}

absl::Status CheckArgs(const Linear::Problem& problem, const Linear::Args& args) {
  ArgCheck check(Linear::kId);
  check.View("x", args.x, problem.x_dtype, {kAny, problem.k});
  check.View("y", args.y, problem.y_dtype, {RowsOf(args.x), problem.n});
  CheckScale(check, args.x, args.x_scale, problem.k);
  CheckWeight(check, "w", args.w, problem.format, problem.n, problem.k, problem.block);
  return check.Take();
}

absl::Status CheckArgs(const GroupedLinear::Problem& problem, const GroupedLinear::Args& args) {
  ArgCheck check(GroupedLinear::kId);
  check.View("x", args.x, problem.x_dtype, {kAny, problem.groups, problem.k});
  check.View("y", args.y, problem.y_dtype, {RowsOf(args.x), problem.groups, problem.n});
  CheckWeight(check, "w", args.w, problem.format, int64_t{problem.groups} * problem.n, problem.k,
              problem.block);
  return check.Take();
}

absl::Status CheckArgs(const ExpertLinear::Problem& problem, const ExpertLinear::Args& args) {
  ArgCheck check(ExpertLinear::kId);
  check.View("expert_offset", args.expert_offset, DType::kI32, {problem.num_experts + 1});
  check.Optional("source_row", args.source_row, DType::kI32, {kAny});
  check.View("x", args.x, problem.x_dtype, {kAny, problem.k});
  check.View("y", args.y, problem.y_dtype, {kAny, problem.n});
  CheckScale(check, args.x, args.x_scale, problem.k);
  check.Optional("y_second", args.y_second, problem.y_dtype, {RowsOf(args.y), problem.n});
  const auto experts = static_cast<size_t>(problem.num_experts);
  check.True(args.w.size() == experts, "w must hold one weight per expert");
  check.True(args.w_second.size() == (args.y_second.absent() ? 0 : experts),
             "w_second must hold one weight per expert with y_second, none without");
  for (const Weight& w : args.w) {
    CheckWeight(check, "w", w, problem.format, problem.n, problem.k, problem.block);
  }
  for (const Weight& w : args.w_second) {
    CheckWeight(check, "w_second", w, problem.format, problem.n, problem.k, problem.block);
  }
  return check.Take();
}

absl::Status CheckArgs(const RmsNorm::Problem& problem, const RmsNorm::Args& args) {
  return ArgCheck(RmsNorm::kId)
      .View("x", args.x, problem.dtype, {kAny, problem.channels})
      .View("weight", args.weight, problem.weight_dtype, {problem.channels})
      .View("y", args.y, problem.dtype, {RowsOf(args.x), problem.channels})
      .Take();
}

absl::Status CheckArgs(const Rope::Problem& problem, const Rope::Args& args) {
  return ArgCheck(Rope::kId)
      .View("x", args.x, problem.dtype, {kAny, kAny, problem.head_dim})
      .View("cos_sin", args.cos_sin, DType::kF32, {RowsOf(args.x), problem.rope_dim})
      .Take();
}

absl::Status CheckArgs(const HcExpand::Problem& problem, const HcExpand::Args& args) {
  return ArgCheck(HcExpand::kId)
      .View("x", args.x, problem.dtype, {kAny, problem.channels})
      .View("stream", args.stream, problem.dtype, {RowsOf(args.x), problem.hc, problem.channels})
      .Take();
}

absl::Status CheckArgs(const HcMix::Problem& problem, const HcMix::Args& args) {
  const int64_t rows = RowsOf(args.stream);
  const int64_t hc = problem.hc;
  const int64_t mixes = (2 + hc) * hc;
  return ArgCheck(HcMix::kId)
      .View("stream", args.stream, problem.dtype, {kAny, hc, problem.channels})
      .View("fn", args.fn, DType::kF32, {mixes, hc * problem.channels})
      .View("base", args.base, DType::kF32, {mixes})
      .View("scale", args.scale, DType::kF32, {3})
      .View("pre", args.pre, problem.wide, {rows, hc})
      .View("post", args.post, problem.wide, {rows, hc})
      .View("comb", args.comb, problem.wide, {rows, hc, hc})
      .Take();
}

absl::Status CheckArgs(const HcCollapse::Problem& problem, const HcCollapse::Args& args) {
  const int64_t rows = RowsOf(args.stream);
  return ArgCheck(HcCollapse::kId)
      .View("stream", args.stream, problem.dtype, {kAny, problem.hc, problem.channels})
      .View("pre", args.pre, problem.wide, {rows, problem.hc})
      .View("y", args.y, problem.dtype, {rows, problem.channels})
      .Take();
}

absl::Status CheckArgs(const HcPost::Problem& problem, const HcPost::Args& args) {
  const int64_t rows = RowsOf(args.stream);
  return ArgCheck(HcPost::kId)
      .View("stream", args.stream, problem.dtype, {kAny, problem.hc, problem.channels})
      .View("x", args.x, problem.dtype, {rows, problem.channels})
      .View("post", args.post, problem.wide, {rows, problem.hc})
      .View("comb", args.comb, problem.wide, {rows, problem.hc, problem.hc})
      .Take();
}

absl::Status CheckArgs(const HcMean::Problem& problem, const HcMean::Args& args) {
  return ArgCheck(HcMean::kId)
      .View("stream", args.stream, problem.dtype, {kAny, problem.hc, problem.channels})
      .View("y", args.y, problem.dtype, {RowsOf(args.stream), problem.channels})
      .Take();
}

absl::Status CheckArgs(const MoeGate::Problem& problem, const MoeGate::Args& args) {
  const int64_t rows = RowsOf(args.logits);
  return ArgCheck(MoeGate::kId)
      .View("logits", args.logits, problem.wide, {kAny, problem.num_experts})
      .View("bias", args.bias, DType::kF32, {problem.num_experts})
      .View("index", args.index, DType::kI32, {rows, problem.k})
      .View("weight", args.weight, problem.wide, {rows, problem.k})
      .Take();
}

absl::Status CheckArgs(const MoeLayout::Problem& problem, const MoeLayout::Args& args) {
  const int64_t places = RowsOf(args.index) * problem.k;
  return ArgCheck(MoeLayout::kId)
      .View("index", args.index, DType::kI32, {kAny, problem.k})
      .View("expert_offset", args.expert_offset, DType::kI32, {problem.num_experts + 1})
      .View("assignment", args.assignment, DType::kI32, {places})
      .View("source_row", args.source_row, DType::kI32, {places})
      .View("place", args.place, DType::kI32, {RowsOf(args.index), problem.k})
      .Take();
}

absl::Status CheckArgs(const SwiGlu::Problem& problem, const SwiGlu::Args& args) {
  const int64_t rows = RowsOf(args.y);
  ArgCheck check(SwiGlu::kId);
  check.View("gate", args.gate, problem.dtype, {rows, problem.channels})
      .View("up", args.up, problem.dtype, {rows, problem.channels})
      .View("y", args.y, problem.dtype, {rows, problem.channels});
  if (args.weight.absent()) {
    check.Optional("assignment", args.assignment, DType::kI32, {rows});
  } else {
    check.View("assignment", args.assignment, DType::kI32, {rows});
    if (args.weight.rank == 2) {
      check.View("weight", args.weight, problem.wide, {kAny, kAny});
    } else {
      check.View("weight", args.weight, problem.wide, {kAny});
    }
  }
  return check.Take();
}

absl::Status CheckArgs(const MoeCombine::Problem& problem, const MoeCombine::Args& args) {
  const int64_t rows = RowsOf(args.y);
  return ArgCheck(MoeCombine::kId)
      .View("y", args.y, problem.dtype, {kAny, problem.channels})
      .View("routed", args.routed, problem.dtype, {kAny, problem.channels})
      .View("place", args.place, DType::kI32, {rows, problem.k})
      .Optional("shared", args.shared, problem.dtype, {rows, problem.channels})
      .Take();
}

absl::Status CheckArgs(const MapExperts::Problem& problem, const MapExperts::Args& args) {
  return ArgCheck(MapExperts::kId)
      .View("index", args.index, DType::kI32, {kAny, problem.k})
      .View("table", args.table, DType::kI32, {problem.num_experts})
      .View("to", args.to, DType::kI32, {RowsOf(args.index), problem.k})
      .Take();
}

absl::Status CheckArgs(const EngramHash::Problem& problem, const EngramHash::Args& args) {
  const int64_t columns = int64_t{problem.ngram - 1} * problem.heads;
  return ArgCheck(EngramHash::kId)
      .View("ngram", args.ngram, DType::kI32, {kAny, problem.ngram})
      .View("multiplier", args.multiplier, DType::kI64, {problem.ngram})
      .View("prime", args.prime, DType::kI64, {columns})
      .View("offset", args.offset, DType::kI64, {columns})
      .View("rows", args.rows, DType::kI32, {RowsOf(args.ngram), columns})
      .Take();
}

absl::Status CheckArgs(const EngramGather::Problem& problem, const EngramGather::Args& args) {
  return ArgCheck(EngramGather::kId)
      .View("codes", args.codes, DType::kE4m3, {kAny, problem.row_dim})
      .View("scale", args.scale, DType::kE8m0, {RowsOf(args.codes), CeilDiv(problem.row_dim, 32)})
      .View("rows", args.rows, DType::kI32, {kAny, problem.columns})
      .View("y", args.y, problem.y_dtype,
            {RowsOf(args.rows), int64_t{problem.columns} * problem.row_dim})
      .Take();
}

absl::Status CheckArgs(const EngramFusedWeight::Problem& problem,
                       const EngramFusedWeight::Args& args) {
  return ArgCheck(EngramFusedWeight::kId)
      .View("q", args.q, DType::kBf16, {problem.hc, problem.channels})
      .View("k", args.k, DType::kBf16, {problem.hc, problem.channels})
      .View("w", args.w, DType::kF32, {problem.hc, problem.channels})
      .Take();
}

absl::Status CheckArgs(const EngramGate::Problem& problem, const EngramGate::Args& args) {
  return ArgCheck(EngramGate::kId)
      .View("stream", args.stream, problem.dtype, {kAny, problem.hc, problem.channels})
      .View("kv", args.kv, problem.dtype,
            {RowsOf(args.stream), int64_t{problem.hc + 1} * problem.channels})
      .View("w", args.w, DType::kF32, {problem.hc, problem.channels})
      .Take();
}

absl::Status CheckArgs(const Compress::Problem& problem, const Compress::Args& args) {
  ArgCheck check(Compress::kId);
  check.View("fresh", args.fresh, problem.wide, {kAny, int64_t{problem.dim} * 2});
  check.View("group_row", args.group_row, DType::kI32, {kAny});
  check.View("latent", args.latent, problem.dtype, {RowsOf(args.group_row), problem.dim});
  if (RowsOf(args.group_row) == 0) return check.Take();
  check.Rows(args.rows, RowsOf(args.fresh)).Sequences(args.rows, false);
  if (problem.ratio > 1) {
    check.Pool("ring", args.ring, problem.wide == DType::kF64 ? KvFormat::kF64 : KvFormat::kF32,
               int64_t{problem.dim} * 2);
    check.True(args.ring_rows >= problem.ratio, "ring_rows must be at least ratio");
  }
  return check.Take();
}

absl::Status CheckArgs(const StoreKv::Problem& problem, const StoreKv::Args& args) {
  return ArgCheck(StoreKv::kId)
      .View("x", args.x, problem.x_dtype, {kAny, problem.dim})
      .View("target", args.target, DType::kI64, {RowsOf(args.x)})
      .Pool("pool", args.pool, problem.format, problem.dim)
      .Take();
}

absl::Status CheckArgs(const LoadKv::Problem& problem, const LoadKv::Args& args) {
  return ArgCheck(LoadKv::kId)
      .View("y", args.y, problem.y_dtype, {kAny, problem.dim})
      .View("source", args.source, DType::kI64, {RowsOf(args.y)})
      .Pool("pool", args.pool, problem.format, problem.dim)
      .Take();
}

absl::Status CheckArgs(const CopyKvRows::Problem& problem, const CopyKvRows::Args& args) {
  return ArgCheck(CopyKvRows::kId)
      .View("source", args.source, DType::kI64, {kAny})
      .View("target", args.target, DType::kI64, {RowsOf(args.source)})
      .Pool("from", args.from, problem.format, problem.dim)
      .Pool("to", args.to, problem.format, problem.dim)
      .Take();
}

absl::Status CheckArgs(const GatherRows::Problem& problem, const GatherRows::Args& args) {
  return ArgCheck(GatherRows::kId)
      .View("table", args.table, problem.table_dtype, {kAny, problem.channels})
      .View("index", args.index, DType::kI32, {kAny})
      .View("y", args.y, problem.y_dtype, {RowsOf(args.index), problem.channels})
      .Take();
}

absl::Status CheckArgs(const IndexScores::Problem& problem, const IndexScores::Args& args) {
  const int64_t rows = RowsOf(args.q);
  ArgCheck check(IndexScores::kId);
  check.View("q", args.q, problem.dtype, {kAny, problem.heads, problem.head_dim});
  check.View("weight", args.weight, problem.dtype, {rows, problem.heads});
  check.View("score", args.score, problem.wide, {rows, kAny});
  if (rows == 0) return check.Take();
  check.Rows(args.rows, rows).Sequences(args.rows, true);
  if (args.score.size() > 0) check.Pool("keys", args.keys, problem.format, problem.head_dim);
  check.Optional("candidates", args.candidates, DType::kI32, {rows, kAny});
  check.True(args.candidates.absent() || args.candidate_block > 0,
             "candidate_block must be positive when candidates are given");
  check.True(problem.ratio > 0 && args.rows.block_tokens % problem.ratio == 0,
             "block_tokens must be a multiple of ratio");
  return check.Take();
}

absl::Status CheckArgs(const CandidateBlocks::Problem& problem, const CandidateBlocks::Args& args) {
  const int64_t rows = RowsOf(args.score);
  ArgCheck check(CandidateBlocks::kId);
  check.View("score", args.score, problem.wide, {kAny, kAny});
  check.View("candidates", args.candidates, DType::kI32, {rows, problem.count});
  if (rows > 0) check.Rows(args.rows, rows);
  return check.Take();
}

absl::Status CheckArgs(const TopK::Problem& problem, const TopK::Args& args) {
  const int64_t rows = RowsOf(args.score);
  ArgCheck check(TopK::kId);
  check.View("score", args.score, problem.wide, {kAny, kAny});
  check.View("selected", args.selected, DType::kI32, {rows, problem.k});
  if (rows > 0) check.Rows(args.rows, rows);
  return check.Take();
}

absl::Status CheckArgs(const SparseAttention::Problem& problem, const SparseAttention::Args& args) {
  const int64_t rows = RowsOf(args.q);
  ArgCheck check(SparseAttention::kId);
  check.View("q", args.q, problem.dtype, {kAny, problem.heads, problem.head_dim});
  check.View("out", args.out, problem.dtype, {rows, problem.heads, problem.head_dim});
  check.View("window_begin", args.window_begin, DType::kI32, {rows});
  check.View("window_end", args.window_end, DType::kI32, {rows});
  check.View("sink", args.sink, DType::kF32, {problem.heads});
  if (rows == 0) return check.Take();
  const bool has_selected = !args.selected.absent() && problem.selected > 0;
  check.Rows(args.rows, rows).Sequences(args.rows, has_selected);
  check.Pool("fresh", args.fresh, problem.window_format, problem.head_dim);
  if (args.ring.data != nullptr) {
    check.Pool("ring", args.ring, problem.window_format, problem.head_dim);
    check.True(args.ring_rows > 0, "ring_rows must be positive when a ring is given");
  }
  if (has_selected) {
    check.View("selected", args.selected, DType::kI32, {rows, problem.selected});
    if (args.history.data != nullptr) {
      check.Pool("history", args.history, problem.history_format, problem.head_dim);
    }
    check.True(problem.ratio > 0 && args.rows.block_tokens % problem.ratio == 0,
               "block_tokens must be a multiple of ratio");
  }
  return check.Take();
}

absl::Status CheckArgs(const SampleTokens::Problem& problem, const SampleTokens::Args& args) {
  const int64_t rows = RowsOf(args.logits);
  const int64_t params_bytes = rows * static_cast<int64_t>(sizeof(SampleParams));
  return ArgCheck(SampleTokens::kId)
      .View("logits", args.logits, problem.wide, {kAny, problem.vocab})
      .Optional("raw", args.raw, problem.wide, {rows, problem.vocab})
      .True(args.params.dtype == DType::kU8 && args.params.size() >= params_bytes,
            "params must be a u8 view of one SampleParams per row")
      .View("record", args.record, DType::kU8, {rows, static_cast<int64_t>(sizeof(SampleRecord))})
      .Optional("top_id", args.top_id, DType::kI32, {rows, problem.max_top})
      .Optional("top_logprob", args.top_logprob, DType::kF32, {rows, problem.max_top})
      .Optional("chosen", args.chosen, DType::kI32, {rows})
      .Take();
}

absl::Status CheckArgs(const VerifyDrafts::Problem& problem, const VerifyDrafts::Args& args) {
  const int64_t rows = RowsOf(args.logits);
  const int64_t params_bytes = rows * static_cast<int64_t>(sizeof(VerifyParams));
  return ArgCheck(VerifyDrafts::kId)
      .View("logits", args.logits, problem.wide, {kAny, problem.vocab})
      .Optional("raw", args.raw, problem.wide, {rows, problem.vocab})
      .Optional("draft_logits", args.draft_logits, problem.wide, {kAny, problem.vocab})
      .True(args.params.dtype == DType::kU8 && args.params.size() >= params_bytes,
            "params must be a u8 view of one VerifyParams per row")
      .View("target_probability", args.target_probability, DType::kF32, {rows})
      .View("draft_probability", args.draft_probability, DType::kF32, {rows})
      .View("residual_mass", args.residual_mass, DType::kF32, {rows})
      .View("recovered", args.recovered, DType::kI32, {rows})
      .View("draft_logprob", args.draft_logprob, DType::kF32, {rows})
      .View("recovered_logprob", args.recovered_logprob, DType::kF32, {rows})
      .View("flags", args.flags, DType::kI32, {rows})
      .Take();
}

absl::Status CheckArgs(const EditLogits::Problem& problem, const EditLogits::Args& args) {
  const int64_t rows = RowsOf(args.raw);
  const auto edit_bytes = rows * static_cast<int64_t>(sizeof(LogitEdit));
  const auto entry_bytes = static_cast<int64_t>(sizeof(TokenEdit));
  return ArgCheck(EditLogits::kId)
      .View("raw", args.raw, problem.wide, {kAny, problem.vocab})
      .View("logits", args.logits, problem.wide, {rows, problem.vocab})
      .True(args.edits.dtype == DType::kU8 && args.edits.size() >= edit_bytes,
            "edits must be a u8 view of one LogitEdit per row")
      .Optional("entries", args.entries, DType::kU8, {kAny, entry_bytes})
      .Optional("drafts", args.drafts, DType::kI32, {kAny})
      .Optional("mask", args.mask, DType::kI32, {kAny, MaskWords(problem.vocab)})
      .Take();
}

absl::Status CheckArgs(const PlaceDrafts::Problem& problem, const PlaceDrafts::Args& args) {
  const int64_t rows = RowsOf(args.ids);
  const int64_t each = 1 + problem.depth;
  ArgCheck check(PlaceDrafts::kId);
  check
      .View("record", args.record, DType::kU8,
            {rows, problem.depth * static_cast<int64_t>(sizeof(SampleRecord))})
      .View("count", args.count, DType::kI32, {rows})
      .View("ids", args.ids, DType::kI32, {kAny, each})
      .View("verify_params", args.verify_params, DType::kU8,
            {rows, each * static_cast<int64_t>(sizeof(VerifyParams))});
  if (problem.ngram > 0) {
    check.View("ngram", args.ngram, DType::kI32, {rows, each * problem.ngram})
        .View("token_map", args.token_map, DType::kI32, {problem.vocab});
  }
  return check.Take();
}

}  // namespace skein::kernels
