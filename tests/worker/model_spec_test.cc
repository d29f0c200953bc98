// The configuration of the official model in its three spellings, everything derived from it, and
// every refusal by name.
#include "worker/model/model_spec.h"

#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/worker/scratch_dir.h"

namespace skein::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::Replaced;

// V4.1-Flash, Hugging Face's names, without braces.
constexpr const char* kShapes = R"(
  "vocab_size": 129280, "hidden_size": 5120, "moe_intermediate_size": 2304,
  "num_hidden_layers": 40, "num_nextn_predict_layers": 3, "num_attention_heads": 64,
  "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1280,
  "o_lora_rank": 1024, "o_groups": 8, "sliding_window": 128, "rms_norm_eps": 1e-20,
  "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 6,
  "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true,
  "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "hidden_act": "silu",
  "compress_ratios": [0,0,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,
                      1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,0,0,0],
  "compress_rope_theta": 160000, "rope_theta": 10000,
  "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536,
                   "beta_fast": 32, "beta_slow": 1},
  "max_position_embeddings": 1048576, "index_n_heads": 32, "index_head_dim": 128,
  "index_topk": 512, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
  "kv_source_layer_ids": [2, 8, 14, 20],
  "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
  "candidate_source_layer_id": 20, "candidate_topk_blocks": 2048, "candidate_block_size": 8,
  "engram_layer_ids": [1, 14], "engram_num_embeddings": [384006168, 384016682],
  "engram_max_ngram_size": 4, "engram_vocab_size": 16000000, "engram_n_heads": 8,
  "engram_head_dim": 256, "engram_pad_token_id": 2, "engram_compressed_vocab_size": 99092,
  "dspark_block_size": 5, "dspark_noise_token_id": 128799,
  "dspark_target_layer_ids": [37, 38, 39], "dspark_markov_rank": 256,
  "dspark_n_routed_experts": 128, "dspark_num_experts_per_tok": 3,
  "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": false, "attention_bias": false)";

constexpr const char* kQuantization = R"("quantization_config": {"quant_method": "fp8",
  "activation_scheme": "dynamic", "weight_block_size": [32, 32], "scale_fmt": "ue8m0",
  "expert_dtype": "fp4"})";

std::string Flat() {
  return absl::StrCat("{\"model_type\": \"deepseek_v41\",", kShapes, ",", kQuantization, "}");
}

std::string Nested() {
  return absl::StrCat("{\"model_type\": \"deepseek_v41\",", kQuantization,
                      ", \"text_config\": {\"model_type\": \"deepseek_v41_text\",", kShapes, "}}");
}

// The names of the reference's inference/config.json.
std::string Reference() {
  std::string text = absl::StrCat("{", kShapes, "}");
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"hidden_size\": 5120", "dim\": 5120"},
           {"moe_intermediate_size", "moe_inter_dim"},
           {"num_hidden_layers", "n_layers"},
           {"num_nextn_predict_layers", "n_mtp_layers"},
           {"num_attention_heads", "n_heads"},
           {"\"num_key_value_heads\": 1,", ""},
           {"qk_rope_head_dim", "rope_head_dim"},
           {"sliding_window", "window_size"},
           {"rms_norm_eps", "norm_eps"},
           {"\"num_experts_per_tok", "\"n_activated_experts"},
           {"scoring_func", "score_func"},
           {"\"topk_method\": \"noaux_tc\", \"norm_topk_prob\": true,", ""},
           {"routed_scaling_factor", "route_scale"},
           {"\"hidden_act\": \"silu\",", ""},
           {"\"rope_scaling\": {\"type\": \"yarn\", \"factor\"", "\"rope_factor\""},
           {"original_max_position_embeddings", "original_seq_len"},
           {"\"beta_slow\": 1},", "\"beta_slow\": 1,"},
           {"max_position_embeddings", "max_seq_len"},
           {"kv_source_layer_ids", "kv_source_layers"},
           {"index_source_layer_ids", "index_source_layers"},
           {"candidate_source_layer_id", "candidate_source_layer"},
           {"engram_pad_token_id", "engram_pad_id"},
           {"dspark_num_experts_per_tok", "dspark_n_activated_experts"},
           {"\"bos_token_id\": 0, \"eos_token_id\": 1, \"tie_word_embeddings\": false, "
            "\"attention_bias\": false",
            "\"dtype\": \"fp8\", \"scale_fmt\": \"ue8m0\", \"expert_dtype\": \"fp4\""}}) {
    text = Replaced(text, from, to);
  }
  return text;
}

