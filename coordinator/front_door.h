// The line between the HTTP thread and the control loop: what crosses it, in which direction.
// Owns: nothing; values are moved across. HTTP thread -> FrontDoor; control thread -> TokenSink.
// Must never: block either thread, or carry text of users.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "protocol/base/ids.h"
#include "protocol/messages/sampling_params.h"
#include "protocol/messages/step.h"
#include "scheduler/token_constraint.h"

namespace skein::coordinator {

// Why a generation ended. kStop: a stop token (EOS or one of stop_token_ids) was generated.
enum class FinishReason { kStop, kLength, kCancelled, kError };

// One committed token.
struct DeltaToken {
  int32_t id = -1;
  float logprob = 0;                      // meaningful when logprobs were asked for
  std::vector<protocol::TopLogprob> top;  // num_top_logprobs entries, most likely first
  bool drafted = false;                   // it was a draft that verification kept
};

// What one committed step added to a request. The deltas of a request arrive in order; the last
// one has `finish`, and none follows it.
struct TokenDelta {
  std::vector<DeltaToken> tokens;  // a stop token that was generated is the last of them
  // Raw logprobs of the next prompt tokens, from the second on, when they were asked for; those of
  // the whole prompt have come when the first token does.
  std::vector<protocol::TokenScore> prompt_scores = {};
  std::optional<FinishReason> finish;
  // kStop: the stop token.
  int32_t stop_token_id = -1;
  // kError: why. Unavailable and ResourceExhausted become 503, DeadlineExceeded 408, others 500;
  // Aborted: the request ended its workers and must not be sent again.
  absl::Status error;
  // Prompt tokens whose computation was skipped at first admission; valid in every delta.
  uint32_t cached_tokens = 0;
  // How long it waited for its first step, and which engine computed it last; valid in every delta
  // of a request that began.
  std::chrono::nanoseconds queued{0};
  std::optional<uint32_t> engine = std::nullopt;
  // Work of the request so far, for usage.skein; valid in the last delta.
  uint64_t num_steps = 0;
  uint64_t num_draft_tokens = 0;
};

// Receives the deltas of one request. Called by the control thread; returns at once and never
// calls back into the front door. May be called after Cancel until the last delta.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void Deliver(TokenDelta delta) = 0;
};

// One generation to run.
struct SubmitRequest {
  protocol::RequestId id;           // unique in this process
  std::vector<int32_t> prompt_ids;  // at least one; all below the vocabulary size
  protocol::SamplingParams sampling;
  protocol::StopConditions stop;  // prompt_ids.size() + stop.max_tokens <= max_model_len
  protocol::SpeculationParams speculation = {};
  // Of the generated tokens, before the first; null: none.
  std::shared_ptr<const scheduler::TokenConstraint> constraint = nullptr;
  int32_t priority = 0;  // smaller runs earlier
  // Whose part of the service it takes, and how large that is, relative to others: its key's.
  std::string flow = {};
  uint32_t weight = 1;
  // Whose cached prefixes it may use: those of its tenant and salt and no others. The tenant is
  // that of its key; one tenant, the empty one, has all requests while no keys are configured.
  std::string tenant = {};
  std::string cache_salt = {};
  std::chrono::steady_clock::time_point arrival;
  std::optional<std::chrono::steady_clock::time_point> deadline;
  // Kept by the control loop until it delivered the last delta.
  std::shared_ptr<TokenSink> sink;
};

// The client is gone or has enough; the sequence is planned no more.
struct CancelRequest {
  protocol::RequestId id;
  // Its client closed the connection; said of one request of an answer, so that clients are
  // counted.
  bool client_left = false;
};

// The payload of a ResourceExhausted that says which bound of the queue was reached:
// "queue_requests", "queue_tokens" or "queue_delay".
inline constexpr std::string_view kFullBound = "skein.full_bound";

// What the HTTP thread may ask of the control loop. Both calls return at once.
class FrontDoor {
 public:
  virtual ~FrontDoor() = default;
  // OK: the sink will get deltas. ResourceExhausted: the queue is full (503 server_overloaded).
  // FailedPrecondition: draining (503 draining). Unavailable: no group is ready (503 not_ready).
  // InvalidArgument: the request cannot run at all (400). Aborted: its prompt is in quarantine
  // (500). DeadlineExceeded: its deadline has passed (408). The sink is not kept on an error.
  virtual absl::Status TrySubmit(SubmitRequest request) = 0;
  // Unknown ids are ignored. One last delta with kCancelled may still arrive.
  virtual void Cancel(CancelRequest request) = 0;
};

}  // namespace skein::coordinator
