#include "protocol/tensor/host_group.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/tensor/host_meeting.h"

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

enum class Kind : uint32_t { kJoin = 1, kGather = 2, kCollect = 3 };

std::string_view KindName(uint32_t kind) {
  switch (static_cast<Kind>(kind)) {
    case Kind::kJoin:
      return "join";
    case Kind::kGather:
      return "gather";
    case Kind::kCollect:
      return "collect";
  }
  return "unknown";
}

size_t RoundUp(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

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

struct HostGroup::Announcement {
  uint64_t number = 0;
  uint32_t kind = 0;
  uint32_t parts = 0;
  std::array<uint64_t, kGatherPartsMax> each = {};
  std::array<uint64_t, kGatherPartsMax> given = {};  // the only field that may differ
};

struct alignas(kLine) HostGroup::RankState {
  std::atomic<uint32_t> turn;     // kStep times the collectives announced; kOver
  std::atomic<uint32_t> waiters;  // ranks that sleep on it
  std::array<Announcement, 2> announcement;
  std::array<char, kReasonBytes> reason;
};

struct alignas(kLine) HostGroup::Shared {
  std::atomic<uint32_t> aborted_by;  // rank + 1
};

absl::StatusOr<std::unique_ptr<HostGroup>> HostGroup::Create(HostGroupOptions options) {
  if (options.size < 1 || options.size > kRanksMax || options.rank < 0 ||
      options.rank >= options.size) {
    return absl::InvalidArgumentError(Concat("rank ", options.rank, " of ", options.size,
                                             " ranks; a host has 1 to ", int{kRanksMax}));
  }
  if (options.name.empty() || options.name.size() > kCommunicatorNameMax) {
    return absl::InvalidArgumentError(Concat("the name of the communicator has ",
                                             options.name.size(), " bytes; 1 to ",
                                             size_t{kCommunicatorNameMax}));
  }
  options.capacity = RoundUp(std::max<size_t>(options.capacity, 1));
  const int abort_fd = ::eventfd(0, EFD_CLOEXEC);
  if (abort_fd < 0) return absl::InternalError(Concat("eventfd: ", std::strerror(errno)));
  return std::unique_ptr<HostGroup>(new HostGroup(std::move(options), abort_fd));
}

HostGroup::HostGroup(HostGroupOptions options, int abort_fd)
    : options_(std::move(options)), abort_fd_(abort_fd) {}

HostGroup::~HostGroup() {
  Abort("the rank has left");
  if (Shared* shared = shared_.load(); shared != nullptr) ::munmap(shared, MappedBytes());
  ::close(abort_fd_);
}

size_t HostGroup::MappedBytes() const {
  const auto ranks = static_cast<size_t>(options_.size);
  return sizeof(Shared) + ranks * sizeof(RankState) + 2 * ranks * options_.capacity;
}

HostGroup::RankState& HostGroup::state(int rank) const {
  auto* bytes = reinterpret_cast<std::byte*>(shared_.load(std::memory_order_relaxed));
  return reinterpret_cast<RankState*>(bytes + sizeof(Shared))[rank];
}

std::byte* HostGroup::window(int rank, uint64_t number) const {
  auto* windows = reinterpret_cast<std::byte*>(&state(options_.size));
  return windows + (2 * static_cast<size_t>(rank) + number % 2) * options_.capacity;
}

std::string HostGroup::Name(uint64_t number) const {
  return Concat(options_.label, ": collective ", number);
}

absl::Status HostGroup::AbortedStatus(uint64_t number) const {
  const Shared* shared = shared_.load();
  const uint32_t by = shared == nullptr ? 0 : shared->aborted_by.load(std::memory_order_acquire);
  if (by == 0 || by > static_cast<uint32_t>(options_.size)) {
    return absl::AbortedError(
        Concat(Name(number), ": aborted by rank ", options_.rank, ": ", reason_));
  }
  const auto& reason = state(static_cast<int>(by) - 1).reason;
  const std::string text(reason.data(), ::strnlen(reason.data(), reason.size()));
  return absl::AbortedError(Concat(Name(number), ": aborted by rank ", by - 1, ": ", text));
}

absl::Status HostGroup::Join(absl::Time deadline) {
  SKEIN_CHECK(number_ == 0) << "a group is joined once";
  HostMeeting meeting{.name = options_.name,
                      .rank = options_.rank,
                      .size = options_.size,
                      .bytes = MappedBytes(),
                      .abort_fd = abort_fd_,
                      .deadline = deadline};
  auto memory = ShareMemory(meeting);
  if (aborted_) return AbortedStatus(1);
  if (!memory.ok()) {
    return absl::Status(memory.status().code(),
                        Concat(options_.label, ": ", StatusText(memory.status())));
  }
  void* mapped = ::mmap(nullptr, MappedBytes(), PROT_READ | PROT_WRITE, MAP_SHARED, *memory, 0);
  ::close(*memory);
  if (mapped == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        Concat(options_.label, ": ", MappedBytes(), " bytes to share: ", std::strerror(errno)));
  }
  shared_ = static_cast<Shared*>(mapped);
  if (aborted_) AbortShared();
  Announcement mine;
  mine.kind = static_cast<uint32_t>(Kind::kJoin);
  mine.each[0] = options_.capacity;
  return Meet(mine, deadline);
}