absl::StatusOr<ModelSpec> Parse(const std::string& text) {
  const auto json = protocol::ParseJson(text);
  EXPECT_TRUE(json.ok()) << json.status() << text;
  return ModelSpec::FromJson(*json, "config.json");
}

// Every number of a specification in a line, for comparison.
std::string Describe(const ModelSpec& s) {
  std::string out = absl::StrCat(
      absl::StrJoin({s.vocab,
                     s.hidden,
                     s.expert_inner,
                     s.num_layers,
                     s.heads,
                     s.head_dim,
                     s.rope_dim,
                     s.q_rank,
                     s.o_rank,
                     s.o_groups,
                     s.window,
                     s.num_experts,
                     s.experts_per_token,
                     s.index_heads,
                     s.index_dim,
                     s.index_topk,
                     s.hc,
                     s.sinkhorn_iters,
                     s.candidate_blocks,
                     s.candidate_block,
                     s.weight_block,
                     s.bos_token,
                     s.eos_token},
                    " "),
      " ", absl::StrJoin({s.norm_eps, s.gate_temp, s.route_scale, s.swiglu_limit, s.hc_eps}, " "),
      s.norm_topk, static_cast<int>(s.expert_format), " ", s.max_position, " rope ",
      absl::StrJoin({s.rope.plain_theta, s.rope.compress_theta, s.rope.factor,
                     s.rope.original_max_position, s.rope.beta_fast, s.rope.beta_slow},
                    " "));
  absl::StrAppend(&out, " dspark ", s.dspark.stages, " ", s.dspark.block, " ", s.dspark.noise_token,
                  " ", absl::StrJoin(s.dspark.target_layers, ","), " ", s.dspark.markov_rank, " ",
                  s.dspark.num_experts, " ", s.dspark.experts_per_token);
  absl::StrAppend(&out, " engram ", absl::StrJoin(s.engram.layers, ","), " ",
                  absl::StrJoin(s.engram.rows, ","), " ", s.engram.ngram, " ", s.engram.heads, " ",
                  s.engram.head_dim, " ", s.engram.pad_token);
  for (const auto& list : s.engram.primes) absl::StrAppend(&out, " ", absl::StrJoin(list, ","));
  for (const auto& list : s.engram.multipliers) {
    absl::StrAppend(&out, " ", absl::StrJoin(list, ","));
  }
  for (const LayerSpec& l : s.layers) {
    absl::StrAppend(&out, " | ", l.ratio, l.kv_source, l.index_source, l.candidate_source,
                    l.uses_candidates, " ", l.kv_layer, " ", l.engram_index, " ", l.tap_index);
  }
  return out;
}

TEST(ModelSpec, ReadsTheOfficialShapes) {
  const auto spec = Parse(Flat());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->vocab, 129280);
  EXPECT_EQ(spec->hidden, 5120);
  EXPECT_EQ(spec->expert_inner, 2304);
  EXPECT_EQ(spec->num_layers, 40);
  EXPECT_EQ(spec->heads, 64);
  EXPECT_EQ(spec->head_dim, 512);
  EXPECT_EQ(spec->rope_dim, 64);
  EXPECT_EQ(spec->q_rank, 1280);
  EXPECT_EQ(spec->o_rank, 1024);
  EXPECT_EQ(spec->o_groups, 8);
  EXPECT_EQ(spec->window, 128);
  EXPECT_FLOAT_EQ(spec->norm_eps, 1e-20F);
  EXPECT_EQ(spec->num_experts, 384);
  EXPECT_EQ(spec->experts_per_token, 6);
  EXPECT_FLOAT_EQ(spec->gate_temp, 1);
  EXPECT_TRUE(spec->norm_topk);
  EXPECT_FLOAT_EQ(spec->route_scale, 1.5F);
  EXPECT_FLOAT_EQ(spec->swiglu_limit, 10);
  EXPECT_EQ(spec->index_heads, 32);
  EXPECT_EQ(spec->index_dim, 128);
  EXPECT_EQ(spec->index_topk, 512);
  EXPECT_EQ(spec->hc, 4);
  EXPECT_EQ(spec->sinkhorn_iters, 20);
  EXPECT_FLOAT_EQ(spec->hc_eps, 1e-6F);
  EXPECT_EQ(spec->candidate_blocks, 2048);
  EXPECT_EQ(spec->candidate_block, 8);
  EXPECT_EQ(spec->expert_format, ExpertFormat::kFp4);
  EXPECT_EQ(spec->max_position, 1048576);
  EXPECT_EQ(spec->eos_token, 1);
  EXPECT_EQ(spec->dspark.stages, 3);
  EXPECT_EQ(spec->dspark.block, 5);
  EXPECT_EQ(spec->dspark.noise_token, 128799);
  EXPECT_EQ(spec->dspark.markov_rank, 256);
  EXPECT_EQ(spec->dspark.num_experts, 128);
  EXPECT_EQ(spec->dspark.experts_per_token, 3);
  EXPECT_EQ(spec->block_multiple(), 2);
  EXPECT_EQ(spec->ring_rows(), 134);
}

