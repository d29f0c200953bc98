#include "worker/model/model_spec.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <numbers>
#include <numeric>
#include <optional>
#include <sstream>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using protocol::JsonKind;
using protocol::JsonValue;

constexpr int64_t kLayersMax = 512;
constexpr int64_t kExpertsMax = 4096;
constexpr int64_t kVocabMax = 1 << 20;
constexpr int64_t kDimMax = 1 << 20;

// A key of the official file, by its Hugging Face or its reference spelling.
struct Key {
  const char* name;
  const char* alias = nullptr;
};

// Reads one section of the configuration. The first error sticks; later reads return defaults.
class Section {
 public:
  Section(const JsonValue& values, std::string source)
      : values_(values), source_(std::move(source)) {}

  const absl::Status& status() const { return status_; }

  const JsonValue* Find(Key key) const {
    const JsonValue* value = values_.Find(key.name);
    if (value == nullptr && key.alias != nullptr) value = values_.Find(key.alias);
    return value;
  }

  int Int(Key key, int64_t min, int64_t max, std::optional<int64_t> missing = std::nullopt) {
    const JsonValue* value = Present(key, missing.has_value());
    if (value == nullptr) return static_cast<int>(missing.value_or(0));
    return static_cast<int>(Take(value->AsInt64(Path(key), min, max)).value_or(0));
  }

  double Real(Key key, double min, double max, std::optional<double> missing = std::nullopt) {
    const JsonValue* value = Present(key, missing.has_value());
    if (value == nullptr) return missing.value_or(0);
    return Take(value->AsDouble(Path(key), min, max)).value_or(0);
  }

  bool Bool(Key key, bool missing) {
    const JsonValue* value = Present(key, true);
    return value == nullptr ? missing : Take(value->AsBool(Path(key))).value_or(missing);
  }

  std::string Text(Key key, std::string missing) {
    const JsonValue* value = Present(key, true);
    if (value == nullptr) return missing;
    return std::string(Take(value->AsString(Path(key))).value_or(""));
  }

  std::vector<int64_t> Ints(Key key, int64_t min, int64_t max) {
    std::vector<int64_t> out;
    const JsonValue* value = Present(key, true);
    if (value == nullptr) return out;
    AppendInts(*value, Path(key), min, max, out);
    return out;
  }

  std::vector<std::vector<int64_t>> IntLists(Key key) {
    std::vector<std::vector<int64_t>> out;
    const JsonValue* value = Present(key, true);
    if (value == nullptr) return out;
    auto lists = Take(value->AsArray(Path(key)));
    if (!lists) return out;
    for (const JsonValue& list : *lists) {
      out.emplace_back();
      AppendInts(list, Path(key), 1, std::numeric_limits<int64_t>::max(), out.back());
    }
    return out;
  }

  // A key whose only supported values are `allowed`; absent is allowed too.
  void OnlyText(Key key, std::initializer_list<std::string_view> allowed) {
    const JsonValue* value = Present(key, true);
    if (value == nullptr) return;
    auto text = Take(value->AsString(Path(key)));
    if (!text) return;
    if (std::find(allowed.begin(), allowed.end(), *text) != allowed.end()) return;
    std::string options;
    for (std::string_view option : allowed) {
      absl::StrAppend(&options, options.empty() ? "" : ", ", protocol::ToAbsl(option));
    }
    Fail(absl::UnimplementedError(
        absl::StrCat(Path(key), " is \"", protocol::ToAbsl(*text), "\"; supported: ", options)));
  }

  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  std::string Path(Key key) const { return absl::StrCat(source_, ": ", key.name); }

 private:
  const JsonValue* Present(Key key, bool optional) {
    const JsonValue* value = Find(key);
    if (value != nullptr && value->IsNull()) value = nullptr;
    if (value == nullptr && !optional) {
      Fail(absl::InvalidArgumentError(absl::StrCat(Path(key), " is missing")));
    }
    return value;
  }