// Nothing is written any more once the group is over: a slow rank may still read what lies there.
absl::Status HostGroup::CheckLive() const {
  const bool over = aborted_ || (state(options_.rank).turn.load() & kOver) != 0;
  return over ? AbortedStatus(number_ + 1) : absl::OkStatus();
}

// A collective that all have announced is done, even if one of them has aborted since.
absl::Status HostGroup::AwaitRank(int rank, absl::Time deadline) {
  RankState& other = state(rank);
  const auto wanted = static_cast<uint32_t>(number_) * kStep;
  const auto there = [wanted](uint32_t turn) {
    return static_cast<int32_t>((turn & ~kOver) - wanted) >= 0;
  };
  for (int look = 0; look < kLooks; ++look) {
    const uint32_t turn = other.turn.load(std::memory_order_acquire);
    if (there(turn)) return absl::OkStatus();
    if ((turn & kOver) != 0) return AbortedStatus(number_);
  }
  if (options_.observer != nullptr) options_.observer->OnWait();
  absl::Status status;
  ++other.waiters;
  while (true) {
    const uint32_t turn = other.turn.load();
    if (there(turn)) break;
    if ((turn & kOver) != 0) {
      status = AbortedStatus(number_);
      break;
    }
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration()) {
      status = absl::DeadlineExceededError(Concat(Name(number_), ": rank ", rank,
                                                  " has not come; it is at collective ",
                                                  (turn & ~kOver) / kStep));
      break;
    }
    FutexWait(other.turn, turn, left);
  }
  --other.waiters;
  if (options_.observer != nullptr) options_.observer->OnWaitOver();
  return status;
}

absl::Status HostGroup::CheckSame(const Announcement& mine) const {
  for (int rank = 0; rank < options_.size; ++rank) {
    const Announcement& other = state(rank).announcement[number_ % 2];
    if (other.kind == mine.kind && other.parts == mine.parts && other.each == mine.each) continue;
    return absl::FailedPreconditionError(Concat(Name(number_), ": rank ", options_.rank, " is in ",
                                                KindName(mine.kind), " of ", mine.each[0],
                                                " bytes, rank ", rank, " in ", KindName(other.kind),
                                                " of ", other.each[0], " bytes"));
  }
  return absl::OkStatus();
}

absl::Status HostGroup::Meet(const Announcement& mine, absl::Time deadline) {
  ++number_;
  RankState& own = state(options_.rank);
  own.announcement[number_ % 2] = mine;
  own.turn.fetch_add(kStep);
  if (own.waiters > 0) FutexWakeAll(own.turn);
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank != options_.rank) SKEIN_RETURN_IF_ERROR(AwaitRank(rank, deadline));
  }
  return CheckSame(mine);
}

