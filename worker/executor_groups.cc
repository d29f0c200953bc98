// The part of StepExecutor that enters and leaves the epochs of a group of ranks.
#include <utility>

#include "absl/strings/str_cat.h"
#include "protocol/base/clock.h"
#include "protocol/base/form_time.h"
#include "protocol/base/status_macros.h"
#include "protocol/tensor/host_group.h"
#include "worker/step_executor.h"

namespace skein::worker {

absl::Status StepExecutor::Reset() {
  // A plan that runs leaves the collective that it is in.
  if (forming_ != nullptr) {
    forming_->Abort("the rank leaves the epoch");
    if (metrics_ != nullptr) metrics_->CountAbort("epoch_left");
  }
  forming_.reset();
  if (mover_ != nullptr) mover_->Reset();
  return jobs_.TryPush(ForgetAll{});
}

absl::Status StepExecutor::Form(const protocol::FormGroup& group) {
  protocol::HostGroupOptions options;
  options.name = group.communicator;
  const std::string label = options.label =
      absl::StrCat("group ", group.group.value(), " epoch ", group.epoch.value());
  options.rank = static_cast<int>(group.rank.value());
  options.size = static_cast<int>(group.num_ranks);
  options.capacity = capacity_;
  options.observer = &excuse_;
  options.epoch = group.epoch.value();
  for (const auto& place : group.places) options.places.push_back({place.host, place.address});
  options.port = ranks_.get();
  auto made = protocol::HostGroup::Create(std::move(options));
  SKEIN_RETURN_IF_ERROR(made.status());
  forming_ = *std::move(made);
  return jobs_.TryPush(Meet{forming_, group.epoch, label, group.placement});
}

void StepExecutor::Join(Meet& meet) {
  const absl::Time begin = protocol::MonotonicNow();
  bool loads = !meet.placement.empty();
  FormOutcome outcome{meet.epoch, model_->PlaceExperts(meet.placement, [&] {
                        loads = true;
                        return meet.group->Live();
                      })};
  absl::Status& status = outcome.status;
  if (status.ok()) {
    const absl::Duration others = loads ? protocol::kFormLoadTime : absl::ZeroDuration();
    status = meet.group->Join(protocol::MonotonicNow() + protocol::kFormMeetTime + others);
  }
  if (status.ok()) {
    status = model_->EnterGroup(*meet.group, meet.label,
                                protocol::MonotonicNow() + protocol::kFormConnectTime);
  }
  if (status.ok()) {
    status = model_->RecordInGroup(protocol::MonotonicNow() + protocol::kFormRecordTime);
    // An error of its own comes again, however often the ranks meet.
    outcome.ends_worker = !status.ok() && !OfAnotherRank(status);
  }
  if (metrics_ != nullptr) metrics_->SetCollectives(protocol::MonotonicNow() - begin);
  if (status.ok()) group_ = std::move(meet.group);
  // Nobody may wait for the outcome of an epoch that is over.
  formed_.TryPush(std::move(outcome)).IgnoreError();
}

}  // namespace skein::worker
