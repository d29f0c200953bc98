// Bodies of the lane kernels, written once on a lane type. Included by lanes_scalar.cc and
// lanes_avx2.cc alone, which instantiate the table for their lanes. The order of every sum is fixed
// by the extents of one row; must never look at how many rows a call has.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/gemm_lanes.h"
#include "kernels/cpu/lane_kernels.h"
#include "kernels/cpu/lanes.h"

namespace skein::kernels::cpu {

template <typename L>
struct LaneBodies {
  static void Widen(const uint16_t* x, int64_t count, float* out) {
    OverLanes<L>(count, [&](const auto& load, const auto& store) { store(out, load(x)); });
  }

  static void Narrow(const float* x, int64_t count, uint16_t* out) {
    OverLanes<L>(count, [&](const auto& load, const auto& store) { store(out, load(x)); });
  }

  static void DecodeE4m3Unit(const uint8_t* codes, float factor, float* out) {
    L lanes[kLanesPerUnit];
    L::DecodeE4m3(codes, factor, lanes);
    for (int64_t q = 0; q < kLanesPerUnit; ++q) lanes[q].Store(out + q * kLanes);
  }

  static void DecodeE4m3(const uint8_t* codes, const uint8_t* scale, int64_t count, float* out) {
    for (int64_t i = 0; i < count; i += kUnit) {
      const float factor = WeightScale(scale[i / kUnit]);
      if (count - i >= kUnit) {
        DecodeE4m3Unit(codes + i, factor, out + i);
        continue;
      }
      uint8_t tail[kUnit] = {};
      float decoded[kUnit];
      std::memcpy(tail, codes + i, static_cast<size_t>(count - i));
      DecodeE4m3Unit(tail, factor, decoded);
      std::memcpy(out + i, decoded, static_cast<size_t>(count - i) * sizeof(float));
    }
  }

  static void DecodeProductRow(const uint8_t* codes, const uint8_t* scale, int64_t k, bool permuted,
                               float* out) {
    for (int64_t begin = 0; begin < k; begin += kUnit) {
      const int64_t count = kUnit < k - begin ? kUnit : k - begin;
      uint8_t tail[kUnit] = {};
      uint8_t turned[kUnit];
      const uint8_t* unit = codes + begin;
      if (count < kUnit) {
        std::memcpy(tail, unit, static_cast<size_t>(count));
        unit = tail;
      }
      if (permuted) {
        L::PermuteUnit(unit, turned);
        unit = turned;
      }
      const uint8_t byte = scale[begin / kUnit];
      const float factor =
          IsProductScale(byte) ? WeightScale(byte) : OddScale(unit, kUnit, kE4m3Magnitude);
      DecodeE4m3Unit(unit, factor, out + begin);
    }
  }

  // e2m1 codes of one unit under one ue8m0 scale or two e4m3 scales.
  static void DecodeFp4(KvFormat format, const uint8_t* codes, const uint8_t* scale, float* out) {
    const bool by_16 = format == KvFormat::kFp4Group16;
    L lanes[kLanesPerUnit];
    L::DecodeE2m1(codes, by_16 ? 256.0f : WeightScale(scale[0]), lanes);
    for (int64_t q = 0; q < kLanesPerUnit; ++q) {
      if (by_16) lanes[q] = lanes[q] * L::Set(skein::kernels::DecodeE4m3(scale[q / 2]));
      lanes[q].Store(out + q * kLanes);
    }
  }

  static void DecodeKv(KvFormat format, const uint8_t* data, const uint8_t* scale, int64_t dim,
                       float* out) {
    switch (format) {
      case KvFormat::kFp8Group32:
        DecodeE4m3(data, scale, dim, out);
        return;
      case KvFormat::kBf16:
        Widen(reinterpret_cast<const uint16_t*>(data), dim, out);
        return;
      case KvFormat::kF32:
        std::memcpy(out, data, static_cast<size_t>(dim) * sizeof(float));
        return;
      case KvFormat::kF64:
        return;
      case KvFormat::kFp4Group16:
      case KvFormat::kFp4Group32:
        break;
    }
    const int64_t scales_per_unit = format == KvFormat::kFp4Group16 ? 2 : 1;
    int64_t i = 0;
    for (; i + kUnit <= dim; i += kUnit) {
      DecodeFp4(format, data + i / 2, scale + i / kUnit * scales_per_unit, out + i);
    }
    if (i == dim) return;
    uint8_t codes[kUnit / 2] = {};
    uint8_t scales[2] = {};
    float decoded[kUnit];
    std::memcpy(codes, data + i / 2, static_cast<size_t>((dim - i + 1) / 2));
    std::memcpy(scales, scale + i / kUnit * scales_per_unit,
                static_cast<size_t>(KvScaleBytes(format, dim - i)));
    DecodeFp4(format, codes, scales, decoded);
    std::memcpy(out + i, decoded, static_cast<size_t>(dim - i) * sizeof(float));
  }

