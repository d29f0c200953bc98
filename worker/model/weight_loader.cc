#include "worker/model/weight_loader.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"

namespace skein::worker {
namespace {

using kernels::DType;
using kernels::TensorView;
using kernels::WeightFormat;

constexpr size_t kDefectsMax = 10;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Takes tensors out of a checkpoint by name, dtype and shape, and remembers what was wrong.
class Taker {
 public:
  // `checkpoint` may be null if `make` is not.
  Taker(const Checkpoint* checkpoint, const ModelSpec& spec, Arena& arena, const TensorMaker& make,
        const Shard& shard, const LoadProgress& progress)
      : checkpoint_(checkpoint),
        spec_(spec),
        arena_(arena),
        make_(make),
        shard_(shard),
        progress_(progress) {}

  TensorView Tensor(const std::string& name, DType dtype, std::initializer_list<int64_t> shape) {
    return Part(name, dtype, shape, {0, *shape.begin()});
  }

  // The rows of a tensor that this rank holds, possibly none; the whole tensor is checked.
  TensorView Part(const std::string& name, DType dtype, std::initializer_list<int64_t> shape,
                  const TableRows& rows) {
    const TensorView wanted = kernels::MakeView(nullptr, dtype, shape);
    if (make_ != nullptr) return rows.count == 0 ? TensorView{} : Make(name, wanted, rows);
    const StoredTensor* stored = checkpoint_->Find(name);
    if (stored == nullptr) {
      Defect(absl::StrCat("tensor \"", name, "\" (", DescribeTensor(wanted), ") is missing in ",
                          checkpoint_->dir().string()));
      return {};
    }
    used_.insert(name);
    if (progress_) progress_(used_.size(), checkpoint_->tensors().size(), engram_);
    const TensorView& view = stored->view;
    if (view.dtype != dtype || view.rank != wanted.rank || view.shape != wanted.shape) {
      Defect(absl::StrCat((checkpoint_->dir() / stored->file).string(), ": tensor \"", name,
                          "\" is ", DescribeTensor(view), ", config.json needs ",
                          DescribeTensor(wanted)));
      return {};
    }
    if (rows.count == 0) return {};
    const TensorView part = RowsFrom(view, rows.begin, rows.count);
    bytes_ += static_cast<uint64_t>(part.size()) * kernels::DTypeBytes(dtype);
    return defects_.empty() ? arena_.Place(part) : part;
  }

  // `prefix`.weight and, for scaled formats, `prefix`.scale; only looked at where it is not kept.
  LinearWeight Linear(const std::string& prefix, WeightFormat format, int n, int k,
                      bool kept = true) {
    LinearWeight out;
    out.format = format;
    out.n = n;
    out.k = k;
    const std::string weight = prefix + ".weight";
    const std::string scale = prefix + ".scale";
    const int block = spec_.weight_block;
    const auto whole = [kept](int64_t rows) { return TableRows{0, kept ? rows : 0}; };
    switch (format) {
      case WeightFormat::kBf16:
        out.weight.codes = Part(weight, DType::kBf16, {n, k}, whole(n));
        break;
      case WeightFormat::kF32:
        out.weight.codes = Part(weight, DType::kF32, {n, k}, whole(n));
        break;
      case WeightFormat::kE4m3Block:
        out.weight.codes = Part(weight, DType::kE4m3, {n, k}, whole(n));
        out.weight.scale = Part(scale, DType::kE8m0, {CeilDiv(n, block), CeilDiv(k, block)},
                                whole(CeilDiv(n, block)));
        break;
      case WeightFormat::kE2m1Row32:
        out.weight.codes = Part(weight, DType::kE2m1x2, {n, k / 2}, whole(n));
        out.weight.scale = Part(scale, DType::kE8m0, {n, k / 32}, whole(n));
        break;
    }
    return out;
  }

  void Defect(std::string text) {
    if (defects_.size() < kDefectsMax) defects_.push_back(std::move(text));
  }

