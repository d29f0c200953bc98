// Recorded decode steps, one per shape: upload, draft, forward, verification, feeding of the draft
// head and the copy back are one launch. Every shape is recorded before the worker registers, and
// what cannot be recorded ends the start. Owns the recordings, borrows the model. Thread: the
// device thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops/draft.h"
#include "protocol/messages/step.h"
#include "worker/batch_input.h"
#include "worker/model/dspark_head.h"
#include "worker/model/kernel_set.h"
#include "worker/model/model.h"
#include "worker/model/model_batch.h"
#include "worker/model/rank_exchange.h"

namespace skein::worker {

// What a step runs on. All outlive the cache.
struct StepParts {
  kernels::Device* device = nullptr;
  Model* model = nullptr;
  DSparkHead* draft = nullptr;  // null: nothing drafts
  BatchInput* input = nullptr;
  RankExchange* ranks = nullptr;  // null: the model is whole
};

// The shape that a plan is, if it is a decode step; one without sequences fits every shape.
std::optional<DecodeShape> DecodeShapeOf(const protocol::StepPlan& plan);

class GraphCache {
 public:
  // Adds what recorded steps need beside the layers to `kernels`. `sequences_max`: of one step.
  GraphCache(const StepParts& parts, const ModelLimits& limits, int sequences_max,
             KernelSet& kernels);

  // Runs each shape once, then records it; tells how many are done, of how many. Errors name the
  // shape.
  absl::Status Record(const std::function<void(size_t done, size_t total)>& progress = nullptr);

  void Forget() { graphs_.clear(); }

  // The smallest recorded shape that holds `wanted`; none if it is too large.
  std::optional<DecodeShape> Fit(const DecodeShape& wanted) const;
  // Queues the recorded step, of what BuildDecode and Fill wrote for its shape.
  absl::Status Launch(const DecodeShape& shape);
  // What drafting takes of a step of the shape, measured when it was recorded.
  uint64_t draft_time_us(const DecodeShape& shape) const;

  size_t size() const { return graphs_.size(); }
  uint64_t num_nodes() const;

 private:
  // Queues a step of the shape call by call.
  absl::Status Queue(const DecodeShape& shape, const ModelBatch& batch);
  absl::Status QueueDrafts(const DecodeShape& shape);
  absl::Status PlaceDrafted(const DecodeShape& shape, const ModelBatch& batch);
  absl::Status RecordShape(const DecodeShape& shape);
  std::vector<DecodeShape> Shapes() const;

  const StepParts parts_;
  const ModelLimits limits_;
  const int sequences_max_;
  std::vector<Kernel<kernels::PlaceDrafts>> place_;  // by depth, from 1
  struct Recorded {
    std::unique_ptr<kernels::StepGraph> graph;
    uint64_t draft_time_us = 0;
  };
  std::map<DecodeShape, Recorded> graphs_;
};

}  // namespace skein::worker