  static void ExpAll(const float* x, int64_t count, float* out) {
    OverLanes<L>(count, [&](const auto& load, const auto& store) { store(out, Exp(load(x))); });
  }

  static float Dot(const float* a, const float* b, int64_t count) {
    return DotLanes<L>(a, b, count);
  }

  // --- casts, norms, rotation ---

  template <typename T>
  static void Cast(const T* x, int64_t count, int64_t group, uint8_t* codes, uint8_t* scale) {
    for (int64_t begin = 0; begin < count; begin += group) {
      const int64_t size = group < count - begin ? group : count - begin;
      // Max keeps its second operand where one is NaN, so a NaN must be looked for by itself.
      L largest = L::Zero();
      L poison = L::Zero();
      OverLanes<L>(size, [&](const auto& load, const auto&) {
        const L value = load(x + begin);
        largest = L::Max(L::Abs(value), largest);
        poison = L::Fma(value, L::Zero(), poison);
      });
      float lane[kLanes];
      largest.Store(lane);
      float amax = lane[0];
      for (int i = 1; i < kLanes; ++i) amax = lane[i] > amax ? lane[i] : amax;
      const GroupScale s = ScaleOfGroup(CodeFormat::kE4m3Ue8m0, amax + std::fabs(poison.Sum()));
      scale[begin / group] = s.byte;
      Encode(x + begin, size, s.value, codes + begin);
    }
  }

  template <typename T>
  static void Encode(const T* x, int64_t count, float scale, uint8_t* codes) {
    const L divisor = L::Set(scale);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) (LoadLanes<L>(x + i) / divisor).StoreE4m3(codes + i);
    if (i == count) return;
    uint8_t tail[kLanes];
    (LoadPart<L>(x + i, count - i) / divisor).StoreE4m3(tail);
    std::memcpy(codes + i, tail, static_cast<size_t>(count - i));
  }

  // x to the nearest multiple of a step, ties to even ones; `magic` is 1.5 * 2^23 steps.
  static L ToSteps(L x, float magic) { return (x + L::Set(magic)) - L::Set(magic); }
  static L Clamp(L x, float most) { return L::Max(L::Set(-most), L::Min(L::Set(most), x)); }

  // e2m1 has steps of 1/2 up to 2, of 1 up to 4 and of 2 up to 6: each part is rounded by itself.
  static bool FakeE2m1(uint16_t* x, int64_t count) {
    L largest = L::Zero();
    L poison = L::Zero();
    OverLanes<L>(count, [&](const auto& load, const auto&) {
      const L value = load(x);
      largest = L::Max(L::Abs(value), largest);
      poison = L::Fma(value, L::Zero(), poison);
    });
    float lane[kLanes];
    largest.Store(lane);
    float amax = lane[0];
    for (int i = 1; i < kLanes; ++i) amax = lane[i] > amax ? lane[i] : amax;
    if (!(poison.Sum() == 0)) return false;
    const GroupScale s = ScaleOfGroup(CodeFormat::kE2m1Ue8m0, amax);
    const L scale = L::Set(s.value);
    OverLanes<L>(count, [&](const auto& load, const auto& store) {
      const L value = load(x) / scale;
      const L two = Clamp(value, 2.0f);
      const L four = Clamp(value, 4.0f);
      const L low = ToSteps(two, 0x1.8p22f);
      const L middle = ToSteps(four - two, 0x1.8p23f);
      const L high = ToSteps(Clamp(value, 6.0f) - four, 0x1.8p24f);
      store(x, (low + middle + high) * scale);
    });
    return true;
  }

  template <typename W>
  static void RmsNorm(const uint16_t* x, const W* weight, int64_t count, float eps, uint16_t* y) {
    const float mean = DotLanes<L>(x, x, count) / static_cast<float>(count);
    const L reciprocal = L::Set(1.0f / std::sqrt(mean + eps));
    OverLanes<L>(count, [&](const auto& load, const auto& store) {
      store(y, load(weight) * (load(x) * reciprocal));
    });
  }

  static void Rotate(uint16_t* x, const float* q, const float* t, int64_t count) {
    OverLanes<L>(count, [&](const auto& load, const auto& store) {
      const L value = load(x);
      store(x, L::Fma(L::DupEven(value), load(q), L::DupOdd(value) * load(t)));
    });
  }

