// The matrix product on lanes: weight rows of each format decoded unit by unit, either straight
// into the sums (few rows of x) or into a panel that serves many rows. Both ways an output is the
// same chain: eight lanes; in a unit a lane multiplies its four channels and adds them up, then the
// unit's sum times the scale is added to the lane, units ascending; at the end the fixed tree.
// Included by lane_bodies.h alone.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/gemm_codes.h"
#include "kernels/cpu/lane_kernels.h"
#include "kernels/cpu/lanes.h"

namespace skein::kernels::cpu {

// A row of weights: where its codes begin, bytes of them in a unit and in the row, and how a unit
// becomes lanes and a scale.
template <typename L>
struct E4m3Row {
  static constexpr int64_t kUnitBytes = kUnit;
  static constexpr bool kScaled = true;
  E4m3Row() = default;
  E4m3Row(const GemmCall& call, int64_t n)
      : codes(call.codes + n * call.codes_step),
        shift(std::countr_zero(static_cast<uint64_t>(call.block / kUnit))) {
    scale = call.scale + (n / kUnit >> shift) * call.scale_step;
  }
  static int64_t RowBytes(int64_t k) { return k; }
  void Decode(const uint8_t* bytes, L* out, CodeGuard<L>& guard) const {
    guard.Add(bytes);
    L::DecodeE4m3Raw(bytes, out);
  }
  float Scale(int64_t unit, const uint8_t* bytes) const {
    const uint8_t byte = scale[unit >> shift];
    if (!IsProductScale(byte)) [[unlikely]]
      return OddScale(bytes, kUnitBytes, kE4m3Magnitude);
    return WeightScale(byte);
  }
  // Decode with the scale of unit `unit`: in one multiplication where its factor is a float.
  void DecodeScaled(int64_t unit, const uint8_t* bytes, L* out, CodeGuard<L>& guard) const {
    constexpr int kMostFactor = 134;  // 2^7, and 2^120 in front of it
    const int byte = scale[unit >> shift];
    guard.Add(bytes);
    if (byte >= kLeastProductScale && byte <= kMostFactor) [[likely]] {
      const auto factor = static_cast<uint32_t>(byte + 120) << 23;
      return L::DecodeE4m3Times(bytes, std::bit_cast<float>(factor), out);
    }
    L::DecodeE4m3Raw(bytes, out);
    const L times = L::Set(Scale(unit, bytes));
    for (int64_t q = 0; q < kLanesPerUnit; ++q) out[q] = out[q] * times;
  }
  const uint8_t* codes = nullptr;
  const uint8_t* scale = nullptr;
  int shift = 0;
};

template <typename L>
struct E2m1Row {
  static constexpr int64_t kUnitBytes = kUnit / 2;
  static constexpr bool kScaled = true;
  E2m1Row() = default;
  E2m1Row(const GemmCall& call, int64_t n)
      : codes(call.codes + n * call.codes_step), scale(call.scale + n * call.scale_step) {}
  static int64_t RowBytes(int64_t k) { return (k + 1) / 2; }
  void Decode(const uint8_t* bytes, L* out, CodeGuard<L>&) const { L::DecodeE2m1Raw(bytes, out); }
  float Scale(int64_t unit, const uint8_t* bytes) const {
    const uint8_t byte = scale[unit];
    if (!IsProductScale(byte)) [[unlikely]]
      return OddScale(bytes, kUnitBytes, kE2m1Magnitude);
    return WeightScale(byte);
  }
  const uint8_t* codes = nullptr;
  const uint8_t* scale = nullptr;
};

template <typename L>
struct Bf16Row {
  static constexpr int64_t kUnitBytes = kUnit * 2;
  static constexpr bool kScaled = false;
  Bf16Row() = default;
  Bf16Row(const GemmCall& call, int64_t n) : codes(call.codes + n * call.codes_step) {}
  static int64_t RowBytes(int64_t k) { return k * 2; }
  void Decode(const uint8_t* bytes, L* out, CodeGuard<L>&) const {
    const uint16_t* from = reinterpret_cast<const uint16_t*>(bytes);
#pragma GCC unroll 4
    for (int64_t q = 0; q < kLanesPerUnit; ++q) out[q] = L::LoadBf16(from + q * kLanes);
  }
  static float Scale(int64_t, const uint8_t*) { return 1; }
  const uint8_t* codes = nullptr;
};

template <typename L>
struct F32Row {
  static constexpr int64_t kUnitBytes = kUnit * 4;
  static constexpr bool kScaled = false;
  F32Row() = default;
  F32Row(const GemmCall& call, int64_t n) : codes(call.codes + n * call.codes_step) {}
  static int64_t RowBytes(int64_t k) { return k * 4; }
  void Decode(const uint8_t* bytes, L* out, CodeGuard<L>&) const {
    const float* from = reinterpret_cast<const float*>(bytes);
#pragma GCC unroll 4
    for (int64_t q = 0; q < kLanesPerUnit; ++q) out[q] = L::Load(from + q * kLanes);
  }
  static float Scale(int64_t, const uint8_t*) { return 1; }
  const uint8_t* codes = nullptr;
};

// How many chains a register of the panel product holds: side by side in the panel, eight lanes of
// each. Plain and AVX2 lanes hold one.
template <typename L>
struct PanelLanes {
  static constexpr int kChains = 1;
  static constexpr int kRows = 3;  // of x in a tile: with four columns they fill the registers
  L value;
  static PanelLanes Load(const float* from) { return {L::Load(from)}; }
  static PanelLanes LoadX(const float* from) { return {L::Load(from)}; }
  static PanelLanes Zero() { return {L::Zero()}; }
  void Store(float* to) const { value.Store(to); }
  static PanelLanes Mul(PanelLanes a, PanelLanes b) { return {a.value * b.value}; }
  static PanelLanes Fma(PanelLanes a, PanelLanes b, PanelLanes c) {
    return {L::Fma(a.value, b.value, c.value)};
  }
  static PanelLanes Add(PanelLanes a, PanelLanes b) { return {a.value + b.value}; }
};

#if defined(SKEIN_AVX512_LANES)

template <>
struct PanelLanes<Avx512Lanes> {
  static constexpr int kChains = 2;
  static constexpr int kRows = 6;
  __m512 value;
  static PanelLanes Load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static PanelLanes LoadX(const float* from) {
    // Unmasked, GCC 12 warns of its own header.
    return {_mm512_maskz_broadcast_f32x8(0xFFFF, _mm256_loadu_ps(from))};
  }
  static PanelLanes Zero() { return {_mm512_setzero_ps()}; }
  void Store(float* to) const { _mm512_storeu_ps(to, value); }
  static PanelLanes Mul(PanelLanes a, PanelLanes b) { return {_mm512_mul_ps(a.value, b.value)}; }
  static PanelLanes Fma(PanelLanes a, PanelLanes b, PanelLanes c) {
    return {_mm512_fmadd_ps(a.value, b.value, c.value)};
  }
  static PanelLanes Add(PanelLanes a, PanelLanes b) { return {_mm512_add_ps(a.value, b.value)}; }
};

#endif

template <typename L>
struct GemmBodies {
  using P = PanelLanes<L>;
  static constexpr int kChains = P::kChains;
  static constexpr int kGroups = static_cast<int>(kPanelRows) / kChains;
  static constexpr int64_t kGroupStep = kLanes * kChains;  // floats of eight channels of a group
  // Bytes of decoded x that are worked on at a time, so that they stay in the second cache.
  static constexpr int64_t kRowBlockBytes = 192 << 10;