TEST(ModelSpec, TheThreeSpellingsMeanTheSame) {
  const auto flat = Parse(Flat());
  const auto nested = Parse(Nested());
  const auto reference = Parse(Reference());
  ASSERT_TRUE(flat.ok()) << flat.status();
  ASSERT_TRUE(nested.ok()) << nested.status();
  ASSERT_TRUE(reference.ok()) << reference.status();
  EXPECT_EQ(Describe(*nested), Describe(*flat));
  EXPECT_EQ(Describe(*reference), Describe(*flat));
}

TEST(ModelSpec, DerivesTheEngramPrimes) {
  const auto spec = Parse(Flat());
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto& primes = spec->engram.primes;
  ASSERT_EQ(primes.size(), 2U);
  ASSERT_EQ(primes[0].size(), 24U);
  EXPECT_EQ(std::accumulate(primes[0].begin(), primes[0].end(), int64_t{0}), 384006168);
  EXPECT_EQ(std::accumulate(primes[1].begin(), primes[1].end(), int64_t{0}), 384016682);
  EXPECT_EQ(primes[0].front(), 16000057);
  EXPECT_EQ(primes[0].back(), 16000463);
  EXPECT_EQ(primes[1].front(), 16000477);
  EXPECT_EQ(primes[1].back(), 16000889);
  EXPECT_THAT(spec->engram.multipliers[0],
              ElementsAre(76632096046245, 4839876093313, 35959672319349, 73987337458391));
  EXPECT_THAT(spec->engram.multipliers[1],
              ElementsAre(67716810739261, 51510806800915, 30921347202721, 82619226485591));
  EXPECT_EQ(spec->engram.token_map_file, "engram_token_map.bin");
}

TEST(ModelSpec, DerivesTheRolesOfTheLayers) {
  const auto spec = Parse(Flat());
  ASSERT_TRUE(spec.ok()) << spec.status();
  int full = 0;
  int reindex = 0;
  int reuse = 0;
  for (int i = 0; i < 40; ++i) {
    const LayerSpec& layer = spec->layers[static_cast<size_t>(i)];
    EXPECT_EQ(layer.ratio, i < 2 ? 0 : i < 20 ? 2 : 1) << i;
    const int kv = i < 2 ? -1 : i < 8 ? 2 : i < 14 ? 8 : i < 20 ? 14 : 20;
    EXPECT_EQ(layer.kv_layer, kv) << i;
    EXPECT_EQ(layer.kv_source, i == kv) << i;
    EXPECT_EQ(layer.candidate_source, i == 20) << i;
    const bool selects_again = i == 24 || i == 28 || i == 32 || i == 36;
    EXPECT_EQ(layer.uses_candidates, selects_again) << i;
    EXPECT_EQ(layer.index_source, layer.kv_source || selects_again) << i;
    EXPECT_EQ(layer.engram_index, i == 1 ? 0 : i == 14 ? 1 : -1) << i;
    EXPECT_EQ(layer.tap_index, i >= 37 ? i - 37 : -1) << i;
    full += layer.kv_source ? 1 : 0;
    reindex += selects_again ? 1 : 0;
    reuse += layer.ratio > 0 && !layer.index_source ? 1 : 0;
  }
  EXPECT_EQ(full, 4);
  EXPECT_EQ(reindex, 4);
  EXPECT_EQ(reuse, 30);
}

