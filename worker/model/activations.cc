#include "worker/model/activations.h"

#include <cstdint>

namespace skein::worker {

void* Arena::Bytes(size_t bytes) {
  constexpr size_t kAlignment = 64;
  blocks_.push_back(std::make_unique<std::byte[]>(bytes + kAlignment));
  total_ += bytes;
  const auto base = reinterpret_cast<uintptr_t>(blocks_.back().get());
  return reinterpret_cast<void*>((base + kAlignment - 1) / kAlignment * kAlignment);
}

}  // namespace skein::worker
