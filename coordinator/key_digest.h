// HMAC-SHA-256 of secrets, their comparison and new ones.
// Thread: any; functions of plain values.
// Must never: take longer or shorter for one secret than for another of its length.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace skein::coordinator {

using KeyDigest = std::array<uint8_t, 32>;

// Of `text` under `key` (RFC 2104 with SHA-256).
KeyDigest HmacSha256(std::string_view key, std::string_view text);

// True when all bytes are equal; the time does not depend on where they differ.
bool SameDigest(const KeyDigest& a, const KeyDigest& b);

// 256 random bits.
KeyDigest RandomDigest();

// 64 lower-case hexadecimal digits, and back; nothing when it is anything else.
std::string ToHex(const KeyDigest& digest);
std::optional<KeyDigest> FromHex(std::string_view text);

// The digest as bytes of a string.
inline std::string_view BytesOf(const KeyDigest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace skein::coordinator
