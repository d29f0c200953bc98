// The matrix product on lanes: weight rows of each format decoded unit by unit, either straight
// into the sums (few rows of x) or into a panel that serves many rows. Both ways an output is the
// same chain: eight lanes over ascending k, then the fixed tree. Included by lane_bodies.h alone.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/lane_kernels.h"
#include "kernels/cpu/lanes.h"

namespace skein::kernels::cpu {

// A row of weights: where its codes begin, bytes of them in a unit and in the row, and how a unit
// becomes lanes.
template <typename L>
struct E4m3Row {
  static constexpr int64_t kUnitBytes = kUnit;
  E4m3Row() = default;
  E4m3Row(const GemmCall& call, int64_t n)
      : codes(call.codes + n * call.codes_step),
        shift(std::countr_zero(static_cast<uint64_t>(call.block / kUnit))) {
    scale = call.scale + (n / kUnit >> shift) * call.scale_step;
  }
  static int64_t RowBytes(int64_t k) { return k; }
  void Decode(int64_t unit, const uint8_t* bytes, L* out) const {
    L::DecodeE4m3(bytes, WeightScale(scale[unit >> shift]), out);
  }
  const uint8_t* codes = nullptr;
  const uint8_t* scale = nullptr;
  int shift = 0;
};

template <typename L>
struct E2m1Row {
  static constexpr int64_t kUnitBytes = kUnit / 2;
  E2m1Row() = default;
  E2m1Row(const GemmCall& call, int64_t n)
      : codes(call.codes + n * call.codes_step), scale(call.scale + n * call.scale_step) {}
  static int64_t RowBytes(int64_t k) { return (k + 1) / 2; }
  void Decode(int64_t unit, const uint8_t* bytes, L* out) const {
    L::DecodeE2m1(bytes, WeightScale(scale[unit]), out);
  }
  const uint8_t* codes = nullptr;
  const uint8_t* scale = nullptr;
};

template <typename L>
struct Bf16Row {
  static constexpr int64_t kUnitBytes = kUnit * 2;
  Bf16Row() = default;
  Bf16Row(const GemmCall& call, int64_t n) : codes(call.codes + n * call.codes_step) {}
  static int64_t RowBytes(int64_t k) { return k * 2; }
  void Decode(int64_t, const uint8_t* bytes, L* out) const {
    const uint16_t* from = reinterpret_cast<const uint16_t*>(bytes);
#pragma GCC unroll 4
    for (int64_t q = 0; q < kLanesPerUnit; ++q) out[q] = L::LoadBf16(from + q * kLanes);
  }
  const uint8_t* codes = nullptr;
};

template <typename L>
struct F32Row {
  static constexpr int64_t kUnitBytes = kUnit * 4;
  F32Row() = default;
  F32Row(const GemmCall& call, int64_t n) : codes(call.codes + n * call.codes_step) {}
  static int64_t RowBytes(int64_t k) { return k * 4; }
  void Decode(int64_t, const uint8_t* bytes, L* out) const {
    const float* from = reinterpret_cast<const float*>(bytes);
#pragma GCC unroll 4
    for (int64_t q = 0; q < kLanesPerUnit; ++q) out[q] = L::Load(from + q * kLanes);
  }
  const uint8_t* codes = nullptr;
};

template <typename L>
struct GemmBodies {
  // Up to this many rows of x, weights go straight into the sums.
  static constexpr int64_t kDirectRows = 2;

  static void StoreOutput(const GemmCall& call, int64_t row, int64_t n, float sum) {
    uint8_t* y = call.y + row * call.y_step;
    if (call.y_is_bf16) {
      reinterpret_cast<uint16_t*>(y)[n] = EncodeBf16(sum);
      return;
    }
    float* to = reinterpret_cast<float*>(y) + n;
    *to = call.accumulate ? *to + sum : sum;
  }

  static const float* RowOfX(const GemmCall& call, int64_t row) {
    return call.x + (call.x_row == nullptr ? row : call.x_row[row]) * call.x_step;
  }

  // Codes of the last partial unit of a row, padded by zeros.
  template <typename Row>
  static void LoadTail(const Row& row, int64_t k, uint8_t* tail) {
    const int64_t begin = k / kUnit * Row::kUnitBytes;
    std::memset(tail, 0, Row::kUnitBytes);
    std::memcpy(tail, row.codes + begin, static_cast<size_t>(Row::RowBytes(k) - begin));
  }