absl::Status HostGroup::AllGather(std::span<const GatherPart> parts, absl::Time deadline) {
  const auto ranks = static_cast<size_t>(options_.size);
  Announcement mine;
  mine.kind = static_cast<uint32_t>(Kind::kGather);
  mine.parts = static_cast<uint32_t>(parts.size());
  std::array<size_t, kGatherPartsMax> begin = {};
  size_t end = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const GatherPart& part = parts[i];
    SKEIN_CHECK(parts.size() <= kGatherPartsMax && part.mine.size() <= part.each &&
                part.all.size() == ranks * part.each);
    begin[i] = end;
    end += RoundUp(part.each);
    mine.each[i] = part.each;
    mine.given[i] = part.mine.size();
  }
  if (end > options_.capacity) {
    return absl::InvalidArgumentError(
        Concat(Name(number_ + 1), ": a gather of ", end, " bytes, at most ", options_.capacity));
  }
  SKEIN_RETURN_IF_ERROR(CheckLive());
  std::byte* own = window(options_.rank, number_ + 1);
  for (size_t i = 0; i < parts.size(); ++i) {
    std::copy(parts[i].mine.begin(), parts[i].mine.end(), own + begin[i]);
  }
  SKEIN_RETURN_IF_ERROR(Meet(mine, deadline));
  for (int rank = 0; rank < options_.size; ++rank) {
    const Announcement& other = state(rank).announcement[number_ % 2];
    const std::byte* theirs = window(rank, number_);
    for (size_t i = 0; i < parts.size(); ++i) {
      const size_t given = std::min<size_t>(other.given[i], parts[i].each);
      std::copy_n(
          theirs + begin[i], given,
          parts[i].all.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(rank) * parts[i].each));
    }
  }
  return absl::OkStatus();
}

absl::Status HostGroup::Put(int to, size_t offset, std::span<const std::byte> bytes) {
  SKEIN_CHECK(to >= 0 && to < options_.size && number_ > 0);
  if (offset > options_.capacity || bytes.size() > options_.capacity - offset) {
    return absl::InvalidArgumentError(Concat(Name(number_ + 1), ": ", bytes.size(),
                                             " bytes put at ", offset, ", at most up to ",
                                             options_.capacity));
  }
  SKEIN_RETURN_IF_ERROR(CheckLive());
  std::copy(bytes.begin(), bytes.end(), window(to, number_ + 1) + offset);
  return absl::OkStatus();
}

absl::Status HostGroup::Collect(std::span<std::byte> mine, absl::Time deadline) {
  if (mine.size() > options_.capacity) {
    return absl::InvalidArgumentError(Concat(Name(number_ + 1), ": ", mine.size(),
                                             " bytes collected, at most ", options_.capacity));
  }
  SKEIN_RETURN_IF_ERROR(CheckLive());
  Announcement call;
  call.kind = static_cast<uint32_t>(Kind::kCollect);
  call.each[0] = mine.size();
  SKEIN_RETURN_IF_ERROR(Meet(call, deadline));
  std::copy_n(window(options_.rank, number_), mine.size(), mine.begin());
  return absl::OkStatus();
}

void HostGroup::Abort(std::string_view reason) {
  if (abort_begun_.exchange(true)) return;
  reason_ = std::string(reason.substr(0, kReasonBytes - 1));
  aborted_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(abort_fd_, &one, sizeof one);
  if (shared_.load() != nullptr) AbortShared();
}

// Once: by Abort, or by Join where Abort came before there was memory.
void HostGroup::AbortShared() {
  if (told_.exchange(true)) return;
  RankState& own = state(options_.rank);
  std::copy(reason_.begin(), reason_.end(), own.reason.begin());
  uint32_t nobody = 0;
  shared_.load()->aborted_by.compare_exchange_strong(nobody,
                                                     static_cast<uint32_t>(options_.rank) + 1);
  for (int rank = 0; rank < options_.size; ++rank) {
    state(rank).turn.fetch_or(kOver);
    FutexWakeAll(state(rank).turn);
  }
}

}  // namespace skein::protocol
