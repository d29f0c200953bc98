#include "coordinator/request_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "protocol/base/log.h"

namespace skein::coordinator {

using protocol::RequestId;
using scheduler::SequenceDelta;

namespace {

bool IsCheck(RequestId id) { return id.value() >= kFirstCheck; }

// Work of the request so far, for its usage.
void AddWork(const SequenceDelta& from, TokenDelta& to) {
  to.num_steps = from.num_steps;
  to.num_draft_tokens = from.num_draft_tokens;
  to.cached_tokens = from.cached_tokens;
}

TokenDelta ErrorDelta(const absl::Status& error) {
  TokenDelta delta;
  delta.finish = absl::IsCancelled(error) ? FinishReason::kCancelled : FinishReason::kError;
  delta.error = error;
  return delta;
}

// Errors that are the server's: not a client's mistake, absence, deadline, or deadly prompt.
bool IsServerFailure(const absl::Status& error) {
  return !absl::IsInvalidArgument(error) && !absl::IsCancelled(error) &&
         !absl::IsDeadlineExceeded(error) && !absl::IsAborted(error);
}

}  // namespace

void RequestTable::AddTimes(const Request& request, TokenDelta& to) {
  if (!request.engine) return;
  to.engine = request.engine;
  to.queued = absl::ToChronoNanoseconds(request.began - request.arrived);
}

void RequestTable::StopWaiting(Request& request) {
  if (!request.waiting) return;
  request.waiting = false;
  door_.Leave(request.prompt_tokens, request.flow);
}

bool RequestTable::Open(SubmitRequest& request, absl::Time now) {
  Request entry;
  entry.sink = std::move(request.sink);
  entry.prompt_tokens = request.prompt_ids.size();
  entry.flow = request.flow;
  entry.waiting = !IsCheck(request.id);
  entry.deadline = request.deadline;
  entry.last_token = now;
  entry.prompt = scheduler::HashPrompt(request.prompt_ids, "");
  // Time spent in front of the control loop counts too.
  entry.arrived = now - absl::FromChrono(door_.Now() - request.arrival);
  const uint64_t prompt_tokens = entry.prompt_tokens;
  if (requests_.emplace(request.id, std::move(entry)).second) {
    if (request.deadline) deadlines_.emplace(*request.deadline, request.id);
    return true;
  }
  SKEIN_LOG(kError, "request id used twice").Field("request", request.id);
  door_.Leave(prompt_tokens, request.flow);
  return false;
}

void RequestTable::Doom(RequestId id, const absl::Status& reason) { doomed_.emplace(id, reason); }

void RequestTable::Finish(RequestId id, TokenDelta delta) {
  doomed_.erase(id);
  auto found = requests_.find(id);
  if (found == requests_.end()) return;
  StopWaiting(found->second);
  if (!IsCheck(id)) {
    ++num_ended_;
    if (delta.finish == FinishReason::kError && IsServerFailure(delta.error)) ++num_failed_;
  }
  if (absl::IsAborted(delta.error)) Condemn(found->second);
  AddTimes(found->second, delta);
  if (found->second.deadline) deadlines_.erase({*found->second.deadline, id});
  const std::shared_ptr<TokenSink> sink = std::move(found->second.sink);
  requests_.erase(found);
  sink->Deliver(std::move(delta));
}

// Its prompt is refused from now on, before it costs another worker.
void RequestTable::Condemn(const Request& request) {
  quarantine_.Add(request.prompt, door_.Now());
  metrics_.quarantined_requests.Increment();
  metrics_.replays.At({"quarantined"}).Increment();
  SKEIN_LOG(kError, "request quarantined: it ended its workers")
      .Field("prompt_tokens", request.prompt_tokens)
      .Field("generated", request.generated)
      .Field("refused_prompts", static_cast<uint64_t>(quarantine_.size()));
  door_.SetQuarantine(std::make_shared<const scheduler::Quarantine>(quarantine_));
}

void RequestTable::Fail(RequestId id, const absl::Status& error) { Finish(id, ErrorDelta(error)); }

void RequestTable::CountLeft(RequestId id) {
  const auto found = requests_.find(id);
  // What ended meanwhile had all its tokens.
  const bool decodes = found == requests_.end() || found->second.generated > 0;
  const std::string_view phase = decodes ? "decode" : found->second.waiting ? "queued" : "prefill";
  metrics_.client_disconnects.At({phase}).Increment();
}

void RequestTable::DeliverEnd(const SequenceDelta& delta) {
  const RequestId id = RequestOf(delta.sequence);
  const auto why = doomed_.find(id);
  TokenDelta last = ErrorDelta(!delta.error.ok()      ? delta.error
                               : why == doomed_.end() ? absl::CancelledError("cancelled")
                                                      : why->second);
  AddWork(delta, last);
  Finish(id, std::move(last));
}

void RequestTable::Measure(Request& request, uint32_t number, const SequenceDelta& delta,
                           absl::Time now) {
  GroupMetrics& engine = metrics_.engines[number];
  const double waited = absl::ToDoubleSeconds(now - request.last_token);
  const auto count = static_cast<double>(delta.num_tokens);
  if (request.generated == 0) {
    request.first_token = now;
    engine.time_to_first_token.Observe(absl::ToDoubleSeconds(now - request.arrived));
    engine.prefill_time.Observe(absl::ToDoubleSeconds(now - request.began));
  } else {
    engine.inter_event_latency.Observe(waited);
    engine.inter_token_latency.Observe(waited / count, delta.num_tokens);
  }
  request.last_token = now;
  request.generated += delta.num_tokens;
  if (!delta.ended) return;
  engine.e2e_latency.Observe(absl::ToDoubleSeconds(now - request.arrived));
  engine.inference_time.Observe(absl::ToDoubleSeconds(now - request.began));
  const double decode = absl::ToDoubleSeconds(now - request.first_token);
  engine.decode_time.Observe(decode);
  if (request.generated > 1) {
    engine.time_per_output_token.Observe(decode / static_cast<double>(request.generated - 1));
  }
  engine.request_generation_tokens.Observe(static_cast<double>(request.generated));
}

void RequestTable::Deliver(uint32_t engine, const SequenceDelta& delta,
                           std::span<scheduler::CommittedToken> tokens,
                           std::span<protocol::TokenScore> scores, absl::Time now) {
  const RequestId id = RequestOf(delta.sequence);
  if (delta.cancelled || !delta.error.ok()) return DeliverEnd(delta);
  if (delta.num_tokens == 0 && delta.num_scores == 0) return;
  auto found = requests_.find(id);
  if (found == requests_.end()) return;
  TokenDelta out;
  AddWork(delta, out);
  out.tokens.reserve(delta.num_tokens);
  for (scheduler::CommittedToken& token : tokens) {
    out.tokens.push_back({token.token, token.logprob, std::move(token.top), token.drafted});
  }
  out.prompt_scores.assign(std::make_move_iterator(scores.begin()),
                           std::make_move_iterator(scores.end()));
  if (!IsCheck(id) && delta.num_tokens > 0) Measure(found->second, engine, delta, now);
  found->second.engine = engine;
  if (!delta.ended) {
    AddTimes(found->second, out);
    found->second.sink->Deliver(std::move(out));
    return;
  }
  out.finish = *delta.ended == scheduler::EndReason::kStopToken ? FinishReason::kStop
                                                                : FinishReason::kLength;
  if (out.finish == FinishReason::kStop) out.stop_token_id = out.tokens.back().id;
  Finish(id, std::move(out));
}

void RequestTable::Begin(RequestId id, uint32_t number, uint32_t cached, absl::Time now) {
  auto found = requests_.find(id);
  if (found == requests_.end() || !found->second.waiting) return;
  Request& request = found->second;
  GroupMetrics& engine = metrics_.engines[number];
  request.began = now;
  request.engine = number;
  engine.queue_time.Observe(absl::ToDoubleSeconds(now - request.arrived));
  engine.CountPrompt(request.prompt_tokens, cached);
  door_.NoteStart(absl::ToChronoNanoseconds(now - request.arrived));
  StopWaiting(request);
}

std::vector<RequestId> RequestTable::Sorted() const {
  std::vector<RequestId> ids;
  ids.reserve(requests_.size());
  for (const auto& [id, request] : requests_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<RequestId> RequestTable::TakeExpired() {
  std::vector<RequestId> expired;
  if (deadlines_.empty()) return expired;
  const auto now = door_.Now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    expired.push_back(deadlines_.begin()->second);
    deadlines_.erase(deadlines_.begin());
  }
  return expired;
}

}  // namespace skein::coordinator
