// The door of the layers to the other ranks of their group, for kernels that work on memory of the
// host: arrays of all ranks side by side, and rows that go to the rank they belong to. Without a
// group, in the step of the start, this rank is the only one there. Borrows the group of the epoch.
// Thread: the device thread.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/tensor_view.h"
#include "protocol/tensor/collective_group.h"
#include "worker/model/activations.h"
#include "worker/model/model_spec.h"
#include "worker/model/shard.h"

namespace skein::worker {

class RankExchange {
 public:
  // `capacity`: ExchangeBytes of the model.
  RankExchange(const Shard& shard, size_t capacity) : shard_(shard), capacity_(capacity) {}

  const Shard& shard() const { return shard_; }
  // What a rank gives or takes at most in one collective, in bytes.
  size_t capacity() const { return capacity_; }

  // The group of the epoch, joined, or null: no epoch. It outlives its use here.
  void SetGroup(protocol::CollectiveGroup* group) { group_ = group; }
  bool joined() const { return group_ != nullptr; }
  // When the collectives of the running step must be over.
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

 private:
  const Shard shard_;
  const size_t capacity_;
  protocol::CollectiveGroup* group_ = nullptr;
  absl::Time deadline_ = absl::InfinitePast();
  int rows_ = 0;
};

// The capacity that a model needs of its group.
size_t ExchangeBytes(const ModelSpec& spec, const Numerics& numerics, int max_rows);

}  // namespace skein::worker
