// What ranks of a group do in tests, and what they must get: every value says whose it is and of
// which collective. Pure; a rank's thread. Must never wait for longer than half a minute.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <poll.h>

#include "protocol/base/clock.h"
#include "protocol/base/strings.h"
#include "protocol/tensor/collective_group.h"

namespace skein::tests {

using protocol::CollectiveGroup;
using protocol::Concat;
using protocol::GatherPart;

inline absl::Time Soon() { return protocol::MonotonicNow() + absl::Seconds(30); }

// What a rank does; what was wrong, or nothing.
using RankBody = std::function<std::string(CollectiveGroup&)>;

// Byte `at` of what rank `rank` gives in collective `number`.
inline std::byte Value(int rank, uint64_t number, size_t at) {
  return static_cast<std::byte>((static_cast<size_t>(rank) * 31 + number * 7 + at * 13) % 251);
}

inline std::vector<std::byte> Values(int rank, uint64_t number, size_t count) {
  std::vector<std::byte> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = Value(rank, number, i);
  return out;
}

inline std::string GatherOnce(CollectiveGroup& group, uint64_t number, size_t bytes) {
  const auto ranks = static_cast<size_t>(group.size());
  const std::vector<std::byte> mine = Values(group.rank(), number, bytes);
  std::vector<std::byte> all(ranks * bytes);
  const GatherPart part{mine, all, bytes};
  const absl::Status status = group.AllGather({&part, 1}, Soon());
  if (!status.ok()) return std::string(protocol::StatusText(status));
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto want = Values(static_cast<int>(rank), number, bytes);
    if (!std::equal(want.begin(), want.end(), all.begin() + static_cast<ptrdiff_t>(rank * bytes))) {
      return Concat("gather ", number, " of ", bytes, " bytes: what rank ", rank, " gave is wrong");
    }
  }
  return "";
}

// Every rank puts a piece for every rank; pieces of a rank lie one after the other.
inline std::string ExchangeOnce(CollectiveGroup& group, uint64_t number, size_t piece) {
  const auto ranks = static_cast<size_t>(group.size());
  const auto own = static_cast<size_t>(group.rank());
  for (size_t to = 0; to < ranks; ++to) {
    const auto bytes = Values(group.rank(), number + to, piece);
    const absl::Status status = group.Put(static_cast<int>(to), own * piece, bytes);
    if (!status.ok()) return std::string(protocol::StatusText(status));
  }
  std::vector<std::byte> mine(ranks * piece);
  const absl::Status status = group.Collect(mine, Soon());
  if (!status.ok()) return std::string(protocol::StatusText(status));
  for (size_t from = 0; from < ranks; ++from) {
    const auto want = Values(static_cast<int>(from), number + own, piece);
    if (!std::equal(want.begin(), want.end(),
                    mine.begin() + static_cast<ptrdiff_t>(from * piece))) {
      return Concat("exchange ", number, ": what rank ", from, " put is wrong");
    }
  }
  return "";
}

inline RankBody EverySizeUpTo(size_t capacity) {
  return [capacity](CollectiveGroup& group) -> std::string {
    for (const size_t bytes :
         {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{1001}, capacity / 3, capacity}) {
      if (std::string wrong = GatherOnce(group, bytes, bytes); !wrong.empty()) return wrong;
      const size_t piece = bytes / static_cast<size_t>(group.size());
      if (std::string wrong = ExchangeOnce(group, bytes, piece); !wrong.empty()) return wrong;
    }
    return "";
  };
}

// No window is written while a slow rank still reads it.
inline std::string ManyInARow(CollectiveGroup& group) {
  for (uint64_t number = 0; number < 1500; ++number) {
    const size_t bytes = 1 + (number * 37) % 700;
    // Each rank is slow in its turn.
    if (number % 97 == static_cast<uint64_t>(group.rank())) ::poll(nullptr, 0, 1);
    const std::string wrong =
        number % 3 == 2 ? ExchangeOnce(group, number, bytes) : GatherOnce(group, number, bytes);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace skein::tests
