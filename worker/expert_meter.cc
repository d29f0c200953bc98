#include "worker/expert_meter.h"

#include <algorithm>

#include "protocol/base/status_macros.h"

namespace skein::worker {

ExpertMeter::ExpertMeter(Model& model, DSparkHead* draft, int stages, Arena& arena)
    : model_(model), draft_(draft), stages_(stages), device_(arena.device()) {
  const kernels::TensorView& scratch = model.moe_scratch().index;
  host_ =
      static_cast<int32_t*>(arena.HostBytes(static_cast<size_t>(scratch.size()) * sizeof(int32_t)));
}

absl::StatusOr<std::vector<uint32_t>> ExpertMeter::Count(const MoeLayer& layer, int rows) {
  std::vector<uint32_t> counts(static_cast<size_t>(layer.num_experts()));
  const kernels::TensorView chosen = layer.experts(rows);
  const auto size = static_cast<size_t>(chosen.size());
  if (size == 0) return counts;
  SKEIN_RETURN_IF_ERROR(device_.CopyOut(host_, chosen.data, size * sizeof(int32_t)));
  SKEIN_RETURN_IF_ERROR(device_.Wait());
  // A row of nobody chose none.
  std::for_each(host_, host_ + size, [&counts](int32_t expert) {
    if (expert >= 0) ++counts[static_cast<size_t>(expert)];
  });
  return counts;
}

absl::StatusOr<protocol::ExpertLoad> ExpertMeter::Read(int rows, int draft_rows) {
  protocol::ExpertLoad load;
  for (const Block& block : model_.blocks()) {
    SKEIN_ASSIGN_OR_RETURN(load.counts.emplace_back(), Count(block.moe(), rows));
  }
  if (draft_ != nullptr) {
    for (const Block& block : draft_->blocks()) {
      SKEIN_ASSIGN_OR_RETURN(load.counts.emplace_back(), Count(block.moe(), draft_rows));
    }
    return load;
  }
  const auto experts = static_cast<size_t>(model_.spec().dspark.num_experts);
  load.counts.resize(load.counts.size() + static_cast<size_t>(stages_),
                     std::vector<uint32_t>(experts));
  return load;
}

}  // namespace skein::worker
