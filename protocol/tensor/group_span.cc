#include "protocol/tensor/group_span.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <unistd.h>

#include "protocol/base/log.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"
#include "protocol/tensor/block_wire.h"

namespace skein::protocol {
namespace {

// Pieces that a rank puts for one other rank in a collective: as many as rows of 64 bytes fill its
// window, and some more.
size_t PiecesMax(size_t capacity) { return capacity / 64 + 64; }

// Of the ranks of a host, the one that takes what `rank` says.
int ReceiverOf(const std::vector<int>& ranks, int rank) {
  return ranks[static_cast<size_t>(rank) % ranks.size()];
}

}  // namespace

// ---- seat

GroupSeat::~GroupSeat() { ::close(abort_fd_); }

void GroupSeat::Abort(std::string_view reason) {
  if (abort_begun_.exchange(true)) return;
  reason_ = std::string(reason);
  aborted_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(abort_fd_, &one, sizeof one);
  if (memory() != nullptr) EndMemory();
}

void GroupSeat::SetMemory(std::unique_ptr<GroupMemory> memory) {
  owned_ = std::move(memory);
  memory_ = owned_.get();
  if (aborted_) EndMemory();
}

// Once: by Abort, or by SetMemory where Abort came before there was memory.
void GroupSeat::EndMemory() {
  if (!told_.exchange(true)) memory()->End({rank_, reason_, done_});
}

std::string GroupSeat::Name(uint64_t number) const {
  return Concat(label_, ": collective ", number);
}

absl::Status GroupSeat::AbortedStatus(uint64_t number) const {
  const GroupMemory* shared = memory();
  const std::optional<GroupMemory::Ending> ending =
      shared == nullptr ? std::nullopt : shared->ending();
  const int by = ending ? ending->by : rank_;
  return absl::AbortedError(
      Concat(Name(number), ": aborted by rank ", by, ": ", ending ? ending->reason : reason_));
}

// ---- span

GroupSpan::GroupSpan(GroupSpanOptions options, std::shared_ptr<GroupSeat> seat)
    : options_(std::move(options)), seat_(std::move(seat)) {}

absl::StatusOr<std::shared_ptr<GroupSpan>> GroupSpan::Create(GroupSpanOptions options,
                                                             std::shared_ptr<GroupSeat> seat) {
  std::shared_ptr<GroupSpan> span(new GroupSpan(std::move(options), std::move(seat)));
  SKEIN_RETURN_IF_ERROR(span->LayPeers(span->LayHosts()));
  return span;
}

// Who is where; the ranks of this host.
std::vector<int> GroupSpan::LayHosts() {
  const std::vector<RankPlace>& places = options_.places;
  const std::string& own = places[static_cast<size_t>(options_.rank)].host;
  std::vector<std::string> names;
  std::vector<int> local;
  for (int rank = 0; rank < static_cast<int>(places.size()); ++rank) {
    const std::string& name = places[static_cast<size_t>(rank)].host;
    if (name == own) {
      local.push_back(rank);
      host_of_.push_back(-1);
      continue;
    }
    const auto found = std::find(names.begin(), names.end(), name);
    host_of_.push_back(static_cast<int>(found - names.begin()));
    if (found == names.end()) {
      names.push_back(name);
      hosts_.emplace_back();
    }
    hosts_[static_cast<size_t>(host_of_.back())].ranks.push_back(rank);
  }
  const size_t pieces = PiecesMax(options_.capacity);
  for (Host& host : hosts_) {
    host.receiver = ReceiverOf(host.ranks, options_.rank);
    for (auto& batch : host.batches) {
      batch = std::make_unique<WriteBatch>(host.ranks.size() * options_.capacity,
                                           host.ranks.size() * pieces);
    }
  }
  bytes_max_ = local.size() * (options_.capacity + pieces * sizeof(WindowWrite));
  return local;
}

// Who speaks to whom: one connection for two ranks, whichever of them speak.
absl::Status GroupSpan::LayPeers(const std::vector<int>& local) {
  for (int rank = 0; rank < static_cast<int>(options_.places.size()); ++rank) {
    if (here(rank)) continue;
    const Host& host = hosts_[static_cast<size_t>(host_of_[static_cast<size_t>(rank)])];
    Peer peer;
    peer.rank = rank;
    peer.is_called = options_.rank < rank;
    peer.host = host.receiver == rank ? &host : nullptr;
    peer.is_source = ReceiverOf(local, rank) == options_.rank;
    if (peer.host == nullptr && !peer.is_source) continue;
    const auto at = ParseBlockAddress(address(rank));
    if (!at.ok() || at->sin_port == 0) {
      return absl::InvalidArgumentError(
          Concat("rank ", rank, " is on another host and has the address \"", address(rank),
                 "\"; give its worker transport.group_address"));
    }
    peer.address = *at;
    peers_.push_back(peer);
  }
  return absl::OkStatus();
}

WriteBatch* GroupSpan::Batch(Host& host, uint64_t number) {
  WriteBatch& batch = *host.batches[number % 2];
  if (host.numbers[number % 2] == number) return &batch;
  // All ranks have what was here, since they have come to the collective behind it; the thread that
  // sent it may not have said so yet.
  while (host.taken->load(std::memory_order_acquire) + 2 < number) {
    if (seat_->over()) return nullptr;
    std::this_thread::yield();
  }
  batch.Clear();
  host.numbers[number % 2] = number;
  return &batch;
}

absl::Status GroupSpan::Put(uint64_t number, int to, size_t offset,
                            std::span<const std::byte> bytes) {
  Host& host = hosts_[static_cast<size_t>(host_of_[static_cast<size_t>(to)])];
  WriteBatch* batch = Batch(host, number);
  return batch == nullptr ? seat_->AbortedStatus(number) : batch->Add(to, offset, bytes);
}

absl::Status GroupSpan::Give(uint64_t number, size_t offset, std::span<const std::byte> bytes) {
  for (Host& host : hosts_) {
    WriteBatch* batch = Batch(host, number);
    if (batch == nullptr) return seat_->AbortedStatus(number);
    SKEIN_RETURN_IF_ERROR(batch->Add(options_.rank, offset, bytes));
  }
  return absl::OkStatus();
}

void GroupSpan::Announce(const Announcement& announcement) {
  const uint64_t number = announcement.number;
  for (Host& host : hosts_) {
    WriteBatch* batch = Batch(host, number);
    if (batch == nullptr) return;
    host.payloads[number % 2] = batch->Seal();
    GroupHeader& header = host.headers[number % 2];
    header = {};
    header.epoch = options_.epoch;
    header.rank = static_cast<uint32_t>(options_.rank);
    header.ranks = static_cast<uint32_t>(options_.places.size());
    header.writes = batch->writes();
    header.bytes = host.payloads[number % 2].size();
    header.announcement = announcement;
    header.crc = GroupCrc(header, host.payloads[number % 2]);
  }
  announced_.store(number, std::memory_order_release);
}

absl::Status GroupSpan::Apply(const GroupHeader& header, std::span<const std::byte> payload) {
  if (GroupCrc(header, payload) != header.crc) {
    return absl::DataLossError(
        Concat("its message of collective ", header.announcement.number, " has a wrong checksum"));
  }
  SKEIN_RETURN_IF_ERROR(ForEachWrite(
      header, payload, [&](const WindowWrite& write, std::span<const std::byte> bytes) {
        return ApplyWrite(header, write, bytes);
      }));
  seat_->memory()->Announce(static_cast<int>(header.rank), header.announcement);
  return absl::OkStatus();
}

absl::Status GroupSpan::ApplyWrite(const GroupHeader& header, const WindowWrite& write,
                                   std::span<const std::byte> bytes) {
  const bool gathers = header.announcement.kind == CollectiveKind::kGather;
  const bool known = write.window < options_.places.size();
  const bool allowed =
      known && (gathers ? write.window == header.rank : here(static_cast<int>(write.window)));
  if (!allowed || write.offset > options_.capacity ||
      bytes.size() > options_.capacity - write.offset) {
    return absl::InvalidArgumentError(Concat("it writes ", bytes.size(), " bytes at ", write.offset,
                                             " of the window of rank ", write.window));
  }
  std::byte* window =
      seat_->memory()->window(static_cast<int>(write.window), header.announcement.number);
  std::copy(bytes.begin(), bytes.end(), window + write.offset);
  return absl::OkStatus();
}

}  // namespace skein::protocol
