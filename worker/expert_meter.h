// Which experts the rows of a step chose on this rank, of one step in kPeriod: every layer keeps
// its choices until its next step, so they are copied when the step is done, a layer after another,
// and the result of that step leaves afterwards. Other steps pay nothing. Borrows the model.
// Thread: the device thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "protocol/messages/step.h"
#include "worker/model/dspark_head.h"
#include "worker/model/model.h"

namespace skein::worker {

class ExpertMeter {
 public:
  // Odd, so that both lanes have their turn.
  static constexpr uint64_t kPeriod = 31;

  // `draft`: null without draft head.
  ExpertMeter(Model& model, DSparkHead* draft, int stages, Arena& arena);

  // Once after each step: whether this one is read.
  bool Due() { return ++steps_ % kPeriod == 0; }
  // The choices of the first `rows` rows of the step and of the first `draft_rows` of what was
  // drafted in it. What the device said of the copy.
  absl::StatusOr<protocol::ExpertLoad> Read(int rows, int draft_rows);

 private:
  absl::StatusOr<std::vector<uint32_t>> Count(const MoeLayer& layer, int rows);

  Model& model_;
  DSparkHead* const draft_;
  const int stages_;  // of the model's draft head, which this rank may run without
  kernels::Device& device_;
  int32_t* host_;  // choices of a layer
  uint64_t steps_ = 0;
};

}  // namespace skein::worker
