// Arrivals, streams, and what usage says.
// Main thread. Must never count an answer as whole that did not end with [DONE].
#include "worker/node/commands/bench_load.h"

#include <algorithm>
#include <utility>

#include "protocol/base/strings.h"
#include "protocol/json/json.h"

namespace skein::worker {
namespace {

using protocol::Concat;
using protocol::JsonValue;

constexpr size_t kRefusalBytesMax = 4096;

// A count of usage; a negative one fails the request.
int64_t CountAt(const JsonValue& object, std::string_view key, BenchRecord& record) {
  const JsonValue* value = object.Find(key);
  const int64_t count = value == nullptr ? 0 : value->AsInt64(key).value_or(0);
  if (count >= 0) return count;
  record.error = "malformed_usage";
  record.message = Concat("usage says ", key, " ", count, ", a count is 0 or more");
  return 0;
}

bool HasTextAt(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.Find(key);
  return value != nullptr && !value->string().empty();
}

// True if the event carries output of the model.
bool CarriesText(const JsonValue& choice) {
  if (HasTextAt(choice, "text")) return true;
  const JsonValue* delta = choice.Find("delta");
  if (delta == nullptr) return false;
  const JsonValue* calls = delta->Find("tool_calls");
  return HasTextAt(*delta, "content") || HasTextAt(*delta, "reasoning_content") ||
         HasTextAt(*delta, "reasoning") || (calls != nullptr && !calls->elements().empty());
}

void ReadUsage(const JsonValue& usage, BenchRecord& record) {
  if (!usage.IsObject()) return;
  record.input_tokens = CountAt(usage, "prompt_tokens", record);
  record.output_tokens = CountAt(usage, "completion_tokens", record);
  const JsonValue* own = usage.Find("skein");
  if (own == nullptr) return;
  record.steps = CountAt(*own, "steps", record);
  record.draft_tokens = CountAt(*own, "draft_tokens", record);
  record.accepted_draft_tokens = CountAt(*own, "accepted_draft_tokens", record);
}

// The error object's code and message behind `kind`.
void ReadError(std::string kind, std::string_view body, BenchRecord& record) {
  record.error = std::move(kind);
  record.message = std::string(body.substr(0, 300));
  const auto parsed = protocol::ParseJson(body);
  const JsonValue* error = parsed.ok() ? parsed->Find("error") : nullptr;
  if (error == nullptr) return;
  if (HasTextAt(*error, "code")) record.error += Concat(" ", error->Find("code")->string());
  if (HasTextAt(*error, "message")) record.message = error->Find("message")->string();
}

// One event of a stream, which is not [DONE].
void ReadEvent(std::string_view text, double at_s, BenchRecord& record) {
  const auto event = protocol::ParseJson(text);
  if (!event.ok()) {
    record.error = "malformed_event";
    record.message = std::string(protocol::StatusText(event.status()));
    return;
  }
  if (event->Find("error") != nullptr) return ReadError("stream_error", text, record);
  if (const JsonValue* usage = event->Find("usage")) ReadUsage(*usage, record);
  const JsonValue* choices = event->Find("choices");
  if (choices == nullptr || choices->elements().empty()) return;
  const JsonValue& choice = choices->elements()[0];
  const JsonValue* finish = choice.Find("finish_reason");
  // An answer without any text has its end as its first event.
  const bool is_end = finish != nullptr && !finish->IsNull();
  if (!CarriesText(choice) && !(is_end && record.first_s < 0)) return;
  if (record.first_s < 0) {
    record.first_s = at_s;
  } else {
    record.gaps_s.push_back(at_s - record.last_s);
  }
  record.last_s = at_s;
}

std::string KindOf(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return "connect";
  if (absl::IsDeadlineExceeded(status)) return "timeout";
  return "cut";
}

}  // namespace

BenchLoad::BenchLoad(const BenchWorkload& workload, int64_t concurrency_max, BenchTarget& target,
                     const std::atomic<bool>* stop)
    : workload_(workload),
      concurrency_max_(concurrency_max),
      target_(target),
      stop_(stop),
      records_(workload.requests.size()) {}

bool BenchLoad::HasRoom() const {
  return concurrency_max_ == 0 || static_cast<int64_t>(in_progress_.size()) < concurrency_max_;
}

void BenchLoad::StartDue() {
  while (next_ < records_.size() && HasRoom()) {
    const BenchRequest& request = workload_.requests[next_];
    const double now = target_.NowSeconds();
    if (workload_.is_open_loop && request.arrival_s > now) return;
    BenchRecord& record = records_[next_];
    record.sent_s = now;
    // In a closed loop a request arrives when there is room for it.
    record.scheduled_s = workload_.is_open_loop ? request.arrival_s
                         : concurrency_max_ > 0 ? now
                                                : 0;
    in_progress_.emplace(next_, Progress());
    target_.Start(next_++, request.body);
  }
}

std::vector<BenchRecord> BenchLoad::Run() {
  constexpr double kIdleSeconds = 0.1;  // how long a stop may wait
  while (true) {
    if (IsStopped()) return Ended();
    StartDue();
    if (next_ == records_.size() && in_progress_.empty()) return std::move(records_);
    double until = target_.NowSeconds() + kIdleSeconds;
    if (next_ < records_.size() && workload_.is_open_loop && HasRoom()) {
      until = std::min(until, workload_.requests[next_].arrival_s);
    }
    target_.Poll(until, *this);
  }
}

std::vector<BenchRecord> BenchLoad::Ended() const {
  std::vector<BenchRecord> ended;
  for (uint64_t i = 0; i < next_; ++i) {
    if (!in_progress_.contains(i)) ended.push_back(records_[i]);
  }
  return ended;
}

void BenchLoad::OnBody(uint64_t request, int status, std::string_view bytes, double at_s) {
  Progress& progress = in_progress_.at(request);
  BenchRecord& record = records_[request];
  if (status != 200) {
    if (progress.refusal.size() < kRefusalBytesMax) progress.refusal += bytes;
    return;
  }
  progress.events.Feed(bytes, [&](std::string_view event) {
    if (event == "[DONE]") {
      progress.is_done = true;
    } else {
      ReadEvent(event, at_s, record);
    }
    return true;
  });
}

void BenchLoad::OnEnd(uint64_t request, int status, const absl::Status& result, double at_s) {
  const auto progress = in_progress_.extract(request);
  BenchRecord& record = records_[request];
  record.end_s = at_s;
  if (!record.error.empty()) return;
  if (!result.ok()) {
    record.error = KindOf(result);
    record.message = std::string(protocol::StatusText(result));
  } else if (status != 200) {
    ReadError(Concat("http_", status), progress.mapped().refusal, record);
  } else if (!progress.mapped().is_done) {
    record.error = "cut";
    record.message = "the stream ended without [DONE]";
  } else if (record.first_s < 0) {
    record.error = "no_output";
    record.message = "the stream had no event with output";
  }
}

}  // namespace skein::worker
