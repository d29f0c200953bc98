// Shape and dtype of every argument, asserted at the door of each call: one overload per operator,
// used by all backends, so a wrong view is named before anything is read. Looks at views alone,
// never at what they show: that may lie on a device. Any thread; no allocation when the arguments
// are right.
#pragma once

#include "absl/status/status.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/compressor.h"
#include "kernels/ops/draft.h"
#include "kernels/ops/engram.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/hyper_connection.h"
#include "kernels/ops/indexer.h"
#include "kernels/ops/kv_cache.h"
#include "kernels/ops/logit_edits.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/norm_rope.h"
#include "kernels/ops/quant.h"
#include "kernels/ops/sampling.h"

namespace skein::kernels {

// OK, or InvalidArgument: "linear: x is [3, 64] bf16, expected [any, 128] bf16".
absl::Status CheckArgs(const PerTokenCast::Problem& problem, const PerTokenCast::Args& args);
absl::Status CheckArgs(const CastBack::Problem& problem, const CastBack::Args& args);
absl::Status CheckArgs(const FakeQuant::Problem& problem, const FakeQuant::Args& args);
absl::Status CheckArgs(const Linear::Problem& problem, const Linear::Args& args);
absl::Status CheckArgs(const GroupedLinear::Problem& problem, const GroupedLinear::Args& args);
absl::Status CheckArgs(const ExpertLinear::Problem& problem, const ExpertLinear::Args& args);
absl::Status CheckArgs(const RmsNorm::Problem& problem, const RmsNorm::Args& args);
absl::Status CheckArgs(const Rope::Problem& problem, const Rope::Args& args);
absl::Status CheckArgs(const HcExpand::Problem& problem, const HcExpand::Args& args);
absl::Status CheckArgs(const HcMix::Problem& problem, const HcMix::Args& args);
absl::Status CheckArgs(const HcCollapse::Problem& problem, const HcCollapse::Args& args);
absl::Status CheckArgs(const HcPost::Problem& problem, const HcPost::Args& args);
absl::Status CheckArgs(const HcMean::Problem& problem, const HcMean::Args& args);
absl::Status CheckArgs(const MoeGate::Problem& problem, const MoeGate::Args& args);
absl::Status CheckArgs(const MoeLayout::Problem& problem, const MoeLayout::Args& args);
absl::Status CheckArgs(const MapExperts::Problem& problem, const MapExperts::Args& args);
absl::Status CheckArgs(const SwiGlu::Problem& problem, const SwiGlu::Args& args);
absl::Status CheckArgs(const MoeCombine::Problem& problem, const MoeCombine::Args& args);
absl::Status CheckArgs(const EngramHash::Problem& problem, const EngramHash::Args& args);
absl::Status CheckArgs(const EngramGather::Problem& problem, const EngramGather::Args& args);
absl::Status CheckArgs(const EngramFusedWeight::Problem& problem,
                       const EngramFusedWeight::Args& args);
absl::Status CheckArgs(const EngramGate::Problem& problem, const EngramGate::Args& args);
absl::Status CheckArgs(const Compress::Problem& problem, const Compress::Args& args);
absl::Status CheckArgs(const StoreKv::Problem& problem, const StoreKv::Args& args);
absl::Status CheckArgs(const LoadKv::Problem& problem, const LoadKv::Args& args);
absl::Status CheckArgs(const CopyKvRows::Problem& problem, const CopyKvRows::Args& args);
absl::Status CheckArgs(const GatherRows::Problem& problem, const GatherRows::Args& args);
absl::Status CheckArgs(const IndexScores::Problem& problem, const IndexScores::Args& args);
absl::Status CheckArgs(const CandidateBlocks::Problem& problem, const CandidateBlocks::Args& args);
absl::Status CheckArgs(const TopK::Problem& problem, const TopK::Args& args);
absl::Status CheckArgs(const SparseAttention::Problem& problem, const SparseAttention::Args& args);
absl::Status CheckArgs(const SampleTokens::Problem& problem, const SampleTokens::Args& args);
absl::Status CheckArgs(const VerifyDrafts::Problem& problem, const VerifyDrafts::Args& args);
absl::Status CheckArgs(const EditLogits::Problem& problem, const EditLogits::Args& args);
absl::Status CheckArgs(const PlaceDrafts::Problem& problem, const PlaceDrafts::Args& args);

// "bf16", "e4m3", ...
std::string_view DTypeName(DType dtype);

// "fp8_group32", "fp4_group16", ...
std::string_view KvFormatName(KvFormat format);

}  // namespace skein::kernels