  // --- experts and residual streams ---

  static void SwiGlu(const uint16_t* gate, const uint16_t* up, int64_t count, float limit,
                     float weight, uint16_t* y) {
    const L factor = L::Set(weight);
    const L one = L::Set(1.0f);
    OverLanes<L>(count, [&](const auto& load, const auto& store) {
      L g = load(gate);
      L u = load(up);
      if (limit > 0) {
        g = L::Min(L::Set(limit), g);
        u = L::Max(L::Set(-limit), L::Min(L::Set(limit), u));
      }
      const L silu = g / (one + Exp(L::Negate(g)));
      store(y, factor * (silu * u));
    });
  }

  static void WeightedSum(const uint16_t* const* rows, const float* factor, int64_t num_rows,
                          int64_t count, uint16_t* y) {
    OverLanes<L>(count, [&](const auto& load, const auto& store) {
      L sum = L::Zero();
      for (int64_t i = 0; i < num_rows; ++i) {
        sum = L::Fma(L::Set(factor[i]), load(rows[i]), sum);
      }
      store(y, sum);
    });
  }

  static constexpr int64_t kMaxStreams = 8;

  static void HcPost(const uint16_t* x, const float* post, const float* comb, int64_t hc,
                     int64_t count, uint16_t* stream, int64_t step) {
    OverLanes<L>(count, [&](const auto& load, const auto& store) {
      L old[kMaxStreams];
      for (int64_t j = 0; j < hc; ++j) old[j] = load(stream + j * step);
      const L value = load(x);
      for (int64_t k = 0; k < hc; ++k) {
        L sum = L::Set(post[k]) * value;
        for (int64_t j = 0; j < hc; ++j) sum = L::Fma(L::Set(comb[j * hc + k]), old[j], sum);
        store(stream + k * step, sum);
      }
    });
  }

  static void EngramGate(uint16_t* x, const uint16_t* key, const uint16_t* value, const float* w,
                         int64_t count, float eps) {
    L dots = L::Zero(), xs = L::Zero(), keys = L::Zero();
    OverLanes<L>(count, [&](const auto& load, const auto&) {
      const L a = load(x);
      const L k = load(key);
      dots = L::Fma(a * load(w), k, dots);
      xs = L::Fma(a, a, xs);
      keys = L::Fma(k, k, keys);
    });
    const float width = static_cast<float>(count);
    const float rx = 1.0f / std::sqrt(xs.Sum() / width + eps);
    const float rk = 1.0f / std::sqrt(keys.Sum() / width + eps);
    const float dot = dots.Sum() * rx * rk / std::sqrt(width);
    const float magnitude = std::fabs(dot) < 1e-6f ? 1e-6f : std::fabs(dot);
    const L gate = Sigmoid(L::Set(std::copysign(std::sqrt(magnitude), dot)));
    OverLanes<L>(count, [&](const auto& load, const auto& store) {
      store(x, L::Fma(gate, load(value), load(x)));
    });
  }

  static void Compress(const float* const* rows, int64_t num_rows, int64_t dim, uint16_t* latent) {
    OverLanes<L>(dim, [&](const auto& load, const auto& store) {
      L largest = load(rows[0] + dim);
      for (int64_t u = 1; u < num_rows; ++u) largest = L::Max(largest, load(rows[u] + dim));
      L sum = L::Zero();
      L mixed = L::Zero();
      for (int64_t u = 0; u < num_rows; ++u) {
        const L weight = Exp(load(rows[u] + dim) - largest);
        sum = sum + weight;
        mixed = L::Fma(weight, load(rows[u]), mixed);
      }
      store(latent, mixed / sum);
    });
  }

  // --- index and attention ---

  static_assert(kKeysTogether == 4);
  static constexpr int64_t kTogether = kKeysTogether;

  // Adds kHeads heads from h on to the scores of kTogether keys.
  template <int kHeads>
  static void AddHeads(const IndexCall& call, int64_t h, float* score) {
    float dot[kHeads][kTogether];
    CrossDots<kHeads>(call.keys, call.q + h * call.dim, call.dim, dot);
    for (int g = 0; g < kHeads; ++g) {
      for (int64_t i = 0; i < kTogether; ++i) {
        score[i] = std::fma(call.weight[h + g], dot[g][i] < 0 ? 0.0f : dot[g][i], score[i]);
      }
    }
  }

