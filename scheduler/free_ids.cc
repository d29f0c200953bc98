#include "scheduler/free_ids.h"

#include <bit>

#include "protocol/base/log.h"

namespace skein::scheduler {
namespace {

constexpr uint32_t kWordBits = 64;

// `bits` set bits in words.
std::vector<uint64_t> SetBits(uint32_t bits) {
  std::vector<uint64_t> words((bits + kWordBits - 1) / kWordBits, ~uint64_t{0});
  if (bits % kWordBits != 0) words.back() = (uint64_t{1} << (bits % kWordBits)) - 1;
  return words;
}

}  // namespace

FreeIds::FreeIds(uint32_t count) : count_(count), size_(count) {
  uint32_t bits = count;
  do {
    levels_.push_back(SetBits(bits));
    bits = static_cast<uint32_t>(levels_.back().size());
  } while (bits > 1);
}

uint32_t FreeIds::TakeLowest() {
  SKEIN_CHECK(size_ > 0) << "no id of " << count_ << " is free";
  uint32_t at = 0;
  for (size_t level = levels_.size(); level-- > 0;) {
    at = at * kWordBits + static_cast<uint32_t>(std::countr_zero(levels_[level][at]));
  }
  uint32_t bit = at;
  for (std::vector<uint64_t>& words : levels_) {
    uint64_t& word = words[bit / kWordBits];
    word &= ~(uint64_t{1} << (bit % kWordBits));
    if (word != 0) break;
    bit /= kWordBits;
  }
  --size_;
  return at;
}

void FreeIds::Insert(uint32_t id) {
  SKEIN_CHECK(id < count_ && !Contains(id)) << "id " << id << " of " << count_ << " is freed twice";
  uint32_t bit = id;
  for (std::vector<uint64_t>& words : levels_) {
    uint64_t& word = words[bit / kWordBits];
    const bool was_empty = word == 0;
    word |= uint64_t{1} << (bit % kWordBits);
    if (!was_empty) break;
    bit /= kWordBits;
  }
  ++size_;
}

bool FreeIds::Contains(uint32_t id) const {
  return id < count_ && (levels_[0][id / kWordBits] >> (id % kWordBits) & 1) != 0;
}

}  // namespace skein::scheduler
