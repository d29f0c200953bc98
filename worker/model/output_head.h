// From the streams to logits and chosen tokens: collapse, final norm, vocabulary product, sampling.
// Only the rows that are sampled are computed. What the host reads of a step lies in one block,
// which Fetch copies back. Thread: the device thread.
#pragma once

#include <array>
#include <span>

#include "absl/status/status.h"
#include "kernels/ops/hyper_connection.h"
#include "kernels/ops/kv_cache.h"
#include "kernels/ops/logit_edits.h"
#include "kernels/ops/norm_rope.h"
#include "kernels/ops/sampling.h"
#include "worker/model/activations.h"
#include "worker/model/kernel_set.h"
#include "worker/model/linear.h"
#include "worker/model/model_batch.h"
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
  // Lays the results of `samples` rows out, as Sample does: for reading what a recorded Sample
  // left.
  void Expect(int samples) { fetched_ = Layout(samples, results_); }
  // Chooses a token per row of the last Logits, after its edits. params [S, sizeof(SampleParams)]
  // u8. Logprobs stay those of the logits as they were.
  absl::Status Sample(const kernels::TensorView& params, const EditBatch& edits);

  // Compares rows of the last Sample with the distributions that their drafts were drawn from.
  // params [S, sizeof(VerifyParams)] u8; draft_logits [D, V], absent if all drafts were provided.
  absl::Status Verify(const kernels::TensorView& params, const kernels::TensorView& draft_logits);
  // Queues the copy of the results of both; they can be read once the device is done.
  absl::Status Fetch() const { return results_.CopyOut(); }

  // Collapsed streams of the last Logits before the final norm, [S, D].
  kernels::TensorView collapsed(int samples) const { return Rows(y_, samples); }
  kernels::TensorView logits(int samples) const { return Rows(logits_, samples); }
  // Results of the last Sample.
  std::span<const kernels::SampleRecord> records(int samples) const;
  // Results of the last Verify, for sample `i`.
  struct Verified {
    float target_probability = 0;
    float draft_probability = 0;
    float residual_mass = 0;
    float draft_logprob = 0;
    float recovered_logprob = 0;
    int32_t recovered = -1;
    int32_t flags = 0;
  };
  Verified verified(int i) const;
  kernels::TensorView top_id(int samples) const { return Rows(fetched_.top_id, samples); }
  kernels::TensorView top_logprob(int samples) const { return Rows(fetched_.top_logprob, samples); }

 private:
  // What the host reads, on its side.
  struct Results {
    kernels::TensorView record, top_id, top_logprob;
    // Of Verify, in the order of Verified: five of floats, two of integers.
    std::array<kernels::TensorView, 7> verified;
  };
  // The logits that tokens are drawn from.
  kernels::TensorView drawn(int samples) const {
    return Rows(has_edits_ ? edited_ : logits_, samples);
  }
  Results Layout(int samples, Staging& staging) const;

  const ModelWeights& weights_;
  int hc_, hidden_, max_top_;
  float norm_eps_;
  kernels::TensorView stream_, pre_, y_, normed_, logits_;
  kernels::TensorView edited_;  // logits after the edits of a step that has some
  bool has_edits_ = false;      // the last Sample had some
  Staging results_;
  Results fetched_;  // of the last Sample
  LinearLayer head_;
  Kernel<kernels::GatherRows> gather_stream_, gather_pre_;
  Kernel<kernels::HcCollapse> collapse_;
  Kernel<kernels::RmsNorm> norm_;
  Kernel<kernels::EditLogits> edit_;
  Kernel<kernels::SampleTokens> sample_;
  Kernel<kernels::VerifyDrafts> verify_;
};

}  // namespace skein::worker