  // Tensors that nobody asked for: vision is left out, anything else is a defect.
  int CheckUnused() {
    int skipped = 0;
    if (checkpoint_ == nullptr) return skipped;
    for (const auto& [name, stored] : checkpoint_->tensors()) {
      if (used_.contains(name)) continue;
      const bool vision =
          name.starts_with("vision.") || name.starts_with("aligner.") || name.starts_with("image_");
      if (vision) {
        ++skipped;
      } else {
        Defect(absl::StrCat((checkpoint_->dir() / stored.file).string(), ": tensor \"", name,
                            "\" is not part of the model that config.json describes"));
      }
    }
    return skipped;
  }

  absl::Status status() const {
    if (defects_.empty()) return arena_.status();
    return absl::InvalidArgumentError(absl::StrJoin(defects_, "\n"));
  }
  uint64_t bytes() const { return bytes_; }
  // What is taken from here on is of n-gram tables, or not.
  void SetEngram(bool engram) { engram_ = engram; }
  const ModelSpec& spec() const { return spec_; }
  const Shard& shard() const { return shard_; }

 private:
  TensorView Make(const std::string& name, TensorView wanted, const TableRows& rows) {
    wanted.shape[0] = rows.count;
    bytes_ += static_cast<uint64_t>(wanted.size()) * kernels::DTypeBytes(wanted.dtype);
    return make_(arena_, name, wanted);
  }