  static void StoreOutput(const GemmCall& call, int64_t row, int64_t n, float sum) {
    uint8_t* y = call.y + row * call.y_step;
    if (call.y_is_bf16) {
      reinterpret_cast<uint16_t*>(y)[n] = EncodeBf16(sum);
      return;
    }
    float* to = reinterpret_cast<float*>(y) + n;
    *to = call.accumulate ? *to + sum : sum;
  }

  // Outputs of columns [n, n + cols) from the lanes of kPanelRows columns.
  static void StoreSums(const GemmCall& call, int64_t row, int64_t n, int64_t cols, const L* lanes,
                        const bool* poison) {
    static_assert(kPanelRows == 4);
    float sum[kPanelRows];
    L::Sums(lanes, sum);
    if (call.y_is_bf16 && cols == kPanelRows && !(poison[0] || poison[1] || poison[2] || poison[3]))
        [[likely]] {
      return L::StoreBf16x4(sum, reinterpret_cast<uint16_t*>(call.y + row * call.y_step) + n);
    }
    for (int64_t j = 0; j < cols; ++j) {
      StoreOutput(call, row, n + j,
                  poison[j] ? std::bit_cast<float>(uint32_t{0x7FC00000}) : sum[j]);
    }
  }

  // Outputs of kRows rows from `row` on, column n + j of row i from lanes_of(i, j).
  template <int kRows, typename LanesOf>
  static void StoreTile(const GemmCall& call, int64_t row, int64_t n, int64_t cols,
                        const bool* poison, const LanesOf& lanes_of) {
    static_assert(2 * kPanelRows == kLanes);
    int i = 0;
    if (call.y_is_bf16 && cols == kPanelRows && !(poison[0] || poison[1] || poison[2] || poison[3]))
        [[likely]] {
#pragma GCC unroll 4
      for (; i + 2 <= kRows; i += 2) {
        L lanes[kLanes];
#pragma GCC unroll 8
        for (int64_t j = 0; j < kLanes; ++j) {
          lanes[j] = lanes_of(i + static_cast<int>(j / kPanelRows), j % kPanelRows);
        }
        uint16_t out[kLanes];
        L::SumsOfEight(lanes).StoreBf16(out);
        uint8_t* y = call.y + (row + i) * call.y_step + n * static_cast<int64_t>(sizeof(uint16_t));
        std::memcpy(y, out, sizeof(out) / 2);
        std::memcpy(y + call.y_step, out + kPanelRows, sizeof(out) / 2);
      }
    }
    for (; i < kRows; ++i) {
      L lanes[kPanelRows];
      for (int64_t j = 0; j < kPanelRows; ++j) lanes[j] = lanes_of(i, j);
      StoreSums(call, row + i, n, cols, lanes, poison);
    }
  }

