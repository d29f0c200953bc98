#include "coordinator/front_door_queue.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"

namespace skein::coordinator {

namespace {
// Cancellations beside every request that may wait or run.
constexpr size_t kEventsMax = 1 << 16;

absl::Status Full(std::string_view bound, const std::string& why) {
  absl::Status status = absl::ResourceExhaustedError(why);
  status.SetPayload(protocol::ToAbsl(kFullBound), absl::Cord(protocol::ToAbsl(bound)));
  return status;
}

}  // namespace

FrontDoorQueue::FrontDoorQueue(const FrontDoorLimits& limits, protocol::Waker& control, Clock clock)
    : queued_requests_max_(limits.queued_requests_max),
      delay_(limits.delay_max),
      queued_tokens_max_(limits.queued_tokens_max),
      control_(control),
      clock_(std::move(clock)),
      events_(kEventsMax, control) {}

std::atomic<uint32_t>& FrontDoorQueue::WaitingOf(std::string_view flow) {
  return waiting_by_flow_[std::hash<std::string_view>()(flow) % waiting_by_flow_.size()];
}

absl::Status FrontDoorQueue::Enter(uint64_t prompt_tokens, std::string_view flow) {
  const uint32_t requests = waiting_requests_.fetch_add(1);
  const uint32_t of_flow = WaitingOf(flow).fetch_add(1);
  const uint64_t tokens = waiting_tokens_.fetch_add(prompt_tokens);
  const uint64_t tokens_max = queued_tokens_max_;
  if (requests >= queued_requests_max_) {
    Leave(prompt_tokens, flow);
    return Full("queue_requests", absl::StrCat(requests, " requests wait, at most ",
                                               queued_requests_max_, " may; retry later"));
  }
  // An empty line takes any request that can run at all.
  if (requests > 0 && tokens + prompt_tokens > tokens_max) {
    Leave(prompt_tokens, flow);
    return Full("queue_tokens",
                absl::StrCat(tokens, " prompt tokens wait, ", prompt_tokens,
                             " more exceed the limit of ", tokens_max, "; retry later"));
  }
  if (requests == 0) {
    delay_.Begin(clock_());
  } else if (of_flow > 0 && ready_ && delay_.Stands(clock_())) {
    // Who has nobody waiting is not behind those that are late: flows take turns.
    Leave(prompt_tokens, flow);
    return Full("queue_delay", absl::StrCat(requests, " requests wait, none of which began within ",
                                            std::chrono::duration<double>(delay_.most()).count(),
                                            " s for longer than a second; retry later"));
  }
  return absl::OkStatus();
}

double FrontDoorQueue::PredictedWait() const {
  return delay_.PredictedSeconds(waiting_requests_, clock_());
}

absl::Status FrontDoorQueue::CheckQuarantine(const SubmitRequest& request) const {
  const std::shared_ptr<const scheduler::Quarantine> quarantine = quarantine_.load();
  if (quarantine == nullptr ||
      !quarantine->Refuses(scheduler::HashPrompt(request.prompt_ids, ""), clock_())) {
    return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrCat("this prompt ended its workers before; it is refused for ",
                                         scheduler::Quarantine::kPeriod.count(),
                                         " minutes from then on"));
}

std::chrono::nanoseconds FrontDoorQueue::SincePulse() const {
  const int64_t pulse = pulse_;
  if (pulse == 0) return std::chrono::nanoseconds(0);
  return std::chrono::nanoseconds(clock_().time_since_epoch().count() - pulse);
}

void FrontDoorQueue::Leave(uint64_t prompt_tokens, std::string_view flow) {
  WaitingOf(flow).fetch_sub(1);
  waiting_requests_.fetch_sub(1);
  waiting_tokens_.fetch_sub(prompt_tokens);
}

absl::Status FrontDoorQueue::TrySubmit(SubmitRequest request) {
  if (draining_ || closed_) {
    return absl::FailedPreconditionError("the server is draining; retry on another server");
  }
  if (!accepting_) return absl::UnavailableError("no worker group is ready; retry later");
  if (request.deadline && *request.deadline <= clock_()) {
    return absl::DeadlineExceededError("the request's deadline passed");
  }
  SKEIN_RETURN_IF_ERROR(CheckQuarantine(request));
  const uint64_t tokens = request.prompt_ids.size();
  const std::string flow = request.flow;
  SKEIN_RETURN_IF_ERROR(Enter(tokens, flow));
  absl::Status pushed = events_.TryPush(std::move(request));
  if (!pushed.ok()) Leave(tokens, flow);
  return pushed;
}

void FrontDoorQueue::Cancel(CancelRequest request) {
  const protocol::RequestId id = request.id;
  if (!events_.TryPush(std::move(request)).ok()) {
    SKEIN_LOG(kWarn, "cancellation lost, the request runs to its end").Field("request", id);
  }
}

void FrontDoorQueue::StartDraining() {
  draining_ = true;
  control_.Wake();
}

}  // namespace skein::coordinator
