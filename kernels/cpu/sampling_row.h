// What the choosing and the verifying of tokens share: the order of tokens and truncation, which
// sorts no more of a row than the cut needs. Any thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/lane_kernels.h"
#include "kernels/exact_math.h"
#include "kernels/ops/sampling.h"

namespace skein::kernels::cpu {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr double kLn2 = 0.693147180559945309417;
// Above the rounding of any key that is compared with a bound.
inline constexpr double kSlack = 1e-6;

// The order of tokens everywhere: larger logit first, then the lower id.
struct Before {
  const float* z;
  bool operator()(int32_t a, int32_t b) const { return z[a] > z[b] || (z[a] == z[b] && a < b); }
};

// Weight of a token in units of 2^-40 of the most likely one.
inline uint64_t Weight(float z, float largest, const SampleParams& params) {
  const double x = (double{z} - double{largest}) / double{params.temperature};
  if (x < -28) return 0;  // e^-28 * 2^40 is below 1
  return static_cast<uint64_t>(ExactExp(x) * 0x1p40);
}

// Moves the first `count` tokens of ids[0, size) in order to the front, sorted.
inline void SortFront(int32_t* ids, int64_t from, int64_t count, int64_t size,
                      const Before& before) {
  if (count < size) std::nth_element(ids + from, ids + count - 1, ids + size, before);
  std::sort(ids + from, ids + count, before);
}

// Leaves in ids[0, result) the tokens that survive top_k, top_p and min_p, in no order that
// matters.
inline int64_t Truncate(const float* z, float largest, const SampleParams& params, int32_t* ids,
                        int64_t size) {
  const Before before{z};
  if (params.top_k > 0 && params.top_k < size) {
    std::nth_element(ids, ids + params.top_k - 1, ids + size, before);
    size = params.top_k;
  }
  if (params.top_p < 1) {
    uint64_t total = 0;
    for (int64_t i = 0; i < size; ++i) total += Weight(z[ids[i]], largest, params);
    const uint64_t mass =
        static_cast<uint64_t>(std::ceil(double{params.top_p} * static_cast<double>(total)));
    uint64_t sum = 0;
    int64_t keep = 0;
    int64_t sorted = 0;
    while (keep < size && (keep == 0 || sum < mass)) {
      if (keep == sorted) {
        const int64_t more = std::min(size, std::max<int64_t>(64, sorted * 4));
        SortFront(ids, sorted, more, size, before);
        sorted = more;
      }
      sum += Weight(z[ids[keep++]], largest, params);
    }
    size = keep;
  }
  if (params.min_p > 0) {
    const double least = double{params.min_p} * 0x1p40;
    int64_t keep = 0;
    for (int64_t i = 0; i < size; ++i) {
      const bool best = z[ids[i]] == largest;
      if (best || static_cast<double>(Weight(z[ids[i]], largest, params)) >= least) {
        ids[keep++] = ids[i];
      }
    }
    size = keep;
  }
  return size;
}

// True if the parameters may cut tokens off.
inline bool Truncates(const SampleParams& params) {
  return params.top_k > 0 || params.top_p < 1 || params.min_p > 0;
}

// The raw logprob of a logit.
inline float LogProb(float z, double log_sum) {
  return z == kInfinity ? 0.0f : static_cast<float>(double{z} - log_sum);
}

// Row r of the logits before any edit, of which raw logprobs are; `z` where nothing was edited.
inline const float* RawRow(const TensorView& raw, const float* z, int64_t r) {
  return raw.absent() ? z : reinterpret_cast<const float*>(raw.row(r));
}

// ln of the sum of exp(z), which LogProb takes.
template <CpuIsa isa>
double LogSum(const float* z, int64_t vocab, float largest) {
  if (largest == kInfinity) return double{kInfinity};
  return double{largest} + ExactLog(Lanes<isa>().sum_exp(z, vocab, largest));
}

// Ids of the tokens that are allowed at all, ascending; returns their number.
inline int64_t AllowedIds(const float* z, int64_t vocab, int32_t* ids) {
  int64_t size = 0;
  for (int64_t v = 0; v < vocab; ++v) {
    if (z[v] != -kInfinity) ids[size++] = static_cast<int32_t>(v);
  }
  return size;
}

// Probabilities of a row under temperature and truncation, as a cut in the order of tokens and a
// normaliser, so that none is stored; sums run over ascending ids.
class Distribution {
 public:
  // `largest` of the row is a number or +infinity. `ids` [vocab] is written over.
  Distribution(const float* z, int64_t vocab, float largest, const SampleParams& params,
               int32_t* ids)
      : z_(z), largest_(largest), total_(1), temperature_(params.temperature) {
    if (largest == kInfinity) {
      cut_ = static_cast<int32_t>(std::find(z, z + vocab, largest) - z);
      cut_z_ = largest;
      return;
    }
    if (Truncates(params)) {
      const int64_t size = Truncate(z, largest, params, ids, AllowedIds(z, vocab, ids));
      cut_ = *std::max_element(ids, ids + size, Before{z});
      cut_z_ = z[cut_];
    }
    total_ = 0;
    for (int64_t v = 0; v < vocab; ++v) total_ += Raw(static_cast<int32_t>(v));
  }

  double operator()(int32_t v) const { return Raw(v) / total_; }
  // Whether the token can be drawn at all.
  bool Keeps(int32_t v) const {
    const float z = z_[v];
    return z > cut_z_ || (z == cut_z_ && v <= cut_);
  }
  // The logarithm of its probability, also of one that is too small for a double.
  float LogOf(int32_t v) const {
    if (!Keeps(v)) return -kInfinity;
    if (largest_ == kInfinity) return 0;
    return static_cast<float>((double{z_[v]} - double{largest_}) / temperature_ - ExactLog(total_));
  }

 private:
  double Raw(int32_t v) const {
    if (!Keeps(v)) return 0;
    if (largest_ == kInfinity) return 1;
    return ExactExp((double{z_[v]} - double{largest_}) / temperature_);
  }

  const float* z_;
  float largest_;
  // Tokens after this one in the order are cut off.
  float cut_z_ = -kInfinity;
  int32_t cut_ = -1;
  double total_;
  double temperature_;
};

}  // namespace skein::kernels::cpu
