// The memory that the ranks of a group on one host share: for every rank of the group, those of
// other hosts too, how far it is, what it announced, and two windows, used in turn: what is read in
// one collective is written anew in the next but one only, and nobody is there before all have left
// this one. No lock: a rank that is killed leaves nothing locked. Owns the mapping. Any thread.
// Must never be written by two for one rank: of a rank of another host one rank here is the writer.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "protocol/tensor/collective_group.h"

namespace skein::protocol {

inline constexpr int kGroupRanksMax = 64;

// Rounded up to whole lines of the processor's cache.
inline constexpr size_t RoundToLine(size_t bytes) { return (bytes + 63) / 64 * 64; }

enum class CollectiveKind : uint32_t { kJoin = 1, kGather = 2, kCollect = 3 };

// What a rank says when it comes to a collective.
struct Announcement {
  uint64_t number = 0;
  CollectiveKind kind = CollectiveKind::kJoin;
  uint32_t parts = 0;
  std::array<uint64_t, kGatherPartsMax> each = {};
  std::array<uint64_t, kGatherPartsMax> given = {};  // the only field that may differ
};

class GroupMemory {
 public:
  // What `ranks` with windows of `capacity` bytes need.
  static size_t Bytes(int ranks, size_t capacity);
  // ResourceExhausted: it cannot be mapped.
  static absl::StatusOr<std::unique_ptr<GroupMemory>> Map(int fd, int ranks, size_t capacity);
  ~GroupMemory();
  GroupMemory(const GroupMemory&) = delete;
  GroupMemory& operator=(const GroupMemory&) = delete;

  // The window of a rank in this collective.
  std::byte* window(int rank, uint64_t number) const;
  const Announcement& announcement(int rank, uint64_t number) const;
  // The last collective that the rank announced.
  uint64_t at(int rank) const;

  // The rank has come: wakes who waits for it.
  void Announce(int rank, const Announcement& announcement);
  enum class Came { kYes, kOver, kLate };
  // Waits until the rank announced this collective; kOver: the group ended before. `observer`, if
  // any, is told of a sleep.
  Came Await(int rank, uint64_t number, absl::Time deadline, WaitObserver* observer);

  struct Ending {
    int by = 0;
    std::string reason;
    uint64_t done = 0;  // collectives that all had announced before
  };
  // Ends the group for all on this host: the first one stays. Once for each rank `by`.
  void End(const Ending& ending);
  bool over() const;
  std::optional<Ending> ending() const;

 private:
  struct RankState;
  struct Shared;

  GroupMemory(void* mapped, int ranks, size_t capacity)
      : shared_(static_cast<Shared*>(mapped)), ranks_(ranks), capacity_(capacity) {}
  RankState& state(int rank) const;

  Shared* const shared_;
  const int ranks_;
  const size_t capacity_;
};

}  // namespace skein::protocol
