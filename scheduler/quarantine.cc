#include "scheduler/quarantine.h"

#include <algorithm>

namespace skein::scheduler {
namespace {

uint64_t Mix(uint64_t hash, uint64_t value, uint64_t multiplier) {
  hash = (hash ^ value) * multiplier;
  return hash ^ (hash >> 32);
}

}  // namespace

PromptHash HashPrompt(std::span<const int32_t> tokens, std::string_view tenant) {
  PromptHash hash{tokens.size(), ~uint64_t{tenant.size()}};
  const auto add = [&hash](uint64_t value) {
    hash.low = Mix(hash.low, value, 0x9E3779B97F4A7C15u);
    hash.high = Mix(hash.high, value, 0xD6E8FEB86659FD93u);
  };
  for (const char byte : tenant) add(static_cast<unsigned char>(byte));
  for (const int32_t token : tokens) add(static_cast<uint32_t>(token));
  return hash;
}

void Quarantine::Add(const PromptHash& prompt, Time now) {
  std::erase_if(until_, [now](const auto& entry) { return entry.second <= now; });
  until_[prompt] = now + kPeriod;
  if (until_.size() <= entries_max_) return;
  until_.erase(std::min_element(until_.begin(), until_.end(),
                                [](const auto& a, const auto& b) { return a.second < b.second; }));
}

bool Quarantine::Refuses(const PromptHash& prompt, Time now) const {
  const auto found = until_.find(prompt);
  return found != until_.end() && now < found->second;
}

}  // namespace skein::scheduler
