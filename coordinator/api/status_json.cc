#include "coordinator/api/status_json.h"

#include <string_view>

#include "protocol/json/json_writer.h"

namespace skein::coordinator {
namespace {

using protocol::JsonWriter;

void Text(JsonWriter& out, std::string_view key, std::string_view value) {
  out.Key(key);
  out.String(value);
}

void Count(JsonWriter& out, std::string_view key, uint64_t value) {
  out.Key(key);
  out.Uint(value);
}

void Flag(JsonWriter& out, std::string_view key, bool value) {
  out.Key(key);
  out.Bool(value);
}

void Seconds(JsonWriter& out, std::string_view key, absl::Duration value) {
  out.Key(key);
  out.Double(absl::ToDoubleSeconds(absl::Trunc(value, absl::Milliseconds(1))));
}

void WriteGroup(JsonWriter& out, const GroupStatus& group) {
  out.BeginObject();
  Count(out, "group", group.group);
  Text(out, "state", group.state);
  Count(out, "epoch", group.epoch);
  out.Key("worker");  // of rank 0
  group.workers.empty() ? out.Null() : out.Uint(group.workers.front());
  out.Key("workers");
  out.BeginArray();
  for (const uint32_t node : group.workers) out.Uint(node);
  out.EndArray();
  Count(out, "running", group.running);
  Count(out, "moving", group.moving);
  out.Key("step_age_s");
  group.step_age ? out.Double(absl::ToDoubleSeconds(*group.step_age)) : out.Null();
  Count(out, "blocks", group.blocks);
  Count(out, "blocks_used", group.blocks_used);
  Flag(out, "cordoned", group.cordoned);
  Flag(out, "probation", group.probation);
  out.EndObject();
}

void WriteWorker(JsonWriter& out, const WorkerStatus& worker) {
  out.BeginObject();
  Count(out, "worker", worker.node);
  Text(out, "state", worker.state);
  Count(out, "incarnation", worker.incarnation);
  Text(out, "build", worker.build);
  Text(out, "protocol", worker.protocol);
  Text(out, "backend", worker.backend);
  Text(out, "numerics", worker.numerics);
  out.Key("features");
  out.BeginArray();
  for (const std::string& feature : worker.features) out.String(feature);
  out.EndArray();
  Count(out, "last_step", worker.last_step);
  Count(out, "queued_plans", worker.queued_plans);
  Count(out, "step_running_ms", worker.running_ms);
  Seconds(out, "heard_age_s", worker.heard_age);
  Seconds(out, "progress_age_s", worker.progress_age);
  out.EndObject();
}

void WriteRollout(JsonWriter& out, const RolloutStatus& rollout) {
  out.BeginObject();
  Text(out, "state", NameOf(rollout.state));
  Text(out, "phase", NameOf(rollout.phase));
  Count(out, "group", rollout.group);
  Count(out, "groups", rollout.num_groups);
  Count(out, "replaced", rollout.replaced);
  Count(out, "failed_starts", rollout.failed_starts);
  Text(out, "build", rollout.build);
  Text(out, "reason", rollout.reason);
  out.EndObject();
}

}  // namespace

std::string RolloutJson(const RolloutStatus& rollout) {
  std::string text;
  JsonWriter out(&text);
  WriteRollout(out, rollout);
  return text;
}

std::string StatusJson(const ClusterStatus& status, const ServerIdentity& server) {
  std::string text;
  JsonWriter out(&text);
  out.BeginObject();
  Text(out, "build", server.build);
  Text(out, "protocol", server.protocol);
  Text(out, "config_hash", server.config_hash);
  Count(out, "term", status.term);
  Flag(out, "ready", status.ready);
  Flag(out, "draining", status.draining);
  Flag(out, "closed", status.closed);
  Count(out, "running", status.running);
  Count(out, "waiting", status.waiting);
  Count(out, "waiting_tokens", status.waiting_tokens);
  Count(out, "requests_ended", status.requests_ended);
  Count(out, "requests_failed", status.requests_failed);
  Count(out, "quarantined_prompts", status.quarantined_prompts);
  out.Key("groups");
  out.BeginArray();
  for (const GroupStatus& group : status.groups) WriteGroup(out, group);
  out.EndArray();
  out.Key("workers");
  out.BeginArray();
  for (const WorkerStatus& worker : status.workers) WriteWorker(out, worker);
  out.EndArray();
  out.Key("rollout");
  WriteRollout(out, status.rollout);
  out.EndObject();
  return text;
}

}  // namespace skein::coordinator
