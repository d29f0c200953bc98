// Manifold-constrained hyper-connections: hc parallel residual streams. Class R, expand class B.
// `wide` tensors are f32 (f64 in the reference's double mode). Source: model section 3.3.
#pragma once

#include "kernels/op.h"
#include "kernels/tensor_view.h"

namespace skein::kernels {

// stream[t, k, :] = x[t, :] for each k.   x [T, D], stream [T, hc, D], same dtype
struct HcExpand {
  static constexpr OpId kId = OpId::kHcExpand;
  struct Problem {
    int hc = 4;
    int channels = 0;
    DType dtype = DType::kBf16;
  };
  struct Args {
    TensorView x, stream;
  };
};

// Mixing coefficients of one site.
//   stream [T, hc, D];  fn [(2+hc)*hc, hc*D] f32;  base [(2+hc)*hc] f32;  scale [3] f32
//   pre [T, hc], post [T, hc], comb [T, hc, hc] wide; comb[j][k] maps old stream j to new stream k
// m = (fn . flatten(h)) * rsqrt(mean(h^2) + norm_eps): one statistic over all hc*D values, applied
// after the product. pre = sigmoid(m*scale0+base) + hc_eps; post = 2*sigmoid(m*scale1+base);
// comb = softmax over k + hc_eps, one column pass, then (iters-1) x (row pass, column pass), each
// dividing by (sum + hc_eps).
struct HcMix {
  static constexpr OpId kId = OpId::kHcMix;
  struct Problem {
    int hc = 4;
    int channels = 0;
    int sinkhorn_iters = 20;
    DType dtype = DType::kBf16;
    DType wide = DType::kF32;
    int max_rows = 0;
  };
  struct Args {
    TensorView stream, fn, base, scale;
    TensorView pre, post, comb;
    float norm_eps = 0;
    float hc_eps = 0;
  };
};

// y = rn( sum_k pre[k] * stream[k] ), k ascending.   y [T, D]
struct HcCollapse {
  static constexpr OpId kId = OpId::kHcCollapse;
  struct Problem {
    int hc = 4;
    int channels = 0;
    DType dtype = DType::kBf16;
    DType wide = DType::kF32;
  };
  struct Args {
    TensorView stream, pre, y;
  };
};

// stream'[k] = rn( post[k] * x + sum_j comb[j][k] * stream[j] ), in place, j ascending.   x [T, D]
struct HcPost {
  static constexpr OpId kId = OpId::kHcPost;
  struct Problem {
    int hc = 4;
    int channels = 0;
    DType dtype = DType::kBf16;
    DType wide = DType::kF32;
  };
  struct Args {
    TensorView x, post, comb, stream;
  };
};

// y = rn( (1/hc) * sum_k stream[k] ), the draft head's tap.   y [T, D], row stride free
struct HcMean {
  static constexpr OpId kId = OpId::kHcMean;
  struct Problem {
    int hc = 4;
    int channels = 0;
    DType dtype = DType::kBf16;
  };
  struct Args {
    TensorView stream, y;
  };
};

}  // namespace skein::kernels
