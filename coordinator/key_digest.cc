// Thread: any.
// Must never: write a secret anywhere.
#include "coordinator/key_digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "protocol/base/log.h"

namespace skein::coordinator {

KeyDigest HmacSha256(std::string_view key, std::string_view text) {
  KeyDigest digest{};
  unsigned size = 0;
  const unsigned char* done = ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                     reinterpret_cast<const unsigned char*>(text.data()),
                                     text.size(), digest.data(), &size);
  SKEIN_CHECK(done != nullptr && size == digest.size()) << "libcrypto computes no HMAC";
  return digest;
}

bool SameDigest(const KeyDigest& a, const KeyDigest& b) {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

KeyDigest RandomDigest() {
  KeyDigest digest{};
  SKEIN_CHECK(::RAND_bytes(digest.data(), static_cast<int>(digest.size())) == 1)
      << "libcrypto has no random numbers";
  return digest;
}

std::string ToHex(const KeyDigest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::optional<KeyDigest> FromHex(std::string_view text) {
  KeyDigest digest{};
  if (text.size() != 2 * digest.size()) return std::nullopt;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    int value = -1;
    if (c >= '0' && c <= '9') value = c - '0';
    if (c >= 'a' && c <= 'f') value = c - 'a' + 10;
    if (value < 0) return std::nullopt;
    digest[i / 2] = static_cast<uint8_t>(digest[i / 2] << 4 | value);
  }
  return digest;
}

}  // namespace skein::coordinator
