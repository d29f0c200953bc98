// Rare states that a batch of runs must have reached: a simulation that never gets there proves
// nothing about them. Counted by run.
// Values; one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace skein::tests {

enum class Mark : uint8_t { kAnswered, kCount };

inline constexpr size_t kNumMarks = static_cast<size_t>(Mark::kCount);

std::string_view NameOf(Mark mark);

class Marks {
 public:
  void Reach(Mark mark) { ++counts_[static_cast<size_t>(mark)]; }
  void ReachIf(bool reached, Mark mark) {
    if (reached) Reach(mark);
  }
  uint64_t count(size_t mark) const { return counts_[mark]; }
  void Add(const Marks& other) {
    for (size_t i = 0; i < kNumMarks; ++i) counts_[i] += other.counts_[i];
  }

 private:
  std::array<uint64_t, kNumMarks> counts_{};
};

}  // namespace skein::tests
