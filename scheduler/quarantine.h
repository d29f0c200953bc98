// Prompts that killed their workers, by hash, and until when they are refused. A value: the control
// loop makes a new one for each change and other threads read it. Bounded: beyond `entries_max` the
// one that ends first is dropped. Time comes in as an argument.
// Must never hold tokens: only their hash.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>

namespace skein::scheduler {

// 128 bits over a prompt and the tenant it is refused for.
struct PromptHash {
  uint64_t low = 0;
  uint64_t high = 0;
  friend auto operator<=>(const PromptHash&, const PromptHash&) = default;
};
PromptHash HashPrompt(std::span<const int32_t> tokens, std::string_view tenant);

class Quarantine {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::minutes kPeriod{10};

  explicit Quarantine(size_t entries_max = 1024) : entries_max_(entries_max) {}

  // Refuses the prompt for kPeriod from `now` on.
  void Add(const PromptHash& prompt, Time now);
  // True while the prompt is refused.
  bool Refuses(const PromptHash& prompt, Time now) const;
  size_t size() const { return until_.size(); }

 private:
  size_t entries_max_;
  std::map<PromptHash, Time> until_;
};

}  // namespace skein::scheduler
