#include "worker/graph_cache.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/ops/sampling.h"
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"

namespace skein::worker {

using kernels::TensorView;

namespace {

std::string Describe(const DecodeShape& shape) {
  return absl::StrCat("the step of ", shape.sequences, " sequences, ", shape.depth, " drafts each",
                      shape.feeds_drafter ? ", feeding the draft head" : "");
}

// Whether a sequence of a plan has the form of a decode step.
bool Decodes(const protocol::SequenceStep& step) {
  return step.tokens.size() == 1 && step.sample && step.provided_drafts.empty() &&
         step.scoring.count == 0;
}

}  // namespace

std::optional<DecodeShape> DecodeShapeOf(const protocol::StepPlan& plan) {
  DecodeShape wanted;
  wanted.sequences = static_cast<int>(plan.sequences.size());
  for (const protocol::SequenceStep& step : plan.sequences) {
    if (!Decodes(step)) return std::nullopt;
    wanted.depth = std::max(wanted.depth, static_cast<int>(step.draft_depth));
    wanted.feeds_drafter |= step.feed_drafter;
  }
  return wanted;
}

GraphCache::GraphCache(const StepParts& parts, const ModelLimits& limits, int sequences_max,
                       KernelSet& kernels)
    : parts_(parts), limits_(limits), sequences_max_(sequences_max) {
  if (parts.draft == nullptr) return;
  const ModelSpec& spec = parts.model->spec();
  for (int depth = 1; depth <= limits.max_drafts; ++depth) {
    place_.push_back(kernels.Add<kernels::PlaceDrafts>({
        .depth = depth,
        .ngram = spec.engram.ngram,
        .vocab = spec.vocab,
    }));
  }
}

std::vector<DecodeShape> GraphCache::Shapes() const {
  std::vector<DecodeShape> shapes;
  const int rows_max = std::min(limits_.max_rows, limits_.max_samples);
  const int depth_max = parts_.draft == nullptr ? 0 : limits_.max_drafts;
  for (int depth = 0; depth <= depth_max; ++depth) {
    int most = std::min(sequences_max_, rows_max / (1 + depth));
    if (depth > 0) most = std::min(most, parts_.draft->requests_max());
    for (int sequences = 1; most > 0; sequences *= 2) {
      const int bucket = std::min(sequences, most);
      if (depth == 0) shapes.push_back({bucket, depth, false});
      if (parts_.draft != nullptr) shapes.push_back({bucket, depth, true});
      if (bucket == most) break;
    }
  }
  return shapes;
}

absl::Status GraphCache::PlaceDrafted(const DecodeShape& shape, const ModelBatch& batch) {
  const int sequences = shape.sequences;
  const int each = 1 + shape.depth;
  TensorView record = parts_.draft->records();
  record.shape[1] = shape.depth * int64_t{sizeof(kernels::SampleRecord)};
  const TensorView ngram = batch.ngram.absent()
                               ? TensorView{}
                               : Reshape(batch.ngram, {sequences, each * batch.ngram.dim(1)});
  return place_[static_cast<size_t>(shape.depth - 1)](
      {.record = record,
       .count = batch.draft_count,
       .ids = Reshape(batch.ids, {sequences, each}),
       .ngram = ngram,
       .token_map = parts_.input->token_map(),
       .verify_params = Reshape(batch.verify_params,
                                {sequences, each * int64_t{sizeof(kernels::VerifyParams)}})});
}

absl::Status GraphCache::QueueDrafts(const DecodeShape& shape) {
  if (parts_.ranks != nullptr) {
    parts_.ranks->BeginPass(shape.sequences * parts_.model->spec().dspark.block);
  }
  return parts_.draft->Queue(shape.depth);
}

absl::Status GraphCache::Queue(const DecodeShape& shape, const ModelBatch& batch) {
  SKEIN_RETURN_IF_ERROR(parts_.input->Upload());
  if (shape.depth > 0) {
    SKEIN_RETURN_IF_ERROR(QueueDrafts(shape));
    SKEIN_RETURN_IF_ERROR(PlaceDrafted(shape, batch));
  }
  if (parts_.ranks != nullptr) parts_.ranks->BeginPass(shape.rows());
  SKEIN_RETURN_IF_ERROR(parts_.model->Forward(batch));
  if (shape.depth > 0) {
    SKEIN_RETURN_IF_ERROR(parts_.model->head().Verify(batch.verify_params,
                                                      parts_.draft->draft_logits(shape.sequences)));
  }
  if (shape.feeds_drafter) {
    SKEIN_RETURN_IF_ERROR(parts_.draft->Observe(batch, parts_.model->taps(batch.num_rows)));
  }
  return parts_.model->head().Fetch();
}

absl::Status GraphCache::RecordShape(const DecodeShape& shape) {
  const ModelBatch batch = parts_.input->BuildDecode({}, shape);
  if (shape.depth > 0) parts_.draft->Fill({}, shape.sequences);
  // Once without recording: it loads what is loaded on first use, which a recording may not do.
  SKEIN_RETURN_IF_ERROR(Queue(shape, batch));
  SKEIN_RETURN_IF_ERROR(parts_.device->Wait());
  Recorded& recorded = graphs_[shape];
  if (shape.depth > 0) {
    const absl::Time begin = protocol::MonotonicNow();
    SKEIN_RETURN_IF_ERROR(QueueDrafts(shape));
    SKEIN_RETURN_IF_ERROR(parts_.device->Wait());
    recorded.draft_time_us =
        static_cast<uint64_t>(absl::ToInt64Microseconds(protocol::MonotonicNow() - begin));
  }
  SKEIN_ASSIGN_OR_RETURN(
      recorded.graph, parts_.device->Capture([this, shape, batch] { return Queue(shape, batch); }));
  return absl::OkStatus();
}

absl::Status GraphCache::Record(const std::function<void(size_t, size_t)>& progress) {
  const std::vector<DecodeShape> shapes = Shapes();
  for (const DecodeShape& shape : shapes) {
    if (const absl::Status status = RecordShape(shape); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("recording ", Describe(shape), ": ", status.message(),
                                       "; --enforce-eager goes without graphs"));
    }
    if (progress) progress(graphs_.size(), shapes.size());
  }
  return absl::OkStatus();
}

std::optional<DecodeShape> GraphCache::Fit(const DecodeShape& wanted) const {
  if (wanted.sequences == 0 || (wanted.depth > 0 && !wanted.feeds_drafter)) return std::nullopt;
  for (const auto& [shape, recorded] : graphs_) {
    if (shape.depth == wanted.depth && shape.feeds_drafter == wanted.feeds_drafter &&
        shape.sequences >= wanted.sequences) {
      return shape;
    }
  }
  return std::nullopt;
}

absl::Status GraphCache::Launch(const DecodeShape& shape) {
  const auto found = graphs_.find(shape);
  SKEIN_CHECK(found != graphs_.end()) << "a shape that was not recorded";
  return found->second.graph->Launch();
}

uint64_t GraphCache::draft_time_us(const DecodeShape& shape) const {
  return graphs_.at(shape).draft_time_us;
}

uint64_t GraphCache::num_nodes() const {
  uint64_t nodes = 0;
  for (const auto& [shape, recorded] : graphs_) nodes += recorded.graph->num_nodes();
  return nodes;
}

}  // namespace skein::worker