  static void IndexScores(const IndexCall& call) {
    float score[kTogether] = {};
    int64_t h = 0;
    if (call.count == kTogether) {
      for (; h + 2 <= call.heads; h += 2) AddHeads<2>(call, h, score);
      for (; h < call.heads; ++h) AddHeads<1>(call, h, score);
    }
    for (; h < call.heads; ++h) {
      for (int64_t i = 0; i < call.count; ++i) {
        const float dot = DotLanes<L>(call.keys + i * call.dim, call.q + h * call.dim, call.dim);
        score[i] = std::fma(call.weight[h], dot < 0 ? 0.0f : dot, score[i]);
      }
    }
    for (int64_t i = 0; i < call.count; ++i) call.score[i] = score[i];
  }

  // Dot products of kTogether consecutive rows with kHeads others, each as DotLanes has it.
  template <int kHeads>
  [[gnu::always_inline]] static inline void CrossDots(const float* rows, const float* others,
                                                      int64_t dim, float (*out)[kTogether]) {
    L sum[kHeads][kTogether];
#pragma GCC unroll 2
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
      for (int64_t i = 0; i < kTogether; ++i) sum[h][i] = L::Zero();
    }
    OverLanes<L>(dim, [&](const auto& load, const auto&) {
      L other[kHeads];
#pragma GCC unroll 2
      for (int h = 0; h < kHeads; ++h) other[h] = load(others + h * dim);
#pragma GCC unroll 4
      for (int64_t i = 0; i < kTogether; ++i) {
        const L value = load(rows + i * dim);
#pragma GCC unroll 2
        for (int h = 0; h < kHeads; ++h) sum[h][i] = L::Fma(value, other[h], sum[h][i]);
      }
    });
#pragma GCC unroll 2
    for (int h = 0; h < kHeads; ++h) L::Sums(sum[h], out[h]);
  }

  template <int kHeads>
  static void Scores(const HeadsCall& call) {
    int64_t j = 0;
    for (; j + kTogether <= call.count; j += kTogether) {
      float dot[kHeads][kTogether];
      CrossDots<kHeads>(call.entries + j * call.dim, call.q, call.dim, dot);
      for (int h = 0; h < kHeads; ++h) {
        float* score = call.score + h * call.score_step + j;
        for (int64_t i = 0; i < kTogether; ++i) score[i] = dot[h][i] * call.scale;
      }
    }
    for (; j < call.count; ++j) {
      for (int h = 0; h < kHeads; ++h) {
        call.score[h * call.score_step + j] =
            DotLanes<L>(call.entries + j * call.dim, call.q + h * call.dim, call.dim) * call.scale;
      }
    }
  }

  // The largest of `count` scores and the sink; any value if a score is NaN.
  static float LargestScore(const float* score, int64_t count, float sink) {
    L largest = L::Set(sink);
    int64_t j = 0;
    for (; j + kLanes <= count; j += kLanes) largest = L::Max(L::Load(score + j), largest);
    float lane[kLanes];
    largest.Store(lane);
    float most = lane[0];
    for (int i = 1; i < kLanes; ++i) most = lane[i] > most ? lane[i] : most;
    for (; j < count; ++j) most = score[j] > most ? score[j] : most;
    return most;
  }

  // Turns the scores of a head into weights; returns what their sum is divided by.
  static L Softmax(float* score, int64_t count, float sink) {
    const float largest = count > 0 ? LargestScore(score, count, sink) : 0;
    L sums = L::Zero();
    OverLanes<L>(count, [&](const auto& load, const auto& store) {
      store(score, Exp(load(score) - L::Set(largest)));
    });
    OverLanes<L>(count, [&](const auto& load, const auto&) { sums = sums + load(score); });
    float lane[kLanes];
    Exp(L::Set(sink - largest)).Store(lane);
    return L::Set(count > 0 ? sums.Sum() + lane[0] : 1.0f);
  }

  template <int kHeads>
  static void AttendHeads(const HeadsCall& call) {
    Scores<kHeads>(call);
    L divisor[kHeads];
    for (int h = 0; h < kHeads; ++h) {
      divisor[h] = Softmax(call.score + h * call.score_step, call.count, call.sink[h]);
    }
    WeightedEntries<kHeads>(call, divisor);
  }

  static void AttentionHeads(const HeadsCall& call) {
    static_assert(kHeadsTogether == 2);
    if (call.heads == 2) return AttendHeads<2>(call);
    AttendHeads<1>(call);
  }

  // out = sum_j score[j] * entry[j] / divisor over kParts lanes of channels from c, j ascending.
  template <int kHeads, int kParts>
  static void WeightedChannels(const HeadsCall& call, const L* divisor, int64_t c) {
    L sum[kHeads][kParts];
#pragma GCC unroll 2
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 8
      for (int q = 0; q < kParts; ++q) sum[h][q] = L::Zero();
    }
    for (int64_t j = 0; j < call.count; ++j) {
      L weight[kHeads];
#pragma GCC unroll 2
      for (int h = 0; h < kHeads; ++h) weight[h] = L::Set(call.score[h * call.score_step + j]);
      const float* entry = call.entries + j * call.dim + c;
#pragma GCC unroll 8
      for (int q = 0; q < kParts; ++q) {
        const L value = L::Load(entry + q * kLanes);
#pragma GCC unroll 2
        for (int h = 0; h < kHeads; ++h) sum[h][q] = L::Fma(weight[h], value, sum[h][q]);
      }
    }
