// The door of the layers to the other ranks of their group: arrays of all ranks side by side, and
// rows that go to the rank they belong to. Kernels that work on the host's memory exchange through
// the group itself; those of a GPU through NCCL, queued like kernels, while the group says who is
// there. Without a group, in the step of the start, this rank is the only one there. Borrows the
// groups of the epoch. Thread: the device thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/device.h"
#include "kernels/tensor_view.h"
#include "protocol/tensor/collective_group.h"
#include "protocol/tensor/nccl_group.h"
#include "worker/model/activations.h"
#include "worker/model/model_spec.h"
#include "worker/model/shard.h"

namespace skein::worker {

// Whether it is what another rank did, or did not do in time: it says nothing of this one.
inline bool OfAnotherRank(const absl::Status& why) {
  return absl::IsAborted(why) || absl::IsDeadlineExceeded(why);
}

class RankExchange {
 public:
  // `capacity`: ExchangeBytes of the model. The device outlives the exchange. `nccl`: for a GPU.
  RankExchange(const Shard& shard, size_t capacity, kernels::Device& device,
               std::shared_ptr<const protocol::NcclLibrary> nccl)
      : shard_(shard), capacity_(capacity), device_(device), library_(std::move(nccl)) {}
  ~RankExchange() { Leave(); }
  RankExchange(const RankExchange&) = delete;
  RankExchange& operator=(const RankExchange&) = delete;

  const Shard& shard() const { return shard_; }
  // What a rank gives or takes at most in one collective, in bytes.
  size_t capacity() const { return capacity_; }

  // Whether arrays are exchanged by SendHome, not by Put and Collect.
  bool on_device() const { return !device_.is_host(); }

  // Enters the group of the epoch, which this rank has joined and which outlives the stay; on a GPU
  // the ranks make a communicator of NCCL, too. `label`: of the group, in errors.
  absl::Status Enter(protocol::CollectiveGroup& group, const std::string& label,
                     absl::Time deadline);
  // What was recorded in the epoch is gone before.
  void Leave();
  bool joined() const { return group_ != nullptr; }
  // When the collectives of the running step or recording must be over; the infinite future between
  // steps.
  void SetDeadline(absl::Time deadline) { deadline_ = deadline; }
  // Ends the group: the step has failed here and so for all ranks.
  void Abort(std::string_view reason) {
    if (group_ != nullptr) group_->Abort(reason);
  }

  // Before the layers of a pass: the most rows that any rank has in it, equal on all ranks.
  void BeginPass(int rows) { rows_ = rows; }
  int rows() const { return rows_; }
  // Ranks that take part, and which of them this one is.
  int size() const { return group_ == nullptr ? 1 : group_->size(); }
  int rank() const { return group_ == nullptr ? 0 : group_->rank(); }

  // `mine`: this rank's rows, dense, rows() of them at most; `all` [size() * rows(), ...] with the
  // rows of rank r from r * rows() on. What a rank does not have is left as it was.
  struct Gathered {
    kernels::TensorView mine, all;
  };
  absl::Status Gather(std::initializer_list<Gathered> arrays);
  // Raw values of one size: `all` has size() times the bytes of `mine`.
  absl::Status GatherValue(std::span<const std::byte> mine, std::span<std::byte> all);
  absl::Status Put(int to, size_t offset, std::span<const std::byte> bytes);
  // Takes what all ranks put for this one into dense `mine`. Only with a group.
  absl::Status Collect(const kernels::TensorView& mine);
  // For kernels of a GPU: both [size() * n, ...] dense; rows from r * n on of `rows` go to rank r,
  // and those that it sent here lie from r * n on of `home`.
  absl::Status SendHome(const kernels::TensorView& rows, const kernels::TensorView& home);

 private:
  protocol::NcclGroup::Queue Queue() { return {device_.queue(), deadline_}; }
  absl::Status GatherOnDevice(std::span<const protocol::GatherPart> parts);
  absl::Status MeetOnDevice(const std::string& label, absl::Time deadline);
  // Both kinds of exchange once: what NCCL makes on the way cannot be made in a recording.
  absl::Status Connect();
  // Ends the collectives that are queued once a rank is gone or late.
  absl::Status Watch();

  const Shard shard_;
  const size_t capacity_;
  kernels::Device& device_;
  protocol::CollectiveGroup* group_ = nullptr;
  const std::shared_ptr<const protocol::NcclLibrary> library_;
  std::unique_ptr<protocol::NcclGroup> nccl_;
  absl::Time deadline_ = absl::InfinitePast();
  int rows_ = 0;
};

// Memory of a GPU that a rank of a group has beside its part of the model: its buffers for the rows
// and products of all ranks, and an allowance for NCCL's own. 0 for a whole model.
uint64_t GroupBytes(const ModelSpec& spec, const Numerics& numerics, const Shard& shard,
                    int max_rows);

// The capacity that a model needs of its group.
size_t ExchangeBytes(const ModelSpec& spec, const Numerics& numerics, int max_rows);

}  // namespace skein::worker
