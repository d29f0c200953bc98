#include "worker/model/engram_layer.h"

#include "protocol/base/status_macros.h"

namespace skein::worker {

using kernels::DType;
using kernels::TensorView;

EngramLayer::EngramLayer(const EngramWeights& weights, int index, const ModelSpec& spec,
                         const Numerics& numerics, int max_rows, KernelSet& kernels, Arena& arena)
    : weights_(weights),
      norm_eps_(spec.norm_eps),
      quantise_(spec.engram.columns() * spec.engram.head_dim, max_rows, numerics, kernels, arena),
      wkv_(weights.wkv, numerics.act, max_rows, numerics, kernels) {
  const EngramSpec& engram = spec.engram;
  const auto at = static_cast<size_t>(index);
  std::vector<int64_t> offsets;
  int64_t sum = 0;
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
      {.columns = engram.columns(), .row_dim = engram.head_dim, .y_dtype = numerics.act});
  fuse_ = kernels.Add<kernels::EngramFusedWeight>({.hc = spec.hc, .channels = spec.hidden});
  gate_ = kernels.Add<kernels::EngramGate>(
      {.hc = spec.hc, .channels = spec.hidden, .dtype = numerics.act});
}

absl::Status EngramLayer::Prepare() {
  return fuse_({.q = weights_.q_weight, .k = weights_.k_weight, .w = fused_});
}

absl::Status EngramLayer::Run(const TensorView& ngram, const TensorView& stream) const {
  const int64_t rows = ngram.dim(0);
  const TensorView table_rows = Rows(rows_, rows);
  const TensorView gathered = Rows(gathered_, rows);
  const TensorView kv = Rows(kv_, rows);
  SKEIN_RETURN_IF_ERROR(hash_({.ngram = ngram,
                               .multiplier = multiplier_,
                               .prime = prime_,
                               .offset = offset_,
                               .rows = table_rows}));
  SKEIN_RETURN_IF_ERROR(gather_(
      {.codes = weights_.codes, .scale = weights_.scale, .rows = table_rows, .y = gathered}));
  SKEIN_ASSIGN_OR_RETURN(const LinearInput in, quantise_(gathered));
  SKEIN_RETURN_IF_ERROR(wkv_(in, kv));
  return gate_({.stream = stream, .kv = kv, .w = fused_, .eps = norm_eps_});
}

}  // namespace skein::worker