#pragma GCC unroll 2
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 8
      for (int q = 0; q < kParts; ++q) {
        (sum[h][q] / divisor[h]).StoreBf16(call.out + h * call.out_step + c + q * kLanes);
      }
    }
  }

  // All channels of the heads, so many at a time that their chains overlap.
  template <int kHeads>
  static void WeightedEntries(const HeadsCall& call, const L* divisor) {
    int64_t c = 0;
    if constexpr (kHeads == 1) {
      for (; c + 2 * kUnit <= call.dim; c += 2 * kUnit) WeightedChannels<1, 8>(call, divisor, c);
    }
    for (; c + kUnit <= call.dim; c += kUnit) WeightedChannels<kHeads, 4>(call, divisor, c);
    for (int h = 0; h < kHeads; ++h) {
      const float* score = call.score + h * call.score_step;
      OverLanes<L>(call.dim - c, [&](const auto& load, const auto& store) {
        L sum = L::Zero();
        for (int64_t j = 0; j < call.count; ++j) {
          sum = L::Fma(L::Set(score[j]), load(call.entries + j * call.dim + c), sum);
        }
        store(call.out + h * call.out_step + c, sum / divisor[h]);
      });
    }
  }

  // --- sampling ---

  static float Largest(const float* x, int64_t count) {
    float largest = x[0];
    for (int64_t i = 0; i < count; ++i) {
      if (std::isnan(x[i])) return x[i];
      if (x[i] > largest) largest = x[i];
    }
    return largest;
  }

  static double SumExp(const float* x, int64_t count, float largest) {
    double sum = 0;
    float slot[kLanes];
    const L top = L::Set(largest);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      Exp(L::Load(x + i) - top).Store(slot);
      double part[4];
      for (int j = 0; j < 4; ++j) part[j] = double{slot[j]} + double{slot[j + 4]};
      sum += (part[0] + part[2]) + (part[1] + part[3]);
    }
    if (i == count) return sum;
    Exp(LoadPart<L>(x + i, count - i) - top).Store(slot);
    for (int64_t j = 0; j < count - i; ++j) sum += double{slot[j]};
    return sum;
  }

  static constexpr auto kPackRow = [] {
    decltype(LaneKernels::pack_row) function = nullptr;
    if constexpr (CodeDot<L>::kUsed) function = &CodeDot<L>::PackRow;
    return function;
  }();
  static constexpr auto kRawRow = [] {
    decltype(LaneKernels::raw_row) function = nullptr;
    if constexpr (CodeDot<L>::kUsed) function = &CodeDot<L>::RawRow;
    return function;
  }();

  static constexpr LaneKernels kTable = {
      .widen = &Widen,
      .decode_e4m3 = &DecodeE4m3,
      .decode_product_row = &DecodeProductRow,
      .pack_row = kPackRow,
      .raw_row = kRawRow,
      .narrow = &Narrow,
      .decode_kv = &DecodeKv,
      .gemm = &GemmBodies<L>::Gemm,
      .dot = &Dot,
      .exp = &ExpAll,
      .cast_bf16 = &Cast<uint16_t>,
      .cast_f32 = &Cast<float>,
      .fake_e2m1 = &FakeE2m1,
      .rms_norm_bf16 = &RmsNorm<uint16_t>,
      .rms_norm_f32 = &RmsNorm<float>,
      .rotate = &Rotate,
      .swiglu = &SwiGlu,
      .weighted_sum = &WeightedSum,
      .hc_post = &HcPost,
      .engram_gate = &EngramGate,
      .compress = &Compress,
      .index_scores = &IndexScores,
      .attention_heads = &AttentionHeads,
      .largest = &Largest,
      .sum_exp = &SumExp,
  };
};

}  // namespace skein::kernels::cpu
