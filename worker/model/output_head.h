// From the streams to logits and chosen tokens: collapse, final norm, vocabulary product, sampling.
// Only the rows that are sampled are computed. Thread: the device thread.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "kernels/ops/hyper_connection.h"
#include "kernels/ops/kv_cache.h"
#include "kernels/ops/norm_rope.h"
#include "kernels/ops/sampling.h"
#include "worker/model/activations.h"
#include "worker/model/kernel_set.h"
#include "worker/model/linear.h"
#include "worker/model/model_spec.h"
#include "worker/model/weight_loader.h"

namespace skein::worker {

class OutputHead {
 public:
  // `max_samples`: rows of one step whose next token is wanted; `max_top`: alternatives per row.
  OutputHead(const ModelWeights& weights, const ModelSpec& spec, const Numerics& numerics,
             int max_samples, int max_top, KernelSet& kernels, Arena& arena);

  // Logits of rows `sample_row` [S] i32 of stream [T, hc, D] and pre [T, hc].
  absl::Status Logits(const kernels::TensorView& stream, const kernels::TensorView& pre,
                      const kernels::TensorView& sample_row) const;
  // Chooses a token per row of the last Logits. params [S, sizeof(SampleParams)] u8.
  absl::Status Sample(const kernels::TensorView& params) const;

  // Collapsed streams of the last Logits before the final norm, [S, D].
  kernels::TensorView collapsed(int samples) const { return Rows(y_, samples); }
  kernels::TensorView logits(int samples) const { return Rows(logits_, samples); }
  // Results of the last Sample.
  std::span<const kernels::SampleRecord> records(int samples) const;
  kernels::TensorView top_id(int samples) const { return Rows(top_id_, samples); }
  kernels::TensorView top_logprob(int samples) const { return Rows(top_logprob_, samples); }

 private:
  const ModelWeights& weights_;
  int hc_, hidden_, max_top_;
  float norm_eps_;
  kernels::TensorView stream_, pre_, y_, normed_, logits_, record_, top_id_, top_logprob_;
  LinearLayer head_;
  Kernel<kernels::GatherRows> gather_stream_, gather_pre_;
  Kernel<kernels::HcCollapse> collapse_;
  Kernel<kernels::RmsNorm> norm_;
  Kernel<kernels::SampleTokens> sample_;
};

}  // namespace skein::worker
