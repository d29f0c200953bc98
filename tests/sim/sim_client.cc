#include "tests/sim/sim_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace skein::tests {

using coordinator::FinishReason;

SimClient::SimClient(ClientRequest request, Oracles& oracles, Judge judge)
    : request_(std::move(request)), oracles_(oracles), judge_(std::move(judge)) {}

coordinator::SubmitRequest SimClient::Submit(std::shared_ptr<SimClient> self) {
  coordinator::SubmitRequest submit = request_.submit;
  submit.sink = std::move(self);
  return submit;
}

void SimClient::Violate(int oracle, const std::string& what) {
  oracles_.Violate(oracle, absl::StrCat("request ", request_.submit.id.value(), ": ", what));
}

void SimClient::Take(const coordinator::DeltaToken& token) {
  const size_t at = num_tokens_++;
  num_drafted_ += token.drafted ? 1 : 0;
  if (at >= request_.answer.size()) return Violate(1, "a token follows the end of the answer");
  if (token.id != request_.answer[at] || token.logprob != request_.logprobs[at]) {
    Violate(1,
            absl::StrCat("token ", at, " is ", token.id, " with ", token.logprob, ", alone it is ",
                         request_.answer[at], " with ", request_.logprobs[at]));
  }
  if (token.drafted &&
      (!request_.submit.speculation.enabled || request_.submit.speculation.max_draft_tokens == 0)) {
    Violate(2, "a draft was kept, none were wanted");
  }
}

void SimClient::End(const coordinator::TokenDelta& delta) {
  finish_ = delta.finish;
  error_ = delta.error;
  if (finish_ == FinishReason::kError || finish_ == FinishReason::kCancelled) {
    if (!judge_(*this, delta.error)) {
      Violate(2, absl::StrCat("it ended with an error without a cause: ", delta.error.message()));
    }
    return;
  }
  // The loop looks at what clients want before it looks at results.
  if (cancelled_) return Violate(2, "it was cancelled, and is answered");
  if (num_tokens_ != request_.answer.size()) {
    return Violate(2, absl::StrCat("it ended after ", num_tokens_, " tokens, alone it has ",
                                   request_.answer.size()));
  }
  const protocol::StopConditions& stop = request_.submit.stop;
  const bool stops = std::find(stop.stop_token_ids.begin(), stop.stop_token_ids.end(),
                               request_.answer.back()) != stop.stop_token_ids.end() &&
                     static_cast<int32_t>(num_tokens_) >= stop.min_tokens;
  if (stops != (finish_ == FinishReason::kStop)) Violate(2, "it ended with the wrong reason");
  if (stops && delta.stop_token_id != request_.answer.back()) Violate(2, "the stop token is wrong");
}

void SimClient::Deliver(coordinator::TokenDelta delta) {
  if (over()) return Violate(2, "a delta follows the last one");
  for (const coordinator::DeltaToken& token : delta.tokens) Take(token);
  cached_tokens_ = delta.cached_tokens;
  if (delta.cached_tokens >= request_.submit.prompt_ids.size()) Violate(1, "too much was cached");
  if (delta.finish) End(delta);
}

}  // namespace skein::tests
