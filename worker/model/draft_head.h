// What a drafter offers: state fed by verified positions, and proposals of a few tokens with the
// distributions they were drawn from. DSpark proposes a block at once; an MTP block proposes one
// token after the other. Thread: the device thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "protocol/messages/step.h"
#include "worker/model/model_batch.h"

namespace skein::worker {

// A sequence to draft for: position `position` was verified last, `token` was chosen after it.
struct DraftRequest {
  int slot = 0;
  int64_t position = 0;
  int32_t token = 0;
  int64_t fed_from = 0;  // the head saw the positions from here to `position`
  int depth = 0;         // tokens wanted, at most DraftHead::depth_max()
  // How a draft is drawn: greedily, coupled to the target by the same noise, or with noise of its
  // own; temperature, truncation and seed are the target's.
  protocol::VerificationMode mode = protocol::VerificationMode::kGreedy;
  protocol::RowSampling sampling;
};

// Proposed tokens of one request at positions position+2 ... with the head's raw confidence logits.
// Fewer than wanted if the head's logits were not finite.
struct DraftProposal {
  std::vector<int32_t> tokens;
  std::vector<double> confidence;
};

class DraftHead {
 public:
  virtual ~DraftHead() = default;
  // Tokens of one proposal at most.
  virtual int depth_max() const = 0;
  // Requests of one Propose at most.
  virtual int requests_max() const = 0;
  // Feeds the head from the taps of the batch that the backbone just ran.
  virtual absl::Status Observe(const ModelBatch& batch, const kernels::TensorView& taps) = 0;
  // One proposal per request, in order.
  virtual absl::Status Propose(std::span<const DraftRequest> requests,
                               std::vector<DraftProposal>& proposals) = 0;
  // Logits that the last Propose drew from, [requests * depth_max(), vocab] wide: row
  // r * depth_max() + i decided token i of request r.
  virtual kernels::TensorView draft_logits(int requests) const = 0;
};

// How many of a proposal's tokens to verify: those before the first whose chance to be reached and
// accepted, the product of the sigmoids of the confidences up to it, is below `min_survival`. Token
// i is kept or not by what was known before it was drawn, so the choice says nothing about it
// (catalogue section 7.7). `confidence` are raw logits; a NaN counts as no confidence.
size_t KeptDrafts(std::span<const double> confidence, double min_survival);

// The sigmoid of a raw confidence logit; 0 for a NaN.
double Confidence(double logit);

}  // namespace skein::worker
