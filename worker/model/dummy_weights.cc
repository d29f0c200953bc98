#include "worker/model/dummy_weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/formats.h"

namespace skein::worker::dummy {
namespace {

class TensorList {
 public:
  explicit TensorList(const ModelSpec& spec) : spec_(spec) {
    Bf16("embed", spec.vocab, spec.hidden, 1);
    Norm("norm.weight", {spec.hidden});
    Bf16("head", spec.vocab, spec.hidden, 3);
    for (int i = 0; i < spec.num_layers; ++i) {
      Block(absl::StrCat("layers.", i, "."), spec.layers[static_cast<size_t>(i)], spec.num_experts);
    }
    for (size_t i = 0; i < spec.engram.layers.size(); ++i) Engram(i);
    if (spec.dspark.stages > 0) Draft();
  }
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  void Add(std::string name, Kind kind, std::vector<int64_t> shape, double spread = 1) {
    tensors_.push_back({std::move(name), kind, std::move(shape), spread});
  }
  void Norm(const std::string& name, std::vector<int64_t> shape) {
    Add(name, Kind::kNorm, std::move(shape));
  }
  // Outputs keep the spread of the inputs, times `gain`.
  void Bf16(const std::string& name, int n, int k, double gain = 1) {
    Add(name + ".weight", Kind::kBf16, {n, k}, gain / std::sqrt(k));
  }
  void Fp8(const std::string& name, int n, int k) {
    Add(name + ".weight", Kind::kE4m3, {n, k});
    // Codes have a spread of 32.
    Add(name + ".scale", Kind::kScale, {(n + 31) / 32, (k + 31) / 32}, 1 / std::sqrt(k) / 32);
  }
  void Fp4(const std::string& name, int n, int k) {
    Add(name + ".weight", Kind::kE2m1, {n, k / 2});
    // Codes have a spread of 2.
    Add(name + ".scale", Kind::kScale, {n, k / 32}, 1 / std::sqrt(k) / 2);
  }
  void Hyper(const std::string& prefix) {
    const int mixes = (2 + spec_.hc) * spec_.hc;
    const int width = spec_.hc * spec_.hidden;
    Add(prefix + "_fn", Kind::kF32, {mixes, width}, 1 / std::sqrt(width));
    Add(prefix + "_base", Kind::kF32, {mixes}, 0.5);
    Add(prefix + "_scale", Kind::kF32, {3}, 0.3);
  }
  void Expert(const std::string& prefix, bool fp4) {
    for (const char* name : {"w1", "w2", "w3"}) {
      const bool down = name[1] == '2';
      const int n = down ? spec_.hidden : spec_.expert_inner;
      const int k = down ? spec_.expert_inner : spec_.hidden;
      fp4 ? Fp4(prefix + name, n, k) : Fp8(prefix + name, n, k);
    }
  }
  void Attention(const std::string& prefix, const LayerSpec& layer) {
    const ModelSpec& s = spec_;
    Add(prefix + "attn_sink", Kind::kF32Zero, {s.heads});
    Norm(prefix + "q_norm.weight", {s.q_rank});
    Norm(prefix + "kv_norm.weight", {s.head_dim});
    Fp8(prefix + "wq_a", s.q_rank, s.hidden);
    Fp8(prefix + "wq_b", s.heads * s.head_dim, s.q_rank);
    Fp8(prefix + "wkv", s.head_dim, s.hidden);
    Fp8(prefix + "wo_a", s.o_groups * s.o_rank, s.heads * s.head_dim / s.o_groups);
    Fp8(prefix + "wo_b", s.hidden, s.o_groups * s.o_rank);
    if (layer.kv_source) {
      Bf16(prefix + "compressor.wkv", s.head_dim, s.hidden);
      if (layer.ratio > 1) Bf16(prefix + "compressor.wgate", s.head_dim, s.hidden);
      Norm(prefix + "compressor.norm.weight", {s.head_dim});
      Bf16(prefix + "indexer.wk", s.index_dim, s.head_dim);
      Norm(prefix + "indexer.k_norm.weight", {s.index_dim});
    }
    if (layer.index_source) {
      Fp8(prefix + "indexer.wq_b", s.index_heads * s.index_dim, s.q_rank);
      Bf16(prefix + "indexer.weights_proj", s.index_heads, s.hidden);
    }
  }
  void Block(const std::string& prefix, const LayerSpec& layer, int experts) {
    Norm(prefix + "attn_norm.weight", {spec_.hidden});
    Norm(prefix + "ffn_norm.weight", {spec_.hidden});
    Hyper(prefix + "hc_attn");
    Hyper(prefix + "hc_ffn");
    Attention(prefix + "attn.", layer);
    Bf16(prefix + "ffn.gate", experts, spec_.hidden);
    Add(prefix + "ffn.gate.bias", Kind::kF32Zero, {experts});
    Add(prefix + "ffn.gate.bias_vl", Kind::kF32Zero, {experts});
    Expert(prefix + "ffn.shared_experts.", false);
    for (int e = 0; e < experts; ++e) {
      Expert(absl::StrCat(prefix, "ffn.experts.", e, "."),
             spec_.expert_format == ExpertFormat::kFp4);
    }
  }
  void Engram(size_t index) {
    const EngramSpec& engram = spec_.engram;
    const std::string prefix = absl::StrCat("layers.", engram.layers[index], ".engram.");
    Add(prefix + "embed.weight", Kind::kE4m3, {engram.rows[index], engram.head_dim});
    Add(prefix + "embed.scale", Kind::kScale, {engram.rows[index], engram.head_dim / 32}, 1.0 / 32);
    Norm(prefix + "q_weight", {spec_.hc, spec_.hidden});
    Norm(prefix + "k_weight", {spec_.hc, spec_.hidden});
    Fp8(prefix + "wkv", (spec_.hc + 1) * spec_.hidden, engram.columns() * engram.head_dim);
  }
  void Draft() {
    const DSparkSpec& dspark = spec_.dspark;
    for (int s = 0; s < dspark.stages; ++s) {
      Block(absl::StrCat("mtp.", s, "."), LayerSpec{}, dspark.num_experts);
    }
    const std::string last = absl::StrCat("mtp.", dspark.stages - 1, ".");
    Fp8("mtp.0.main_proj", spec_.hidden,
        static_cast<int>(dspark.target_layers.size()) * spec_.hidden);
    Norm("mtp.0.main_norm.weight", {spec_.hidden});
    Norm(last + "norm.weight", {spec_.hidden});
    Bf16(last + "markov_head.embed", spec_.vocab, dspark.markov_rank);
    Bf16(last + "markov_head.head", spec_.vocab, dspark.markov_rank);
    Bf16(last + "confidence_head.proj", 1, spec_.hidden + dspark.markov_rank);
  }

