// Must never: keep or print text of a user.
#include "coordinator/api/flight_log.h"

#include <utility>

#include "protocol/base/log.h"
#include "protocol/json/json_writer.h"

namespace skein::coordinator {
namespace {

double SecondsOf(absl::Duration duration) {
  return absl::ToDoubleSeconds(absl::Trunc(duration, absl::Milliseconds(1)));
}

void Number(protocol::JsonWriter& out, std::string_view key, uint64_t value) {
  out.Key(key);
  out.Uint(value);
}

void Seconds(protocol::JsonWriter& out, std::string_view key, absl::Duration value) {
  out.Key(key);
  out.Double(SecondsOf(value));
}

void Write(const FlightRecord& record, protocol::JsonWriter& out) {
  out.BeginObject();
  out.Key("request_id");
  out.String(record.request_id);
  out.Key("route");
  out.String(record.route);
  out.Key("end");
  out.String(record.end);
  Number(out, "status", static_cast<uint64_t>(record.status));
  Number(out, "created", static_cast<uint64_t>(record.created));
  Seconds(out, "total_s", record.total);
  Seconds(out, "queued_s", record.queued);
  Seconds(out, "prefill_s", record.prefill);
  Seconds(out, "decode_s", record.decode);
  out.Key("engine");
  record.engine ? out.Uint(*record.engine) : out.Null();
  Number(out, "choices", record.choices);
  Number(out, "prompt_tokens", static_cast<uint64_t>(record.prompt_tokens));
  Number(out, "cached_tokens", static_cast<uint64_t>(record.cached_tokens));
  Number(out, "completion_tokens", static_cast<uint64_t>(record.completion_tokens));
  Number(out, "steps", record.steps);
  Number(out, "draft_tokens", record.draft_tokens);
  Number(out, "accepted_tokens", record.accepted_tokens);
  out.EndObject();
}

}  // namespace

void FlightLog::Add(FlightRecord record) {
  if (record.total < threshold_) return;
  SKEIN_LOG(kInfo, "slow request")
      .Field("request_id", record.request_id)
      .Field("route", record.route)
      .Field("end", record.end)
      .Field("total_s", SecondsOf(record.total))
      .Field("queued_s", SecondsOf(record.queued))
      .Field("prefill_s", SecondsOf(record.prefill))
      .Field("decode_s", SecondsOf(record.decode))
      .Field("prompt_tokens", record.prompt_tokens)
      .Field("cached_tokens", record.cached_tokens)
      .Field("completion_tokens", record.completion_tokens)
      .Field("steps", record.steps);
  const std::lock_guard lock(mutex_);
  records_.push_back(std::move(record));
  if (records_.size() > kRecordsMax) records_.pop_front();
}

std::string FlightLog::Json() const {
  std::string text;
  protocol::JsonWriter out(&text);
  out.BeginObject();
  Seconds(out, "threshold_s", threshold_);
  out.Key("requests");
  out.BeginArray();
  const std::lock_guard lock(mutex_);
  for (auto record = records_.rbegin(); record != records_.rend(); ++record) Write(*record, out);
  out.EndArray();
  out.EndObject();
  return text;
}

}  // namespace skein::coordinator
