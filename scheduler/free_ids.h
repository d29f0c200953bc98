// The free ones of the ids 0 to n-1, handed out lowest first so that equal histories give equal
// plans. Pure, single owner. Constant time for any practical n: one bit per id, one bit per word.
#pragma once

#include <cstdint>
#include <vector>

namespace skein::scheduler {

class FreeIds {
 public:
  FreeIds() : FreeIds(0) {}
  // All of 0 to `count` - 1 are free.
  explicit FreeIds(uint32_t count);

  // The lowest free id, which is free no more. Only while size() > 0.
  uint32_t TakeLowest();
  // Makes `id` free again. A bug if it is free or out of range.
  void Insert(uint32_t id);

  bool Contains(uint32_t id) const;
  uint32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  // levels_[0] has a bit per id, levels_[k + 1] a bit per word of levels_[k] that has a bit set;
  // the last level is one word.
  std::vector<std::vector<uint64_t>> levels_;
  uint32_t count_ = 0;
  uint32_t size_ = 0;
};

}  // namespace skein::scheduler
