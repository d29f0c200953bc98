#include "worker/model/moe_layer.h"

#include <algorithm>

#include "protocol/base/status_macros.h"

namespace skein::worker {

using kernels::DType;
using kernels::TensorView;

MoeScratch::MoeScratch(const ModelSpec& spec, const Numerics& numerics, int max_rows,
                       Arena& arena) {
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
}

MoeLayer::MoeLayer(const MoeWeights& weights, int experts_per_token, const ModelSpec& spec,
                   const Numerics& numerics, int max_rows, KernelSet& kernels, Arena& arena,
                   MoeScratch& scratch)
    : weights_(weights),
      scratch_(scratch),
      num_experts_(static_cast<int>(weights.w1.size())),
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
  layout_ =
      kernels.Add<kernels::MoeLayout>({.num_experts = num_experts_, .k = k_, .max_rows = max_rows});
  kernels::ExpertLinear::Problem problem{.num_experts = num_experts_,
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
}

TensorView MoeLayer::experts(int rows) const { return Reshape(scratch_.index, {rows, k_}); }

absl::Status MoeLayer::Route(const TensorView& x, int rows) const {
  const TensorView logits = Reshape(scratch_.logits, {rows, num_experts_});
  SKEIN_RETURN_IF_ERROR(gate_({.x = x, .codes = {}, .scale = {}}, logits));
  SKEIN_RETURN_IF_ERROR(select_({.logits = logits,
                                 .bias = weights_.bias,
                                 .index = experts(rows),
                                 .weight = Reshape(scratch_.weight, {rows, k_}),
                                 .gate_temp = gate_temp_,
                                 .route_scale = route_scale_,
                                 .normalise = normalise_}));
  return layout_({.index = experts(rows),
                  .expert_offset = Reshape(scratch_.offset, {num_experts_ + 1}),
                  .assignment = Rows(scratch_.assignment, int64_t{rows} * k_),
                  .source_row = Rows(scratch_.source, int64_t{rows} * k_),
                  .place = Reshape(scratch_.place, {rows, k_})});
}

absl::Status MoeLayer::RunRouted(const LinearInput& in, int rows) const {
  const int64_t places = int64_t{rows} * k_;
  const TensorView offset = Reshape(scratch_.offset, {num_experts_ + 1});
  const TensorView source = Rows(scratch_.source, places);
  const TensorView x = codes_ ? in.codes : in.x;
  const TensorView scale = codes_ ? in.scale : TensorView{};
  SKEIN_RETURN_IF_ERROR(up_({.expert_offset = offset,
                             .source_row = source,
                             .x = x,
                             .x_scale = scale,
                             .w = weights_.w1,
                             .y = Rows(scratch_.gate, places)}));
  SKEIN_RETURN_IF_ERROR(up_({.expert_offset = offset,
                             .source_row = source,
                             .x = x,
                             .x_scale = scale,
                             .w = weights_.w3,
                             .y = Rows(scratch_.up, places)}));
  SKEIN_RETURN_IF_ERROR(activate_({.gate = Rows(scratch_.gate, places),
                                   .up = Rows(scratch_.up, places),
                                   .y = Rows(scratch_.inner, places),
                                   .assignment = Rows(scratch_.assignment, places),
                                   .weight = Reshape(scratch_.weight, {places}),
                                   .limit = limit_}));
  SKEIN_ASSIGN_OR_RETURN(const LinearInput inner, quantise_inner_(Rows(scratch_.inner, places)));
  return down_({.expert_offset = offset,
                .source_row = {},
                .x = codes_ ? inner.codes : inner.x,
                .x_scale = codes_ ? inner.scale : TensorView{},
                .w = weights_.w2,
                .y = Rows(scratch_.routed, places)});
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
  SKEIN_RETURN_IF_ERROR(Route(x, rows));
  SKEIN_ASSIGN_OR_RETURN(const LinearInput in, quantise_in_(x));
  SKEIN_RETURN_IF_ERROR(RunRouted(in, rows));
  SKEIN_RETURN_IF_ERROR(RunShared(in, rows));
  return combine_({.routed = Rows(scratch_.routed, int64_t{rows} * k_),
                   .place = Reshape(scratch_.place, {rows, k_}),
                   .shared = Rows(scratch_.shared, rows),
                   .y = y});
}

}  // namespace skein::worker
