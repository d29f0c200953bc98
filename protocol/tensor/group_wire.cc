#include "protocol/tensor/group_wire.h"

#include <algorithm>
#include <cstring>

#include "protocol/base/crc32c.h"
#include "protocol/base/status_macros.h"
#include "protocol/base/strings.h"

namespace skein::protocol {

std::optional<GroupHeader> ReadGroupHeader(std::span<const std::byte> bytes) {
  GroupHeader header;
  if (bytes.size() != sizeof(header)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kGroupMagic) return std::nullopt;
  return header;
}

uint32_t GroupCrc(GroupHeader header, std::span<const std::byte> payload) {
  header.crc = 0;
  return Crc32c(Crc32c(0, std::as_bytes(std::span(&header, 1))), payload);
}

WriteBatch::WriteBatch(size_t data_bytes_max, size_t writes_max)
    : data_bytes_max_(data_bytes_max),
      writes_max_(writes_max),
      // Not touched before it is used.
      bytes_(std::make_unique_for_overwrite<std::byte[]>(data_bytes_max +
                                                         writes_max * sizeof(WindowWrite))) {
  table_.reserve(writes_max);
}

void WriteBatch::Clear() {
  data_bytes_ = 0;
  table_.clear();
}

absl::Status WriteBatch::Add(int window, size_t offset, std::span<const std::byte> bytes) {
  if (bytes.empty()) return absl::OkStatus();
  const auto to = static_cast<uint32_t>(window);
  const bool continues = !table_.empty() && table_.back().window == to &&
                         table_.back().offset + table_.back().bytes == offset;
  if (bytes.size() > data_bytes_max_ - data_bytes_ ||
      (!continues && table_.size() == writes_max_)) {
    return absl::ResourceExhaustedError(
        Concat(table_.size(), " pieces of ", data_bytes_, " bytes and one of ", bytes.size(),
               " are put; at most ", writes_max_, " of ", data_bytes_max_));
  }
  std::copy(bytes.begin(), bytes.end(), bytes_.get() + data_bytes_);
  data_bytes_ += bytes.size();
  if (continues) {
    table_.back().bytes += bytes.size();
  } else {
    table_.push_back({to, 0, offset, bytes.size()});
  }
  return absl::OkStatus();
}

std::span<const std::byte> WriteBatch::Seal() {
  const auto table = std::as_bytes(std::span(table_));
  std::copy(table.begin(), table.end(), bytes_.get() + data_bytes_);
  return {bytes_.get(), data_bytes_ + table.size()};
}

absl::Status ForEachWrite(
    const GroupHeader& header, std::span<const std::byte> payload,
    const std::function<absl::Status(const WindowWrite&, std::span<const std::byte>)>& apply) {
  if (header.writes > payload.size() / sizeof(WindowWrite)) {
    return absl::InvalidArgumentError(
        Concat(header.writes, " writes do not fit into ", payload.size(), " bytes"));
  }
  const size_t table = payload.size() - header.writes * sizeof(WindowWrite);
  size_t data = 0;
  for (size_t i = 0; i < header.writes; ++i) {
    WindowWrite write;
    std::memcpy(&write, payload.data() + table + i * sizeof(write), sizeof(write));
    if (write.bytes > table - data) break;
    SKEIN_RETURN_IF_ERROR(apply(write, payload.subspan(data, write.bytes)));
    data += write.bytes;
  }
  if (data == table) return absl::OkStatus();
  return absl::InvalidArgumentError(
      Concat("the writes have ", data, " of ", table, " bytes of data"));
}

}  // namespace skein::protocol
