// Philox4x32-10, the counter-based generator of every random number in the product: a number is a
// function of (seed, position, purpose, index), never of batch, step or history. Source: catalogue
// section 6.2, where the known answers stand. Usable from any thread.
#pragma once

#include <array>
#include <cstdint>

namespace skein::kernels {

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock Philox(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
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

enum class RandomPurpose : uint32_t {
  kPlain = 1,
  kAccept = 2,
  kResidual = 3,
  kDraft = 4,
  kAux = 5
};

// Block `index` of the stream of (seed, position, purpose); `extension` 0: high words, 1: low
// words.
constexpr PhiloxBlock RandomBlock(uint64_t seed, uint32_t position, RandomPurpose purpose,
                               uint32_t index, uint32_t extension) {
  return Philox({index, extension, position, static_cast<uint32_t>(purpose) << 24},
                static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

}  // namespace skein::kernels
