#include "coordinator/worker_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "protocol/base/status_macros.h"

namespace skein::coordinator {

bool WorkerGroup::formed() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const GroupRank& rank) { return rank.formed; });
}

const GroupRank* WorkerGroup::RankOf(protocol::ActorId worker) const {
  const auto found = std::find_if(ranks.begin(), ranks.end(), [worker](const GroupRank& rank) {
    return rank.worker == worker;
  });
  return found == ranks.end() ? nullptr : &*found;
}

// The place that the worker has when it is there: of rank r in group g it is g * num_ranks_ + r.
uint32_t WorkerTable::HomeOf(protocol::ActorId worker) const {
  return (std::max(worker.node.value(), 1U) - 1) % (num_groups() * num_ranks_);
}

// Its own place does not need the worker: the group there has its ranks, or the place is another
// worker's, who is here and waits for the rest of the group.
bool WorkerTable::MayLeave(protocol::ActorId worker) const {
  const uint32_t home = HomeOf(worker);
  const protocol::ActorId owner{protocol::NodeId(home + 1), 0};
  return groups_[home / num_ranks_].has_value() || (owner != worker && workers_.contains(owner));
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
  if (const uint32_t rank = HomeOf(worker) % num_ranks_;
      said.rank.value() != rank || said.num_ranks != num_ranks_) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", node, " has the shard of rank ", said.rank.value(), " of ",
                     said.num_ranks, ", its place is rank ", rank, " of ", num_ranks_,
                     "; give both the same scheduler.expert_parallel_size"));
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
    if (group && group->RankOf(worker) != nullptr) return &*group;
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
  const std::optional<WorkerGroup>& formed = groups_[group.value()];
  if (!formed) return;
  for (const GroupRank& rank : formed->ranks) {
    reserved_[group.value() * num_ranks_ + rank.rank.value()] = rank.worker;
  }
}

void WorkerTable::Release(protocol::GroupId group) {
  for (uint32_t rank = 0; rank < num_ranks_; ++rank) {
    reserved_.erase(group.value() * num_ranks_ + rank);
  }
}

void WorkerTable::NoteAborted(protocol::GroupId group, absl::Time now) {
  std::optional<WorkerGroup>& formed = groups_[group.value()];
  if (formed && !formed->aborted) formed->aborted = now;
}

bool WorkerTable::MayServe(protocol::ActorId worker, uint32_t place) const {
  const auto found = reserved_.find(place);
  if (found != reserved_.end()) return found->second == worker;
  return std::none_of(reserved_.begin(), reserved_.end(),
                      [worker](const auto& entry) { return entry.second == worker; });
}

std::optional<protocol::ActorId> WorkerTable::FreeWorker(uint32_t place) const {
  std::optional<protocol::ActorId> spare;
  for (const auto& [worker, known] : workers_) {
    const uint32_t home = HomeOf(worker);
    // It holds the shard of its rank alone.
    if (home % num_ranks_ != place % num_ranks_) continue;
    if (Find(worker) != nullptr || !MayServe(worker, place)) continue;
    if (reserved_.contains(place)) return worker;
    if (home == place) return worker;
    // It waits for its own place before it takes another.
    if (!spare && MayLeave(worker)) spare = worker;
  }
  return spare;
}

// A worker for each rank of the group; fewer when they are not there.
std::vector<GroupRank> WorkerTable::FreeRanks(uint32_t group) const {
  std::vector<GroupRank> ranks;
  for (uint32_t rank = 0; rank < num_ranks_; ++rank) {
    const std::optional<protocol::ActorId> worker = FreeWorker(group * num_ranks_ + rank);
    if (!worker) break;
    ranks.push_back({*worker, protocol::RankId(rank), false});
  }
  return ranks;
}

const WorkerGroup* WorkerTable::Form(absl::Time now) {
  for (uint32_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i] || now < not_before_[i]) continue;
    std::vector<GroupRank> ranks = FreeRanks(i);
    if (ranks.size() < num_ranks_) continue;
    // The term is part of the epoch, so it never repeats after a restart of the coordinator.
    const uint64_t epoch = (term_.value() << 32) | ++last_epoch_;
    groups_[i] = WorkerGroup{protocol::GroupId(i), protocol::Epoch(epoch), std::move(ranks), now,
                             std::nullopt};
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
