#include "coordinator/worker_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

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

absl::Status WorkerTable::Register(protocol::ActorId worker,
                                   const protocol::RegisterWorker& registration) {
  workers_.erase(worker);
  if (registration.protocol_version != protocol::kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", worker.node.value(), " speaks protocol ", registration.protocol_version,
        " (build ", registration.build, "), this coordinator ", protocol::kProtocolVersion,
        "; run the same build on both"));
  }
  const protocol::CacheGeometry& geometry = registration.geometry;
  if (geometry.block_tokens == 0 || geometry.num_blocks == 0 || geometry.num_slots == 0 ||
      geometry.max_rows == 0 || geometry.max_model_len == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", worker.node.value(), " offers an empty cache geometry: ", geometry.num_blocks,
        " blocks of ", geometry.block_tokens, " tokens, ", geometry.num_slots, " slots, ",
        geometry.max_rows, " rows, max_model_len ", geometry.max_model_len,
        "; none may be 0: run the same build on both"));
  }
  workers_[worker] = registration;
  return absl::OkStatus();
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

std::optional<protocol::ActorId> WorkerTable::FreeWorker(uint32_t group) const {
  std::optional<protocol::ActorId> spare;
  for (const auto& [worker, registration] : workers_) {
    if (Find(worker) != nullptr) continue;
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
