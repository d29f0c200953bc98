// What the ranks of a worker group exchange inside a step. Every rank calls the same collectives in
// the same order with the same sizes; capacities are fixed when the group is made. One thread owns
// a group and makes its calls; Abort alone comes from any thread. Must never grow a buffer, and
// never wait beyond a call's deadline.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace skein::protocol {

// One array of a gather. What rank r gave begins at r * each of `all`; where it gave fewer than
// `each` bytes, the rest of its place is left as it was.
struct GatherPart {
  std::span<const std::byte> mine;  // at most `each` bytes, which may differ between ranks
  std::span<std::byte> all;         // size() * each bytes
  size_t each = 0;                  // equal on all ranks
};

// Arrays of one gather at most.
inline constexpr size_t kGatherPartsMax = 4;

// Errors of all collectives: Aborted when this or another rank aborted, with its reason;
// DeadlineExceeded names the first rank that did not come and where it is; FailedPrecondition when
// the ranks make different calls; InvalidArgument for sizes beyond the capacity. Each names the
// group and the number of the collective, counted from 1, which is Join. After an error the group
// is of no use but to be aborted; calls then give Aborted.
class CollectiveGroup {
 public:
  virtual ~CollectiveGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Meets the other ranks; once, before everything else.
  virtual absl::Status Join(absl::Time deadline) = 0;

  // Every rank gets what every rank gives: dispatch, counts, hashed inputs.
  virtual absl::Status AllGather(std::span<const GatherPart> parts, absl::Time deadline) = 0;

  // Leaves bytes for rank `to` (or for itself) at `offset` of what it collects next. Ranks put into
  // places that are disjoint. Does not wait.
  virtual absl::Status Put(int to, size_t offset, std::span<const std::byte> bytes) = 0;
  // Takes what all ranks put for this one: combine, rows of tables. Bytes that nobody put are
  // undefined. `mine` has the same size on all ranks.
  virtual absl::Status Collect(std::span<std::byte> mine, absl::Time deadline) = 0;

  // Aborted, with the reason, once the group has ended.
  virtual absl::Status Live() const = 0;

  // Ends the group for all of its ranks: whoever is in a collective leaves it at once, later ones
  // fail. The first reason stays. Any thread.
  virtual void Abort(std::string_view reason) = 0;
};

// Told when the owner of a group begins to sleep for another rank, and when that is over. Called on
// the owner's thread.
class WaitObserver {
 public:
  virtual ~WaitObserver() = default;
  virtual void OnWait() = 0;
  virtual void OnWaitOver() = 0;
};

}  // namespace skein::protocol
