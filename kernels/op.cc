#include "kernels/op.h"

#include <array>
#include <cstddef>

namespace skein::kernels {

std::string_view OpName(OpId op) {
  static constexpr std::array<std::string_view, kNumOps> kNames = {
      "per_token_cast",
      "cast_back",
      "fake_quant",
      "linear",
      "grouped_linear",
      "expert_linear",
      "rms_norm",
      "rope",
      "hc_expand",
      "hc_mix",
      "hc_collapse",
      "hc_post",
      "hc_mean",
      "moe_gate",
      "moe_layout",
      "swiglu",
      "moe_combine",
      "map_experts",
      "engram_hash",
      "engram_gather",
      "engram_fused_weight",
      "engram_gate",
      "compress",
      "store_kv",
      "load_kv",
      "copy_kv_rows",
      "gather_rows",
      "index_scores",
      "candidate_blocks",
      "top_k",
      "sparse_attention",
      "sample_tokens",
      "verify_drafts",
      "edit_logits",
      "place_drafts",
  };
  const size_t index = static_cast<size_t>(op);
  return index < kNames.size() ? kNames[index] : "unknown_operator";
}

bool ParseOpName(std::string_view name, OpId& op) {
  for (int index = 0; index < kNumOps; ++index) {
    if (OpName(static_cast<OpId>(index)) == name) {
      op = static_cast<OpId>(index);
      return true;
    }
  }
  return false;
}

}  // namespace skein::kernels
