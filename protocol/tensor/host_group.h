// Ranks that exchange through memory they share (`cpu`, `reference`), and, with ranks of other
// hosts, through messages between the memories. A collective is: write what is mine, announce it,
// sleep until all others have announced theirs, read. On each host lie the windows of all ranks of
// the group; what a rank of another host writes there, a port brings. Thread: as CollectiveGroup.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "protocol/tensor/collective_group.h"
#include "protocol/tensor/group_memory.h"
#include "protocol/tensor/group_span.h"
#include "protocol/tensor/ucx_group_port.h"

namespace skein::protocol {

struct HostGroupOptions {
  std::string name = {};   // of the communicator: equal on all ranks and never used before
  std::string label = {};  // of the group, in errors: "group 1 epoch 7"
  int rank = 0;
  int size = 1;
  size_t capacity = 0;                 // bytes that a rank gives or collects at most, equal on all
  WaitObserver* observer = nullptr;    // outlives the group
  uint64_t epoch = 0;                  // of the group; rises with each one of these ranks
  std::vector<RankPlace> places = {};  // of all ranks; empty: all are on this host
  UcxGroupPort* port = nullptr;        // to ranks of other hosts; outlives the group
};

class HostGroup final : public CollectiveGroup {
 public:
  static constexpr int kRanksMax = kGroupRanksMax;

  // Does not wait, so that Abort reaches a group whose Join still waits. InvalidArgument names the
  // option; FailedPrecondition: a rank is on another host and cannot be reached, or not from here.
  static absl::StatusOr<std::unique_ptr<HostGroup>> Create(HostGroupOptions options);
  // Aborts: the others learn that this rank has left.
  ~HostGroup() override;
  HostGroup(const HostGroup&) = delete;
  HostGroup& operator=(const HostGroup&) = delete;

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  absl::Status Join(absl::Time deadline) override;
  absl::Status AllGather(std::span<const GatherPart> parts, absl::Time deadline) override;
  absl::Status Put(int to, size_t offset, std::span<const std::byte> bytes) override;
  absl::Status Collect(std::span<std::byte> mine, absl::Time deadline) override;
  absl::Status Live() const override;
  void Abort(std::string_view reason) override;

 private:
  HostGroup(HostGroupOptions options, std::shared_ptr<GroupSeat> seat)
      : options_(std::move(options)), seat_(std::move(seat)) {}
  absl::Status Span();
  bool here(int rank) const { return span_ == nullptr || span_->here(rank); }
  GroupMemory& memory() const { return *seat_->memory(); }
  // Announces the next collective and waits until all ranks have.
  absl::Status Meet(Announcement mine, absl::Time deadline);
  absl::Status AwaitRank(int rank, absl::Time deadline);
  absl::Status CheckSame(const Announcement& mine) const;

  const HostGroupOptions options_;
  const std::shared_ptr<GroupSeat> seat_;
  std::shared_ptr<GroupSpan> span_;  // null: all ranks are on this host
  uint64_t number_ = 0;              // of the collectives so far; owner's thread
};

}  // namespace skein::protocol