  template <typename T>
  std::optional<T> Take(absl::StatusOr<T> result) {
    if (!result.ok()) {
      Fail(result.status());
      return std::nullopt;
    }
    return *std::move(result);
  }

  void AppendInts(const JsonValue& list, const std::string& path, int64_t min, int64_t max,
                  std::vector<int64_t>& out) {
    auto values = Take(list.AsArray(path));
    if (!values) return;
    for (const JsonValue& value : *values) {
      out.push_back(Take(value.AsInt64(path, min, max)).value_or(min));
    }
  }

  const JsonValue& values_;
  std::string source_;
  absl::Status status_;
};

void ReadShapes(Section& in, ModelSpec& spec) {
  spec.vocab = in.Int({"vocab_size"}, 1, kVocabMax);
  spec.hidden = in.Int({"hidden_size", "dim"}, 32, kDimMax);
  spec.expert_inner = in.Int({"moe_intermediate_size", "moe_inter_dim"}, 32, kDimMax);
  spec.num_layers = in.Int({"num_hidden_layers", "n_layers"}, 1, kLayersMax);
  spec.heads = in.Int({"num_attention_heads", "n_heads"}, 1, 4096);
  in.Int({"num_key_value_heads"}, 1, 1, 1);
  spec.head_dim = in.Int({"head_dim"}, 32, 4096);
  spec.rope_dim = in.Int({"qk_rope_head_dim", "rope_head_dim"}, 2, 4096);
  spec.q_rank = in.Int({"q_lora_rank"}, 32, kDimMax);
  spec.o_rank = in.Int({"o_lora_rank"}, 32, kDimMax);
  spec.o_groups = in.Int({"o_groups"}, 1, 4096);
  spec.window = in.Int({"sliding_window", "window_size"}, 1, 1 << 16);
  spec.norm_eps = static_cast<float>(in.Real({"rms_norm_eps", "norm_eps"}, 0, 1));
  spec.max_position = in.Int({"max_position_embeddings", "max_seq_len"}, 1, 1 << 30, 1 << 20);
  spec.bos_token = in.Int({"bos_token_id"}, 0, kVocabMax, 0);
  spec.eos_token = in.Int({"eos_token_id"}, 0, kVocabMax, 1);
}

void ReadExperts(Section& in, ModelSpec& spec) {
  spec.num_experts = in.Int({"n_routed_experts"}, 1, kExpertsMax);
  in.Int({"n_shared_experts"}, 1, 1, 1);
  spec.experts_per_token = in.Int({"num_experts_per_tok", "n_activated_experts"}, 1, 32);
  in.OnlyText({"scoring_func", "score_func"}, {"sqrtsoftplus"});
  in.OnlyText({"topk_method"}, {"noaux_tc"});
  in.OnlyText({"hidden_act"}, {"silu"});
  in.Int({"num_hash_layers", "n_hash_layers"}, 0, 0, 0);
  spec.gate_temp = static_cast<float>(in.Real({"gate_temp"}, 1e-6, 1e6, 1.0));
  spec.norm_topk = in.Bool({"norm_topk_prob"}, true);
  spec.route_scale = static_cast<float>(in.Real({"routed_scaling_factor", "route_scale"}, 0, 1e6));
  spec.swiglu_limit = static_cast<float>(in.Real({"swiglu_limit"}, 0, 1e9, 0.0));
}

void ReadIndexAndStreams(Section& in, ModelSpec& spec) {
  spec.index_heads = in.Int({"index_n_heads"}, 1, 4096);
  spec.index_dim = in.Int({"index_head_dim"}, 32, 4096);
  spec.index_topk = in.Int({"index_topk"}, 1, 1 << 16);
  spec.hc = in.Int({"hc_mult"}, 1, 8);
  spec.sinkhorn_iters = in.Int({"hc_sinkhorn_iters"}, 1, 1000);
  spec.hc_eps = static_cast<float>(in.Real({"hc_eps"}, 0, 1));
  spec.candidate_blocks = in.Int({"candidate_topk_blocks"}, 1, 1 << 20, 1);
  spec.candidate_block = in.Int({"candidate_block_size"}, 1, 1 << 16, 1);
}

