// Calls of the indexer, the selections and the attention. Every row is a sequence of its own; some
// are padding, some see nothing at all.
#include <limits>

#include "kernels/arg_check.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/indexer.h"
#include "tests/kernels/pools.h"

namespace skein::kernels {
namespace {

constexpr DType kBf16 = DType::kBf16;
constexpr DType kF32 = DType::kF32;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

bool IsPadding(uint32_t id) { return id % 5 == 4; }
bool IsBlind(uint32_t id) { return id % 7 == 3; }

// Rows as sequences; `blocks` cache blocks each, out of `pool_blocks`.
StepRows OwnSequences(CallBuilder& call, const std::function<double(uint32_t)>& position,
                      int64_t blocks, int64_t pool_blocks, int block_tokens) {
  StepRows rows;
  rows.position = call.InBy(DType::kI32, {}, [&](uint32_t id, int64_t) { return position(id); });
  int32_t row = 0;
  rows.sequence = call.InBy(DType::kI32, {}, [&row](uint32_t id, int64_t) {
    const int32_t own = row++;
    return IsPadding(id) ? -1.0 : own;
  });
  int32_t first = 0;
  rows.first_row = call.InBy(DType::kI32, {}, [&first](uint32_t, int64_t) { return first++; });
  rows.first_position = rows.position;
  rows.slot = call.InBy(DType::kI32, {}, [](uint32_t id, int64_t) { return id % 6; });
  rows.block_table = call.InBy(DType::kI32, {blocks}, [=](uint32_t id, int64_t b) {
    return static_cast<double>((id * 7 + static_cast<uint32_t>(b) * 11) %
                               static_cast<uint32_t>(pool_blocks));
  });
  rows.block_tokens = block_tokens;
  return rows;
}

std::set<int64_t> PaddingRows(const Rows& rows) {
  std::set<int64_t> skipped;
  for (int64_t r = 0; r < rows.size(); ++r) {
    if (IsPadding(rows.ids[static_cast<size_t>(r)])) skipped.insert(r);
  }
  return skipped;
}

struct IndexShape {
  int heads = 5, dim = 36;
};

Instance IndexScoresCall(const Rows& rows, KvFormat format, bool candidates,
                         const IndexShape& shape = {}) {
  CallBuilder call(rows);
  constexpr int kColumns = 301;
  IndexScores::Args args;
  // Blind rows stand at position 0, where no group of two is complete.
  args.rows = OwnSequences(
      call, [](uint32_t id) { return IsBlind(id) ? 0.0 : 300.0 + id * 9 % 320; }, 80, 90, 8);
  args.q = call.In(kBf16, {shape.heads, shape.dim}, Draw::kBell);
  args.weight = call.In(kBf16, {shape.heads}, Draw::kBell);
  args.keys = SharedPool(call, format, shape.dim, 90 * 4, 4);
  args.weight_scale = 0.0123f;
  if (candidates) {
    args.candidates = call.InBy(DType::kI32, {6}, [](uint32_t id, int64_t i) {
      return i == 5 ? -1.0 : static_cast<double>(id % 4 + static_cast<uint32_t>(i) * 8);
    });
    args.candidate_block = 7;
  }
  args.score = call.Out("score", kF32, {kColumns}, Tolerance::kF32, 64);
  call.Skip(PaddingRows(rows));
  return call.Finish<IndexScores>({shape.heads, shape.dim, format, 2, kBf16, kF32}, args);
}

// Scores with many exact ties, both zeros and columns at -inf; some rows hold nothing else.
TensorView TiedScores(CallBuilder& call, int64_t columns) {
  return call.InBy(kF32, {columns}, [](uint32_t id, int64_t j) {
    TestRandom random(77, id * 4096 + static_cast<uint32_t>(j));
    if (id % 6 == 1) return 0.5;
    if (id % 6 == 2) return kMinusInfinity;
    const int64_t kind = random.Below(8);
    if (kind == 0) return kMinusInfinity;
    if (kind < 3) return kind == 1 ? 0.0 : -0.0;
    return static_cast<double>(random.Below(9) - 4) * (id % 2 == 0 ? 0.25 : 1e-40);
  });
}

Instance CandidateBlocksCall(const Rows& rows, int block, int count) {
  CallBuilder call(rows);
  CandidateBlocks::Args args;
  args.rows = OwnSequences(
      call, [](uint32_t id) { return IsBlind(id) ? 0.0 : 3.0 + id * 37 % 460; }, 1, 2, 8);
  args.score = TiedScores(call, 217);
  args.candidates = call.Out("candidates", DType::kI32, {count}, Tolerance::kBits);
  call.Skip(PaddingRows(rows));
  return call.Finish<CandidateBlocks>({block, count, 2, kF32}, args);
}

Instance TopKCall(const Rows& rows, int k, int64_t columns) {
  CallBuilder call(rows);
  TopK::Args args;
  const bool drawn = columns > 1000;
  const uint32_t step = drawn ? 997 : 37;
  const uint32_t most = drawn ? static_cast<uint32_t>(2 * columns) : 460;
  args.rows = OwnSequences(
      call, [=](uint32_t id) { return IsBlind(id) ? 0.0 : 1.0 + id * step % most; }, 1, 2, 8);
  args.score = drawn ? call.In(kF32, {columns}, Draw::kBell) : TiedScores(call, columns);
  args.selected = call.Out("selected", DType::kI32, {k}, Tolerance::kBits);
  call.Skip(PaddingRows(rows));
  return call.Finish<TopK>({k, 2, kF32}, args);
}

struct AttentionShape {
  int heads = 6, dim = 100, window = 13, ring = 19, positions = 31;
};
// Heads that fill no tile, places that fill no tile, several tiles.
constexpr AttentionShape kLatent = {11, 512, 70, 77, 150};

Instance AttentionCall(const Rows& rows, KvFormat window_format, KvFormat history_format,
                       int selected, const AttentionShape& shape = {}) {
  CallBuilder call(rows);
  const int heads = shape.heads, dim = shape.dim, ring = shape.ring;
  SparseAttention::Args args;
  const auto position = [most = static_cast<uint32_t>(shape.positions)](uint32_t id) {
    return static_cast<double>(id * 3 % most + 2);
  };
  args.rows = OwnSequences(call, position, 20, 30, 8);
  args.q = call.In(kBf16, {heads, dim}, Draw::kBell);
  args.window_end = call.InBy(
      DType::kI32, {}, [&](uint32_t id, int64_t) { return IsBlind(id) ? 0.0 : position(id) + 1; });
  args.window_begin = call.InBy(DType::kI32, {}, [&](uint32_t id, int64_t) {
    return IsBlind(id) ? 0.0 : std::max(0.0, position(id) + 1 - shape.window);
  });
  args.fresh = RowPool(call, window_format, dim);
  args.ring = SharedPool(call, window_format, dim, 6 * ring, 5);
  args.ring_rows = ring;
  if (selected > 0) {
    args.selected = call.InBy(DType::kI32, {selected}, [](uint32_t id, int64_t i) {
      return IsBlind(id) || i % 4 == 3 ? -1.0 : static_cast<double>(i * 3 % 77 + id % 3);
    });
    args.history = SharedPool(call, history_format, dim, 30 * 4, 4);
  }
  // One sink far above all scores, one without effect.
  args.sink = call.SharedBy(kF32, {heads}, [](int64_t h) {
    return h == 1 ? 300.0 : h == 2 ? kMinusInfinity : 0.3 * static_cast<double>(h);
  });
  args.out = call.Out("out", kBf16, {heads, dim}, Tolerance::kProduct);
  call.Skip(PaddingRows(rows));
  args.scale = 0.02f;
  return call.Finish<SparseAttention>({heads, dim, shape.window, selected, 2, window_format,
                                       history_format, kBf16, static_cast<int>(rows.size())},
                                      args);
}

void AddSparseAttentionCases(std::vector<Case>& cases) {
  cases.push_back({OpId::kSparseAttention, "window alone", [](const Rows& rows) {
                     return AttentionCall(rows, KvFormat::kFp8Group32, KvFormat::kFp4Group16, 0);
                   }});
  cases.push_back({OpId::kSparseAttention, "fp8 and fp4", [](const Rows& rows) {
                     return AttentionCall(rows, KvFormat::kFp8Group32, KvFormat::kFp4Group16, 21);
                   }});
  cases.push_back({OpId::kSparseAttention, "512 channels", [](const Rows& rows) {
                     return AttentionCall(rows, KvFormat::kFp8Group32, KvFormat::kFp4Group16, 130,
                                          kLatent);
                   }});
  cases.push_back({OpId::kSparseAttention, "512 channels window alone", [](const Rows& rows) {
                     return AttentionCall(rows, KvFormat::kFp8Group32, KvFormat::kFp4Group16, 0,
                                          kLatent);
                   }});
  // A row's list divided into two and into four parts.
  for (const int selected : {500, 1300}) {
    cases.push_back({OpId::kSparseAttention,
                     "512 channels, " + std::to_string(selected) + " selected",
                     [=](const Rows& rows) {
                       return AttentionCall(rows, KvFormat::kFp8Group32, KvFormat::kFp4Group16,
                                            selected, kLatent);
                     }});
  }
  cases.push_back({OpId::kSparseAttention, "512 channels, packed window", [](const Rows& rows) {
                     return AttentionCall(rows, KvFormat::kFp4Group16, KvFormat::kFp8Group32, 130,
                                          kLatent);
                   }});
  cases.push_back({OpId::kSparseAttention, "bf16", [](const Rows& rows) {
                     return AttentionCall(rows, KvFormat::kBf16, KvFormat::kBf16, 8);
                   }});
}

}  // namespace

void AddAttentionCases(std::vector<Case>& cases) {
  for (const KvFormat format : {KvFormat::kFp4Group32, KvFormat::kBf16}) {
    for (const bool candidates : {false, true}) {
      cases.push_back(
          {OpId::kIndexScores,
           std::string(KvFormatName(format)) + (candidates ? " candidates" : " all"),
           [=](const Rows& rows) { return IndexScoresCall(rows, format, candidates); }});
    }
  }
  for (const IndexShape& shape : {IndexShape{32, 128}, IndexShape{37, 128}}) {
    for (const bool candidates : {false, true}) {
      const std::string name = std::to_string(shape.heads) + " heads of 128";
      cases.push_back(
          {OpId::kIndexScores, name + (candidates ? ", candidates" : ""), [=](const Rows& rows) {
             return IndexScoresCall(rows, KvFormat::kFp4Group32, candidates, shape);
           }});
    }
  }
  for (const auto& [block, count] : {std::pair{8, 5}, std::pair{3, 40}, std::pair{300, 2}}) {
    cases.push_back(
        {OpId::kCandidateBlocks, "blocks of " + std::to_string(block),
         [b = block, c = count](const Rows& rows) { return CandidateBlocksCall(rows, b, c); }, true,
         true});
  }
  for (const auto& [k, columns] : {std::pair{1, 230}, std::pair{32, 230}, std::pair{64, 40},
                                   std::pair{230, 230}, std::pair{9, 0}, std::pair{512, 3333}}) {
    cases.push_back(
        {OpId::kTopK, std::to_string(k) + " of " + std::to_string(columns),
         [k = k, columns = columns](const Rows& rows) { return TopKCall(rows, k, columns); }, true,
         true});
  }
  AddSparseAttentionCases(cases);
}

}  // namespace skein::kernels
