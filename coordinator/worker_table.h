// Workers that registered, and which of them are the ranks of which group. Pure state of the
// control loop.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
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
  std::vector<GroupRank> ranks;  // by rank
  absl::Time since;              // its ranks were chosen
  // A rank said first that a step of it ended for want of another: what ends the epoch is not known
  // yet.
  std::optional<absl::Time> aborted;
  bool formed() const;
  // The rank that the worker is, or null.
  const GroupRank* RankOf(protocol::ActorId worker) const;
};

// What of a worker matters beside its membership.
struct KnownWorker {
  protocol::RegisterWorker registration;
  absl::Time heard;       // of anything
  absl::Time progressed;  // it registered, or its newest step rose
  protocol::StepId step;  // whose result it sent last
  uint32_t queued_plans = 0;
  uint32_t running_ms = 0;  // of the step on its device thread
};

class WorkerTable {
 public:
  // `num_ranks`: of each group. `tokenizer`: the id of the vocabulary that this coordinator encodes
  // with; empty: any.
  WorkerTable(protocol::Term term, uint32_t num_groups, uint32_t num_ranks,
              std::string tokenizer = "")
      : term_(term),
        num_ranks_(num_ranks),
        tokenizer_(std::move(tokenizer)),
        groups_(num_groups),
        not_before_(num_groups, absl::InfinitePast()) {}

  // Notes a registration. FailedPrecondition with both sides when the worker speaks neither this
  // minor of the protocol nor a neighbour, has another vocabulary, other weights than the first
  // worker that was accepted, the shard of another rank than its place, or no cache; it is not kept
  // then, nor is what it registered before.
  absl::Status Register(protocol::ActorId worker, const protocol::RegisterWorker& registration);
  // Forgets a worker. The group it was in: its epoch is over.
  std::optional<protocol::GroupId> Remove(protocol::ActorId worker);
  // Gives a group that has no ranks its workers and a new epoch; nothing when each has some or not
  // enough workers are free. Worker n, counted from 1, is engine n - 1, which is the place of a
  // rank in a group; or as a spare the same rank of any group whose own worker is not there.
  const WorkerGroup* Form(absl::Time now);
  // The group is not formed again before that.
  void Postpone(protocol::GroupId group, absl::Time until) { not_before_[group.value()] = until; }
  // The group waits for its present workers, or for later processes of them, and for no others,
  // which serve no other group: they are replaced, and nobody knows yet whether the new ones are
  // right.
  void Reserve(protocol::GroupId group);
  void Release(protocol::GroupId group);
  // A rank said that a step of the epoch ended for want of another.
  void NoteAborted(protocol::GroupId group, absl::Time now);
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
    return workers_.at(worker).registration;
  }
  // Something came of the worker; unknown ones are ignored.
  void Heard(protocol::ActorId worker, absl::Time now);
  // This side was late by so much: all were heard so much later.
  void Excuse(absl::Duration late);
  // Its heartbeat did.
  void Beat(protocol::ActorId worker, const protocol::Heartbeat& beat, absl::Time now);
  // Every worker that is registered, by id.
  const std::map<protocol::ActorId, KnownWorker>& workers() const { return workers_; }
  // The newest incarnation of the worker that registered, also of one that is gone since; 0 when
  // none did.
  protocol::Incarnation LastIncarnation(protocol::ActorId worker) const;
  // Workers that were here and are gone.
  size_t num_dead() const;
  bool Knows(protocol::ActorId worker) const { return workers_.contains(worker); }
  uint32_t num_groups() const { return static_cast<uint32_t>(groups_.size()); }
  size_t num_workers() const { return workers_.size(); }
  // Workers in no group.
  size_t num_spares() const;

 private:
  uint32_t HomeOf(protocol::ActorId worker) const;
  bool MayLeave(protocol::ActorId worker) const;
  std::optional<protocol::ActorId> FreeWorker(uint32_t place) const;
  std::vector<GroupRank> FreeRanks(uint32_t group) const;
  bool MayServe(protocol::ActorId worker, uint32_t place) const;

  absl::Status CheckProtocol(protocol::ActorId worker, const protocol::RegisterWorker& said) const;
  absl::Status CheckIdentity(protocol::ActorId worker, const protocol::RegisterWorker& said) const;

  const protocol::Term term_;
  const uint32_t num_ranks_;
  const std::string tokenizer_;
  std::string model_;  // of the first worker that was accepted
  uint32_t last_epoch_ = 0;
  std::map<protocol::ActorId, KnownWorker> workers_;
  std::map<protocol::ActorId, protocol::Incarnation> incarnations_;
  std::vector<std::optional<WorkerGroup>> groups_;
  std::vector<absl::Time> not_before_;              // by group: when it may be formed
  std::map<uint32_t, protocol::ActorId> reserved_;  // by place
};

}  // namespace skein::coordinator
