#include "worker/model/engram_layer.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "protocol/base/status_macros.h"

namespace skein::worker {

using kernels::DType;
using kernels::TensorView;

EngramLayer::EngramLayer(const EngramWeights& weights, int index, const ModelSpec& spec,
                         const Numerics& numerics, int max_rows, KernelSet& kernels, Arena& arena,
                         RankExchange* exchange)
    : weights_(weights),
      exchange_(exchange),
      columns_{0, spec.engram.columns()},
      head_dim_(spec.engram.head_dim),
      norm_eps_(spec.norm_eps),
      quantise_(spec.engram.columns() * spec.engram.head_dim, max_rows, numerics, kernels, arena),
      wkv_(weights.wkv, numerics.act, max_rows, numerics, kernels) {
  const EngramSpec& engram = spec.engram;
  const auto at = static_cast<size_t>(index);
  const Shard shard = exchange == nullptr ? Shard{} : exchange->shard();
  columns_ = shard.Of(engram.columns());
  // Rows of the table are counted from the first that this rank holds.
  std::vector<int64_t> offsets;
  int64_t sum = -TableRowsOf(shard, engram, index).begin;
  for (const int64_t prime : engram.primes[at]) {
    offsets.push_back(sum);
    sum += prime;
  }
  using Values = std::span<const int64_t>;
  multiplier_ =
      arena.Constant<int64_t>(DType::kI64, {engram.ngram}, Values(engram.multipliers[at]));
  prime_ = arena.Constant<int64_t>(DType::kI64, {engram.columns()}, Values(engram.primes[at]));
  offset_ = arena.Constant<int64_t>(DType::kI64, {engram.columns()}, Values(offsets));
  rows_ = arena.Allocate(DType::kI32, {max_rows, engram.columns()});
  gathered_ = arena.Allocate(numerics.act, {max_rows, engram.columns() * engram.head_dim});
  kv_ = arena.Allocate(numerics.act, {max_rows, (spec.hc + 1) * spec.hidden});
  fused_ = arena.Allocate(DType::kF32, {spec.hc, spec.hidden});
  hash_ = kernels.Add<kernels::EngramHash>({.ngram = engram.ngram, .heads = engram.heads});
  gather_ = kernels.Add<kernels::EngramGather>(
      {.columns = columns_.count(), .row_dim = engram.head_dim, .y_dtype = numerics.act});
  fuse_ = kernels.Add<kernels::EngramFusedWeight>({.hc = spec.hc, .channels = spec.hidden});
  gate_ = kernels.Add<kernels::EngramGate>(
      {.hc = spec.hc, .channels = spec.hidden, .dtype = numerics.act});
  if (exchange == nullptr) return;
  const int64_t all = int64_t{shard.num_ranks} * max_rows;
  all_ngram_ = arena.Allocate(DType::kI32, {all, engram.ngram});
  all_rows_ = arena.Allocate(DType::kI32, {all, engram.columns()});
  const int own = columns_.count() * engram.head_dim;
  looked_up_ = arena.Allocate(numerics.act, {all, own});
  if (!exchange->on_device()) return;
  std::vector<int32_t> numbers(static_cast<size_t>(max_rows));
  std::iota(numbers.begin(), numbers.end(), 0);
  in_order_ = arena.Constant<int32_t>(DType::kI32, {max_rows}, std::span<const int32_t>(numbers));
  found_ = arena.Allocate(numerics.act, {all, own});
  sort_ = kernels.Add<kernels::GatherRows>(
      {.channels = own, .table_dtype = numerics.act, .y_dtype = numerics.act});
}

absl::Status EngramLayer::BringHome(int64_t each) const {
  RankExchange& ranks = *exchange_;
  const int64_t all = ranks.size() * each;
  SKEIN_RETURN_IF_ERROR(ranks.SendHome(Rows(looked_up_, all), Rows(found_, all)));
  const int64_t own = looked_up_.dim(1);
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const int64_t begin = ranks.joined() ? rank * own : int64_t{columns_.begin} * head_dim_;
    SKEIN_RETURN_IF_ERROR(sort_({.table = RowsFrom(found_, rank * each, each),
                                 .index = Rows(in_order_, each),
                                 .y = Columns(Rows(gathered_, each), begin, own)}));
  }
  return absl::OkStatus();
}

absl::Status EngramLayer::Prepare() {
  return fuse_({.q = weights_.q_weight, .k = weights_.k_weight, .w = fused_});
}

absl::Status EngramLayer::Look(const TensorView& ngram) const {
  const int64_t rows = ngram.dim(0);
  SKEIN_RETURN_IF_ERROR(hash_({.ngram = ngram,
                               .multiplier = multiplier_,
                               .prime = prime_,
                               .offset = offset_,
                               .rows = Rows(rows_, rows)}));
  return gather_({.codes = weights_.codes,
                  .scale = weights_.scale,
                  .rows = Rows(rows_, rows),
                  .y = Rows(gathered_, rows)});
}

absl::Status EngramLayer::LookSharded(const TensorView& ngram) const {
  RankExchange& ranks = *exchange_;
  const int64_t each = ranks.rows();
  const int64_t all = ranks.size() * each;
  // Rows that a rank does not have are hashed as they were left: nobody reads what comes of it.
  SKEIN_RETURN_IF_ERROR(ranks.Gather({{ngram, Rows(all_ngram_, all)}}));
  SKEIN_RETURN_IF_ERROR(hash_({.ngram = Rows(all_ngram_, all),
                               .multiplier = multiplier_,
                               .prime = prime_,
                               .offset = offset_,
                               .rows = Rows(all_rows_, all)}));
  SKEIN_RETURN_IF_ERROR(
      gather_({.codes = weights_.codes,
               .scale = weights_.scale,
               .rows = Columns(Rows(all_rows_, all), columns_.begin, columns_.count()),
               .y = Rows(looked_up_, all)}));
  if (ranks.on_device()) return BringHome(each);
  const size_t bytes =
      static_cast<size_t>(looked_up_.dim(1)) * kernels::DTypeBytes(looked_up_.dtype);
  const size_t row_bytes =
      static_cast<size_t>(gathered_.dim(1)) * kernels::DTypeBytes(gathered_.dtype);
  const size_t begin = static_cast<size_t>(columns_.begin) * static_cast<size_t>(head_dim_) *
                       kernels::DTypeBytes(gathered_.dtype);
  for (int64_t row = 0; row < all; ++row) {
    const std::span<const std::byte> found(looked_up_.row(row), bytes);
    if (!ranks.joined()) {
      std::copy(found.begin(), found.end(), gathered_.row(row) + begin);
      continue;
    }
    SKEIN_RETURN_IF_ERROR(ranks.Put(static_cast<int>(row / each),
                                    static_cast<size_t>(row % each) * row_bytes + begin, found));
  }
  return ranks.joined() ? ranks.Collect(Rows(gathered_, each)) : absl::OkStatus();
}

absl::Status EngramLayer::Run(const TensorView& ngram, const TensorView& stream) const {
  const int64_t rows = ngram.dim(0);
  SKEIN_RETURN_IF_ERROR(exchange_ == nullptr ? Look(ngram) : LookSharded(ngram));
  if (rows == 0) return absl::OkStatus();
  const TensorView kv = Rows(kv_, rows);
  SKEIN_ASSIGN_OR_RETURN(const LinearInput in, quantise_(Rows(gathered_, rows)));
  SKEIN_RETURN_IF_ERROR(wkv_(in, kv));
  return gate_({.stream = stream, .kv = kv, .w = fused_, .eps = norm_eps_});
}

}  // namespace skein::worker