// The scaling parameters are nested in Hugging Face's spelling and flat in the reference's.
void ReadRope(Section& in, const std::string& source, ModelSpec& spec) {
  spec.rope.plain_theta = in.Real({"rope_theta"}, 1, 1e12);
  spec.rope.compress_theta = in.Real({"compress_rope_theta"}, 1, 1e12);
  const JsonValue* nested = in.Find({"rope_scaling"});
  if (nested != nullptr && !nested->IsNull()) {
    Section scaling(*nested, source + ": rope_scaling");
    scaling.OnlyText({"type", "rope_type"}, {"yarn"});
    spec.rope.factor = scaling.Real({"factor"}, 1e-3, 1e6);
    spec.rope.original_max_position = scaling.Real({"original_max_position_embeddings"}, 1, 1e9);
    spec.rope.beta_fast = scaling.Real({"beta_fast"}, 1e-3, 1e6, 32.0);
    spec.rope.beta_slow = scaling.Real({"beta_slow"}, 1e-3, 1e6, 1.0);
    in.Fail(scaling.status());
    return;
  }
  spec.rope.factor = in.Real({"rope_factor"}, 1e-3, 1e6);
  spec.rope.original_max_position = in.Real({"original_seq_len"}, 1, 1e9);
  spec.rope.beta_fast = in.Real({"beta_fast"}, 1e-3, 1e6, 32.0);
  spec.rope.beta_slow = in.Real({"beta_slow"}, 1e-3, 1e6, 1.0);
}

bool IsPrime(int64_t value) {
  for (int64_t d = 2; d * d <= value; ++d) {
    if (value % d == 0) return false;
  }
  return value > 1;
}

// The official rule: one climbing sequence of primes over layers, orders and heads.
void DerivePrimes(int64_t engram_vocab, EngramSpec& engram) {
  int64_t next = engram_vocab - 1;
  engram.primes.assign(engram.layers.size(), {});
  for (auto& primes : engram.primes) {
    for (int i = 0; i < engram.columns(); ++i) {
      do {
        ++next;
      } while (!IsPrime(next));
      primes.push_back(next);
    }
  }
}

// Multipliers of the official checkpoint (model section 3.10), which does not carry them.
bool OfficialMultipliers(int classes, EngramSpec& engram) {
  if (classes != 99092 || engram.layers != std::vector<int>{1, 14} || engram.ngram != 4) {
    return false;
  }
  engram.multipliers = {{76632096046245, 4839876093313, 35959672319349, 73987337458391},
                        {67716810739261, 51510806800915, 30921347202721, 82619226485591}};
  return true;
}

void CheckEngram(Section& in, const EngramSpec& engram) {
  for (size_t i = 0; i < engram.layers.size(); ++i) {
    const auto& primes = engram.primes[i];
    if (primes.size() != static_cast<size_t>(engram.columns()) ||
        engram.multipliers[i].size() != static_cast<size_t>(engram.ngram)) {
      in.Fail(absl::InvalidArgumentError(
          absl::StrCat(in.Path({"engram_primes"}), ": layer ", engram.layers[i], " has ",
                       primes.size(), " primes and ", engram.multipliers[i].size(),
                       " multipliers, needs ", engram.columns(), " and ", engram.ngram)));
      return;
    }
    int64_t rows = 0;
    for (int64_t prime : primes) rows = prime > (int64_t{1} << 40) ? -1 : rows + prime;
    if (rows != engram.rows[i]) {
      in.Fail(absl::InvalidArgumentError(
          absl::StrCat(in.Path({"engram_num_embeddings"}), ": layer ", engram.layers[i], " has ",
                       engram.rows[i], " rows, its primes sum to ", rows)));
      return;
    }
  }
}