TEST(ModelSpec, RotaryFrequenciesAreThoseOfTheSpecification) {
  const auto spec = Parse(Flat());
  ASSERT_TRUE(spec.ok()) << spec.status();
  const RopeTable yarn(spec->rope, 64, true);
  const std::vector<float>& f = yarn.inv_freq();
  ASSERT_EQ(f.size(), 32U);
  EXPECT_FLOAT_EQ(f[0], 1);
  EXPECT_FLOAT_EQ(f[1], 0.687656022F);
  EXPECT_FLOAT_EQ(f[15], 3.63553858e-3F);
  EXPECT_FLOAT_EQ(f[16], 2.265625e-3F);
  EXPECT_FLOAT_EQ(f[20], 2.96977778e-4F);
  EXPECT_FLOAT_EQ(f[24], 1.953125e-5F);
  EXPECT_FLOAT_EQ(f[25], 5.37231267e-6F);
  EXPECT_FLOAT_EQ(f[31], 5.68052904e-7F);
  const RopeTable plain(spec->rope, 64, false);
  EXPECT_FLOAT_EQ(plain.inv_freq()[1], 0.749894209F);
  EXPECT_FLOAT_EQ(plain.inv_freq()[16], 0.01F);
}

TEST(ModelSpec, RotaryRowsAreCosinesThenSines) {
  RopeSpec rope;
  const RopeTable table(rope, 4, false);
  float row[4];
  table.FillRow(3, row);
  EXPECT_FLOAT_EQ(row[0], std::cos(3.0F));
  EXPECT_FLOAT_EQ(row[1], std::cos(0.03F));
  EXPECT_FLOAT_EQ(row[2], std::sin(3.0F));
  EXPECT_FLOAT_EQ(row[3], std::sin(0.03F));
}

TEST(ModelSpec, RecordedRotaryRowsReplaceComputedOnes) {
  auto recorded = std::make_shared<RecordedRope>();
  recorded->positions = 2;
  recorded->plain = {1, 2, 3, 4, 5, 6, 7, 8};
  recorded->compress = {-1, -2, -3, -4, -5, -6, -7, -8};
  RopeSpec rope;
  rope.recorded = recorded;
  float row[4];
  RopeTable(rope, 4, false).FillRow(1, row);
  EXPECT_THAT(row, ElementsAre(5, 6, 7, 8));
  RopeTable(rope, 4, true).FillRow(0, row);
  EXPECT_THAT(row, ElementsAre(-1, -2, -3, -4));
  RopeTable(rope, 4, false).FillRow(2, row);
  EXPECT_FLOAT_EQ(row[0], std::cos(2.0F));
}

struct Refusal {
  const char* name;
  const char* from;
  const char* to;
  absl::StatusCode code;
  const char* text;
};

void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

class Refusals : public ::testing::TestWithParam<Refusal> {};

TEST_P(Refusals, NameKeyAndValue) {
  const Refusal& refusal = GetParam();
  const auto spec = Parse(Replaced(Flat(), refusal.from, refusal.to));
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.status().code(), refusal.code) << spec.status();
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr(refusal.text));
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnsupported = absl::StatusCode::kUnimplemented;