  const Checkpoint* checkpoint_;
  const ModelSpec& spec_;
  Arena& arena_;
  const TensorMaker& make_;
  const Shard& shard_;
  const LoadProgress& progress_;
  bool engram_ = false;
  std::set<std::string, std::less<>> used_;
  std::vector<std::string> defects_;
  uint64_t bytes_ = 0;
};

HyperConnectionWeights TakeHyperConnection(Taker& take, const std::string& prefix) {
  const ModelSpec& spec = take.spec();
  const int mixes = (2 + spec.hc) * spec.hc;
  return {take.Tensor(prefix + "_fn", DType::kF32, {mixes, spec.hc * spec.hidden}),
          take.Tensor(prefix + "_base", DType::kF32, {mixes}),
          take.Tensor(prefix + "_scale", DType::kF32, {3})};
}

AttentionWeights TakeAttention(Taker& take, const std::string& prefix, const LayerSpec& layer) {
  const ModelSpec& spec = take.spec();
  constexpr WeightFormat kFp8 = WeightFormat::kE4m3Block;
  const int group_inputs = spec.heads * spec.head_dim / spec.o_groups;
  AttentionWeights out;
  out.sink = take.Tensor(prefix + "attn_sink", DType::kF32, {spec.heads});
  out.q_norm = take.Tensor(prefix + "q_norm.weight", DType::kBf16, {spec.q_rank});
  out.kv_norm = take.Tensor(prefix + "kv_norm.weight", DType::kBf16, {spec.head_dim});
  out.wq_a = take.Linear(prefix + "wq_a", kFp8, spec.q_rank, spec.hidden);
  out.wq_b = take.Linear(prefix + "wq_b", kFp8, spec.heads * spec.head_dim, spec.q_rank);
  out.wkv = take.Linear(prefix + "wkv", kFp8, spec.head_dim, spec.hidden);
  out.wo_a = take.Linear(prefix + "wo_a", kFp8, spec.o_groups * spec.o_rank, group_inputs);
  out.wo_b = take.Linear(prefix + "wo_b", kFp8, spec.hidden, spec.o_groups * spec.o_rank);
  if (layer.kv_source) {
    const std::string compressor = prefix + "compressor.";
    out.compressor_wkv =
        take.Linear(compressor + "wkv", WeightFormat::kBf16, spec.head_dim, spec.hidden);
    if (layer.ratio > 1) {
      out.compressor_wgate =
          take.Linear(compressor + "wgate", WeightFormat::kBf16, spec.head_dim, spec.hidden);
    }
    out.compressor_norm = take.Tensor(compressor + "norm.weight", DType::kBf16, {spec.head_dim});
    out.index_wk =
        take.Linear(prefix + "indexer.wk", WeightFormat::kBf16, spec.index_dim, spec.head_dim);
    out.index_k_norm =
        take.Tensor(prefix + "indexer.k_norm.weight", DType::kBf16, {spec.index_dim});
  }
  if (layer.index_source) {
    out.index_wq_b =
        take.Linear(prefix + "indexer.wq_b", kFp8, spec.index_heads * spec.index_dim, spec.q_rank);
    out.index_weights = take.Linear(prefix + "indexer.weights_proj", WeightFormat::kBf16,
                                    spec.index_heads, spec.hidden);
  }
  return out;
}

ExpertWeights TakeExpert(Taker& take, const std::string& prefix, WeightFormat format,
                         bool kept = true) {
  const ModelSpec& spec = take.spec();
  return {take.Linear(prefix + "w1", format, spec.expert_inner, spec.hidden, kept),
          take.Linear(prefix + "w2", format, spec.hidden, spec.expert_inner, kept),
          take.Linear(prefix + "w3", format, spec.expert_inner, spec.hidden, kept)};
}

MoeWeights TakeMoe(Taker& take, const std::string& prefix, int num_experts) {
  const ModelSpec& spec = take.spec();
  MoeWeights out;
  out.gate = take.Linear(prefix + "gate", WeightFormat::kBf16, num_experts, spec.hidden);
  out.bias = take.Tensor(prefix + "gate.bias", DType::kF32, {num_experts});
  // The bias of image tokens: checked with the rest, used once images are served.
  take.Tensor(prefix + "gate.bias_vl", DType::kF32, {num_experts});
  out.shared = TakeExpert(take, prefix + "shared_experts.", WeightFormat::kE4m3Block);
  out.expert_format = spec.expert_format == ExpertFormat::kFp4 ? WeightFormat::kE2m1Row32
                                                               : WeightFormat::kE4m3Block;
  out.prefix = prefix;
  const ShardRange owned = take.shard().Of(num_experts);
  for (int e = 0; e < num_experts; ++e) {
    const bool kept = e >= owned.begin && e < owned.end;
    const ExpertWeights expert =
        TakeExpert(take, absl::StrCat(prefix, "experts.", e, "."), out.expert_format, kept);
    if (!kept) continue;
    out.w1.push_back(expert.w1.weight);
    out.w2.push_back(expert.w2.weight);
    out.w3.push_back(expert.w3.weight);
    out.held.push_back(e);
  }
  return out;
}

BlockWeights TakeBlock(Taker& take, const std::string& prefix, const LayerSpec& layer,
                       int num_experts) {
  const ModelSpec& spec = take.spec();
  BlockWeights out;
  out.attn_norm = take.Tensor(prefix + "attn_norm.weight", DType::kBf16, {spec.hidden});
  out.ffn_norm = take.Tensor(prefix + "ffn_norm.weight", DType::kBf16, {spec.hidden});
  out.hc_attn = TakeHyperConnection(take, prefix + "hc_attn");
  out.hc_ffn = TakeHyperConnection(take, prefix + "hc_ffn");
  out.attn = TakeAttention(take, prefix + "attn.", layer);
  out.moe = TakeMoe(take, prefix + "ffn.", num_experts);
  return out;
}

EngramWeights TakeEngram(Taker& take, int index) {
  const ModelSpec& spec = take.spec();
  const EngramSpec& engram = spec.engram;
  const std::string prefix =
      absl::StrCat("layers.", engram.layers[static_cast<size_t>(index)], ".engram.");
  const int64_t rows = engram.rows[static_cast<size_t>(index)];
  EngramWeights out;
  const TableRows owned = TableRowsOf(take.shard(), engram, index);
  out.codes = take.Part(prefix + "embed.weight", DType::kE4m3, {rows, engram.head_dim}, owned);
  out.scale = take.Part(prefix + "embed.scale", DType::kE8m0, {rows, engram.head_dim / 32}, owned);
  out.q_weight = take.Tensor(prefix + "q_weight", DType::kBf16, {spec.hc, spec.hidden});
  out.k_weight = take.Tensor(prefix + "k_weight", DType::kBf16, {spec.hc, spec.hidden});
  out.wkv = take.Linear(prefix + "wkv", WeightFormat::kE4m3Block, (spec.hc + 1) * spec.hidden,
                        engram.columns() * engram.head_dim);
  return out;
}

// The confidence projection reads [hidden ; markov]: two products over columns of one tensor.
void SplitConfidence(const TensorView& proj, const ModelSpec& spec, DraftWeights& out) {
  TensorView hidden = proj;
  hidden.shape[1] = spec.hidden;
  TensorView markov = proj;
  markov.shape[1] = spec.dspark.markov_rank;
  if (proj.data != nullptr) {
    markov.data =
        proj.as<std::byte>() + static_cast<size_t>(spec.hidden) * kernels::DTypeBytes(proj.dtype);
  }
  out.confidence_hidden = {{hidden, {}}, WeightFormat::kBf16, 1, spec.hidden};
  out.confidence_markov = {{markov, {}}, WeightFormat::kBf16, 1, spec.dspark.markov_rank};
}

DraftWeights TakeDraft(Taker& take) {
  const ModelSpec& spec = take.spec();
  const DSparkSpec& dspark = spec.dspark;
  DraftWeights out;
  for (int s = 0; s < dspark.stages; ++s) {
    out.stages.push_back(
        TakeBlock(take, absl::StrCat("mtp.", s, "."), LayerSpec{}, dspark.num_experts));
  }
  const int taps = static_cast<int>(dspark.target_layers.size());
  const std::string last = absl::StrCat("mtp.", dspark.stages - 1, ".");
  out.main_proj =
      take.Linear("mtp.0.main_proj", WeightFormat::kE4m3Block, spec.hidden, taps * spec.hidden);
  out.main_norm = take.Tensor("mtp.0.main_norm.weight", DType::kBf16, {spec.hidden});
  out.norm = take.Tensor(last + "norm.weight", DType::kBf16, {spec.hidden});
  out.markov_embed = take.Tensor(last + "markov_head.embed.weight", DType::kBf16,
                                 {spec.vocab, dspark.markov_rank});
  out.markov_head =
      take.Linear(last + "markov_head.head", WeightFormat::kBf16, spec.vocab, dspark.markov_rank);
  SplitConfidence(take.Tensor(last + "confidence_head.proj.weight", DType::kBf16,
                              {1, spec.hidden + dspark.markov_rank}),
                  spec, out);
  return out;
}

absl::StatusOr<std::vector<int32_t>> ReadTokenMap(const std::filesystem::path& file,
                                                  const ModelSpec& spec) {
  SKEIN_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(file));
  const size_t bytes = static_cast<size_t>(spec.vocab) * sizeof(int32_t);
  if (mapped.size() != bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.string(), ": has ", mapped.size(), " bytes, an int32 per entry of the vocabulary of ",
        spec.vocab, " needs ", bytes));
  }
  std::vector<int32_t> map(static_cast<size_t>(spec.vocab));
  std::memcpy(map.data(), mapped.data(), bytes);
  for (size_t i = 0; i < map.size(); ++i) {
    if (map[i] < 0 || map[i] >= spec.vocab) {
      return absl::InvalidArgumentError(absl::StrCat(file.string(), ": entry ", i, " is ", map[i],
                                                     ", must be 0 to ", spec.vocab - 1));
    }
  }
  return map;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelWeights>> ModelWeights::Load(
    const std::filesystem::path& dir, const ModelSpec& spec, Arena& arena, const TensorMaker& make,
    const Shard& shard, const LoadProgress& progress) {
  auto out = std::make_unique<ModelWeights>();
  if (make == nullptr) {
    SKEIN_ASSIGN_OR_RETURN(out->checkpoint_, Checkpoint::Open(dir));
  }
  Taker take(out->checkpoint_.get(), spec, arena, make, shard, progress);
  out->embed = take.Tensor("embed.weight", DType::kBf16, {spec.vocab, spec.hidden});
  out->norm = take.Tensor("norm.weight", DType::kBf16, {spec.hidden});
  out->head = take.Linear("head", WeightFormat::kBf16, spec.vocab, spec.hidden);
  for (int i = 0; i < spec.num_layers; ++i) {
    out->layers.push_back(TakeBlock(take, absl::StrCat("layers.", i, "."),
                                    spec.layers[static_cast<size_t>(i)], spec.num_experts));
  }
  const uint64_t before_engram = take.bytes();
  take.SetEngram(true);
  for (size_t i = 0; i < spec.engram.layers.size(); ++i) {
    out->engram.push_back(TakeEngram(take, static_cast<int>(i)));
  }
  take.SetEngram(false);
  out->engram_bytes = take.bytes() - before_engram;
  if (spec.dspark.stages > 0) out->draft = TakeDraft(take);
  out->skipped_tensors = take.CheckUnused();
  SKEIN_RETURN_IF_ERROR(take.status());
  out->bytes = take.bytes();
  if (!spec.engram.layers.empty()) {
    SKEIN_ASSIGN_OR_RETURN(out->engram_token_map,
                           ReadTokenMap(dir / spec.engram.token_map_file, spec));
  }
  return out;
}

