#include "coordinator/worker_table.h"

#include "absl/strings/str_cat.h"

namespace skein::coordinator {

absl::Status WorkerTable::Register(protocol::ActorId worker,
                                   const protocol::RegisterWorker& registration) {
  workers_.erase(worker);
  if (registration.protocol_version != protocol::kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", worker.node.value(), " speaks protocol ", registration.protocol_version,
        " (build ", registration.build, "), this coordinator ", protocol::kProtocolVersion));
  }
  const protocol::CacheGeometry& geometry = registration.geometry;
  if (geometry.block_tokens == 0 || geometry.num_blocks == 0 || geometry.num_slots == 0 ||
      geometry.max_rows == 0 || geometry.max_model_len == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker.node.value(), " offers an empty cache geometry"));
  }
  workers_[worker] = registration;
  return absl::OkStatus();
}

bool WorkerTable::Remove(protocol::ActorId worker) {
  workers_.erase(worker);
  if (!member_ || member_->worker != worker) return false;
  member_.reset();
  return true;
}

std::optional<GroupMember> WorkerTable::Form() {
  member_.reset();
  if (workers_.empty()) return std::nullopt;
  // The term is part of the epoch, so it never repeats after a restart of the coordinator.
  const uint64_t epoch = (term_.value() << 32) | ++last_epoch_;
  member_ = GroupMember{workers_.begin()->first, protocol::GroupId(0), protocol::RankId(0),
                        protocol::Epoch(epoch), false};
  return member_;
}

bool WorkerTable::Confirm(protocol::ActorId worker, const protocol::GroupFormed& formed) {
  if (!member_ || member_->worker != worker || member_->epoch != formed.epoch || member_->formed) {
    return false;
  }
  member_->formed = true;
  return true;
}

}  // namespace skein::coordinator