std::vector<int> Narrow(const std::vector<int64_t>& values) {
  return {values.begin(), values.end()};
}

void ReadEngram(Section& in, ModelSpec& spec) {
  EngramSpec& engram = spec.engram;
  engram.layers = Narrow(in.Ints({"engram_layer_ids"}, 0, kLayersMax));
  if (engram.layers.empty() || !in.status().ok()) return;
  engram.rows = in.Ints({"engram_num_embeddings"}, 1, int64_t{1} << 40);
  engram.ngram = in.Int({"engram_max_ngram_size"}, 2, 16);
  engram.heads = in.Int({"engram_n_heads"}, 1, 64);
  engram.head_dim = in.Int({"engram_head_dim"}, 32, 4096);
  engram.pad_token = in.Int({"engram_pad_token_id", "engram_pad_id"}, 0, kVocabMax, 2);
  const int classes = in.Int({"engram_compressed_vocab_size"}, 1, kVocabMax);
  const int64_t table = in.Int({"engram_vocab_size"}, 2, 1 << 30);
  engram.token_map_file = in.Text({"engram_token_map_file"}, "engram_token_map.bin");
  engram.multipliers = in.IntLists({"engram_multipliers"});
  engram.primes = in.IntLists({"engram_primes"});
  if (!in.status().ok()) return;
  if (engram.primes.empty()) DerivePrimes(table, engram);
  if (engram.multipliers.empty() && !OfficialMultipliers(classes, engram)) {
    in.Fail(absl::InvalidArgumentError(absl::StrCat(
        in.Path({"engram_multipliers"}),
        " is missing; only the official layers 1 and 14 with 99092 classes are known without it")));
    return;
  }
  if (engram.rows.size() != engram.layers.size() || engram.primes.size() != engram.layers.size() ||
      engram.multipliers.size() != engram.layers.size()) {
    in.Fail(absl::InvalidArgumentError(
        absl::StrCat(in.Path({"engram_layer_ids"}), " lists ", engram.layers.size(), " layers, ",
                     "engram_num_embeddings ", engram.rows.size(), ", engram_primes ",
                     engram.primes.size(), ", engram_multipliers ", engram.multipliers.size())));
    return;
  }
  CheckEngram(in, engram);
}

void ReadDSpark(Section& in, ModelSpec& spec) {
  DSparkSpec& dspark = spec.dspark;
  dspark.target_layers = Narrow(in.Ints({"dspark_target_layer_ids"}, 0, kLayersMax));
  dspark.stages = in.Int({"num_nextn_predict_layers", "n_mtp_layers"}, 0, 16, 0);
  if (dspark.target_layers.empty()) dspark.stages = 0;
  if (dspark.stages == 0) {
    dspark.target_layers.clear();
    return;
  }
  dspark.block = in.Int({"dspark_block_size"}, 1, 32);
  dspark.noise_token = in.Int({"dspark_noise_token_id"}, 0, kVocabMax);
  dspark.markov_rank = in.Int({"dspark_markov_rank"}, 1, kDimMax);
  dspark.num_experts = in.Int({"dspark_n_routed_experts"}, 1, kExpertsMax);
  dspark.experts_per_token =
      in.Int({"dspark_num_experts_per_tok", "dspark_n_activated_experts"}, 1, 32);
}