  // Rows [0, kRows) of x against weight rows of columns [n, n + kCols).
  template <typename Row, int kRows, int kCols>
  static void Direct(const GemmCall& call, int64_t n) {
    Row w[kCols];
    const float* x[kRows];
    L sum[kRows][kCols];
#pragma GCC unroll 4
    for (int j = 0; j < kCols; ++j) w[j] = Row(call, call.first_row + n + j);
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      x[i] = RowOfX(call, i);
#pragma GCC unroll 4
      for (int j = 0; j < kCols; ++j) sum[i][j] = L::Zero();
    }
    const auto add_unit = [&](int64_t unit, int j, const uint8_t* bytes) {
      L weight[kLanesPerUnit];
      w[j].Decode(unit, bytes, weight);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
        for (int64_t q = 0; q < kLanesPerUnit; ++q) {
          const L value = L::Load(x[i] + unit * kUnit + q * kLanes);
          sum[i][j] = L::Fma(value, weight[q], sum[i][j]);
        }
      }
    };
    const int64_t whole = call.k / kUnit;
    for (int64_t unit = 0; unit < whole; ++unit) {
#pragma GCC unroll 4
      for (int j = 0; j < kCols; ++j) add_unit(unit, j, w[j].codes + unit * Row::kUnitBytes);
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
      for (int j = 0; j < kCols; ++j) StoreOutput(call, i, n + j, sum[i][j].Sum());
    }
  }

  template <typename Row, int kCols>
  static void DirectColumns(const GemmCall& call, int64_t n) {
    if (call.rows == 1) Direct<Row, 1, kCols>(call, n);
    if (call.rows == 2) Direct<Row, 2, kCols>(call, n);
  }

  // Weight row n as floats, k padded with zeros to kUnit.
  template <typename Row>
  static void DecodeRow(const GemmCall& call, int64_t n, float* out) {
    const Row row(call, n);
    const auto store_unit = [&](int64_t unit, const uint8_t* bytes) {
      L weight[kLanesPerUnit];
      row.Decode(unit, bytes, weight);
#pragma GCC unroll 4
      for (int64_t q = 0; q < kLanesPerUnit; ++q) weight[q].Store(out + unit * kUnit + q * kLanes);
    };
    const int64_t whole = call.k / kUnit;
    for (int64_t unit = 0; unit < whole; ++unit) {
      store_unit(unit, row.codes + unit * Row::kUnitBytes);
    }
    if (call.k % kUnit == 0) return;
    uint8_t tail[Row::kUnitBytes];
    LoadTail(row, call.k, tail);
    store_unit(whole, tail);
  }

  // kRows rows of x from `row` on against kCols decoded weight rows.
  template <int kRows, int kCols>
  static void Tile(const GemmCall& call, int64_t row, int64_t n, const float* const* w) {
    const int64_t padded = RoundUpToUnit(call.k);
    const float* x[kRows];
    L sum[kRows][kCols];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      x[i] = RowOfX(call, row + i);
#pragma GCC unroll 4
      for (int j = 0; j < kCols; ++j) sum[i][j] = L::Zero();
    }
    for (int64_t k = 0; k < padded; k += kLanes) {
      // Three rows by four columns fill the sixteen registers: sums, values and one weight.
      L value[kRows];
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) value[i] = L::Load(x[i] + k);
#pragma GCC unroll 4
      for (int j = 0; j < kCols; ++j) {
        const L weight = L::Load(w[j] + k);
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) sum[i][j] = L::Fma(value[i], weight, sum[i][j]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kCols; ++j) StoreOutput(call, row + i, n + j, sum[i][j].Sum());
    }
  }

  template <int kCols>
  static void PanelColumns(const GemmCall& call, int64_t n, const float* const* w) {
    int64_t row = 0;
    for (; row + 3 <= call.rows; row += 3) Tile<3, kCols>(call, row, n, w);
    if (call.rows - row == 2) Tile<2, kCols>(call, row, n, w);
    if (call.rows - row == 1) Tile<1, kCols>(call, row, n, w);
  }

  template <typename Row>
  static void GemmOf(const GemmCall& call, int64_t n_begin, int64_t n_end, float* panel) {
    const int64_t padded = RoundUpToUnit(call.k);
    for (int64_t n = n_begin; n < n_end; n += kPanelRows) {
      const int64_t cols = kPanelRows < n_end - n ? kPanelRows : n_end - n;
      if (call.rows <= kDirectRows) {
        if (cols == 4) DirectColumns<Row, 4>(call, n);
        if (cols == 3) DirectColumns<Row, 3>(call, n);
        if (cols == 2) DirectColumns<Row, 2>(call, n);
        if (cols == 1) DirectColumns<Row, 1>(call, n);
        continue;
      }
      const float* w[kPanelRows] = {};
      for (int64_t j = 0; j < cols; ++j) {
        DecodeRow<Row>(call, call.first_row + n + j, panel + j * padded);
        w[j] = panel + j * padded;
      }
      if (cols == 4) PanelColumns<4>(call, n, w);
      if (cols == 3) PanelColumns<3>(call, n, w);
      if (cols == 2) PanelColumns<2>(call, n, w);
      if (cols == 1) PanelColumns<1>(call, n, w);
    }
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
