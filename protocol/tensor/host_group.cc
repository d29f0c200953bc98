#include "protocol/tensor/host_group.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/eventfd.h>
#include <unistd.h>

#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/tensor/host_meeting.h"

namespace skein::protocol {
namespace {

std::string_view KindName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kJoin:
      return "join";
    case CollectiveKind::kGather:
      return "gather";
    case CollectiveKind::kCollect:
      return "collect";
  }
  return "unknown";
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostGroup>> HostGroup::Create(HostGroupOptions options) {
  if (options.size < 1 || options.size > kRanksMax || options.rank < 0 ||
      options.rank >= options.size) {
    return absl::InvalidArgumentError(Concat("rank ", options.rank, " of ", options.size,
                                             " ranks; a group has 1 to ", int{kRanksMax}));
  }
  if (options.name.empty() || options.name.size() > kCommunicatorNameMax) {
    return absl::InvalidArgumentError(Concat("the name of the communicator has ",
                                             options.name.size(), " bytes; 1 to ",
                                             size_t{kCommunicatorNameMax}));
  }
  if (!options.places.empty() && options.places.size() != static_cast<size_t>(options.size)) {
    return absl::InvalidArgumentError(
        Concat(options.places.size(), " places of ", options.size, " ranks"));
  }
  options.capacity = RoundToLine(std::max<size_t>(options.capacity, 1));
  const int abort_fd = ::eventfd(0, EFD_CLOEXEC);
  if (abort_fd < 0) return absl::InternalError(Concat("eventfd: ", std::strerror(errno)));
  auto seat = std::make_shared<GroupSeat>(options.label, options.rank, abort_fd);
  std::unique_ptr<HostGroup> group(new HostGroup(std::move(options), std::move(seat)));
  SKEIN_RETURN_IF_ERROR(group->Span());
  return group;
}

// Ranks of other hosts, if there are some.
absl::Status HostGroup::Span() {
  const std::vector<RankPlace>& places = options_.places;
  const auto rank = static_cast<size_t>(options_.rank);
  const auto away = std::find_if(places.begin(), places.end(), [&](const RankPlace& place) {
    return place.host != places[rank].host;
  });
  if (away == places.end()) {
    if (options_.port != nullptr) options_.port->NoteEpoch(options_.epoch);
    return absl::OkStatus();
  }
  if (options_.port == nullptr) {
    return absl::FailedPreconditionError(
        Concat(options_.label, ": rank ", away - places.begin(),
               " is on another host, and this worker has no transport.group_address; give it a "
               "private IPv4 address of its host"));
  }
  auto span = GroupSpan::Create(
      {options_.name, options_.epoch, options_.rank, options_.capacity, places}, seat_);
  if (!span.ok()) {
    return absl::FailedPreconditionError(Concat(options_.label, ": ", StatusText(span.status())));
  }
  span_ = *std::move(span);
  options_.port->Begin(span_);
  return absl::OkStatus();
}

HostGroup::~HostGroup() { Abort("the rank has left"); }

absl::Status HostGroup::Join(absl::Time deadline) {
  SKEIN_CHECK(number_ == 0) << "a group is joined once";
  HostMeeting meeting{.name = options_.name,
                      .rank = options_.rank,
                      .ranks = {},
                      .bytes = GroupMemory::Bytes(options_.size, options_.capacity),
                      .abort_fd = seat_->abort_fd(),
                      .deadline = deadline};
  for (int rank = 0; rank < options_.size; ++rank) {
    if (here(rank)) meeting.ranks.push_back(rank);
  }
  auto fd = ShareMemory(meeting);
  if (seat_->aborted()) {
    if (fd.ok()) ::close(*fd);
    return seat_->AbortedStatus(1);
  }
  if (!fd.ok()) {
    return absl::Status(fd.status().code(), Concat(options_.label, ": ", StatusText(fd.status())));
  }
  auto memory = GroupMemory::Map(*fd, options_.size, options_.capacity);
  ::close(*fd);
  if (!memory.ok()) {
    return absl::Status(memory.status().code(),
                        Concat(options_.label, ": ", StatusText(memory.status())));
  }
  seat_->SetMemory(*std::move(memory));
  Announcement mine;
  mine.kind = CollectiveKind::kJoin;
  mine.each[0] = options_.capacity;
  return Meet(mine, deadline);
}

// Nothing is written any more once the group is over: a slow rank may still read what lies there.
absl::Status HostGroup::Live() const {
  return seat_->over() ? seat_->AbortedStatus(number_ + 1) : absl::OkStatus();
}

absl::Status HostGroup::AwaitRank(int rank, absl::Time deadline) {
  switch (memory().Await(rank, number_, deadline, options_.observer)) {
    case GroupMemory::Came::kYes:
      return absl::OkStatus();
    case GroupMemory::Came::kOver:
      return seat_->AbortedStatus(number_);
    case GroupMemory::Came::kLate:
      break;
  }
  return absl::DeadlineExceededError(Concat(seat_->Name(number_), ": rank ", rank,
                                            " has not come; it is at collective ",
                                            memory().at(rank)));
}

absl::Status HostGroup::CheckSame(const Announcement& mine) const {
  for (int rank = 0; rank < options_.size; ++rank) {
    const Announcement& other = memory().announcement(rank, number_);
    if (other.kind == mine.kind && other.parts == mine.parts && other.each == mine.each) continue;
    return absl::FailedPreconditionError(
        Concat(seat_->Name(number_), ": rank ", options_.rank, " is in ", KindName(mine.kind),
               " of ", mine.each[0], " bytes, rank ", rank, " in ", KindName(other.kind), " of ",
               other.each[0], " bytes"));
  }
  return absl::OkStatus();
}

absl::Status HostGroup::Meet(Announcement mine, absl::Time deadline) {
  mine.number = ++number_;
  if (span_ != nullptr) {
    span_->Announce(mine);
    options_.port->Wake();
  }
  memory().Announce(options_.rank, mine);
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank != options_.rank) SKEIN_RETURN_IF_ERROR(AwaitRank(rank, deadline));
  }
  seat_->SetDone(number_);
  return CheckSame(mine);
}

