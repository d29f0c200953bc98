// Calls of the cache rows and the compressor, in every storage format.
#include "kernels/arg_check.h"
#include "kernels/ops/compressor.h"
#include "kernels/ops/kv_cache.h"
#include "tests/kernels/pools.h"

namespace skein::kernels {
namespace {

constexpr DType kBf16 = DType::kBf16;
constexpr DType kF32 = DType::kF32;

bool IsPadding(uint32_t id) { return id % 5 == 4; }

std::set<int64_t> PaddingRows(const Rows& rows) {
  std::set<int64_t> skipped;
  for (int64_t r = 0; r < rows.size(); ++r) {
    if (IsPadding(rows.ids[static_cast<size_t>(r)])) skipped.insert(r);
  }
  return skipped;
}

// Row r of x goes to row r of a pool with pages of one row, so that the pool is an output per row.
Instance StoreKvCall(const Rows& rows, KvFormat format, DType x_dtype, int dim) {
  CallBuilder call(rows);
  StoreKv::Args args;
  args.x = call.In(x_dtype, {dim}, Draw::kBell);
  int64_t row = 0;
  args.target = call.InBy(DType::kI64, {}, [&row](uint32_t id, int64_t) {
    const int64_t own = row++;
    return IsPadding(id) ? -1.0 : static_cast<double>(own);
  });
  const int64_t row_bytes = KvRowBytes(format, dim);
  // The output has gaps after each row; they belong to no page.
  const TensorView pool = call.Out("pool", DType::kU8, {row_bytes}, Tolerance::kBits);
  call.Skip(PaddingRows(rows));
  args.pool = {pool.data, format, dim, 1, pool.step(0), rows.size()};
  return call.Finish<StoreKv>({format, dim, x_dtype}, args);
}

// Pages of four rows with slack at their end, targets scattered.
Instance StorePagedCall(const Rows& rows, KvFormat format) {
  CallBuilder call(rows);
  constexpr int kDim = 64;
  StoreKv::Args args;
  args.x = call.In(kBf16, {kDim}, Draw::kBell);
  int64_t row = 0;
  args.target = call.InBy(DType::kI64, {}, [&row](uint32_t id, int64_t) {
    const int64_t own = row++;
    return IsPadding(id) ? -1.0 : static_cast<double>(own * 3 % 67);
  });
  const int64_t page_bytes = 4 * KvRowBytes(format, kDim) + 24;
  const TensorView pool = call.WholeOut("pool", DType::kU8, {17 * page_bytes});
  args.pool = {pool.data, format, kDim, 4, page_bytes, 67};
  return call.Finish<StoreKv>({format, kDim, kBf16}, args);
}

Instance LoadKvCall(const Rows& rows, KvFormat format, DType y_dtype, int dim) {
  CallBuilder call(rows);
  LoadKv::Args args;
  args.pool = SharedPool(call, format, dim, 40, 7);
  args.source = call.InBy(DType::kI64, {}, [](uint32_t id, int64_t) {
    return static_cast<double>((id * 11) % 42) - 1;
  });
  args.y = call.Out("y", y_dtype, {dim}, Tolerance::kBits);
  return call.Finish<LoadKv>({format, dim, y_dtype}, args);
}

Instance CopyKvRowsCall(const Rows& rows, KvFormat format) {
  CallBuilder call(rows);
  constexpr int kDim = 96;
  CopyKvRows::Args args;
  args.from = SharedPool(call, format, kDim, 40, 7);
  args.source = call.InBy(DType::kI64, {}, [](uint32_t id, int64_t) {
    return id % 6 == 5 ? -1.0 : static_cast<double>(id * 11 % 40);
  });
  int64_t row = 0;
  args.target = call.InBy(DType::kI64, {}, [&row](uint32_t id, int64_t) {
    const int64_t own = row++;
    return IsPadding(id) ? -1.0 : static_cast<double>(own * 5 % 67);
  });
  const int64_t page_bytes = 5 * KvRowBytes(format, kDim) + 8;
  const TensorView to = call.WholeOut("to", DType::kU8, {14 * page_bytes});
  args.to = {to.data, format, kDim, 5, page_bytes, 67};
  return call.Finish<CopyKvRows>({format, kDim}, args);
}

Instance GatherRowsCall(const Rows& rows, DType table_dtype, DType y_dtype) {
  CallBuilder call(rows);
  constexpr int kChannels = 2099;
  GatherRows::Args args;
  args.table = call.Shared(table_dtype, {19, kChannels}, Draw::kBell);
  args.index = call.InBy(DType::kI32, {},
                         [](uint32_t id, int64_t) { return static_cast<double>(id * 5 % 21) - 1; });
  args.y = call.Out("y", y_dtype, {kChannels}, Tolerance::kBits);
  return call.Finish<GatherRows>({kChannels, table_dtype, y_dtype}, args);
}

// One group per row; each row is a sequence of its own whose older tokens lie in the ring.
Instance CompressCall(const Rows& rows, int ratio) {
  CallBuilder call(rows);
  constexpr int kDim = 131;
  constexpr int kRing = 9;
  Compress::Args args;
  args.fresh = call.In(kF32, {2 * kDim}, Draw::kBell);
  args.rows.position = call.InBy(DType::kI32, {}, [&](uint32_t id, int64_t) {
    return static_cast<double>(static_cast<int>(id % 11 + 1) * ratio - 1);
  });
  int32_t row = 0;
  args.rows.sequence = call.InBy(DType::kI32, {}, [&row](uint32_t id, int64_t) {
    const int32_t own = row++;
    return id % 7 == 3 ? -1.0 : own;
  });
  int32_t first = 0;
  args.rows.first_row = call.InBy(DType::kI32, {}, [&first](uint32_t, int64_t) { return first++; });
  args.rows.first_position = args.rows.position;
  args.rows.slot = call.InBy(DType::kI32, {}, [](uint32_t id, int64_t) { return id % 6; });
  args.ring = SharedPool(call, KvFormat::kF32, 2 * kDim, 6 * kRing, 1);
  args.ring_rows = kRing;
  int32_t group = 0;
  args.group_row = call.InBy(DType::kI32, {}, [&group](uint32_t id, int64_t) {
    const int32_t own = group++;
    return IsPadding(id) ? -1.0 : own;
  });
  args.latent = call.Out("latent", kBf16, {kDim}, Tolerance::kBf16);
  std::set<int64_t> skipped = PaddingRows(rows);
  for (int64_t r = 0; r < rows.size(); ++r) {
    if (rows.ids[static_cast<size_t>(r)] % 7 == 3) skipped.insert(r);
  }
  call.Skip(skipped);
  return call.Finish<Compress>({kDim, ratio, kF32, kBf16}, args);
}

}  // namespace

void AddCacheCases(std::vector<Case>& cases) {
  const std::vector<KvFormat> formats = {KvFormat::kFp8Group32, KvFormat::kFp4Group16,
                                         KvFormat::kFp4Group32, KvFormat::kBf16, KvFormat::kF32};
  for (const KvFormat format : formats) {
    const std::string name(KvFormatName(format));
    for (const DType dtype : {kBf16, kF32}) {
      const std::string typed = name + (dtype == kBf16 ? " bf16" : " f32");
      cases.push_back({OpId::kStoreKv, typed,
                       [=](const Rows& rows) { return StoreKvCall(rows, format, dtype, 102); }});
      cases.push_back({OpId::kLoadKv, typed,
                       [=](const Rows& rows) { return LoadKvCall(rows, format, dtype, 102); }});
    }
    cases.push_back({OpId::kStoreKv, name + " paged",
                     [=](const Rows& rows) { return StorePagedCall(rows, format); }, false});
    cases.push_back({OpId::kCopyKvRows, name,
                     [=](const Rows& rows) { return CopyKvRowsCall(rows, format); }, false});
  }
  cases.push_back({OpId::kGatherRows, "bf16",
                   [](const Rows& rows) { return GatherRowsCall(rows, kBf16, kBf16); }});
  cases.push_back({OpId::kGatherRows, "bf16 to f32",
                   [](const Rows& rows) { return GatherRowsCall(rows, kBf16, kF32); }});
  cases.push_back({OpId::kGatherRows, "f32",
                   [](const Rows& rows) { return GatherRowsCall(rows, kF32, kF32); }});
  for (const int ratio : {1, 2, 4}) {
    cases.push_back({OpId::kCompress, "ratio " + std::to_string(ratio),
                     [ratio](const Rows& rows) { return CompressCall(rows, ratio); }});
  }
}

}  // namespace skein::kernels