  static const float* RowOfX(const GemmCall& call, int64_t row) {
    return call.x + (call.x_row == nullptr ? call.x_first + row : call.x_row[row]) * call.x_step;
  }

  static float Poisoned(const CodeGuard<L>& guard, float sum) {
    return guard.HasNan() ? std::bit_cast<float>(uint32_t{0x7FC00000}) : sum;
  }

  // Codes of the last partial unit of a row, padded by zeros.
  template <typename Row>
  static void LoadTail(const Row& row, int64_t k, uint8_t* tail) {
    const int64_t begin = k / kUnit * Row::kUnitBytes;
    std::memset(tail, 0, Row::kUnitBytes);
    std::memcpy(tail, row.codes + begin, static_cast<size_t>(Row::RowBytes(k) - begin));
  }

  // Rows [row, row + kRows) of x against weight rows of columns [n, n + kCols).
  template <typename Row, int kRows, int kCols>
  static void Direct(const GemmCall& call, int64_t row, int64_t n) {
    Row w[kCols];
    CodeGuard<L> guard[kCols];
    const float* x[kRows];
    L sum[kRows][kCols];
#pragma GCC unroll 4
    for (int j = 0; j < kCols; ++j) w[j] = Row(call, call.first_row + n + j);
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      x[i] = RowOfX(call, row + i);
#pragma GCC unroll 4
      for (int j = 0; j < kCols; ++j) sum[i][j] = L::Zero();
    }
    const auto add_unit = [&](int64_t unit, int j, const uint8_t* bytes) {
      L weight[kLanesPerUnit];
      w[j].Decode(bytes, weight, guard[j]);
      [[maybe_unused]] const L scale = L::Set(w[j].Scale(unit, bytes));
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const float* from = x[i] + unit * kUnit;
        L part = L::Load(from) * weight[0];
#pragma GCC unroll 4
        for (int64_t q = 1; q < kLanesPerUnit; ++q) {
          part = L::Fma(L::Load(from + q * kLanes), weight[q], part);
        }
        if constexpr (Row::kScaled) {
          sum[i][j] = L::Fma(part, scale, sum[i][j]);
        } else {
          sum[i][j] = sum[i][j] + part;
        }
      }
    };
    const int64_t whole = call.k / kUnit;
    for (int64_t unit = 0; unit < whole; ++unit) {
#pragma GCC unroll 4
      for (int j = 0; j < kCols; ++j) {
        const uint8_t* bytes = w[j].codes + unit * Row::kUnitBytes;
        for (int64_t line = 0; line < Row::kUnitBytes; line += 64) {
          __builtin_prefetch(bytes + line + kPrefetchAhead, 0, 2);
        }
        add_unit(unit, j, bytes);
      }
    }
    if (call.k % kUnit != 0) {
#pragma GCC unroll 4
      for (int j = 0; j < kCols; ++j) {
        uint8_t tail[Row::kUnitBytes];
        LoadTail(w[j], call.k, tail);
        add_unit(whole, j, tail);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kCols; ++j) {
        StoreOutput(call, row + i, n + j, Poisoned(guard[j], sum[i][j].Sum()));
      }
    }
  }

  // kRows rows from `row` against columns [n, n + cols), cols <= kPanelRows, codes times codes.
  template <int kRows>
  static void CodeTile(const GemmCall& call, int64_t row, int64_t n, int64_t cols) {
    using Codes = CodeDot<L>;
    L sums[kPanelRows][kRows];
    CodeGuard<L> guard[kPanelRows];
    bool poison[kPanelRows];
    for (int64_t j = 0; j < kPanelRows; ++j) {
      for (int i = 0; i < kRows; ++i) sums[j][i] = L::Zero();
    }
    const bool e4m3 = call.format == WeightFormat::kE4m3Block;
    const int64_t units = (call.k + kUnit - 1) / kUnit;
    const int64_t block = Codes::template BlockUnits<kRows>(units);
    for (int64_t begin = 0; begin < units; begin += block) {
      const int64_t end = block < units - begin ? begin + block : units;
      const int64_t w = call.first_row + n;
      int64_t j = 0;
      if (e4m3) {
        for (; j < cols; ++j) {
          Codes::template AddE4m3<kRows>(call, row, w + j, begin, end, sums[j], &guard[j]);
        }
      } else {
        constexpr int kCols = Codes::template Together<kRows>();
        for (; j + kCols <= cols; j += kCols) {
          Codes::template AddE2m1<kRows, kCols>(call, row, w + j, begin, end, sums[j]);
        }
        for (; j < cols; ++j) {
          Codes::template AddE2m1<kRows, 1>(call, row, w + j, begin, end, sums[j]);
        }
      }
    }
    for (int64_t j = 0; j < kPanelRows; ++j) poison[j] = guard[j].HasNan();
    StoreTile<kRows>(call, row, n, cols, poison, [&](int i, int64_t j) { return sums[j][i]; });
  }

  // kRows rows from `row` against columns [n_begin, n_end) of short e2m1 rows.
  template <int kRows>
  static void ShortTile(const GemmCall& call, int64_t row, int64_t n_begin, int64_t n_end) {
    using Codes = CodeDot<L>;
    const typename Codes::template ShortRows<kRows> x(call, row);
    static constexpr bool kNoPoison[kPanelRows] = {};
    L sums[kPanelRows][kRows];
    for (int64_t n = n_begin; n < n_end; n += kPanelRows) {
      const int64_t cols = kPanelRows < n_end - n ? kPanelRows : n_end - n;
      for (int64_t j = 0; j < cols; ++j) {
        const int64_t w = call.first_row + n + j;
        if (x.any_low) {
          Codes::template ShortColumn<kRows, true>(call, x, w, sums[j]);
        } else {
          Codes::template ShortColumn<kRows, false>(call, x, w, sums[j]);
        }
      }
      StoreTile<kRows>(call, row, n, cols, kNoPoison, [&](int i, int64_t j) { return sums[j][i]; });
    }
  }

  // All rows, kMaxShortTile at a time, against columns [n_begin, n_end) of short e2m1 rows.
  static constexpr int64_t kMaxShortTile = 4;
  static void ShortColumns(const GemmCall& call, int64_t n_begin, int64_t n_end) {
    using Run = void (*)(const GemmCall&, int64_t, int64_t, int64_t);
    static constexpr Run kRun[kMaxShortTile] = {&ShortTile<1>, &ShortTile<2>, &ShortTile<3>,
                                                &ShortTile<4>};
    const int64_t tiles = (call.rows + kMaxShortTile - 1) / kMaxShortTile;
    const int64_t most = (call.rows + tiles - 1) / tiles;
    for (int64_t row = 0; row < call.rows; row += most) {
      const int64_t rows = most < call.rows - row ? most : call.rows - row;
      kRun[rows - 1](call, row, n_begin, n_end);
    }
  }

  // All rows, few enough for one tile or two, against columns [n_begin, n_end).
  static void CodeColumns(const GemmCall& call, int64_t n_begin, int64_t n_end) {
    using Run = void (*)(const GemmCall&, int64_t, int64_t, int64_t);
    static constexpr Run kRun[kMaxTile] = {&CodeTile<1>, &CodeTile<2>, &CodeTile<3>, &CodeTile<4>,
                                           &CodeTile<5>, &CodeTile<6>, &CodeTile<7>, &CodeTile<8>};
    const int64_t tiles = (call.rows + kMaxTile - 1) / kMaxTile;
    const int64_t most = (call.rows + tiles - 1) / tiles;
    for (int64_t n = n_begin; n < n_end; n += kPanelRows) {
      const int64_t cols = kPanelRows < n_end - n ? kPanelRows : n_end - n;
      for (int64_t row = 0; row < call.rows; row += most) {
        const int64_t rows = most < call.rows - row ? most : call.rows - row;
        kRun[rows - 1](call, row, n, cols);
      }
    }
  }

  // All rows against columns [n, n + kCols), four rows at a time.
  template <typename Row, int kCols>
  static void DirectRows(const GemmCall& call, int64_t n) {
    int64_t row = 0;
    for (; row + 4 <= call.rows; row += 4) Direct<Row, 4, kCols>(call, row, n);
    if (call.rows - row == 3) Direct<Row, 3, kCols>(call, row, n);
    if (call.rows - row == 2) Direct<Row, 2, kCols>(call, row, n);
    if (call.rows - row == 1) Direct<Row, 1, kCols>(call, row, n);
  }

  // Lane sums of weight row n with kRows rows of x, each unit of weights decoded once. Returns
  // whether a code was NaN.
  template <typename Row, int kRows>
  [[gnu::always_inline]] static inline bool ShortRow(const GemmCall& call, const float* const* x,
                                                     int64_t n, L* sums) {
    const Row w(call, n);
    CodeGuard<L> guard;
    L sum[kRows];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) sum[i] = L::Zero();
    const auto add_unit = [&](int64_t unit, const uint8_t* bytes) {
      L weight[kLanesPerUnit];
      if constexpr (std::is_same_v<Row, E4m3Row<L>>) {
        w.DecodeScaled(unit, bytes, weight, guard);
      } else {
        w.Decode(bytes, weight, guard);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const float* from = x[i] + unit * kUnit;
        L part = L::Load(from) * weight[0];
#pragma GCC unroll 4
        for (int64_t q = 1; q < kLanesPerUnit; ++q) {
          part = L::Fma(L::Load(from + q * kLanes), weight[q], part);
        }
        sum[i] = sum[i] + part;
      }
    };
    const int64_t whole = call.k / kUnit;
    for (int64_t unit = 0; unit < whole; ++unit) add_unit(unit, w.codes + unit * Row::kUnitBytes);
    if (call.k % kUnit != 0) {
      uint8_t tail[Row::kUnitBytes];
      LoadTail(w, call.k, tail);
      add_unit(whole, tail);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) sums[i] = sum[i];
    return guard.HasNan();
  }

  // kRows rows from `row` against columns [n_begin, n_end) of short weight rows.
  template <typename Row, int kRows>
  static void ShortRows(const GemmCall& call, int64_t row, int64_t n_begin, int64_t n_end) {
    const float* x[kRows];
    for (int i = 0; i < kRows; ++i) x[i] = RowOfX(call, row + i);
    L sums[kPanelRows][kRows];
    bool poison[kPanelRows] = {};
    for (int64_t n = n_begin; n < n_end; n += kPanelRows) {
      const int64_t cols = kPanelRows < n_end - n ? kPanelRows : n_end - n;
      for (int64_t j = 0; j < cols; ++j) {
        poison[j] = ShortRow<Row, kRows>(call, x, call.first_row + n + j, sums[j]);
      }
      StoreTile<kRows>(call, row, n, cols, poison, [&](int i, int64_t j) { return sums[j][i]; });
    }
  }

  // All rows against columns [n_begin, n_end) of short weight rows, kMaxTile rows at a time.
  template <typename Row>
  static void ShortDirect(const GemmCall& call, int64_t n_begin, int64_t n_end) {
    using Run = void (*)(const GemmCall&, int64_t, int64_t, int64_t);
    static constexpr Run kRun[kMaxTile] = {
        &ShortRows<Row, 1>, &ShortRows<Row, 2>, &ShortRows<Row, 3>, &ShortRows<Row, 4>,
        &ShortRows<Row, 5>, &ShortRows<Row, 6>, &ShortRows<Row, 7>, &ShortRows<Row, 8>};
    const int64_t tiles = (call.rows + kMaxTile - 1) / kMaxTile;
    const int64_t most = (call.rows + tiles - 1) / tiles;
    for (int64_t row = 0; row < call.rows; row += most) {
      const int64_t rows = most < call.rows - row ? most : call.rows - row;
      kRun[rows - 1](call, row, n_begin, n_end);
    }
  }

  // Units of weights that a panel holds at a time: with as much of some rows of x they stay in the
  // first cache.
  static constexpr int64_t kPanelUnits = 16;

  // Units [begin, end) of weight row n, scaled, padded with zeros to kUnit, into their place of a
  // group: every eighth float on kGroupStep.
  template <typename Row>
  static bool DecodeRow(const GemmCall& call, int64_t n, int64_t begin, int64_t end, float* out) {
    const Row row(call, n);
    CodeGuard<L> guard;
    const auto store_unit = [&](int64_t unit, const uint8_t* bytes) {
      L weight[kLanesPerUnit];
      row.Decode(bytes, weight, guard);
      const L scale = L::Set(row.Scale(unit, bytes));
#pragma GCC unroll 4
      for (int64_t q = 0; q < kLanesPerUnit; ++q) {
        if constexpr (Row::kScaled) weight[q] = weight[q] * scale;
        weight[q].Store(out + ((unit - begin) * kLanesPerUnit + q) * kGroupStep);
      }
    };
    const int64_t whole = call.k / kUnit < end ? call.k / kUnit : end;
    const int64_t ahead = kPanelRows * call.codes_step;
    for (int64_t unit = begin; unit < whole; ++unit) {
      const uint8_t* bytes = row.codes + unit * Row::kUnitBytes;
      for (int64_t line = 0; line < Row::kUnitBytes; line += 64) {
        __builtin_prefetch(bytes + line + ahead);
      }
      store_unit(unit, bytes);
    }
    if (whole < end) {
      uint8_t tail[Row::kUnitBytes];
      LoadTail(row, call.k, tail);
      store_unit(whole, tail);
    }
    return guard.HasNan();
  }

  // Adds channels [begin, end) of kRows rows of x from `row` on, times the panel, to sums [kRows,
  // kPanelRows] of lanes.
  template <int kRows>
  static void Tile(const GemmCall& call, int64_t row, int64_t begin, int64_t end,
                   const float* panel, float* sums) {
    const int64_t group_floats = (end - begin) * kChains;
    const float* x[kRows];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) x[i] = RowOfX(call, row + i) + begin;
    for (int64_t k = 0; k < end - begin; k += kUnit) {
      P part[kRows][kGroups];
#pragma GCC unroll 4
      for (int64_t q = 0; q < kLanesPerUnit; ++q) {
        P value[kRows];
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) value[i] = P::LoadX(x[i] + k + q * kLanes);
#pragma GCC unroll 4
        for (int j = 0; j < kGroups; ++j) {
          const P weight = P::Load(panel + j * group_floats + (k + q * kLanes) * kChains);
#pragma GCC unroll 8
          for (int i = 0; i < kRows; ++i) {
            part[i][j] = q == 0 ? P::Mul(value[i], weight) : P::Fma(value[i], weight, part[i][j]);
          }
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < kGroups; ++j) {
          float* sum = sums + (i * kGroups + j) * kGroupStep;
          P::Add(P::Load(sum), part[i][j]).Store(sum);
        }
      }
    }
  }

  // A panel: columns [n, n + cols) over channels [begin, end), and which of the columns had a NaN
  // so far.
  struct Panel {
    float* floats = nullptr;
    int64_t n = 0;
    int64_t cols = 0;
    int64_t begin = 0;
    int64_t end = 0;
    bool poison[kPanelRows] = {};
  };

  // kRows rows from `row` against the panel, on top of `sums` once channels came before; stores the
  // outputs behind the last channel.
  template <int kRows>
  static void Strip(const GemmCall& call, int64_t row, const Panel& panel, float* sums) {
    if (panel.begin == 0) {
      for (int i = 0; i < kRows * kGroups; ++i) P::Zero().Store(sums + i * kGroupStep);
    }
    Tile<kRows>(call, row, panel.begin, panel.end, panel.floats, sums);
    if (panel.end < call.k) return;
    StoreTile<kRows>(call, row, panel.n, panel.cols, panel.poison, [&](int i, int64_t j) {
      return L::Load(sums + (i * kPanelRows + j) * kLanes);
    });
  }

  // Rows [begin, end) against the panel, `step` floats of sums from one to the next.
  static void Strips(const GemmCall& call, int64_t begin, int64_t end, const Panel& panel,
                     float* sums, int64_t step) {
    int64_t row = begin;
    // A single last row would not fill the registers: rather two pairs.
    for (; end - row >= P::kRows && end - row != 4; row += P::kRows, sums += P::kRows * step) {
      Strip<P::kRows>(call, row, panel, sums);
    }
    for (; end - row >= 2; row += 2, sums += 2 * step) Strip<2>(call, row, panel, sums);
    if (row < end) Strip<1>(call, row, panel, sums);
  }

  // Decodes the panel's columns; those up to kPanelRows are zeros.
  template <typename Row>
  static void DecodePanel(const GemmCall& call, Panel& panel) {
    const int64_t group_floats = (panel.end - panel.begin) * kChains;
    for (int64_t j = 0; j < kPanelRows; ++j) {
      float* out = panel.floats + j / kChains * group_floats + j % kChains * kLanes;
      if (j < panel.cols) {
        panel.poison[j] |= DecodeRow<Row>(call, call.first_row + panel.n + j, panel.begin / kUnit,
                                          panel.end / kUnit, out);
        continue;
      }
      for (int64_t k = 0; k < group_floats; k += kGroupStep) L::Zero().Store(out + k);
    }
  }

  // Rows whose sums are kept while the panel moves along k.
  static constexpr int64_t kSumRows = 96;

  template <typename Row>
  static void PanelColumns(const GemmCall& call, int64_t n_begin, int64_t n_end, float* floats) {
    alignas(64) float sums[kSumRows * kPanelRows * kLanes];
    constexpr int64_t kChannels = kPanelUnits * kUnit;
    const int64_t padded = RoundUpToUnit(call.k);
    const bool once = padded <= kChannels;
    const int64_t step = once ? 0 : kPanelRows * kLanes;
    const int64_t most = kRowBlockBytes / ((once ? padded : kChannels) * 4);
    const int64_t block = once || most < kSumRows ? most : kSumRows;
    for (int64_t begin = 0; begin < call.rows; begin += block) {
      const int64_t end = begin + block < call.rows ? begin + block : call.rows;
      for (int64_t n = n_begin; n < n_end; n += kPanelRows) {
        Panel panel;
        panel.floats = floats;
        panel.n = n;
        panel.cols = kPanelRows < n_end - n ? kPanelRows : n_end - n;
        for (int64_t k = 0; k < padded; k += kChannels) {
          panel.begin = k;
          panel.end = k + kChannels < padded ? k + kChannels : padded;
          DecodePanel<Row>(call, panel);
          Strips(call, begin, end, panel, sums, step);
        }
      }
    }
  }

  template <typename Row>
  static void GemmOf(const GemmCall& call, int64_t n_begin, int64_t n_end, float* panel) {
    if (call.rows > MostDirectRows(call.k, call.format)) {
      if constexpr (!std::is_same_v<Row, E2m1Row<L>>) {
        if (call.k <= kShortRow && call.rows <= kMostShortRows) {
          return ShortDirect<Row>(call, n_begin, n_end);
        }
      }
      return PanelColumns<Row>(call, n_begin, n_end, panel);
    }
    if constexpr (CodeDot<L>::kUsed) {
      if (CodeDot<L>::IsShort(call)) return ShortColumns(call, n_begin, n_end);
      if (call.x_factor != nullptr || call.x_integers != nullptr) {
        return CodeColumns(call, n_begin, n_end);
      }
    }
    int64_t n = n_begin;
    // Decoding e4m3 takes too many registers for two columns.
    if constexpr (!std::is_same_v<Row, E4m3Row<L>>) {
      for (; n + 2 <= n_end; n += 2) DirectRows<Row, 2>(call, n);
    }
    for (; n < n_end; ++n) DirectRows<Row, 1>(call, n);
  }

  static void Gemm(const GemmCall& call, int64_t n_begin, int64_t n_end, float* panel) {
    switch (call.format) {
      case WeightFormat::kE4m3Block:
        return GemmOf<E4m3Row<L>>(call, n_begin, n_end, panel);
      case WeightFormat::kE2m1Row32:
        return GemmOf<E2m1Row<L>>(call, n_begin, n_end, panel);
      case WeightFormat::kBf16:
        return GemmOf<Bf16Row<L>>(call, n_begin, n_end, panel);
      case WeightFormat::kF32:
        return GemmOf<F32Row<L>>(call, n_begin, n_end, panel);
    }
  }
};

}  // namespace skein::kernels::cpu