void ReadFormats(Section& in, const JsonValue* quantization, const std::string& source,
                 ModelSpec& spec) {
  if (quantization == nullptr || quantization->IsNull()) {
    // The reference's spelling keeps the formats beside the shapes.
    in.OnlyText({"dtype"}, {"fp8"});
    in.OnlyText({"scale_fmt"}, {"ue8m0"});
    spec.expert_format =
        in.Text({"expert_dtype"}, "fp4") == "fp8" ? ExpertFormat::kFp8 : ExpertFormat::kFp4;
    in.OnlyText({"expert_dtype"}, {"fp4", "fp8"});
    return;
  }
  Section formats(*quantization, source + ": quantization_config");
  formats.OnlyText({"quant_method"}, {"fp8"});
  formats.OnlyText({"scale_fmt"}, {"ue8m0"});
  formats.OnlyText({"activation_scheme"}, {"dynamic"});
  formats.OnlyText({"expert_dtype"}, {"fp4", "fp8"});
  spec.expert_format =
      formats.Text({"expert_dtype"}, "fp8") == "fp4" ? ExpertFormat::kFp4 : ExpertFormat::kFp8;
  const std::vector<int64_t> block = formats.Ints({"weight_block_size"}, 1, 1024);
  if (!block.empty() && (block.size() != 2 || block[0] != 32 || block[1] != 32)) {
    formats.Fail(absl::UnimplementedError(
        absl::StrCat(formats.Path({"weight_block_size"}), " must be [32, 32]")));
  }
  in.Fail(formats.status());
}

bool Contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Every layer of a list exists.
absl::Status CheckLayers(const std::string& path, const std::vector<int>& layers, int num_layers) {
  for (int layer : layers) {
    if (layer >= num_layers) {
      return absl::InvalidArgumentError(absl::StrCat(path, " names layer ", layer,
                                                     ", the model has ", num_layers, " layers"));
    }
  }
  return absl::OkStatus();
}

// Whose compressed rows does each layer read; which lists are its own.
void PlanLayers(Section& in, ModelSpec& spec) {
  const std::vector<int64_t> ratios = in.Ints({"compress_ratios"}, 0, 2);
  const auto kv = Narrow(in.Ints({"kv_source_layer_ids", "kv_source_layers"}, 0, kLayersMax));
  const auto index =
      Narrow(in.Ints({"index_source_layer_ids", "index_source_layers"}, 0, kLayersMax));
  const int candidate =
      in.Int({"candidate_source_layer_id", "candidate_source_layer"}, -1, kLayersMax, -1);
  if (!in.status().ok()) return;
  if (static_cast<int>(ratios.size()) < spec.num_layers) {
    in.Fail(absl::InvalidArgumentError(absl::StrCat(in.Path({"compress_ratios"}), " has ",
                                                    ratios.size(), " entries, needs at least ",
                                                    spec.num_layers)));
    return;
  }
  in.Fail(CheckLayers(in.Path({"kv_source_layer_ids"}), kv, spec.num_layers));
  in.Fail(CheckLayers(in.Path({"index_source_layer_ids"}), index, spec.num_layers));
  in.Fail(CheckLayers(in.Path({"candidate_source_layer_id"}), {candidate}, spec.num_layers));
  in.Fail(CheckLayers(in.Path({"engram_layer_ids"}), spec.engram.layers, spec.num_layers));
  in.Fail(CheckLayers(in.Path({"dspark_target_layer_ids"}), spec.dspark.target_layers,
                      spec.num_layers));
  if (!in.status().ok()) return;
  int kv_layer = -1;
  int index_layer = -1;
  for (int i = 0; i < spec.num_layers; ++i) {
    LayerSpec layer;
    layer.ratio = static_cast<int>(ratios[static_cast<size_t>(i)]);
    layer.kv_source = Contains(kv, i);
    layer.index_source = Contains(index, i);
    layer.candidate_source = i == candidate;
    if (layer.kv_source) kv_layer = i;
    if (layer.index_source) index_layer = i;
    if (layer.ratio > 0) layer.kv_layer = kv_layer;
    layer.uses_candidates = layer.index_source && !layer.kv_source && candidate >= 0 &&
                            candidate < i && kv_layer == candidate;
    const bool misses = layer.ratio > 0 && (kv_layer < 0 || index_layer < kv_layer);
    const bool mixed = layer.ratio > 0 && kv_layer >= 0 &&
                       ratios[static_cast<size_t>(kv_layer)] != ratios[static_cast<size_t>(i)];
    if (misses || mixed || (layer.kv_source && layer.ratio == 0) ||
        (layer.candidate_source && !layer.index_source)) {
      in.Fail(absl::InvalidArgumentError(absl::StrCat(
          in.Path({"compress_ratios"}), ": layer ", i, " has ratio ", layer.ratio,
          ", but the last kv source is layer ", kv_layer, " and the last index source layer ",
          index_layer, "; each must exist, share its ratio and come at or before it")));
      return;
    }
    auto place = [i](const std::vector<int>& list) {
      auto at = std::find(list.begin(), list.end(), i);
      return at == list.end() ? -1 : static_cast<int>(at - list.begin());
    };
    layer.engram_index = place(spec.engram.layers);
    layer.tap_index = place(spec.dspark.target_layers);
    spec.layers.push_back(layer);
  }
}

