// DSpark, the V4.1 block drafter: staged window-only blocks over rings made from the backbone's
// taps, a Markov bias and a confidence head (model section 3.12). Block rows are transient: they
// attend to each other and leave no trace in the rings. Thread: the device thread.
#pragma once

#include <span>
#include <vector>

#include "worker/cache/state_slots.h"
#include "worker/model/draft_head.h"
#include "worker/model/model.h"

namespace skein::worker {

class DSparkHead final : public DraftHead {
 public:
  // Shares the scratch of `model`, so the two never run at the same time. `max_requests` sequences
  // are drafted for in one call; max_requests * block rows must fit the model's max_rows.
  DSparkHead(Model& model, const ModelWeights& weights, const ModelLimits& limits, int max_requests,
             const StateSlots& slots, KernelSet& kernels, Arena& arena);

  int depth_max() const override { return block_; }
  int requests_max() const override { return max_requests_; }
  absl::Status Observe(const ModelBatch& batch, const kernels::TensorView& taps) override;
  absl::Status Propose(std::span<const DraftRequest> requests,
                       std::vector<DraftProposal>& proposals) override;

  // The parts of Propose. Fill writes the host's side for the requests and for padding up to
  // `capacity` requests; Queue brings it to the device, drafts `depth` tokens for each and brings
  // the results back; Read takes them once the device is done.
  void Fill(std::span<const DraftRequest> requests, int capacity);
  absl::Status Queue(int depth);
  void Read(std::span<const DraftRequest> requests, std::vector<DraftProposal>& proposals) const;
  // Records of the last Queue on the device, [R, block * sizeof(SampleRecord)] u8.
  kernels::TensorView records() const;

  std::vector<Block>& blocks() { return blocks_; }

  // After RunStages without the Markov bias, after Propose with it.
  kernels::TensorView draft_logits(int requests) const override;
  // Collapsed rows of the last RunStages, [R*block, D].
  kernels::TensorView collapsed(int requests) const;
  // The stages alone, of what Fill wrote: collapsed and logits for the requests.
  absl::Status RunStages();
  // In a group, for a rank without requests: takes part in what the stages of the others exchange.
  absl::Status RunStagesWithoutRows();

 private:
  // What a call gives the device, and what the host reads of it, each on the host's side.
  struct Input {
    ModelBatch batch;
    kernels::TensorView previous;  // [R] i32: the token before the draft
    kernels::TensorView params;    // [block * R, sizeof(SampleParams)] u8, draft by draft
  };
  struct Output {
    kernels::TensorView record;      // [R * block, sizeof(SampleRecord)] u8
    kernels::TensorView confidence;  // [R * block, 1] wide
  };

  Input LayoutInput(int requests, Staging& staging) const;
  Output LayoutOutput(int requests, Staging& staging) const;
  void Allocate(int max_requests, int max_rows, Arena& arena);
  void AddKernels(int max_requests, KernelSet& kernels);
  void FillRequest(const DraftRequest& request, size_t index);
  void FillPadding(size_t index);
  ModelBatch BatchOnDevice() const;
  absl::Status DraftStep(int step, int requests);

  const ModelSpec& spec_;
  const ModelWeights& weights_;
  const DraftWeights& draft_;
  const Numerics numerics_;
  kernels::Device& device_;
  const StateSlots& slots_;
  const int block_;
  const int max_requests_;
  RopeTable rope_table_;
  StreamScratch streams_;
  Staging input_, output_;
  Input in_;    // of the current call
  Output out_;  // of the current call
  kernels::TensorView main_x_, window_, embedded_, y_, normed_, logits_, markov_, previous_;
  ActivationQuantiser quantise_taps_, quantise_main_;
  LinearLayer main_proj_, head_, markov_head_, confidence_hidden_, confidence_markov_;
  std::vector<LinearLayer> wkv_;
  std::vector<Block> blocks_;
  Kernel<kernels::RmsNorm> norm_, kv_norm_;
  Kernel<kernels::Rope> rope_;
  Kernel<kernels::StoreKv> store_;
  Kernel<kernels::GatherRows> embed_, markov_embed_;
  Kernel<kernels::HcExpand> expand_;
  Kernel<kernels::HcCollapse> collapse_;
  Kernel<kernels::SampleTokens> sample_;
};

}  // namespace skein::worker
