// The inner loops of the cpu backend as plain functions on pointers, in one table per instruction
// set. A family's file prepares a call and asks the table; both tables give the same bits. Pure
// functions, any thread, no allocation.
#pragma once

#include <cstdint>

#include "kernels/cpu/register.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/kv_cache.h"

namespace skein::kernels::cpu {

// Rows of e4m3 activations as integers, for products with e2m1 weights: a code is high * 2^-6 + low
// * 2^-9, both of 16 bits. Per unit 32 high and 32 low parts, each the 16 even channels, then the
// 16 odd ones; its factor is the scale times what makes the integers codes; `has_low` says whether
// any low part is not 0.
struct IntegerRows {
  int16_t* parts = nullptr;    // [rows, units, 64]
  float* factor = nullptr;     // [rows, factor_step]
  uint8_t* has_low = nullptr;  // [rows, factor_step]
  int64_t units = 0;
  int64_t factor_step = 0;  // units rounded up to 8, the rest 0
};

// Most rows whose weights go straight into the sums, codes times codes where the lanes have that,
// by their channels; more rows are floats. With short rows the start and the end of a straight sum
// cost more than its channels.
inline constexpr int64_t kDirectRows = 16;
inline constexpr int64_t kShortDirectRows = 3;
inline constexpr int64_t kShortRow = 512;
// Most rows of floats that need no panel where rows are short: each weight is decoded once for
// eight.
inline constexpr int64_t kMostShortRows = 32;
inline constexpr int64_t kTileRows = 8;
constexpr int64_t MostDirectRows(int64_t k, WeightFormat format) {
  return k <= kShortRow && format != WeightFormat::kE2m1Row32 ? kShortDirectRows : kDirectRows;
}

// A matrix product of `rows` decoded activations with weight rows [n_begin, n_end).
struct GemmCall {
  // Row i at x + row * x_step, k padded with zeros to kUnit; for e2m1 weights each unit in the
  // order of L::DecodeE2m1Raw. May be null when every call has `codes` and at most
  // MostDirectRows(k) rows.
  const float* x = nullptr;
  int64_t x_step = 0;  // floats
  // Of at most MostDirectRows(k) rows of codes, where the lanes use them. e4m3 weights: x holds
  // codes times 2^112, a factor per unit at x_factor + row * x_factor_step. e2m1 weights: the
  // integers.
  const float* x_factor = nullptr;
  int64_t x_factor_step = 0;
  const IntegerRows* x_integers = nullptr;
  const int32_t* x_row = nullptr;  // row of x of output row i; null: x_first + i
  int64_t x_first = 0;
  int64_t rows = 0;
  int64_t k = 0;
  WeightFormat format = WeightFormat::kBf16;
  const uint8_t* codes = nullptr;
  int64_t codes_step = 0;  // bytes
  const uint8_t* scale = nullptr;
  int64_t scale_step = 0;  // bytes
  int64_t block = 32;      // edge of an e4m3 block
  int64_t first_row = 0;   // weight row of output column 0
  uint8_t* y = nullptr;    // output row i at y + i * y_step
  int64_t y_step = 0;      // bytes
  bool y_is_bf16 = false;
  bool accumulate = false;
};

// Weight rows that a tile of the product decodes at once: floats of the panel are this many times k
// padded to kUnit.
inline constexpr int64_t kPanelRows = 4;

// Keys that are scored side by side: their chains overlap.
inline constexpr int64_t kKeysTogether = 4;

// Scores of some decoded keys against all heads of one row: sum_h weight[h] * relu(q[h] . key), h
// ascending.
struct IndexCall {
  const float* q = nullptr;       // [heads, dim]
  const float* weight = nullptr;  // [heads]
  int64_t heads = 0;
  int64_t dim = 0;
  const float* keys = nullptr;  // [count, dim]
  int64_t count = 0;            // up to kKeysTogether
  float* score = nullptr;       // [count]
};

// Heads of one row that are taken side by side: they share the loads of the entries.
inline constexpr int64_t kHeadsTogether = 2;

// Some heads of attention over the decoded entries of one row.
struct HeadsCall {
  const float* q = nullptr;        // [heads, dim]
  const float* sink = nullptr;     // [heads]
  int64_t heads = 1;               // up to kHeadsTogether
  const float* entries = nullptr;  // [count, dim]
  int64_t count = 0;
  int64_t dim = 0;
  float scale = 0;
  float* score = nullptr;   // scratch [heads, score_step]
  int64_t score_step = 0;   // count rounded up to 8 at least
  uint16_t* out = nullptr;  // head h at out + h * out_step
  int64_t out_step = 0;
};

struct LaneKernels {
  // Widens bf16; decodes e4m3 codes with a scale byte per 32; rounds to bf16.
  void (*widen)(const uint16_t* x, int64_t count, float* out);
  void (*decode_e4m3)(const uint8_t* codes, const uint8_t* scale, int64_t count, float* out);
  // Rows of a product: e4m3 codes with a scale byte per 32, k padded with zeros to kUnit. A scale
  // that no product takes makes its unit NaN unless all its codes are 0. `permuted`: units in the
  // order of e2m1 weights.
  void (*decode_product_row)(const uint8_t* codes, const uint8_t* scale, int64_t k, bool permuted,
                             float* out);
  // Row `row` of `out` from such codes; null where integers are not used.
  void (*pack_row)(const uint8_t* codes, const uint8_t* scale, int64_t k, const IntegerRows& out,
                   int64_t row);
  // Row of codes times 2^112 with its factors, for e4m3 weights; null where codes are not used.
  void (*raw_row)(const uint8_t* codes, const uint8_t* scale, int64_t k, float* out, float* factor);
  void (*narrow)(const float* x, int64_t count, uint16_t* out);
  // A row of a cache pool of `format`.
  void (*decode_kv)(KvFormat format, const uint8_t* data, const uint8_t* scale, int64_t dim,
                    float* out);
  void (*gemm)(const GemmCall& call, int64_t n_begin, int64_t n_end, float* panel);
  float (*dot)(const float* a, const float* b, int64_t count);
  // out = exp(x).
  void (*exp)(const float* x, int64_t count, float* out);
  // e4m3 codes and a scale byte per group of x.
  void (*cast_bf16)(const uint16_t* x, int64_t count, int64_t group, uint8_t* codes,
                    uint8_t* scale);
  void (*cast_f32)(const float* x, int64_t count, int64_t group, uint8_t* codes, uint8_t* scale);
  // A group of x to e2m1 under a power of two and back. False, with x as it was, if a value is not
  // finite.
  bool (*fake_e2m1)(uint16_t* x, int64_t count);
  // y = bf16(w * (x * r)), r the reciprocal root of the mean square plus eps.
  void (*rms_norm_bf16)(const uint16_t* x, const uint16_t* w, int64_t count, float eps,
                        uint16_t* y);
  void (*rms_norm_f32)(const uint16_t* x, const float* w, int64_t count, float eps, uint16_t* y);
  // Rotates the pairs of x [count]: x' = fma(even, q, odd * t) with q = c s c s.., t = -s c -s c...
  void (*rotate)(uint16_t* x, const float* q, const float* t, int64_t count);
  // y = bf16(w * (silu(min(gate, limit)) * clamp(up))).
  void (*swiglu)(const uint16_t* gate, const uint16_t* up, int64_t count, float limit, float weight,
                 uint16_t* y);
  // y = bf16(sum_i factor[i] * rows[i]), i ascending.
  void (*weighted_sum)(const uint16_t* const* rows, const float* factor, int64_t num_rows,
                       int64_t count, uint16_t* y);
  // stream[k] = bf16(post[k] * x + sum_j comb[j * hc + k] * stream[j]); stream k at stream +
  // k*step.
  void (*hc_post)(const uint16_t* x, const float* post, const float* comb, int64_t hc,
                  int64_t count, uint16_t* stream, int64_t step);
  // Gate of one stream, then x = bf16(x + g * value).
  void (*engram_gate)(uint16_t* x, const uint16_t* key, const uint16_t* value, const float* w,
                      int64_t count, float eps);
  // Softmax over `tokens` rows [2 * dim] (kv, then gate) per channel.
  void (*compress)(const float* const* rows, int64_t num_rows, int64_t dim, uint16_t* latent);
  void (*index_scores)(const IndexCall& call);
  void (*attention_heads)(const HeadsCall& call);
  // Largest value; NaN if any is NaN.
  float (*largest)(const float* x, int64_t count);
  // Sum of exp(x - largest) in f64.
  double (*sum_exp)(const float* x, int64_t count, float largest);
};

const LaneKernels& ScalarLaneKernels();
const LaneKernels& Avx2LaneKernels();
const LaneKernels& Avx512LaneKernels();

// Table of an instruction set that was resolved at registration.
template <CpuIsa isa>
const LaneKernels& Lanes() {
  if constexpr (isa == CpuIsa::kAvx512) {
    return Avx512LaneKernels();
  } else if constexpr (isa == CpuIsa::kAvx2) {
    return Avx2LaneKernels();
  } else {
    return ScalarLaneKernels();
  }
}

}  // namespace skein::kernels::cpu