// Every special token is in the vocabulary.
absl::Status CheckTokens(const ModelSpec& spec, const std::string& source) {
  auto inside = [&](const char* key, int token) -> absl::Status {
    if (token < spec.vocab) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", key, " is ", token,
                                                   ", must be below vocab_size ", spec.vocab));
  };
  SKEIN_RETURN_IF_ERROR(inside("bos_token_id", spec.bos_token));
  SKEIN_RETURN_IF_ERROR(inside("eos_token_id", spec.eos_token));
  if (!spec.engram.layers.empty()) {
    SKEIN_RETURN_IF_ERROR(inside("engram_pad_token_id", spec.engram.pad_token));
  }
  return inside("dspark_noise_token_id", spec.dspark.noise_token);
}

// Relations that the kernels rely on.
absl::Status CheckShapes(const ModelSpec& spec, const std::string& source) {
  auto multiple = [&](const char* key, int64_t value, int64_t of) -> absl::Status {
    if (value % of == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": ", key, " is ", value, ", must be a multiple of ", of));
  };
  SKEIN_RETURN_IF_ERROR(multiple("hidden_size", spec.hidden, 32));
  SKEIN_RETURN_IF_ERROR(multiple("moe_intermediate_size", spec.expert_inner, 32));
  SKEIN_RETURN_IF_ERROR(multiple("head_dim", spec.head_dim, 32));
  SKEIN_RETURN_IF_ERROR(multiple("index_head_dim", spec.index_dim, 32));
  SKEIN_RETURN_IF_ERROR(multiple("q_lora_rank", spec.q_rank, 32));
  SKEIN_RETURN_IF_ERROR(multiple("o_lora_rank", spec.o_rank, 32));
  SKEIN_RETURN_IF_ERROR(multiple("num_attention_heads", spec.heads, spec.o_groups));
  SKEIN_RETURN_IF_ERROR(multiple("qk_rope_head_dim", spec.rope_dim, 2));
  if (!spec.engram.layers.empty()) {
    SKEIN_RETURN_IF_ERROR(multiple("engram_head_dim", spec.engram.head_dim, 32));
  }
  if (spec.rope_dim > spec.head_dim || spec.rope_dim > spec.index_dim) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": qk_rope_head_dim is ", spec.rope_dim,
                                                   ", must fit head_dim ", spec.head_dim,
                                                   " and index_head_dim ", spec.index_dim));
  }
  if (spec.experts_per_token > spec.num_experts ||
      spec.dspark.experts_per_token > spec.dspark.num_experts) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": num_experts_per_tok exceeds the number of experts"));
  }
  return absl::OkStatus();
}

}  // namespace

int ModelSpec::block_multiple() const {
  int multiple = 1;
  for (const LayerSpec& layer : layers) {
    if (layer.ratio > 0) multiple = std::lcm(multiple, layer.ratio);
  }
  return multiple;
}

