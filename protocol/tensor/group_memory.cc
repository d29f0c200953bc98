#include "protocol/tensor/group_memory.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "protocol/base/clock.h"
#include "protocol/base/strings.h"

namespace skein::protocol {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kReasonBytes = 512;
// Looks before a rank goes to sleep: a few microseconds, since the others may need this processor.
constexpr int kLooks = 100;
// Turns rise by two with each collective; the lowest bit says that the group is over, so that it
// wakes whoever sleeps on the turn of any rank.
constexpr uint32_t kStep = 2;
constexpr uint32_t kOver = 1;

void FutexWait(const std::atomic<uint32_t>& word, uint32_t value, absl::Duration at_most) {
  const timespec timeout = absl::ToTimespec(std::min(at_most, absl::Hours(1)));
  // Whatever ends the sleep, the caller looks again.
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &timeout, nullptr, 0);
}

void FutexWakeAll(const std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
              std::atomic<uint32_t>::is_always_lock_free);

}  // namespace

struct alignas(kLine) GroupMemory::RankState {
  std::atomic<uint32_t> turn;     // kStep times the collectives announced; kOver
  std::atomic<uint32_t> waiters;  // ranks that sleep on it
  std::array<Announcement, 2> announcement;
  uint64_t done;  // with the reason
  std::array<char, kReasonBytes> reason;
};

struct alignas(kLine) GroupMemory::Shared {
  std::atomic<uint32_t> ended_by;  // rank + 1
};

size_t GroupMemory::Bytes(int ranks, size_t capacity) {
  const auto count = static_cast<size_t>(ranks);
  return sizeof(Shared) + count * sizeof(RankState) + 2 * count * capacity;
}

absl::StatusOr<std::unique_ptr<GroupMemory>> GroupMemory::Map(int fd, int ranks, size_t capacity) {
  const size_t bytes = Bytes(ranks, capacity);
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) {
    return absl::ResourceExhaustedError(Concat(bytes, " bytes to share: ", std::strerror(errno)));
  }
  return std::unique_ptr<GroupMemory>(new GroupMemory(mapped, ranks, capacity));
}

GroupMemory::~GroupMemory() { ::munmap(shared_, Bytes(ranks_, capacity_)); }

GroupMemory::RankState& GroupMemory::state(int rank) const {
  auto* bytes = reinterpret_cast<std::byte*>(shared_);
  return reinterpret_cast<RankState*>(bytes + sizeof(Shared))[rank];
}

std::byte* GroupMemory::window(int rank, uint64_t number) const {
  auto* windows = reinterpret_cast<std::byte*>(&state(ranks_));
  return windows + (2 * static_cast<size_t>(rank) + number % 2) * capacity_;
}

const Announcement& GroupMemory::announcement(int rank, uint64_t number) const {
  return state(rank).announcement[number % 2];
}

uint64_t GroupMemory::at(int rank) const { return state(rank).turn.load() / kStep; }

void GroupMemory::Announce(int rank, const Announcement& announcement) {
  RankState& own = state(rank);
  own.announcement[announcement.number % 2] = announcement;
  own.turn.fetch_add(kStep);
  if (own.waiters > 0) FutexWakeAll(own.turn);
}

// A collective that all have announced is done, even if one of them has aborted since.
GroupMemory::Came GroupMemory::Await(int rank, uint64_t number, absl::Time deadline,
                                     WaitObserver* observer) {
  RankState& other = state(rank);
  const auto wanted = static_cast<uint32_t>(number) * kStep;
  const auto there = [wanted](uint32_t turn) {
    return static_cast<int32_t>((turn & ~kOver) - wanted) >= 0;
  };
  for (int look = 0; look < kLooks; ++look) {
    const uint32_t turn = other.turn.load(std::memory_order_acquire);
    if (there(turn)) return Came::kYes;
    if ((turn & kOver) != 0) return Came::kOver;
  }
  if (observer != nullptr) observer->OnWait();
  Came came = Came::kLate;
  ++other.waiters;
  while (true) {
    const uint32_t turn = other.turn.load();
    if (there(turn) || (turn & kOver) != 0) {
      came = there(turn) ? Came::kYes : Came::kOver;
      break;
    }
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration()) break;
    FutexWait(other.turn, turn, left);
  }
  --other.waiters;
  if (observer != nullptr) observer->OnWaitOver();
  return came;
}

void GroupMemory::End(const Ending& ending) {
  auto& text = state(ending.by).reason;
  const size_t size = std::min(ending.reason.size(), text.size() - 1);
  std::copy_n(ending.reason.begin(), size, text.begin());
  state(ending.by).done = ending.done;
  uint32_t nobody = 0;
  shared_->ended_by.compare_exchange_strong(nobody, static_cast<uint32_t>(ending.by) + 1);
  for (int rank = 0; rank < ranks_; ++rank) {
    state(rank).turn.fetch_or(kOver);
    FutexWakeAll(state(rank).turn);
  }
}

bool GroupMemory::over() const { return shared_->ended_by.load(std::memory_order_acquire) != 0; }

std::optional<GroupMemory::Ending> GroupMemory::ending() const {
  const uint32_t by = shared_->ended_by.load(std::memory_order_acquire);
  if (by == 0 || by > static_cast<uint32_t>(ranks_)) return std::nullopt;
  const auto& text = state(static_cast<int>(by) - 1).reason;
  return Ending{static_cast<int>(by) - 1,
                std::string(text.data(), ::strnlen(text.data(), text.size())),
                state(static_cast<int>(by) - 1).done};
}

}  // namespace skein::protocol