std::vector<MoeWeights*> ModelWeights::MoeLayers() {
  std::vector<MoeWeights*> all;
  for (BlockWeights& layer : layers) all.push_back(&layer.moe);
  for (BlockWeights& stage : draft.stages) all.push_back(&stage.moe);
  return all;
}

namespace {

// The tensor was checked when the model was loaded.
absl::Status Replace(TensorView& view, const TensorView& stored, kernels::Device& device) {
  if (!device.is_host()) {
    return device.CopyIn(view.data, stored.data,
                         static_cast<size_t>(view.size()) * kernels::DTypeBytes(view.dtype));
  }
  view.data = stored.data;
  return absl::OkStatus();
}

}  // namespace

absl::Status ModelWeights::ReadExpert(MoeWeights& layer, size_t entry, int expert,
                                      kernels::Device& device) {
  layer.held[entry] = -1;
  const std::pair<const char*, kernels::Weight*> parts[] = {
      {"w1", &layer.w1[entry]}, {"w2", &layer.w2[entry]}, {"w3", &layer.w3[entry]}};
  for (const auto& [part, weight] : parts) {
    if (checkpoint_ == nullptr) break;  // made ones are alike
    const std::string name = absl::StrCat(layer.prefix, "experts.", expert, ".", part);
    SKEIN_RETURN_IF_ERROR(
        Replace(weight->codes, checkpoint_->Find(name + ".weight")->view, device));
    if (weight->scale.absent()) continue;
    SKEIN_RETURN_IF_ERROR(Replace(weight->scale, checkpoint_->Find(name + ".scale")->view, device));
  }
  SKEIN_RETURN_IF_ERROR(device.Wait());
  layer.held[entry] = expert;
  return absl::OkStatus();
}

