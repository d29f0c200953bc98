// Workers that registered, and which of them are the ranks of which group. Pure state of the
// control loop.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "protocol/actor/actor.h"
#include "protocol/messages/control.h"

namespace skein::coordinator {

// One worker of a group.
struct GroupRank {
  protocol::ActorId worker;
  protocol::RankId rank;
  bool formed = false;  // it answered
};

// A group of an epoch: its ranks run in lockstep and the loss of one ends the epoch.
struct WorkerGroup {
  protocol::GroupId group;
  protocol::Epoch epoch;
  std::vector<GroupRank> ranks;  // by rank; one each so far
  bool formed() const;
};

class WorkerTable {
 public:
  WorkerTable(protocol::Term term, uint32_t num_groups) : term_(term), groups_(num_groups) {}

  // Notes a registration. FailedPrecondition with both versions when the worker speaks another
  // protocol or offers no cache; it is not kept then, nor is what it registered before.
  absl::Status Register(protocol::ActorId worker, const protocol::RegisterWorker& registration);
  // Forgets a worker. The group it was in: its epoch is over.
  std::optional<protocol::GroupId> Remove(protocol::ActorId worker);
  // Gives a group that has no ranks its worker and a new epoch; nothing when each has one or no
  // worker is free. Worker n, counted from 1, serves group n - 1, or as a spare any group whose own
  // worker is not there.
  const WorkerGroup* Form();
  // The epoch is over, the workers stay registered.
  void Dissolve(protocol::GroupId group) { groups_[group.value()].reset(); }
  // The worker answered. The group that is ready with it; null if it names another epoch, has
  // answered already or others have not.
  const WorkerGroup* Confirm(protocol::ActorId worker, const protocol::GroupFormed& formed);

  // The group in which the worker is a rank, or null.
  const WorkerGroup* Find(protocol::ActorId worker) const;
  const std::optional<WorkerGroup>& group(protocol::GroupId group) const {
    return groups_[group.value()];
  }
  const protocol::RegisterWorker& registration(protocol::ActorId worker) const {
    return workers_.at(worker);
  }
  bool Knows(protocol::ActorId worker) const { return workers_.contains(worker); }
  uint32_t num_groups() const { return static_cast<uint32_t>(groups_.size()); }
  size_t num_workers() const { return workers_.size(); }
  // Workers in no group.
  size_t num_spares() const;

 private:
  std::optional<protocol::ActorId> FreeWorker(uint32_t group) const;

  const protocol::Term term_;
  uint32_t last_epoch_ = 0;
  std::map<protocol::ActorId, protocol::RegisterWorker> workers_;
  std::vector<std::optional<WorkerGroup>> groups_;
};

}  // namespace skein::coordinator
