#include "worker/step_agreement.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "protocol/base/status_macros.h"

namespace skein::worker {
namespace {

// What a rank says of its step, as it lies in the memory that ranks share.
struct StepRecord {
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint64_t plan_hash = 0;
  uint32_t lane = 0;
  int32_t rows = 0;
  int32_t draft_requests = 0;
  int32_t decodes = 0;  // a recorded step of this shape would do
  int32_t sequences = 0;
  int32_t depth = 0;
  int32_t feeds_drafter = 0;
  uint32_t refused = 0;
  std::array<char, 192> reason = {};

  std::string Text() const {
    return absl::StrCat("step ", step, " of epoch ", epoch, " in lane ", lane, " with plan hash ",
                        plan_hash);
  }
};

}  // namespace

StepSize SizeOf(const protocol::StepPlan& plan, bool records) {
  StepSize size;
  if (records) size.shape = DecodeShapeOf(plan);
  for (const protocol::SequenceStep& step : plan.sequences) {
    size.rows +=
        static_cast<int>(step.tokens.size() + step.draft_depth + step.provided_drafts.size());
    size.draft_requests += step.draft_depth > 0 ? 1 : 0;
  }
  return size;
}

absl::StatusOr<StepSize> AgreeOnStep(RankExchange& ranks, const protocol::StepPlan& plan,
                                     bool records, const absl::Status& checked) {
  StepRecord mine;
  mine.epoch = plan.epoch.value();
  mine.step = plan.step.value();
  mine.plan_hash = plan.plan_hash;
  mine.lane = plan.lane;
  if (checked.ok()) {
    const StepSize size = SizeOf(plan, records);
    mine.rows = size.rows;
    mine.draft_requests = size.draft_requests;
    if (size.shape) {
      mine.decodes = 1;
      mine.sequences = size.shape->sequences;
      mine.depth = size.shape->depth;
      mine.feeds_drafter = size.shape->feeds_drafter ? 1 : 0;
    }
  } else {
    mine.refused = 1;
    const auto text = checked.message().substr(0, mine.reason.size() - 1);
    std::copy(text.begin(), text.end(), mine.reason.begin());
  }
  std::vector<StepRecord> all(static_cast<size_t>(ranks.size()));
  SKEIN_RETURN_IF_ERROR(ranks.GatherValue(std::as_bytes(std::span(&mine, 1)),
                                          std::as_writable_bytes(std::span(all))));
  StepSize largest;
  largest.shape.emplace();
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const StepRecord& other = all[rank];
    if (other.epoch != mine.epoch || other.step != mine.step || other.lane != mine.lane ||
        other.plan_hash != mine.plan_hash) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " has ", other.Text(), ", rank ", ranks.rank(), " has ",
                       mine.Text(), ": the plans of a step do not belong together"));
    }
    largest.rows = std::max(largest.rows, other.rows);
    largest.draft_requests = std::max(largest.draft_requests, other.draft_requests);
    if (other.decodes == 0) largest.shape.reset();
    if (!largest.shape) continue;
    largest.shape->sequences = std::max(largest.shape->sequences, int{other.sequences});
    largest.shape->depth = std::max(largest.shape->depth, int{other.depth});
    largest.shape->feeds_drafter |= other.feeds_drafter != 0;
  }
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].refused == 0) continue;
    return absl::AbortedError(absl::StrCat("rank ", rank, " refused its plan of step ", mine.step,
                                           ": ", all[rank].reason.data()));
  }
  return largest;
}

}  // namespace skein::worker
