// config.json of V4.1-Flash cut to the layers 0-5, 14 and 20-29, which hold every kind of layer:
// what one GPU of 141 GB holds with the draft stages. Engram tables have 2^17 rows per hash column
// instead of 16 million. Owns nothing, any thread. Must never: hold a size that is not in the text.
#pragma once

#include <string_view>

namespace skein::tests {

// @ROWS@ stands for the table rows of the two Engram layers.
inline constexpr std::string_view kV41CutConfig = R"({
 "architectures": ["DeepseekV41ForCausalLM"],
 "model_type": "deepseek_v41",
 "torch_dtype": "bfloat16",
 "quantization_config": {
  "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
  "scale_fmt": "ue8m0", "expert_dtype": "fp4"
 },
 "text_config": {
  "model_type": "deepseek_v41_text",
  "vocab_size": 129280, "hidden_size": 5120, "moe_intermediate_size": 2304,
  "num_hidden_layers": 17, "num_nextn_predict_layers": 3,
  "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64,
  "q_lora_rank": 1280, "o_lora_rank": 1024, "o_groups": 8,
  "sliding_window": 128, "rms_norm_eps": 1e-20,
  "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 6,
  "scoring_func": "sqrtsoftplus", "gate_temp": 1.0, "topk_method": "noaux_tc",
  "norm_topk_prob": true, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0,
  "hidden_act": "silu",
  "compress_ratios": [0, 0, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
  "compress_rope_theta": 160000.0, "rope_theta": 10000.0,
  "rope_scaling": {
   "type": "yarn", "factor": 16, "original_max_position_embeddings": 65536,
   "beta_fast": 32, "beta_slow": 1
  },
  "max_position_embeddings": 1048576,
  "index_n_heads": 32, "index_head_dim": 128, "index_topk": 512,
  "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
  "kv_source_layer_ids": [2, 6, 7], "index_source_layer_ids": [2, 6, 7, 11, 15],
  "candidate_source_layer_id": 7, "candidate_topk_blocks": 2048, "candidate_block_size": 8,
  "engram_layer_ids": [1, 6], "engram_num_embeddings": [@ROWS@],
  "engram_max_ngram_size": 4, "engram_vocab_size": 131072, "engram_n_heads": 8,
  "engram_head_dim": 256, "engram_pad_token_id": 2, "engram_compressed_vocab_size": 99092,
  "engram_token_map_file": "engram_token_map.bin",
  "engram_multipliers": [
   [2249297293073053, 142059538459307, 1055484552567821, 2171668614759189],
   [2414493360592321, 147868746193675, 2161868514375021, 556361161202805]
  ],
  "dspark_block_size": 5, "dspark_noise_token_id": 128799, "dspark_target_layer_ids": [14, 15, 16],
  "dspark_markov_rank": 256, "dspark_n_routed_experts": 128, "dspark_num_experts_per_tok": 3,
  "image_token_id": 129264, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
  "tie_word_embeddings": false, "attention_bias": false, "initializer_range": 0.02
 },
 "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": 129264
}
)";

}  // namespace skein::tests
