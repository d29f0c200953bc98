// What the two sides of a block transfer say to each other, and where they find each other.
// Pure values and functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <netinet/in.h>

#include "absl/status/statusor.h"

namespace skein::protocol {

// "SKB1" in memory; rises with any change of the header or of what stands behind it.
inline constexpr uint32_t kBlockMagic = 0x31424B53;

enum class BlockWord : uint32_t {
  kAsk = 1,      // the fetcher's first one
  kPiece = 2,    // bytes of a piece follow
  kRefused = 3,  // by the lender; its reason follows
  kTaken = 4,    // the fetcher's last one: a status, and its text
};

// In front of every message. Both sides have the byte order of x86-64; the magic says so.
struct BlockHeader {
  uint32_t magic = kBlockMagic;
  BlockWord kind = BlockWord::kAsk;
  uint64_t transfer = 0;
  uint64_t number = 0;  // kAsk: pieces; kPiece: which; else the code of a status
  uint64_t bytes = 0;   // kAsk: of all pieces; kPiece: of this one
  uint64_t crc = 0;     // kPiece
};
static_assert(sizeof(BlockHeader) == 40);

// "10.0.0.1:4000", or without a port. InvalidArgument: it is neither.
absl::StatusOr<sockaddr_in> ParseBlockAddress(std::string_view text);
std::string BlockAddressText(const sockaddr_in& address);

}  // namespace skein::protocol
