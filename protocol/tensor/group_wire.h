// What ranks of a group on different hosts say to each other: a message for each collective and
// host, which has what the rank writes there, and what it announces. Pure values and functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "protocol/tensor/group_memory.h"

namespace skein::protocol {

// "SKG1" in memory; rises with any change of the header or of what stands behind it.
inline constexpr uint32_t kGroupMagic = 0x31474B53;

enum class GroupWord : uint32_t {
  kHello = 1,    // the first one of who made the connection: the name of the communicator follows
  kWelcome = 2,  // the answer to it: the group is known there; before it nothing else is said
  kMeet = 3,     // a rank comes to a collective; its writes follow
  kLeave = 4,    // the last one of each side: the group is over, and by whom; the reason follows
};

// In front of every message. Both sides have the byte order of x86-64; the magic says so.
struct GroupHeader {
  uint32_t magic = kGroupMagic;
  GroupWord kind = GroupWord::kMeet;
  uint64_t epoch = 0;
  uint32_t rank = 0;          // whose word it is
  uint32_t ranks = 0;         // of the group
  uint64_t done = 0;          // kLeave: collectives that all announced before
  uint64_t by = 0;            // kLeave: the rank that ended the group
  uint64_t writes = 0;        // kMeet: entries of the table at the end
  uint64_t bytes = 0;         // behind the header: data, then the table
  Announcement announcement;  // kMeet
  uint32_t crc = 0;           // of the header, with zero here, and of what is behind it
  uint32_t unused = 0;
};
static_assert(sizeof(GroupHeader) == 144);

// An entry of the table: so many of the next bytes go into the window of a rank.
struct WindowWrite {
  uint32_t window = 0;
  uint32_t unused = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Nothing if it is no header of ours.
std::optional<GroupHeader> ReadGroupHeader(std::span<const std::byte> bytes);
uint32_t GroupCrc(GroupHeader header, std::span<const std::byte> payload);

// Collects the writes of one message. Its memory is as large as the largest, from the start.
class WriteBatch {
 public:
  WriteBatch(size_t data_bytes_max, size_t writes_max);

  void Clear();
  // ResourceExhausted: no room. Writes that continue the last one are one entry with it.
  absl::Status Add(int window, size_t offset, std::span<const std::byte> bytes);
  size_t writes() const { return table_.size(); }
  // Data and table, as they are sent.
  std::span<const std::byte> Seal();

 private:
  const size_t data_bytes_max_;
  const size_t writes_max_;
  std::unique_ptr<std::byte[]> bytes_;
  size_t data_bytes_ = 0;
  std::vector<WindowWrite> table_;
};

// Gives each write of a message to `apply`, in order. InvalidArgument: table and data do not go
// together; else the first error of `apply`.
absl::Status ForEachWrite(
    const GroupHeader& header, std::span<const std::byte> payload,
    const std::function<absl::Status(const WindowWrite&, std::span<const std::byte>)>& apply);

}  // namespace skein::protocol
