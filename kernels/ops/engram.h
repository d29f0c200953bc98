// N-gram memory: hash of recent compressed ids, table rows, gate. Source: model section 3.10,
// catalogue 4.10-4.12. Hash, gather and fused weight are class B, the gate is class R.
#pragma once

#include "kernels/op.h"
#include "kernels/tensor_view.h"

namespace skein::kernels {

// rows[t, (i-1)*heads + h] = (R_i mod prime[i-1][h]) + offset[(i-1)*heads + h], where R_i is the
// xor of id_s * multiplier_s for s = 0..i, in wrapping 64-bit arithmetic.
//   ngram      [T, n] i32     compressed id at look-back s (already padded and blocked), n = max
//   n-gram multiplier [n] i64;  prime, offset [(n-1)*heads] i64 rows       [T, (n-1)*heads] i32
struct EngramHash {
  static constexpr OpId kId = OpId::kEngramHash;
  struct Problem {
    int ngram = 0;
    int heads = 0;
  };
  struct Args {
    TensorView ngram, multiplier, prime, offset, rows;
  };
};

// y[t, c*d : (c+1)*d] = codes[rows[t, c]] * scale, rounded to y's dtype (exact).
//   codes [rows, d] e4m3;  scale [rows, d/32] e8m0;  rows [T, C] i32, -1: zeros;  y [T, C*d]
struct EngramGather {
  static constexpr OpId kId = OpId::kEngramGather;
  struct Problem {
    int columns = 0;
    int row_dim = 0;
    DType y_dtype = DType::kBf16;
  };
  struct Args {
    TensorView codes, scale, rows, y;
  };
};

// w = f32(q) * f32(k), once at load.   q, k [hc, D] bf16;  w [hc, D] f32
struct EngramFusedWeight {
  static constexpr OpId kId = OpId::kEngramFusedWeight;
  struct Problem {
    int hc = 4;
    int channels = 0;
  };
  struct Args {
    TensorView q, k, w;
  };
};

// stream[k] = rn( stream[k] + g[k] * value ), in place, with per stream k
//   dot = sum (x*w)*key * rsqrt(mean(x^2)+eps) * rsqrt(mean(key^2)+eps) * D^-1/2
//   g   = sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot))
//   stream [T, hc, D];  kv [T, (hc+1)*D] (hc keys, then the value) same dtype;  w [hc, D] f32
struct EngramGate {
  static constexpr OpId kId = OpId::kEngramGate;
  struct Problem {
    int hc = 4;
    int channels = 0;
    DType dtype = DType::kBf16;
  };
  struct Args {
    TensorView stream, kv, w;
    float eps = 0;
  };
};

}  // namespace skein::kernels
