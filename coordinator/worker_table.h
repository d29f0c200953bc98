// Workers that registered, and which of them forms the group. Pure state of the control loop.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "protocol/actor/actor.h"
#include "protocol/messages/control.h"

namespace skein::coordinator {

struct GroupMember {
  protocol::ActorId worker;
  protocol::GroupId group;
  protocol::RankId rank;
  protocol::Epoch epoch;
  bool formed = false;
};

class WorkerTable {
 public:
  explicit WorkerTable(protocol::Term term) : term_(term) {}

  // Notes a registration. FailedPrecondition with both versions when the worker speaks another
  // protocol or offers no cache; it is not kept then, nor is what it registered before.
  absl::Status Register(protocol::ActorId worker, const protocol::RegisterWorker& registration);
  // Forgets a worker. True if it was the member of the group: the epoch is over.
  bool Remove(protocol::ActorId worker);
  // Ends the current epoch, if any, and names a registered worker for a new one; nothing when none
  // is registered.
  std::optional<GroupMember> Form();
  // The epoch is over, the worker stays registered.
  void Dissolve() { member_.reset(); }
  // The worker answered. False if it names another epoch or has answered already.
  bool Confirm(protocol::ActorId worker, const protocol::GroupFormed& formed);

  const std::optional<GroupMember>& member() const { return member_; }
  const protocol::RegisterWorker& registration(protocol::ActorId worker) const {
    return workers_.at(worker);
  }
  bool Knows(protocol::ActorId worker) const { return workers_.contains(worker); }
  size_t num_workers() const { return workers_.size(); }

 private:
  const protocol::Term term_;
  uint32_t last_epoch_ = 0;
  std::map<protocol::ActorId, protocol::RegisterWorker> workers_;
  std::optional<GroupMember> member_;
};

}  // namespace skein::coordinator
