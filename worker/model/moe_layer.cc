#include "worker/model/moe_layer.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"

namespace skein::worker {

using kernels::DType;
using kernels::TensorView;

MoeScratch::MoeScratch(const ModelSpec& spec, const Numerics& numerics, int max_rows, Arena& arena,
                       RankExchange* ranks)
    : exchange(ranks) {
  const int experts = std::max(spec.num_experts, spec.dspark.num_experts);
  const int k = std::max(spec.experts_per_token, spec.dspark.experts_per_token);
  const int64_t places = int64_t{max_rows} * k;
  logits = arena.Allocate(numerics.wide, {max_rows, experts});
  index = arena.Allocate(DType::kI32, {max_rows, k});
  weight = arena.Allocate(numerics.wide, {max_rows, k});
  offset = arena.Allocate(DType::kI32, {experts + 1});
  assignment = arena.Allocate(DType::kI32, {places});
  source = arena.Allocate(DType::kI32, {places});
  place = arena.Allocate(DType::kI32, {max_rows, k});
  gate = arena.Allocate(numerics.act, {places, spec.expert_inner});
  up = arena.Allocate(numerics.act, {places, spec.expert_inner});
  inner = arena.Allocate(numerics.act, {places, spec.expert_inner});
  routed = arena.Allocate(numerics.act, {places, spec.hidden});
  shared_gate = arena.Allocate(numerics.act, {max_rows, spec.expert_inner});
  shared_up = arena.Allocate(numerics.act, {max_rows, spec.expert_inner});
  shared_inner = arena.Allocate(numerics.act, {max_rows, spec.expert_inner});
  shared = arena.Allocate(numerics.act, {max_rows, spec.hidden});
  if (exchange == nullptr) return;
  const int64_t all = int64_t{exchange->shard().num_ranks} * max_rows;
  all_x = arena.Allocate(numerics.act, {all, spec.hidden});
  all_scale = arena.Allocate(DType::kE8m0, {all, (spec.hidden + 31) / 32});
  all_index = arena.Allocate(DType::kI32, {all, k});
  all_weight = arena.Allocate(numerics.wide, {all, k});
  local_index = arena.Allocate(DType::kI32, {max_rows, k});
  if (!exchange->on_device()) return;
  for_ranks = arena.Allocate(numerics.act, {all * k, spec.hidden});
  from_ranks = arena.Allocate(numerics.act, {all * k, spec.hidden});
}

MoeLayer::MoeLayer(const MoeWeights& weights, int experts_per_token, const ModelSpec& spec,
                   const Numerics& numerics, int max_rows, KernelSet& kernels, Arena& arena,
                   MoeScratch& scratch)
    : weights_(weights),
      scratch_(scratch),
      num_experts_(weights.gate.n),
      owned_(static_cast<int>(weights.w1.size())),
      index_(scratch.exchange == nullptr
                 ? scratch.index
                 : arena.Allocate(DType::kI32, {max_rows, experts_per_token})),
      max_rows_(max_rows),
      k_(experts_per_token),
      gate_temp_(spec.gate_temp),
      route_scale_(spec.route_scale),
      limit_(spec.swiglu_limit),
      normalise_(spec.norm_topk && experts_per_token > 1),
      codes_(ReadsCodes(weights.expert_format, numerics)),
      quantise_in_(spec.hidden, max_rows, numerics, kernels, arena),
      quantise_inner_(spec.expert_inner, max_rows * experts_per_token, numerics, kernels, arena),
      quantise_shared_(spec.expert_inner, max_rows, numerics, kernels, arena),
      gate_(weights.gate, numerics.wide, max_rows, numerics, kernels),
      shared_w1_(weights.shared.w1, numerics.act, max_rows, numerics, kernels),
      shared_w2_(weights.shared.w2, numerics.act, max_rows, numerics, kernels),
      shared_w3_(weights.shared.w3, numerics.act, max_rows, numerics, kernels) {
  select_ =
      kernels.Add<kernels::MoeGate>({.num_experts = num_experts_, .k = k_, .wide = numerics.wide});
  layout_ = kernels.Add<kernels::MoeLayout>({.num_experts = owned_, .k = k_, .max_rows = max_rows});
  kernels::ExpertLinear::Problem problem{.num_experts = owned_,
                                         .n = spec.expert_inner,
                                         .k = spec.hidden,
                                         .format = weights.expert_format,
                                         .block = 32,
                                         .x_dtype = codes_ ? DType::kE4m3 : numerics.act,
                                         .y_dtype = numerics.act,
                                         .max_rows = max_rows * k_};
  up_ = kernels.Add<kernels::ExpertLinear>(problem);
  std::swap(problem.n, problem.k);
  down_ = kernels.Add<kernels::ExpertLinear>(problem);
  activate_ = kernels.Add<kernels::SwiGlu>(
      {.channels = spec.expert_inner, .dtype = numerics.act, .wide = numerics.wide});
  combine_ =
      kernels.Add<kernels::MoeCombine>({.channels = spec.hidden, .k = k_, .dtype = numerics.act});
  if (scratch.exchange == nullptr) return;
  const int ranks = scratch.exchange->shard().num_ranks;
  NumberHeld();
  for (int rank = 0; rank < ranks; ++rank) {
    rank_of_.resize(static_cast<size_t>(Shard{rank, ranks}.Of(num_experts_).end), rank);
  }
  const std::vector<int32_t> nobody(rank_of_.size(), -1);
  using Values = std::span<const int32_t>;
  local_ = arena.Constant<int32_t>(DType::kI32, {num_experts_}, Values(held_at_));
  home_ = arena.Constant<int32_t>(DType::kI32, {num_experts_}, Values(rank_of_));
  nobody_ = arena.Constant<int32_t>(DType::kI32, {num_experts_}, Values(nobody));
  map_ = kernels.Add<kernels::MapExperts>({.num_experts = num_experts_, .k = k_});
  if (!scratch.exchange->on_device()) return;
  lay_out_ = kernels.Add<kernels::GatherRows>(
      {.channels = spec.hidden, .table_dtype = numerics.act, .y_dtype = numerics.act});
}

TensorView MoeLayer::experts(int rows) const { return Reshape(index_, {rows, k_}); }

void MoeLayer::NumberHeld() {
  held_at_.assign(static_cast<size_t>(num_experts_), -1);
  for (size_t n = 0; n < weights_.held.size(); ++n) {
    held_at_[static_cast<size_t>(weights_.held[n])] = static_cast<int32_t>(n);
  }
}

absl::Status MoeLayer::Place(std::span<const uint16_t> ranks, kernels::Device& device) {
  SKEIN_CHECK(ranks.size() == rank_of_.size());
  std::copy(ranks.begin(), ranks.end(), rank_of_.begin());
  NumberHeld();
  const size_t bytes = ranks.size() * sizeof(int32_t);
  SKEIN_RETURN_IF_ERROR(device.CopyIn(local_.data, held_at_.data(), bytes));
  return device.CopyIn(home_.data, rank_of_.data(), bytes);
}

absl::Status MoeLayer::Route(const TensorView& x, int rows) const {
  const TensorView logits = Reshape(scratch_.logits, {rows, num_experts_});
  SKEIN_RETURN_IF_ERROR(gate_({.x = x, .codes = {}, .scale = {}}, logits));
  return select_({.logits = logits,
                  .bias = weights_.bias,
                  .index = experts(rows),
                  .weight = Reshape(scratch_.weight, {rows, k_}),
                  .gate_temp = gate_temp_,
                  .route_scale = route_scale_,
                  .normalise = normalise_});
}

absl::Status MoeLayer::Lay(const TensorView& index) const {
  const int64_t rows = index.dim(0);
  return layout_({.index = index,
                  .expert_offset = Reshape(scratch_.offset, {owned_ + 1}),
                  .assignment = Rows(scratch_.assignment, rows * k_),
                  .source_row = Rows(scratch_.source, rows * k_),
                  .place = Reshape(scratch_.place, {rows, k_})});
}

absl::Status MoeLayer::RunRouted(const LinearInput& in, int rows) const {
  const int64_t places = int64_t{rows} * k_;
  return Products(codes_ ? in.codes : in.x, codes_ ? in.scale : TensorView{},
                  Reshape(scratch_.weight, {places}), places);
}

absl::Status MoeLayer::Products(const TensorView& x, const TensorView& scale,
                                const TensorView& weight, int64_t places) const {
  const TensorView offset = Reshape(scratch_.offset, {owned_ + 1});
  const TensorView source = Rows(scratch_.source, places);
  SKEIN_RETURN_IF_ERROR(up_({.expert_offset = offset,
                             .source_row = source,
                             .x = x,
                             .x_scale = scale,
                             .w = weights_.w1,
                             .y = Rows(scratch_.gate, places),
                             .w_second = weights_.w3,
                             .y_second = Rows(scratch_.up, places)}));
  SKEIN_RETURN_IF_ERROR(activate_({.gate = Rows(scratch_.gate, places),
                                   .up = Rows(scratch_.up, places),
                                   .y = Rows(scratch_.inner, places),
                                   .assignment = Rows(scratch_.assignment, places),
                                   .weight = weight,
                                   .limit = limit_}));
  SKEIN_ASSIGN_OR_RETURN(const LinearInput inner, quantise_inner_(Rows(scratch_.inner, places)));
  return down_({.expert_offset = offset,
                .source_row = {},
                .x = codes_ ? inner.codes : inner.x,
                .x_scale = codes_ ? inner.scale : TensorView{},
                .w = weights_.w2,
                .y = Rows(scratch_.routed, places),
                .w_second = {},
                .y_second = {}});
}

absl::Status MoeLayer::RunSharded(const LinearInput& in, int rows) const {
  RankExchange& ranks = *scratch_.exchange;
  const int64_t each = ranks.rows();
  const int64_t all = ranks.size() * each;
  // Rows that this rank does not have choose no expert.
  if (rows < each) {
    const TensorView nobodys = RowsFrom(experts(static_cast<int>(each)), rows, each - rows);
    SKEIN_RETURN_IF_ERROR(map_({.index = nobodys, .table = nobody_, .to = nobodys}));
  }
  const DType x_dtype = codes_ ? DType::kE4m3 : scratch_.all_x.dtype;
  const int64_t width = weights_.gate.k;
  const TensorView x = kernels::MakeView(scratch_.all_x.data, x_dtype, {all, width});
  const TensorView scale = codes_ ? Rows(scratch_.all_scale, all) : TensorView{};
  SKEIN_RETURN_IF_ERROR(ranks.Gather(
      {{codes_ ? in.codes : in.x, x},
       {in.scale, scale},
       {experts(static_cast<int>(each)), Reshape(scratch_.all_index, {all, k_})},
       {Reshape(scratch_.weight, {rows, k_}), Reshape(scratch_.all_weight, {all, k_})}}));
  // As many rows at a time as one rank may have: that is what the buffers hold.
  for (int64_t first = 0; first < all; first += max_rows_) {
    const int64_t count = std::min<int64_t>(max_rows_, all - first);
    SKEIN_RETURN_IF_ERROR(RunOwned(RowsFrom(x, first, count),
                                   codes_ ? RowsFrom(scale, first, count) : TensorView{}, first));
  }
  const TensorView place = Reshape(scratch_.place, {rows, k_});
  if (ranks.on_device()) {
    SKEIN_RETURN_IF_ERROR(
        ranks.SendHome(Rows(scratch_.for_ranks, all * k_), Rows(scratch_.from_ranks, all * k_)));
    return map_({.index = experts(rows),
                 .table = ranks.joined() ? home_ : local_,
                 .to = place,
                 .stride = ranks.joined() ? static_cast<int>(each) * k_ : 0,
                 .numbered = true});
  }
  if (!ranks.joined()) return absl::OkStatus();
  SKEIN_RETURN_IF_ERROR(ranks.Collect(Rows(scratch_.routed, each * k_)));
  for (int32_t i = 0; i < rows * k_; ++i) place.as<int32_t>()[i] = i;
  return absl::OkStatus();
}

absl::Status MoeLayer::RunOwned(const TensorView& x, const TensorView& scale, int64_t first) const {
  const int64_t rows = x.dim(0);
  const TensorView local = Reshape(scratch_.local_index, {rows, k_});
  const TensorView index = Reshape(scratch_.all_index, {first + rows, k_});
  SKEIN_RETURN_IF_ERROR(
      map_({.index = RowsFrom(index, first, rows), .table = local_, .to = local}));
  SKEIN_RETURN_IF_ERROR(Lay(local));
  // A host knows how many there are; a GPU leaves alone what nobody has.
  const int64_t places =
      scratch_.exchange->on_device() ? rows * k_ : scratch_.offset.as<int32_t>()[owned_];
  if (places == 0) return absl::OkStatus();
  const TensorView weight =
      RowsFrom(Reshape(scratch_.all_weight, {scratch_.all_weight.size()}), first * k_, rows * k_);
  SKEIN_RETURN_IF_ERROR(Products(x, scale, weight, places));
  return PutHome(first, places);
}

// The products of the rows of all ranks from `first` on, on their way home.
absl::Status MoeLayer::PutHome(int64_t first, int64_t places) const {
  RankExchange& ranks = *scratch_.exchange;
  if (ranks.on_device()) {
    return lay_out_({.table = Rows(scratch_.routed, places),
                     .index = Rows(Reshape(scratch_.place, {scratch_.place.size()}), places),
                     .y = RowsFrom(scratch_.for_ranks, first * k_, places)});
  }
  if (!ranks.joined()) return absl::OkStatus();
  const int32_t* assignment = scratch_.assignment.as<int32_t>();
  const int64_t each = int64_t{ranks.rows()} * k_;  // places of one rank
  const size_t bytes =
      static_cast<size_t>(scratch_.routed.dim(1)) * kernels::DTypeBytes(scratch_.routed.dtype);
  for (int64_t i = 0; i < places; ++i) {
    const int64_t flat = first * k_ + assignment[i];
    SKEIN_RETURN_IF_ERROR(ranks.Put(static_cast<int>(flat / each),
                                    static_cast<size_t>(flat % each) * bytes,
                                    {scratch_.routed.row(i), bytes}));
  }
  return absl::OkStatus();
}

absl::Status MoeLayer::RunShared(const LinearInput& in, int rows) const {
  SKEIN_RETURN_IF_ERROR(shared_w1_(in, Rows(scratch_.shared_gate, rows)));
  SKEIN_RETURN_IF_ERROR(shared_w3_(in, Rows(scratch_.shared_up, rows)));
  SKEIN_RETURN_IF_ERROR(activate_({.gate = Rows(scratch_.shared_gate, rows),
                                   .up = Rows(scratch_.shared_up, rows),
                                   .y = Rows(scratch_.shared_inner, rows),
                                   .assignment = {},
                                   .weight = {},
                                   .limit = limit_}));
  SKEIN_ASSIGN_OR_RETURN(const LinearInput inner,
                         quantise_shared_(Rows(scratch_.shared_inner, rows)));
  return shared_w2_(inner, Rows(scratch_.shared, rows));
}

absl::Status MoeLayer::Run(const TensorView& x, const TensorView& y) const {
  const int rows = static_cast<int>(x.dim(0));
  const bool sharded = scratch_.exchange != nullptr;
  LinearInput in;
  if (rows > 0) {
    SKEIN_RETURN_IF_ERROR(Route(x, rows));
    if (!sharded) SKEIN_RETURN_IF_ERROR(Lay(experts(rows)));
    SKEIN_ASSIGN_OR_RETURN(in, quantise_in_(x));
  }
  SKEIN_RETURN_IF_ERROR(sharded ? RunSharded(in, rows) : RunRouted(in, rows));
  if (rows == 0) return absl::OkStatus();
  SKEIN_RETURN_IF_ERROR(RunShared(in, rows));
  const bool from_ranks = sharded && scratch_.exchange->on_device();
  const int64_t places =
      (from_ranks ? scratch_.exchange->size() * int64_t{scratch_.exchange->rows()}
                  : int64_t{rows}) *
      k_;
  return combine_({.routed = Rows(from_ranks ? scratch_.from_ranks : scratch_.routed, places),
                   .place = Reshape(scratch_.place, {rows, k_}),
                   .shared = Rows(scratch_.shared, rows),
                   .y = y});
}

}  // namespace skein::worker
