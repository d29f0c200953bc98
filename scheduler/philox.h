// Philox4x32-10 and the acceptance coin: a random number is a function of (seed, position,
// purpose). The same words as the workers' generator, pinned by the same known answers (catalogue
// section 6.2). Usable from any thread.
#pragma once

#include <array>
#include <cstdint>

namespace skein::scheduler {

using PhiloxBlock = std::array<uint32_t, 4>;

inline PhiloxBlock Philox(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * counter[0];
    const uint64_t second = uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(second),
        static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(first)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// The coin that decides the draft of the token at `position`: a multiple of 2^-25 inside (0, 1),
// with 25 significant bits, so that its product with a float is exact in double.
inline double AcceptanceCoin(uint64_t seed, uint32_t position) {
  constexpr uint32_t kPurposeAccept = 2;
  const PhiloxBlock block = Philox({0, 0, position, kPurposeAccept << 24},
                                   static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return (static_cast<double>(block[0] >> 8) + 0.5) * 0x1p-24;
}

}  // namespace skein::scheduler
