// What a drafter offers: rings fed by verified positions, and proposals of a block of tokens.
// Thread: the device thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "worker/model/model_batch.h"

namespace skein::worker {

// A sequence to draft for: position `position` was verified last, `token` was chosen after it.
struct DraftRequest {
  int slot = 0;
  int64_t position = 0;
  int32_t token = 0;
};

// Proposed tokens of one request at positions position+2 ... with the head's raw confidence logits.
struct DraftProposal {
  std::vector<int32_t> tokens;
  std::vector<double> confidence;
};

class DraftHead {
 public:
  virtual ~DraftHead() = default;
  // Feeds the rings from the taps of the batch that the backbone just ran.
  virtual absl::Status Observe(const ModelBatch& batch, const kernels::TensorView& taps) = 0;
  // Proposes a block for each request, greedily. One proposal per request, in order.
  virtual absl::Status Propose(std::span<const DraftRequest> requests,
                               std::vector<DraftProposal>& proposals) = 0;
};

}  // namespace skein::worker