INSTANTIATE_TEST_SUITE_P(
    Options, Refusals,
    ::testing::Values(
        Refusal{"v4", "\"deepseek_v41\"", "\"deepseek_v4\"", kUnsupported,
                "config.json: model_type is \"deepseek_v4\"; supported: deepseek_v41"},
        Refusal{"hash_layers", "\"n_shared_experts\"",
                "\"num_hash_layers\": 3, \"n_shared_experts\"", kInvalid,
                "config.json: num_hash_layers"},
        Refusal{"scoring", "sqrtsoftplus", "sigmoid", kUnsupported,
                "config.json: scoring_func is \"sigmoid\"; supported: sqrtsoftplus"},
        Refusal{"topk_method", "noaux_tc", "greedy", kUnsupported,
                "config.json: topk_method is \"greedy\"; supported: noaux_tc"},
        Refusal{"hidden_act", "\"silu\"", "\"gelu\"", kUnsupported,
                "config.json: hidden_act is \"gelu\"; supported: silu"},
        Refusal{"bias", "\"attention_bias\": false", "\"attention_bias\": true", kUnsupported,
                "config.json: attention_bias and tie_word_embeddings must be false"},
        Refusal{"tied", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true",
                kUnsupported, "attention_bias and tie_word_embeddings must be false"},
        Refusal{"shared", "\"n_shared_experts\": 1", "\"n_shared_experts\": 2", kInvalid,
                "config.json: n_shared_experts"},
        Refusal{"kv_heads", "\"num_key_value_heads\": 1", "\"num_key_value_heads\": 8", kInvalid,
                "config.json: num_key_value_heads"},
        Refusal{"rope_type", "\"yarn\"", "\"linear\"", kUnsupported,
                "config.json: rope_scaling: type is \"linear\"; supported: yarn"},
        Refusal{"quant_method", "\"fp8\"", "\"awq\"", kUnsupported,
                "config.json: quantization_config: quant_method is \"awq\"; supported: fp8"},
        Refusal{"scale_fmt", "ue8m0", "float", kUnsupported,
                "quantization_config: scale_fmt is \"float\"; supported: ue8m0"},
        Refusal{"activations", "dynamic", "static", kUnsupported,
                "quantization_config: activation_scheme is \"static\"; supported: dynamic"},
        Refusal{"experts", "\"expert_dtype\": \"fp4\"", "\"expert_dtype\": \"int4\"", kUnsupported,
                "quantization_config: expert_dtype is \"int4\"; supported: fp4, fp8"},
        Refusal{"weight_block", "[32, 32]", "[128, 128]", kUnsupported,
                "quantization_config: weight_block_size must be [32, 32]"}),
    [](const auto& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Values, Refusals,
    ::testing::Values(
        Refusal{"missing", "\"vocab_size\": 129280,", "", kInvalid,
                "config.json: vocab_size is missing"},
        Refusal{"text", "\"vocab_size\": 129280", "\"vocab_size\": \"129280\"", kInvalid,
                "config.json: vocab_size"},
        Refusal{"fraction", "\"vocab_size\": 129280", "\"vocab_size\": 1.5", kInvalid,
                "config.json: vocab_size"},
        Refusal{"negative", "\"num_hidden_layers\": 40", "\"num_hidden_layers\": -1", kInvalid,
                "config.json: num_hidden_layers"},
        Refusal{"hidden", "\"hidden_size\": 5120", "\"hidden_size\": 5121", kInvalid,
                "config.json: hidden_size is 5121, must be a multiple of 32"},
        Refusal{"groups", "\"o_groups\": 8", "\"o_groups\": 7", kInvalid,
                "config.json: num_attention_heads is 64, must be a multiple of 7"},
        Refusal{"rope", "\"qk_rope_head_dim\": 64", "\"qk_rope_head_dim\": 256", kInvalid,
                "qk_rope_head_dim is 256, must fit head_dim 512 and index_head_dim 128"},
        Refusal{"bos", "\"bos_token_id\": 0", "\"bos_token_id\": 200000", kInvalid,
                "config.json: bos_token_id is 200000, must be below vocab_size 129280"},
        Refusal{"noise", "128799", "129280", kInvalid,
                "config.json: dspark_noise_token_id is 129280, must be below vocab_size 129280"},
        Refusal{"pad", "\"engram_pad_token_id\": 2", "\"engram_pad_token_id\": 130000", kInvalid,
                "config.json: engram_pad_token_id is 130000, must be below vocab_size 129280"}),
    [](const auto& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Schedules, Refusals,
    ::testing::Values(
        Refusal{"ratio4", "[0,0,2,2", "[0,0,4,2", kInvalid, "config.json: compress_ratios"},
        Refusal{"few", "[0,0,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,", "[", kInvalid,
                "config.json: compress_ratios has 23 entries, needs at least 40"},
        Refusal{"mixed", "[0,0,2,2,2", "[0,0,2,2,1", kInvalid,
                "compress_ratios: layer 4 has ratio 1, but the last kv source is layer 2"},
        Refusal{"no_source", "\"kv_source_layer_ids\": [2, 8,", "\"kv_source_layer_ids\": [3, 8,",
                kInvalid,
                "compress_ratios: layer 2 has ratio 2, but the last kv source is layer -1"},
        Refusal{"no_index", "\"index_source_layer_ids\": [2, 8,", "\"index_source_layer_ids\": [2,",
                kInvalid,
                "layer 8 has ratio 2, but the last kv source is layer 8 and the last "
                "index source layer 2"},
        Refusal{"window_source", "\"kv_source_layer_ids\": [2", "\"kv_source_layer_ids\": [1, 2",
                kInvalid, "compress_ratios: layer 1 has ratio 0"},
        Refusal{"candidates", "\"candidate_source_layer_id\": 20",
                "\"candidate_source_layer_id\": 21", kInvalid, "compress_ratios: layer 21"},
        Refusal{"kv_beyond", "[2, 8, 14, 20]", "[2, 8, 14, 20, 40]", kInvalid,
                "config.json: kv_source_layer_ids names layer 40, the model has 40 layers"},
        Refusal{"index_beyond", "32, 36]", "32, 36, 41]", kInvalid,
                "config.json: index_source_layer_ids names layer 41, the model has 40 layers"},
        Refusal{"tap_beyond", "[37, 38, 39]", "[37, 38, 40]", kInvalid,
                "config.json: dspark_target_layer_ids names layer 40, the model has 40 layers"},
        Refusal{"engram_rows", "384016682", "384016683", kInvalid,
                "config.json: engram_num_embeddings: layer 14 has 384016683 rows, its primes sum "
                "to 384016682"},
        Refusal{"engram_count", "[384006168, 384016682]", "[384006168]", kInvalid,
                "config.json: engram_layer_ids lists 2 layers, engram_num_embeddings 1"},
        Refusal{"engram_unknown", "99092", "99093", kInvalid,
                "config.json: engram_multipliers is missing; only the official layers 1 and 14"},
        Refusal{"engram_primes", "\"engram_max_ngram_size\"",
                "\"engram_primes\": [[7, 11], [13]], \"engram_max_ngram_size\"", kInvalid,
                "config.json: engram_primes: layer 1 has 2 primes and 4 multipliers, needs 24 "
                "and 4"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(ModelSpec, RefusesAnEngramLayerBeyondTheModel) {
  const std::string text =
      Replaced(Replaced(Flat(), "\"engram_layer_ids\": [1, 14]", "\"engram_layer_ids\": [1, 44]"),
               "\"engram_max_ngram_size\"",
               "\"engram_multipliers\": [[1,2,3,4],[1,2,3,4]], \"engram_max_ngram_size\"");
  EXPECT_EQ(Parse(text).status().message(),
            "config.json: engram_layer_ids names layer 44, the model has 40 layers");
}

TEST(ModelSpec, RefusesMoreExpertsPerTokenThanExperts) {
  const auto spec = Parse(Replaced(Flat(), "\"n_routed_experts\": 384", "\"n_routed_experts\": 4"));
  EXPECT_EQ(spec.status().message(),
            "config.json: num_experts_per_tok exceeds the number of experts");
}

TEST(ModelSpec, LoadNamesTheFile) {
  tests::ScratchDir dir;
  EXPECT_EQ(ModelSpec::Load(dir.path()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ModelSpec::Load(dir.path()).status().message()),
              HasSubstr("config.json: cannot be read; --model must name a checkpoint directory"));
  tests::WriteFile(dir / "config.json", "{\"vocab_size\": 1, \"vocab_size\": 2}");
  EXPECT_THAT(std::string(ModelSpec::Load(dir.path()).status().message()),
              HasSubstr((dir / "config.json").string()));
  tests::WriteFile(dir / "config.json", Flat());
  const auto first = ModelSpec::Load(dir.path());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->identity.size(), 16U);
  tests::WriteFile(dir / "config.json", Flat() + " ");
  EXPECT_NE(ModelSpec::Load(dir.path())->identity, first->identity);
}

TEST(ModelSpec, TheDemoModelIsRead) {
  const auto spec = ModelSpec::Load("deploy/models/tiny-v41");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->vocab, 4096);
  EXPECT_EQ(spec->layers.size(), 10U);
  EXPECT_EQ(spec->engram.rows, (std::vector<int64_t>{8882, 9912}));
  EXPECT_EQ(spec->ring_rows(), 70);
}

}  // namespace
}  // namespace skein::worker
