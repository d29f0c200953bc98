#include "coordinator/worker_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "protocol/base/status_macros.h"

namespace skein::coordinator {
namespace {

const GroupRank* RankOf(const WorkerGroup& group, protocol::ActorId worker) {
  const auto found =
      std::find_if(group.ranks.begin(), group.ranks.end(),
                   [worker](const GroupRank& rank) { return rank.worker == worker; });
  return found == group.ranks.end() ? nullptr : &*found;
}

// The group that the worker serves when it is there.
uint32_t HomeOf(protocol::ActorId worker, uint32_t num_groups) {
  return (std::max(worker.node.value(), 1U) - 1) % num_groups;
}

}  // namespace

bool WorkerGroup::formed() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const GroupRank& rank) { return rank.formed; });
}

absl::Status WorkerTable::CheckProtocol(protocol::ActorId worker,
                                        const protocol::RegisterWorker& said) const {
  constexpr uint32_t kMajor = protocol::kProtocolMajor;
  constexpr uint32_t kMinor = protocol::kProtocolMinor;
  const uint32_t away =
      std::max(said.protocol_minor, kMinor) - std::min(said.protocol_minor, kMinor);
  if (said.protocol_major == kMajor && away <= 1) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "worker ", worker.node.value(), " speaks protocol ", said.protocol_major, ".",
      said.protocol_minor, " (build ", said.build, "), this coordinator ", kMajor, ".", kMinor,
      " (build ", SKEIN_VERSION, ") and its neighbours; start a build of one of them"));
}

absl::Status WorkerTable::CheckIdentity(protocol::ActorId worker,
                                        const protocol::RegisterWorker& said) const {
  const uint32_t node = worker.node.value();
  if (!said.tokenizer.empty() && !tokenizer_.empty() && said.tokenizer != tokenizer_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", node, " has the vocabulary ", said.tokenizer, ", this coordinator encodes with ",
        tokenizer_, "; give both the same model directory"));
  }
  if (!model_.empty() && said.model != model_) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", node, " has the weights ",
                                                      said.model, ", this cluster serves ", model_,
                                                      "; stop the cluster to change its model"));
  }
  const protocol::CacheGeometry& geometry = said.geometry;
  if (geometry.block_tokens == 0 || geometry.num_blocks == 0 || geometry.num_slots == 0 ||
      geometry.max_rows == 0 || geometry.max_model_len == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", node, " offers an empty cache geometry: ", geometry.num_blocks,
                     " blocks of ", geometry.block_tokens, " tokens, ", geometry.num_slots,
                     " slots, ", geometry.max_rows, " rows, max_model_len ", geometry.max_model_len,
                     "; none may be 0: run the same build on both"));
  }
  return absl::OkStatus();
}

absl::Status WorkerTable::Register(protocol::ActorId worker,
                                   const protocol::RegisterWorker& registration) {
  workers_.erase(worker);
  SKEIN_RETURN_IF_ERROR(CheckProtocol(worker, registration));
  SKEIN_RETURN_IF_ERROR(CheckIdentity(worker, registration));
  model_ = registration.model;
  incarnations_[worker] = registration.incarnation;
  workers_[worker].registration = registration;
  return absl::OkStatus();
}

void WorkerTable::Heard(protocol::ActorId worker, absl::Time now) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  if (found->second.heard == absl::Time()) found->second.progressed = now;
  found->second.heard = now;
}

void WorkerTable::Excuse(absl::Duration late) {
  for (auto& [worker, known] : workers_) known.heard += late;
}

void WorkerTable::Beat(protocol::ActorId worker, const protocol::Heartbeat& beat, absl::Time now) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  KnownWorker& known = found->second;
  if (known.step != beat.last_step) known.progressed = now;
  known.step = beat.last_step;
  known.queued_plans = beat.queued_plans;
  known.running_ms = beat.running_ms;
}

protocol::Incarnation WorkerTable::LastIncarnation(protocol::ActorId worker) const {
  const auto found = incarnations_.find(worker);
  return found == incarnations_.end() ? protocol::Incarnation(0) : found->second;
}

size_t WorkerTable::num_dead() const {
  return static_cast<size_t>(
      std::count_if(incarnations_.begin(), incarnations_.end(),
                    [this](const auto& at) { return !workers_.contains(at.first); }));
}

const WorkerGroup* WorkerTable::Find(protocol::ActorId worker) const {
  for (const std::optional<WorkerGroup>& group : groups_) {
    if (group && RankOf(*group, worker) != nullptr) return &*group;
  }
  return nullptr;
}

std::optional<protocol::GroupId> WorkerTable::Remove(protocol::ActorId worker) {
  workers_.erase(worker);
  const WorkerGroup* group = Find(worker);
  if (group == nullptr) return std::nullopt;
  const protocol::GroupId id = group->group;
  Dissolve(id);
  return id;
}

size_t WorkerTable::num_spares() const {
  return static_cast<size_t>(
      std::count_if(workers_.begin(), workers_.end(),
                    [this](const auto& at) { return Find(at.first) == nullptr; }));
}

void WorkerTable::Reserve(protocol::GroupId group) {
  if (const auto& formed = groups_[group.value()]) {
    reserved_[group.value()] = formed->ranks.front().worker;
  }
}

bool WorkerTable::MayServe(protocol::ActorId worker, uint32_t group) const {
  const auto found = reserved_.find(group);
  if (found != reserved_.end()) return found->second == worker;
  return std::none_of(reserved_.begin(), reserved_.end(),
                      [worker](const auto& entry) { return entry.second == worker; });
}

std::optional<protocol::ActorId> WorkerTable::FreeWorker(uint32_t group) const {
  std::optional<protocol::ActorId> spare;
  for (const auto& [worker, known] : workers_) {
    if (Find(worker) != nullptr || !MayServe(worker, group)) continue;
    if (reserved_.contains(group)) return worker;
    const uint32_t home = HomeOf(worker, num_groups());
    if (home == group) return worker;
    // It waits for its own group before it serves another.
    if (!spare && groups_[home].has_value()) spare = worker;
  }
  return spare;
}

const WorkerGroup* WorkerTable::Form() {
  for (uint32_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i]) continue;
    const std::optional<protocol::ActorId> worker = FreeWorker(i);
    if (!worker) continue;
    // The term is part of the epoch, so it never repeats after a restart of the coordinator.
    const uint64_t epoch = (term_.value() << 32) | ++last_epoch_;
    groups_[i] = WorkerGroup{
        protocol::GroupId(i), protocol::Epoch(epoch), {{*worker, protocol::RankId(0), false}}};
    return &*groups_[i];
  }
  return nullptr;
}

const WorkerGroup* WorkerTable::Confirm(protocol::ActorId worker,
                                        const protocol::GroupFormed& formed) {
  for (std::optional<WorkerGroup>& group : groups_) {
    if (!group || group->epoch != formed.epoch) continue;
    for (GroupRank& rank : group->ranks) {
      if (rank.worker != worker || rank.formed) continue;
      rank.formed = true;
      return group->formed() ? &*group : nullptr;
    }
  }
  return nullptr;
}

}  // namespace skein::coordinator
