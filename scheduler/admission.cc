#include "scheduler/admission.h"

#include "absl/strings/str_cat.h"
#include "protocol/base/log.h"

namespace skein::scheduler {

absl::Status Admission::Check(uint64_t prompt_tokens) const {
  if (queue_.size() >= limits_.queued_requests_max) {
    return absl::ResourceExhaustedError(absl::StrCat("queue_requests: ", queue_.size(),
                                                     " requests wait, at most ",
                                                     limits_.queued_requests_max, " may"));
  }
  // An empty line takes any request that can run at all.
  if (!queue_.empty() && tokens_ + prompt_tokens > limits_.queued_tokens_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("queue_tokens: ", tokens_, " prompt tokens wait, ", prompt_tokens,
                     " more exceed the limit of ", limits_.queued_tokens_max));
  }
  return absl::OkStatus();
}

void Admission::Push(Sequence* sequence) {
  SKEIN_CHECK(queue_.insert(sequence).second)
      << "scheduler invariant 4: sequence " << sequence->id << " is queued twice";
  tokens_ += sequence->length();
}

void Admission::Remove(Sequence* sequence) {
  SKEIN_CHECK(queue_.erase(sequence) == 1)
      << "scheduler invariant 4: sequence " << sequence->id << " is not queued";
  tokens_ -= sequence->length();
}

}  // namespace skein::scheduler