absl::StatusOr<ModelSpec> ModelSpec::FromJson(const JsonValue& config, const std::string& source) {
  const JsonValue* text = config.Find("text_config");
  Section outer(config, source);
  outer.OnlyText({"model_type"}, {"deepseek_v41", "deepseek_v41_text"});
  SKEIN_RETURN_IF_ERROR(outer.status());
  const bool nested = text != nullptr && text->IsObject();
  Section in(nested ? *text : config, nested ? source + ": text_config" : source);
  in.OnlyText({"model_type"}, {"deepseek_v41", "deepseek_v41_text"});
  if (in.Bool({"attention_bias"}, false) || in.Bool({"tie_word_embeddings"}, false)) {
    in.Fail(absl::UnimplementedError(
        absl::StrCat(source, ": attention_bias and tie_word_embeddings must be false")));
  }
  ModelSpec spec;
  ReadShapes(in, spec);
  ReadExperts(in, spec);
  ReadIndexAndStreams(in, spec);
  ReadRope(in, source, spec);
  const JsonValue* quantization = in.Find({"quantization_config"});
  if (quantization == nullptr) quantization = outer.Find({"quantization_config"});
  ReadFormats(in, quantization, source, spec);
  ReadEngram(in, spec);
  ReadDSpark(in, spec);
  PlanLayers(in, spec);
  SKEIN_RETURN_IF_ERROR(in.status());
  SKEIN_RETURN_IF_ERROR(CheckShapes(spec, source));
  SKEIN_RETURN_IF_ERROR(CheckTokens(spec, source));
  return spec;
}

absl::StatusOr<ModelSpec> ModelSpec::Load(const std::filesystem::path& dir) {
  const std::filesystem::path file = dir / "config.json";
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    return absl::NotFoundError(
        absl::StrCat(file.string(), ": cannot be read; --model must name a checkpoint directory"));
  }
  std::stringstream text;
  text << stream.rdbuf();
  auto config = protocol::ParseJson(text.str(), {.bytes_max = size_t{4} << 20});
  if (!config.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(file.string(), ": ", config.status().message()));
  }
  SKEIN_ASSIGN_OR_RETURN(ModelSpec spec, FromJson(*config, file.string()));
  // FNV-1a: an identity to compare, not a secret.
  uint64_t hash = 1469598103934665603ULL;
  for (char c : text.str()) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ULL;
  spec.identity = absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
  return spec;
}

RopeTable::RopeTable(const RopeSpec& spec, int rope_dim, bool compress)
    : recorded_(spec.recorded), compress_(compress) {
  const double theta = compress ? spec.compress_theta : spec.plain_theta;
  auto corner = [&](double rotations) {
    return rope_dim * std::log(spec.original_max_position / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  const double low = std::max(std::floor(corner(spec.beta_fast)), 0.0);
  const double high = std::min(std::ceil(corner(spec.beta_slow)), rope_dim - 1.0);
  const double width = high == low ? 1e-3 : high - low;
  for (int i = 0; i < rope_dim / 2; ++i) {
    const auto exponent = static_cast<float>(2 * i) / static_cast<float>(rope_dim);
    const float base = 1.0F / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
    if (!compress) {
      inv_freq_.push_back(base);
      continue;
    }
    const auto ramp = static_cast<float>(std::clamp((i - low) / width, 0.0, 1.0));
    const float smooth = 1.0F - ramp;
    inv_freq_.push_back(base / static_cast<float>(spec.factor) * (1.0F - smooth) + base * smooth);
  }
}

void RopeTable::FillRow(int64_t position, float* out) const {
  const size_t half = inv_freq_.size();
  if (recorded_ != nullptr && position < recorded_->positions) {
    const std::vector<float>& rows = compress_ ? recorded_->compress : recorded_->plain;
    std::copy_n(rows.begin() + position * static_cast<int64_t>(2 * half), 2 * half, out);
    return;
  }
  for (size_t i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * inv_freq_[i];
    out[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
    out[half + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
  }
}

}  // namespace skein::worker