absl::Status HostGroup::AllGather(std::span<const GatherPart> parts, absl::Time deadline) {
  const auto ranks = static_cast<size_t>(options_.size);
  Announcement mine;
  mine.kind = CollectiveKind::kGather;
  mine.parts = static_cast<uint32_t>(parts.size());
  std::array<size_t, kGatherPartsMax> begin = {};
  size_t end = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const GatherPart& part = parts[i];
    SKEIN_CHECK(parts.size() <= kGatherPartsMax && part.mine.size() <= part.each &&
                part.all.size() == ranks * part.each);
    begin[i] = end;
    end += RoundToLine(part.each);
    mine.each[i] = part.each;
    mine.given[i] = part.mine.size();
  }
  if (end > options_.capacity) {
    return absl::InvalidArgumentError(Concat(seat_->Name(number_ + 1), ": a gather of ", end,
                                             " bytes, at most ", options_.capacity));
  }
  SKEIN_RETURN_IF_ERROR(Live());
  std::byte* own = memory().window(options_.rank, number_ + 1);
  for (size_t i = 0; i < parts.size(); ++i) {
    std::copy(parts[i].mine.begin(), parts[i].mine.end(), own + begin[i]);
    if (span_ == nullptr) continue;
    SKEIN_RETURN_IF_ERROR(span_->Give(number_ + 1, begin[i], parts[i].mine));
  }
  SKEIN_RETURN_IF_ERROR(Meet(mine, deadline));
  for (int rank = 0; rank < options_.size; ++rank) {
    const Announcement& other = memory().announcement(rank, number_);
    const std::byte* theirs = memory().window(rank, number_);
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
    return absl::InvalidArgumentError(Concat(seat_->Name(number_ + 1), ": ", bytes.size(),
                                             " bytes put at ", offset, ", at most up to ",
                                             options_.capacity));
  }
  SKEIN_RETURN_IF_ERROR(Live());
  if (!here(to)) {
    const absl::Status put = span_->Put(number_ + 1, to, offset, bytes);
    if (put.ok()) return put;
    return absl::Status(put.code(),
                        Concat(seat_->Name(number_ + 1), ": for rank ", to, ": ", StatusText(put)));
  }
  std::copy(bytes.begin(), bytes.end(), memory().window(to, number_ + 1) + offset);
  return absl::OkStatus();
}

absl::Status HostGroup::Collect(std::span<std::byte> mine, absl::Time deadline) {
  if (mine.size() > options_.capacity) {
    return absl::InvalidArgumentError(Concat(seat_->Name(number_ + 1), ": ", mine.size(),
                                             " bytes collected, at most ", options_.capacity));
  }
  SKEIN_RETURN_IF_ERROR(Live());
  Announcement call;
  call.kind = CollectiveKind::kCollect;
  call.each[0] = mine.size();
  SKEIN_RETURN_IF_ERROR(Meet(call, deadline));
  std::copy_n(memory().window(options_.rank, number_), mine.size(), mine.begin());
  return absl::OkStatus();
}

void HostGroup::Abort(std::string_view reason) {
  seat_->Abort(reason);
  if (span_ != nullptr) options_.port->Wake();
}

}  // namespace skein::protocol