absl::Status ModelWeights::HoldExperts(const protocol::ExpertPlacement& placement, int rank,
                                       kernels::Device& device,
                                       const std::function<absl::Status()>& live) {
  const std::vector<MoeWeights*> all = MoeLayers();
  for (size_t i = 0; i < all.size(); ++i) {
    MoeWeights& layer = *all[i];
    std::vector<int> wanted;
    std::vector<size_t> free;
    for (int e = 0; e < layer.gate.n; ++e) {
      if (placement[i][static_cast<size_t>(e)] != rank) continue;
      if (std::count(layer.held.begin(), layer.held.end(), e) == 0) wanted.push_back(e);
    }
    for (size_t entry = 0; entry < layer.held.size(); ++entry) {
      const int held = layer.held[entry];
      if (held < 0 || placement[i][static_cast<size_t>(held)] != rank) free.push_back(entry);
    }
    SKEIN_CHECK(wanted.size() == free.size()) << "a placement that was not checked";
    for (size_t n = 0; n < wanted.size(); ++n) {
      SKEIN_RETURN_IF_ERROR(live());
      SKEIN_RETURN_IF_ERROR(ReadExpert(layer, free[n], wanted[n], device));
    }
  }
  return absl::OkStatus();
}

}  // namespace skein::worker