  const ModelSpec& spec_;
  std::vector<Tensor> tensors_;
};

// A stream of 64-bit words (splitmix64).
class Words {
 public:
  explicit Words(uint64_t state) : state_(state) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint64_t state() const { return state_; }

 private:
  uint64_t state_;
};

void AppendFloat(std::string& out, float value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
void AppendBf16(std::string& out, float value) {
  const uint16_t bits = kernels::EncodeBf16(value);
  out.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
}

// Fills tensors from one block per kind and spread, piece by piece.
class Filler {
 public:
  explicit Filler(const ModelSpec& spec) {
    for (Tensor& tensor : TensorsOf(spec)) tensors_.emplace(tensor.name, std::move(tensor));
  }

  kernels::TensorView Make(Arena& arena, const std::string& name,
                           const kernels::TensorView& wanted) {
    kernels::TensorView view = wanted;
    const auto bytes = static_cast<size_t>(view.size()) * kernels::DTypeBytes(view.dtype);
    view.data = arena.Bytes(bytes);
    const auto found = tensors_.find(name);
    if (view.data == nullptr || found == tensors_.end()) return view;
    const std::byte* block = Block(arena, found->second);
    for (size_t at = 0; at < bytes && block != nullptr; at += kBlockBytes) {
      arena.Fill(view.as<std::byte>() + at, block, std::min(bytes - at, kBlockBytes));
    }
    return view;
  }

 private:
  static constexpr size_t kBlockBytes = size_t{16} << 20;

  const std::byte* Block(Arena& arena, const Tensor& tensor) {
    auto [entry, is_new] = blocks_.try_emplace({static_cast<int>(tensor.kind), tensor.spread});
    if (!is_new) return entry->second;
    auto* block = static_cast<std::byte*>(arena.HostBytes(kBlockBytes));
    if (block == nullptr) return nullptr;
    uint64_t state = RandomBytes::Begin(tensor.name, 1);
    const std::string bytes = random_.Part(tensor, kBlockBytes, state);
    std::copy_n(reinterpret_cast<const std::byte*>(bytes.data()), kBlockBytes, block);
    return entry->second = block;
  }

  const RandomBytes random_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::pair<int, double>, const std::byte*> blocks_;
};

}  // namespace

std::vector<Tensor> TensorsOf(const ModelSpec& spec) { return TensorList(spec).tensors(); }

uint64_t RandomBytes::Begin(std::string_view name, uint64_t seed) {
  uint64_t hash = 0xCBF29CE484222325u ^ seed * 0x9E3779B97F4A7C15u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return hash;
}

// Normal values by 16 random bits: sums of bits, so that no library decides a rounding.
RandomBytes::RandomBytes() {
  Words words(42);
  for (size_t i = 0; i < values_.size(); ++i) {
    double sum = 0;
    for (int j = 0; j < 12; ++j) sum += static_cast<double>(words.Next() >> 11) * 0x1p-53;
    values_[i] = static_cast<float>(sum - 6);
    e4m3_[i] = kernels::EncodeE4m3(values_[i] * 32);
  }
  for (size_t i = 0; i < values_.size(); ++i) {
    const uint8_t low = kernels::EncodeE2m1(values_[i] * 2);
    const uint8_t high = kernels::EncodeE2m1(values_[(i * 40503 + 77) % values_.size()] * 2);
    e2m1_[i] = static_cast<uint8_t>(low | high << 4);
  }
}

// One value of a tensor from random bits.
void RandomBytes::Append(const Tensor& tensor, uint64_t bits, std::string& out) const {
  const float normal = values_[bits & 0xFFFF];
  switch (tensor.kind) {
    case Kind::kE4m3:
      out.push_back(static_cast<char>(e4m3_[bits & 0xFFFF]));
      return;
    case Kind::kE2m1:
      out.push_back(static_cast<char>(e2m1_[bits & 0xFFFF]));
      return;
    case Kind::kScale:
      // The power of two below, half of the time twice that: what trained blocks look like.
      out.push_back(
          static_cast<char>(127 + std::ilogb(tensor.spread) + static_cast<int>(bits >> 15 & 1)));
      return;
    case Kind::kBf16:
      return AppendBf16(out, normal * static_cast<float>(tensor.spread));
    case Kind::kNorm:
      return AppendBf16(out, 1 + 0.1F * normal);
    case Kind::kF32:
      return AppendFloat(out, normal * static_cast<float>(tensor.spread));
    case Kind::kF32Zero:
      return AppendFloat(out, 0);
  }
}

std::string RandomBytes::Part(const Tensor& tensor, int64_t bytes, uint64_t& state) const {
  Words words(state);
  std::string part;
  const auto wanted = static_cast<size_t>(bytes);
  while (part.size() < wanted) {
    const uint64_t word = words.Next();
    for (int shift = 0; shift < 64 && part.size() < wanted; shift += 16) {
      Append(tensor, word >> shift, part);
    }
  }
  state = words.state();
  return part;
}

TensorMaker MakerOf(const ModelSpec& spec) {
  return [filler = std::make_shared<Filler>(spec)](Arena& arena, const std::string& name,
                                                   const kernels::TensorView& wanted) {
    return filler->Make(arena, name, wanted);
  };
}

uint64_t TotalBytes(const ModelSpec& spec) {
  uint64_t total = 0;
  for (const Tensor& tensor : TensorsOf(spec)) total += static_cast<uint64_t>(tensor.bytes());
  return total;
}

}  // namespace skein::worker::dummy
