// Ranks of one host that exchange through memory they share (`cpu`, `reference`). A collective is:
// write what is mine, announce it, sleep until all others have announced theirs, read. Each rank
// has two windows, used in turn: what a rank reads in one collective is written anew in the next
// but one only, and nobody is there before all have left this one. No lock: a rank that is killed
// leaves nothing locked. Owns the mapping. Thread: as CollectiveGroup.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "protocol/tensor/collective_group.h"

namespace skein::protocol {

struct HostGroupOptions {
  std::string name = {};   // of the communicator: equal on all ranks and never used before
  std::string label = {};  // of the group, in errors: "group 1 epoch 7"
  int rank = 0;
  int size = 1;
  size_t capacity = 0;               // bytes that a rank gives or collects at most, equal on all
  WaitObserver* observer = nullptr;  // outlives the group
};

class HostGroup final : public CollectiveGroup {
 public:
  static constexpr int kRanksMax = 64;

  // Does not wait and touches nobody else, so that Abort reaches a group whose Join still waits.
  // InvalidArgument names the option.
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
  void Abort(std::string_view reason) override;

 private:
  struct Announcement;
  struct RankState;
  struct Shared;

  HostGroup(HostGroupOptions options, int abort_fd);
  size_t MappedBytes() const;
  RankState& state(int rank) const;
  // The window of a rank in the collective that comes next, or that is under way.
  std::byte* window(int rank, uint64_t number) const;
  std::string Name(uint64_t number) const;
  // Announces the next collective and waits until all ranks have.
  absl::Status Meet(const Announcement& mine, absl::Time deadline);
  absl::Status AwaitRank(int rank, absl::Time deadline);
  absl::Status CheckSame(const Announcement& mine) const;
  absl::Status CheckLive() const;
  absl::Status AbortedStatus(uint64_t number) const;
  void AbortShared();

  const HostGroupOptions options_;
  const int abort_fd_;
  std::atomic<Shared*> shared_ = nullptr;  // null before Join has it
  uint64_t number_ = 0;                    // of the collectives so far; owner's thread
  // The first call of Abort in this process writes the reason; then `aborted_` is set.
  std::atomic<bool> abort_begun_ = false;
  std::string reason_;
  std::atomic<bool> aborted_ = false;
  std::atomic<bool> told_ = false;
};

}  // namespace skein::protocol
